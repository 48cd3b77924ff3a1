"""MuJoCo's accelerations in the limit of hard constraints: the reference for rows without compliance."""

import mujoco
import numpy as np

import flexor as fx
from flexor.solvers.mujoco import mujoco_model


def hard_accelerations(model: fx.Model, q: np.ndarray, qd: np.ndarray, tau: np.ndarray) -> np.ndarray:
    """MuJoCo's impedance d goes to one, where it may not be, so that its accelerations at (1 - d) / d = e, 2 e and 4 e are
    extrapolated to e = 0. The state is on the equalities: no reference acceleration."""
    found = []
    for softness in (2e-4, 4e-4, 8e-4):
        compiled = mujoco_model(model)
        compiled.eq_solimp[:, :2] = 1 / (1 + softness)
        compiled.opt.tolerance, compiled.opt.iterations = 0, 500
        data = mujoco.MjData(compiled)
        data.qpos[:], data.qvel[:], data.qfrc_applied[:] = q, qd, tau
        mujoco.mj_forward(compiled, data)
        found.append(data.qacc.copy())
    first, second = 2 * found[0] - found[1], 2 * found[1] - found[2]
    return (4 * first - second) / 3
