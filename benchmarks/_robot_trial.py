"""What becomes of one robot description: does MuJoCo open it, does flexor, why not, and do the two agree?"""

import re
import time
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jax
import mujoco
import numpy as np
from _robot_files import RobotFile

import flexor as fx
from flexor.dynamics import bias_force, crba, forward_kinematics
from flexor.model.meshes import find_mesh

jax.config.update("jax_enable_x64", True)
mujoco.set_mju_user_warning(lambda message: None)  # the default writes a log file into the working directory

STATES = 4
QUANTITIES = ("M", "bias", "acceleration")
EPS = float(np.finfo(float).eps)
DEAD = 1e-10  # share of the largest entry of M below which the inertia of a degree of freedom is none
# XLA's newer fusion compiler takes some 15 s for each of these programs, the older one 2 s.
FAST_COMPILE = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}


def trial(task: tuple[RobotFile, bool]) -> dict[str, Any]:
    """Opens a description in MuJoCo and in flexor; where both do and it is asked for, compares their dynamics."""
    robot, compare = task
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            oracle = _mujoco_urdf(robot.path) if robot.kind == "URDF" else mujoco.MjModel.from_xml_path(robot.path)
        except (ValueError, mujoco.FatalError, ET.ParseError) as error:
            oracle = None
            reason = "MuJoCo does not open it: " + " ".join(str(error).split())
        if robot.kind == "MJCF" and oracle is None:
            return {"skipped": reason}
        if robot.kind == "URDF":
            unfit = unfit_urdf(robot.path)
            if unfit:
                return {"skipped": unfit}
        start = time.perf_counter()
        model, refusals = opened(robot.path)
        found: dict[str, Any] = {"refusals": refusals, "seconds": time.perf_counter() - start}
        if model is None or refusals:
            return found
        if robot.kind == "URDF" and _collides(robot.path):
            found["ground"] = opened(robot.path, ground=True)[1]
        if compare:
            found |= {"note": reason} if oracle is None else agreement(model, oracle)
            jax.clear_caches()
        return found


def unfit_urdf(path: str) -> str:
    """Why a URDF file is no robot that anybody could open; empty where it is one."""
    try:
        robot = _robot(path)
    except ET.ParseError as error:
        return f"its XML is broken: {error}"
    if any("xacro" in e.tag for e in robot.iter()):
        return "it is a xacro file"
    if robot.find("link") is None:
        return "it has no link"
    lost = missing_meshes(path)
    return f"its meshes are not there, such as {lost[0]}" if lost else ""


def opened(path: str, **options: Any) -> tuple[fx.Model | None, dict[str, str]]:
    """The model, and all refusals by kind, each with its first sentence: what is refused is ignored one after the other."""
    refusals: dict[str, str] = {}
    while True:
        try:
            return fx.load(path, ignore=list(refusals), **options), refusals
        except (ValueError, TypeError, KeyError, IndexError, ZeroDivisionError, RecursionError) as error:
            sentence = " ".join(str(error).split())
            advice = re.search(r'ignore=\["([\w-]+)"\]', sentence)
            if advice is None or advice[1] in refusals:
                return None, refusals | {_essence(error, sentence): sentence}
            refusals[advice[1]] = sentence


def _essence(error: Exception, sentence: str) -> str:
    """A sentence without names and numbers, so that files which fail for the same reason are counted together."""
    if not isinstance(error, fx.DescriptionError):
        return f"{type(error).__name__}: {sentence[:60]}"
    words = re.sub(r"'[^']*'", "'…'", sentence.split(": ", 1)[-1])
    return re.sub(r"[-+]?\d+\.?\d*(e[-+]?\d+)?", "…", words)[:90]


def _robot(path: str) -> ET.Element:
    return ET.fromstring(Path(path).read_bytes().lstrip())


def _mujoco_urdf(path: str) -> mujoco.MjModel:
    """MuJoCo's model of a URDF without its shapes, which it would look for by rules of its own. Inertias that no body can have
    raise: MuJoCo would change them."""
    robot = _robot(path)
    for link in robot.findall("link"):
        for shape in (*link.findall("visual"), *link.findall("collision")):
            link.remove(shape)
    for own in robot.findall("mujoco"):
        robot.remove(own)
    ET.SubElement(ET.SubElement(robot, "mujoco"), "compiler", fusestatic="false")
    return mujoco.MjModel.from_xml_string(ET.tostring(robot, encoding="unicode"))


def missing_meshes(path: str) -> list[str]:
    """Meshes of the collision shapes of a URDF that are not on this machine."""
    names = {m.get("filename", "") for c in _robot(path).iter("collision") for m in c.iter("mesh")}
    return sorted(n for n in names if find_mesh(n, Path(path).resolve().parent)[0] is None)


