"""Unexplained energy: the sign of a simulation that diverges, long before its numbers overflow.

Contacts, limits, friction and equalities of rigid bodies never create mechanical energy. Along a trajectory the energy
E = kinetic + gravity + springs may therefore grow by the work of the actuators only,

    E_k - E_0 <= W_k,    W_k the sum of |tau qd| dt over actuated joints and steps, at whichever end of a step it is larger,

but for the error of the time step. What exceeds W_k is compared with the energy that was available,

    S_k = T_0 + W_k + (V_0 - min V) + m g D,

kinetic energy at the start, work, potential energy released so far, and the energy that lifts the robot by its own size D on
Earth, which stands for overlaps and springs at the start. An excess of more than `FACTOR` times S_k is a divergence. All terms
are energies, so that the criterion has no units and does not depend on the robot's size.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from flexor.model.frames import six_matrix
from flexor.model.model import Model

FACTOR = 3.0  # a correct simulation stays below 0 up to O(dt); an unstable contact gains hundreds
GRAVITY = 9.81  # m/s^2


@dataclass(frozen=True, eq=False)
class EnergyBudget:
    """The robot of a trajectory if all its energy comes from its actuators, else None: then its energy cannot be checked.

    It is a static part of `Trajectory`, on which no program depends: all budgets are equal.
    """

    model: Model | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EnergyBudget)

    def __hash__(self) -> int:
        return hash(EnergyBudget)

    def first_excess(self, time: np.ndarray, q: np.ndarray, qd: np.ndarray, u: np.ndarray) -> int | None:
        """The first step after which the energy has grown by more than can be explained; None if there is none."""
        if self.model is None or len(time) < 2:
            return None
        kinetic, potential, work, size = _energies(self.model, time, q, qd, u)
        gained = kinetic + potential - (kinetic[0] + potential[0]) - work
        released = potential[0] - np.minimum.accumulate(potential)
        beyond = gained > FACTOR * (kinetic[0] + work + released + size)
        return int(np.argmax(beyond)) if beyond.any() else None


def _energies(
    model: Model, time: np.ndarray, q: np.ndarray, qd: np.ndarray, u: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Kinetic and potential energy at every step, the actuators' work up to it, and the energy of the robot's own size;
    computed by MuJoCo, which needs no compilation."""
    import mujoco

    from flexor.solvers.mujoco import mujoco_model

    m: Any = mujoco_model(_with_possible_inertias(model))
    m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT) | int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    m.opt.enableflags |= int(mujoco.mjtEnableBit.mjENBL_ENERGY)
    m.actuator_delay[:] = 0
    data = mujoco.MjData(m)
    energy, power = np.zeros((len(time), 2)), np.zeros((len(time), 2))
    for k in range(len(time)):
        data.qpos[:], data.qvel[:] = q[k], qd[k]
        for side, step in ((0, k - 1), (1, k)):  # under the inputs of the step that ends here, and of the one that begins
            if 0 <= step < len(u):
                data.ctrl[:] = u[step]
                mujoco.mj_forward(m, data)
                power[k, side] = np.abs(data.qfrc_actuator) @ np.abs(qd[k])
        energy[k] = data.energy
    step_work = np.maximum(power[1:, 0], power[:-1, 1]) * np.diff(time)
    size = float(np.sum(m.body_mass)) * GRAVITY * _diameter(m, data)
    return energy[:, 1], energy[:, 0], np.concatenate([[0.0], np.cumsum(step_work)]), size


def _with_possible_inertias(model: Model) -> Model:
    """The model in a form that MuJoCo accepts: real descriptions have small bodies with impossible moments of inertia. Those
    become balls of the same largest moment; compared with `FACTOR`, the energy hardly changes."""
    inertia, mass = np.array(model.bodies.inertia, float), np.asarray(model.bodies.mass, float)
    for i in range(1, len(inertia)):
        moments = np.linalg.eigvalsh(six_matrix(inertia[i]))
        if mass[i] > 0 and (moments[0] <= 0 or moments[0] + moments[1] < moments[2]):
            ball = max(float(moments[2]), 1e-6 * mass[i])
            inertia[i] = (ball, ball, ball, 0, 0, 0)
    return eqx.tree_at(lambda m: m.bodies.inertia, model, jnp.asarray(inertia, model.dtype))


def _diameter(m: Any, data: Any) -> float:
    """Size of what moves: the span of its centres of mass in the description's drawing, and the largest of its shapes."""
    import mujoco

    mujoco.mj_resetData(m, data)
    mujoco.mj_kinematics(m, data)
    moves = m.body_dofnum[m.body_weldid] > 0
    span = float(np.linalg.norm(np.ptp(data.xipos[moves], axis=0))) if moves.any() else 0.0
    return span + 2 * float(np.max(m.geom_rbound[moves[m.geom_bodyid]], initial=0.0))
