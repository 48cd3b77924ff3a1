"""The first step of one robot, and a second of its motion beside MuJoCo's, as a user has them: kernels, single precision."""

import os
import time
import warnings
from typing import Any

import jax
import mujoco
import numpy as np
from _robot_files import RobotFile

import flexor as fx

SECONDS = 1.0


def motion_trial(robot: RobotFile) -> dict[str, Any]:
    """Seconds from the file to the first step, whether a second of motion stays finite, and its distance from MuJoCo's."""
    os.environ["FLEXOR_CACHE"] = ""  # no kernel of an earlier run
    jax.config.update("jax_enable_x64", False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        urdf = robot.kind == "URDF"
        m = None if urdf else mujoco.MjModel.from_xml_path(robot.path)
        dt = 0.002 if m is None else float(m.opt.timestep)
        start = time.perf_counter()
        model = fx.load(robot.path)
        sim = fx.Simulator(model, dt=dt)
        state = sim.reset()
        jax.block_until_ready(sim.step(state).q)
        first = time.perf_counter() - start
        steps = max(1, round(SECONDS / dt))
        start = time.perf_counter()
        q = np.asarray(sim.rollout(state, steps=steps).q[-1], float)
        found: dict[str, Any] = {"nv": model.nv, "pairs": len(model.topology.pairs), "first": first}
        found |= {"rollout": time.perf_counter() - start, "finite": bool(np.isfinite(q).all())}
        if m is not None and found["finite"]:
            found["apart"] = _apart(m, q, np.asarray(state.q, float), steps)
        return found


def _apart(m: mujoco.MjModel, q: np.ndarray, start: np.ndarray, steps: int) -> float:
    """Largest distance in m of a body's origin from where MuJoCo has it after the same time."""
    d, ours = mujoco.MjData(m), mujoco.MjData(m)
    d.qpos[:], ours.qpos[:] = start, q
    for _ in range(steps):
        mujoco.mj_step(m, d)
    for data in (d, ours):
        mujoco.mj_kinematics(m, data)
    return float(np.max(np.linalg.norm(d.xpos - ours.xpos, axis=1)))