def _collides(path: str) -> bool:
    return next(_robot(path).iter("collision"), None) is not None


def agreement(model: fx.Model, m: mujoco.MjModel) -> dict[str, Any]:
    """Relative differences of M, bias and unconstrained acceleration at random states, and a note where they cannot be had.

    M_ij is relative to sqrt(M_ii M_jj), the bias and the accelerations, times sqrt(M_ii), to their largest entry, or to what
    velocities alone contribute, |M| qd^2 and sqrt(|M|) qd^2, where that is larger. Two
    backward-stable solutions of M a = f differ by about eps kappa (see `accuracy.py`); where that is large, so is the scale, and
    where M is singular accelerations are not compared.
    """
    if model.nv == 0:
        return {"note": "no degree of freedom"}
    if (model.nv, model.nq) != (m.nv, m.nq):
        return {"note": f"MuJoCo counts {m.nv} degrees of freedom, flexor {model.nv}"}
    rng = np.random.default_rng(0)
    states = [_random_state(m, model.nu, rng) for _ in range(STATES)]
    wanted = [_mujoco_dynamics(m, *s) for s in states]
    solver = fx.RigidSolver(contact=None)

    def dynamics(model: fx.Model, q: jax.Array, qd: jax.Array, u: jax.Array) -> tuple[jax.Array, ...]:
        kin = forward_kinematics(model, q)
        return crba(model, kin), bias_force(model, kin, qd), solver.acceleration(model, q, qd, fx.Control(u))

    program = jax.jit(jax.vmap(dynamics, (None, 0, 0, 0)), compiler_options=FAST_COMPILE)
    found = [np.asarray(x) for x in program(model, *(np.array(x) for x in zip(*states, strict=True)))]
    M, bias, acceleration = (np.array(x) for x in zip(*wanted, strict=True))
    scale = np.sqrt(np.abs(np.einsum("kii->ki", M)))
    scale = np.maximum(scale, np.sqrt(DEAD) * scale.max(axis=1, keepdims=True))
    unit = scale[:, :, None] * scale[:, None, :]
    rate = float(max(np.max(s[1] ** 2) for s in states))  # accelerations of this size come in and may cancel
    least = rate * float(np.max(np.abs(M)))
    errors = {"M": float(np.max(np.abs(found[0] - M) / unit)), "bias": _relative(found[1], bias, least)}
    kappa = float(np.max(np.linalg.cond(M / unit)))
    if kappa * EPS > 1:  # joints that all move alike: M is singular, and no acceleration follows from it
        return {"errors": errors | {"acceleration": 0.0}, "note": "M is singular"}
    tolerance = max(1.0, 10 * EPS * kappa / 1e-9)
    errors["acceleration"] = _relative(scale * found[2], scale * acceleration, rate * float(scale.max())) / tolerance
    return {"errors": errors}


def _relative(found: np.ndarray, wanted: np.ndarray, least: float = 0.0) -> float:
    """Largest difference over the largest entry of the reference, or over `least` where that is larger."""
    size = max(float(np.max(np.abs(wanted))), least)
    return float(np.max(np.abs(found - wanted))) / (size or 1.0)


def _random_state(m: mujoco.MjModel, nu: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates about the reference, velocities, and inputs within their ranges; of a URDF, whose motors MuJoCo does not
    have, no inputs."""
    q = m.qpos0.copy()
    mujoco.mj_integratePos(m, q, rng.uniform(-1, 1, m.nv), 1.0)
    qd = rng.normal(size=m.nv)
    if m.nu == 0:
        return q, qd, np.zeros(nu)
    limited = m.actuator_ctrllimited.astype(bool)
    low, high = m.actuator_ctrlrange.T
    return q, qd, rng.uniform(np.where(limited, low, -1), np.where(limited, high, 1))


def _mujoco_dynamics(
    m: mujoco.MjModel, q: np.ndarray, qd: np.ndarray, u: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    d = mujoco.MjData(m)
    d.qpos[:], d.qvel[:] = q, qd
    if m.nu:
        d.ctrl[:] = u
        # what flexor's acceleration takes as input of an actuator with an activation is that activation
        driven = np.flatnonzero(m.actuator_actnum > 0)
        d.act[m.actuator_actadr[driven] + m.actuator_actnum[driven] - 1] = u[m.actuator_ctrladr[driven]]
    mujoco.mj_forward(m, d)
    M = np.zeros((m.nv, m.nv))
    mujoco.mj_fullM(m, d, M)
    return M, d.qfrc_bias.copy(), d.qacc_smooth.copy()
