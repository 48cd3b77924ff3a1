"""Inverse dynamics by the recursive Newton-Euler algorithm (Featherstone 2008, table 5.1), in world axes."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.dynamics.kinematics import Kinematics, node_accelerations, node_velocities
from flexor.dynamics.masses import node_momenta
from flexor.dynamics.recursion import accumulate_inward, accumulate_outward, scatter_sum
from flexor.dynamics.tendons import tendon_inertial_force
from flexor.model.model import Model
from flexor.spatial import dot, force_cross, shift_force, take


def rnea(
    model: Model,
    kin: Kinematics,
    qd: Float[Array, " nv"] | None,
    qdd: Float[Array, " nv"],
    wrench: Float[Array, "nbody 6"] | None = None,
) -> Float[Array, " nv"]:
    """Generalised forces that give the accelerations qdd: M qdd + h - J^T wrench, the armatures of joints and tendons included.

    `wrench`: moment about the body origin and force on every body, world axes. Without qd: M qdd alone.
    """
    nodes, dofs = model.topology.nodes, model.topology.dofs
    if qd is None:
        carried = scatter_sum(kin.S * qdd[:, None], dofs.node, len(nodes.body))
        f = node_momenta(model, kin, accumulate_outward(nodes.levels, nodes.parent, carried))
    else:
        v, c = node_velocities(model, kin, qd)
        a = node_accelerations(model, kin, c, qdd)
        f = node_momenta(model, kin, a) + force_cross(v, node_momenta(model, kin, v))
    if wrench is not None:
        f = f - node_wrenches(model, kin, wrench)
    f = accumulate_inward(nodes.levels, nodes.parent, f)
    force = dot(kin.S, take(f, dofs.node)) + take(model.joints.armature, model.topology.dof_joint) * qdd
    return force + tendon_inertial_force(model, kin, qd, qdd) if len(model.topology.inertial_tendons) else force


def bias_force(model: Model, kin: Kinematics, qd: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """h(q, qd): Coriolis, centrifugal and gravity forces, and those of the tendons' armatures."""
    return rnea(model, kin, qd, jnp.zeros_like(qd))


def gravity_force(model: Model, kin: Kinematics) -> Float[Array, " nv"]:
    """g(q) = dV/dq: the forces that hold the robot still."""
    nodes, dofs = model.topology.nodes, model.topology.dofs
    a = jnp.concatenate([jnp.zeros(3, model.dtype), -model.gravity])
    weights = node_momenta(model, kin, jnp.broadcast_to(a, (len(nodes.body), 6)))
    f = accumulate_inward(nodes.levels, nodes.parent, weights)
    return dot(kin.S, take(f, dofs.node))


def from_nodes(model: Model, kin: Kinematics, wrench: Float[Array, "nnode 6"]) -> Float[Array, " nv"]:
    """Generalised forces of wrenches on the nodes at `kin.origin`, world axes."""
    moves = model.topology.dofs.moves.T[..., None]
    return jnp.sum(kin.S * jnp.where(moves, wrench, 0.0).sum(1), axis=-1)


def node_wrenches(model: Model, kin: Kinematics, wrench: Float[Array, "nbody 6"]) -> Array:
    """Body wrenches moved from the bodies' origins to `kin.origin`, on the bodies' last nodes."""
    last = model.topology.nodes.of_body
    moved = shift_force(wrench, take(kin.origin - kin.pos, last))
    return scatter_sum(moved, last, len(model.topology.nodes.body))
