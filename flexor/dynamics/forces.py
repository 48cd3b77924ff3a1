"""Forces that the robot's own parts exert: actuators, springs and dampers, tendons, gravity compensation."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.actuators import pushed
from flexor.dynamics.energy import spring_stretch, tendon_stretch
from flexor.dynamics.kinematics import Kinematics, forward_kinematics
from flexor.dynamics.recursion import scatter_sum
from flexor.dynamics.rnea import from_nodes
from flexor.dynamics.tendons import tendon_jacobian, tendon_lengths
from flexor.model.model import Model
from flexor.spatial import cross, matvec, rotate, take
from flexor.taps import tap


def actuator_force(
    model: Model, q: Float[Array, " nq"], qd: Float[Array, " nv"], u: Float[Array, " nu"], kin: Kinematics | None = None
) -> Float[Array, " nv"]:
    """Generalised force of the actuators at inputs u: gear clip(gain clip(u) + bias . (1, length, velocity)).

    In joints with `actuated_gravcomp` the gravity compensation is part of it. Of an actuator with an activation, u is that
    activation. `kin` is the kinematics at q, if already computed.
    """
    t = model.topology
    total = pushed(model, q, qd, u, kin)
    by_motors = np.array([t.joints[j].actuated_gravcomp for j in t.dof_joint], dtype=bool)
    if t.compensated and by_motors.any():
        total = total + jnp.where(by_motors, gravity_compensation(model, _kinematics(model, q, kin)), 0.0)
    elif t.nu == 0:
        return total
    bounds = take(model.joints.force_range, t.dof_joint)
    return jnp.clip(total, bounds[:, 0], bounds[:, 1])


def passive_force(
    model: Model, q: Float[Array, " nq"], qd: Float[Array, " nv"], kin: Kinematics | None = None
) -> Float[Array, " nv"]:
    """-k (q - rest) - d qd of every joint, J^T f of the tendons' forces, and the gravity compensation that the actuators do
    not provide. `kin` is the kinematics at q, if already computed."""
    t = model.topology
    joint = t.dof_joint
    force = -take(model.joints.stiffness, joint) * spring_stretch(model, q) - take(model.joints.damping, joint) * qd
    if t.tendons:
        kin = _kinematics(model, q, kin)
        J = tendon_jacobian(model, kin)
        length, velocity = tap("tendon.length", tendon_lengths(model, kin, q)), tap("tendon.velocity", matvec(J, qd))
        force = force + tap("tendon.force", tendon_force(model, length, velocity)) @ J
    if not t.compensated:
        return force
    by_motors = np.array([t.joints[j].actuated_gravcomp for j in joint], dtype=bool)
    return force + jnp.where(by_motors, 0.0, gravity_compensation(model, _kinematics(model, q, kin)))


def tendon_force(
    model: Model, length: Float[Array, " ntendon"], velocity: Float[Array, " ntendon"]
) -> Float[Array, " ntendon"]:
    """-k s - d L' of every tendon, s the length beyond its slack range; a force that shortens the tendon is negative."""
    return -model.tendons.stiffness * tendon_stretch(model, length) - model.tendons.damping * velocity


def _kinematics(model: Model, q: Array, kin: Kinematics | None) -> Kinematics:
    return forward_kinematics(model, q) if kin is None else kin


def gravity_compensation(model: Model, kin: Kinematics) -> Float[Array, " nv"]:
    """Sum of J_c^T (-gravcomp m g) over the bodies with gravity compensation, J_c the Jacobian of their centres of mass."""
    t = model.topology
    bodies = np.array(t.compensated, dtype=int)
    if not len(bodies):
        return jnp.zeros(t.nv, model.dtype)
    last = t.nodes.of_body[bodies]
    arm = take(kin.pos - kin.origin, last) + rotate(take(kin.rot, last), take(model.bodies.com, bodies))
    force = -take(model.bodies.gravcomp * model.bodies.mass, bodies)[:, None] * model.gravity[None]
    return from_nodes(model, kin, scatter_sum(jnp.concatenate([cross(arm, force), force], axis=-1), last, len(t.nodes.body)))
