"""Energy, centre of mass and centroidal momentum."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.crba import composite_momenta
from flexor.dynamics.kinematics import Kinematics, body_poses, node_velocities
from flexor.dynamics.masses import node_inertias
from flexor.dynamics.tendons import tendon_jacobian, tendon_lengths
from flexor.model.model import Model
from flexor.spatial import dot, matvec, quat_log, quat_mul, rotate, shift_force, take


def total_mass(model: Model) -> Float[Array, ""]:
    """Mass of all bodies that the joints move."""
    return jnp.sum(jnp.where(_moving(model), model.bodies.mass, 0.0))


def centre_of_mass(model: Model, kin: Kinematics) -> Float[Array, "3"]:
    """Centre of mass of all bodies that the joints move, in the world."""
    pos, rot = body_poses(model, kin)
    mass = jnp.where(_moving(model), model.bodies.mass, 0.0)
    return mass @ (pos + rotate(rot, model.bodies.com)) / jnp.sum(mass)


def kinetic_energy(model: Model, kin: Kinematics, qd: Float[Array, " nv"]) -> Float[Array, ""]:
    """Sum of v . I v / 2 over the bodies, and of the armatures' energy, those of tendons included."""
    v, _ = node_velocities(model, kin, qd)
    bodies = dot(v, matvec(node_inertias(model, kin), v)).sum()
    total = bodies + model.joints.armature[model.topology.dof_joint] @ qd**2
    if len(model.topology.inertial_tendons):
        total = total + model.tendons.armature @ matvec(tendon_jacobian(model, kin), qd) ** 2
    return total / 2


def potential_energy(model: Model, kin: Kinematics, q: Float[Array, " nq"]) -> Float[Array, ""]:
    """Gravity, -sum of m g . x, of all bodies that the joints move, and the energy k x^2 / 2 of all springs, those of
    tendons included."""
    fall = jnp.zeros((), q.dtype)
    if _moving(model).any():
        fall = -total_mass(model) * model.gravity @ centre_of_mass(model, kin)
    stretch = spring_stretch(model, q)
    springs = model.joints.stiffness[model.topology.dof_joint] @ stretch**2 / 2
    if model.topology.tendons:
        springs = springs + model.tendons.stiffness @ tendon_stretch(model, tendon_lengths(model, kin, q)) ** 2 / 2
    return fall + springs


def tendon_stretch(model: Model, length: Float[Array, " ntendon"]) -> Float[Array, " ntendon"]:
    """By how much the tendons are longer (positive) or shorter (negative) than the range in which their springs are slack."""
    low, high = model.tendons.spring_range[:, 0], model.tendons.spring_range[:, 1]
    return jnp.maximum(length - high, 0.0) + jnp.minimum(length - low, 0.0)


def spring_stretch(model: Model, q: Float[Array, " nq"]) -> Float[Array, " nv"]:
    """q less the springs' rest coordinates, in velocity coordinates: the rotation vector for ball and free joints."""
    t = model.topology
    stretch = jnp.zeros(t.nv, q.dtype)
    simple = t.joints_of("hinge", "slide")
    delta = take(q - model.rest, t.q_start[simple])
    stretch = stretch.at[t.v_start[simple]].set(delta)
    for kind, quat_at, v_at in (("ball", 0, 0), ("free", 3, 3)):
        joints = t.joints_of(kind)
        if not len(joints):
            continue
        rows = t.q_start[joints][:, None] + quat_at + np.arange(4)
        now, rest = take(q, rows), take(model.rest, rows) * jnp.array([[1.0, -1, -1, -1]], q.dtype)
        now = now / jnp.linalg.norm(now, axis=-1, keepdims=True)
        rest = rest / jnp.linalg.norm(rest, axis=-1, keepdims=True)
        stretch = stretch.at[t.v_start[joints][:, None] + v_at + np.arange(3)].set(quat_log(quat_mul(rest, now)))
        if kind == "free":
            at = t.q_start[joints][:, None] + np.arange(3)
            stretch = stretch.at[t.v_start[joints][:, None] + np.arange(3)].set(take(q - model.rest, at))
    return stretch


def centroidal_momentum_matrix(model: Model, kin: Kinematics) -> Float[Array, "6 nv"]:
    """A with A qd = (angular momentum about the centre of mass, linear momentum), world axes (Orin & Goswami 2008)."""
    arm = centre_of_mass(model, kin)[None] - kin.origin[model.topology.dofs.node]
    return shift_force(composite_momenta(model, kin), arm).T


def centroidal_momentum(model: Model, kin: Kinematics, qd: Float[Array, " nv"]) -> Float[Array, "6"]:
    """Angular momentum about the centre of mass and linear momentum, world axes."""
    return centroidal_momentum_matrix(model, kin) @ qd


def _moving(model: Model) -> np.ndarray:
    return model.topology.dofs.owner[model.topology.nodes.of_body] >= 0
