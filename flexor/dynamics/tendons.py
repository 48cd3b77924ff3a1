"""Tendons: lengths L(q), their Jacobian, and the inertia that an armature gives them.

A fixed tendon has the length sum of c_j q_j over hinges and slides, which is no length in space: a coupling by a cable, a
differential, a finger's transmission.
"""

import jax
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.kinematics import Kinematics, moved
from flexor.dynamics.recursion import scatter_sum
from flexor.model.model import Model
from flexor.model.topology import INDEX, Topology
from flexor.spatial import matvec, take


def tendon_lengths(model: Model, kin: Kinematics, q: Float[Array, " nq"]) -> Float[Array, " ntendon"]:
    """Length of every tendon at the coordinates q, whose kinematics are `kin`."""
    t = model.topology
    tendon, step, joint = _joint_steps(t)
    return scatter_sum(_numbers(model, tendon, step) * take(q, t.q_start[joint]), tendon, len(t.tendons))


def tendon_jacobian(model: Model, kin: Kinematics) -> Float[Array, "ntendon nv"]:
    """J with dL/dt = J qd; a force f along the tendons is the generalised force J^T f."""
    t = model.topology
    tendon, step, joint = _joint_steps(t)
    place = tendon * t.nv + t.v_start[joint]
    return scatter_sum(_numbers(model, tendon, step), place, len(t.tendons) * t.nv).reshape(len(t.tendons), t.nv)


def tendon_inertia(model: Model, kin: Kinematics) -> Float[Array, "nv nv"]:
    """J^T a J: what the armatures a of the tendons add to the joint-space inertia."""
    rows = model.topology.inertial_tendons
    J = take(tendon_jacobian(model, kin), rows)
    return J.T @ (take(model.tendons.armature, rows)[:, None] * J)


def tendon_inertial_force(
    model: Model, kin: Kinematics, qd: Float[Array, " nv"] | None, qdd: Float[Array, " nv"]
) -> Float[Array, " nv"]:
    """J^T a (J qdd + J' qd): the part of the armatures in inverse dynamics; without qd J^T a J qdd alone."""
    rows = model.topology.inertial_tendons
    J = take(tendon_jacobian(model, kin), rows)
    acceleration = matvec(J, qdd)
    if qd is not None:
        acceleration = acceleration + take(_velocity_product(model, kin, qd), rows)
    return (take(model.tendons.armature, rows) * acceleration) @ J


def _velocity_product(model: Model, kin: Kinematics, qd: Float[Array, " nv"]) -> Float[Array, " ntendon"]:
    """J' qd: the second derivative of the lengths at zero acceleration, along the motion of the frames."""
    rate = moved(model, kin, qd)
    return jax.jvp(lambda k: matvec(tendon_jacobian(model, k), qd), (kin,), (rate,))[1]


def _joint_steps(t: Topology) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tendon, column of the coefficients and joint of every step of the fixed tendons."""
    steps = [(i, k, w.index) for i, tendon in enumerate(t.tendons) if tendon.fixed for k, w in enumerate(tendon.path)]
    tendon, column, joint = np.array(steps, INDEX).reshape(-1, 3).T
    return tendon, column, joint


def _numbers(model: Model, tendon: np.ndarray, column: np.ndarray) -> Array:
    """Entries of the table of coefficients."""
    table = model.tendons.coefficients
    return take(table.reshape(-1), tendon * table.shape[1] + column)
