"""Contacts of one MJCF file: distances and normals of flexor's narrow phase beside those that MuJoCo finds at the same states."""

import warnings
from typing import Any

import jax
import mujoco
import numpy as np
from _robot_files import RobotFile
from _robot_trial import FAST_COMPILE

import flexor as fx
from flexor.dynamics import forward_kinematics

SECONDS = (0.0, 0.2, 0.5, 1.0)  # of MuJoCo's own motion, from the reference: states in which things lie on each other
MESH_VERTICES = 64  # corners of a hull; hulls with more are other shapes than MuJoCo's and are not compared
PAIRS = 400  # a model with more pairs takes minutes to compile here


def contact_trial(robot: RobotFile) -> dict[str, Any]:
    """Of every kind of pair, (distance error in m, normal error) of each contact that MuJoCo has; or why there are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m = named_model(robot.path)
        model = fx.load(m, mesh_vertices=MESH_VERTICES)
        if len(model.topology.pairs) > PAIRS:
            return {"note": f"{len(model.topology.pairs)} pairs"}
        states = [s for s in _states(m) if s.ncon]
        if not model.topology.pairs or not states:
            return {"note": "no contact"}
        return {"contacts": compare(m, model, states)}


def named_model(path: str) -> mujoco.MjModel:
    """MuJoCo's model with a name for every geom, and with convex contacts solved to the end."""
    spec = mujoco.MjSpec.from_file(path)
    taken = {g.name for g in spec.geoms}
    for i, geom in enumerate(spec.geoms):
        if not geom.name:
            geom.name = next(n for n in (f"geom{i}{'_' * k}" for k in range(99)) if n not in taken)
    m = spec.compile()
    m.opt.ccd_tolerance, m.opt.ccd_iterations = 1e-10, 200
    return m


def _states(m: mujoco.MjModel) -> list[Any]:
    """Instants of MuJoCo's motion, without those after it diverged; each a copy of the data."""
    d = mujoco.MjData(m)
    found = []
    for until in SECONDS:
        while d.time < until - 1e-9:
            mujoco.mj_step(m, d)
        if not np.isfinite(d.qpos).all() or any(w.number for w in d.warning):
            break
        at = mujoco.MjData(m)
        at.qpos[:], at.mocap_pos[:], at.mocap_quat[:] = d.qpos, d.mocap_pos, d.mocap_quat
        mujoco.mj_forward(m, at)
        found.append(at)
    return found


def compare(m: mujoco.MjModel, model: fx.Model, states: list[Any]) -> dict[str, list[tuple[float, float]]]:
    """Errors by kind of pair. Of each pair that touches, the deepest contact counts: how many more there are is a choice."""
    program = jax.jit(
        jax.vmap(lambda model, q: fx.contact.detect(model, forward_kinematics(model, q)), (None, 0)),
        compiler_options=FAST_COMPILE,
    )
    found = program(model, np.array([s.qpos for s in states]))
    pair = np.asarray(found.pair).reshape(len(states), -1) if np.ndim(found.pair) > 1 else np.asarray(found.pair)[None]
    index = {p.name: i for i, p in enumerate(model.topology.pairs)}
    errors: dict[str, list[tuple[float, float]]] = {}
    for k, d in enumerate(states):
        rows_of = pair[min(k, len(pair) - 1)]
        for (a, b), contact in _deepest(m, d).items():
            i = index.get(f"{a}~{b}", index.get(f"{b}~{a}"))
            if i is None or not _same_shape(model, i):
                continue
            rows = np.flatnonzero(rows_of == i)
            nearest = rows[np.argmin(np.asarray(found.distance)[k, rows])]
            sign = 1 if f"{a}~{b}" in index else -1
            gap = abs(float(found.distance[k, nearest]) - (contact.dist - contact.includemargin))
            turn = float(np.max(np.abs(sign * np.asarray(found.normal)[k, nearest] - contact.frame[:3])))
            errors.setdefault(kind_of(model, i), []).append((gap, turn))
    return errors


def _deepest(m: mujoco.MjModel, d: Any) -> dict[tuple[str, str], Any]:
    found: dict[tuple[str, str], Any] = {}
    for contact in d.contact:
        if min(contact.geom) < 0:
            continue
        ends = m.geom(contact.geom[0]).name, m.geom(contact.geom[1]).name
        if ends not in found or contact.dist < found[ends].dist:
            found[ends] = contact
    return found


def kind_of(model: fx.Model, pair: int) -> str:
    """The two shapes of a pair, as in "sphere-box"."""
    t = model.topology
    return f"{t.geoms[t.pairs[pair].a].shape}-{t.geoms[t.pairs[pair].b].shape}"


def _same_shape(model: fx.Model, pair: int) -> bool:
    """Whether no mesh of the pair may have lost corners."""
    t = model.topology
    return all(t.geoms[g].stop - t.geoms[g].start < MESH_VERTICES for g in (t.pairs[pair].a, t.pairs[pair].b))
