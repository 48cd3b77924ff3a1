"""Forward kinematics: where every frame is, and how every degree of freedom moves what it carries.

All spatial quantities of a robot are written in world axes at one point, the origin of the robot's root body, so that
transforms between bodies disappear from the recursions and float32 keeps its digits far from the world's origin.

Derivatives by q are those of a moving tree: what a joint carries moves with the sum of S dq along its way, so a rotation
changes by dR = w x R. That is a fraction of the work of differentiating the products of rotations one after the other.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from flexor.dynamics.integrate import rate_of
from flexor.dynamics.recursion import accumulate_outward, outward, scatter_sum
from flexor.model.model import Model
from flexor.spatial import (
    axis_angle_matrix,
    cross,
    matmul,
    motion_cross,
    quat_to_matrix,
    rotate,
    shift_motion,
    take,
)


class Kinematics(eqx.Module):
    """Frames of all nodes in the world, and the columns S of the joints' motion subspaces, at `origin`."""

    pos: Float[Array, "nnode 3"]
    rot: Float[Array, "nnode 3 3"]
    origin: Float[Array, "nnode 3"]
    S: Float[Array, "nv 6"]


def forward_kinematics(model: Model, q: Float[Array, " nq"]) -> Kinematics:
    """Poses of all frames and motion subspaces at the coordinates q."""
    return _kinematics(model, q)


@jax.custom_jvp
def _kinematics(model: Model, q: Array) -> Kinematics:
    nodes = model.topology.nodes
    local = _local_frames(model, q)

    def compose(above: tuple[Array, Array], own: tuple[Array, Array]) -> tuple[Array, Array]:
        return above[0] + rotate(above[1], own[0]), matmul(above[1], own[1])

    start = (jnp.zeros(3, q.dtype), jnp.eye(3, dtype=q.dtype))
    pos, rot = outward(nodes.levels, nodes.parent, compose, start, local)
    origin = take(pos, nodes.root)
    return Kinematics(pos, rot, origin, _subspaces(model, pos, rot, origin))


@partial(_kinematics.defjvp, symbolic_zeros=True)
def _kinematics_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Kinematics, Kinematics]:
    (model, q), (dmodel, dq) = primals, tangents
    kin = _kinematics(model, q)
    parts = []
    if not isinstance(dq, SymbolicZero):
        parts.append(moved(model, kin, rate_of(model, q, dq)))
    given, tree = jax.tree.flatten(_geometry(model))
    moves = jax.tree.leaves(_geometry(dmodel))
    moving = [k for k, dx in enumerate(moves) if not isinstance(dx, SymbolicZero)]
    if moving:

        def by_geometry(*xs: Array) -> Kinematics:
            inputs = dict(zip(moving, xs, strict=True))
            leaves = [inputs.get(k, x) for k, x in enumerate(given)]
            return _kinematics.fun(eqx.tree_at(_geometry, model, jax.tree.unflatten(tree, leaves)), q)

        parts.append(jax.jvp(by_geometry, tuple(given[k] for k in moving), tuple(moves[k] for k in moving))[1])
    return kin, jax.tree.map(lambda *x: sum(x), *parts) if parts else jax.tree.map(jnp.zeros_like, kin)


def _geometry(model: Model) -> tuple[Any, ...]:
    """All parameters that kinematics depends on."""
    return model.bodies.pos, model.bodies.quat, model.joints.pos, model.joints.axis, model.reference


def moved(model: Model, kin: Kinematics, rate: Float[Array, " nv"]) -> Kinematics:
    """How the frames and subspaces change when the joints move with `rate`."""
    nodes, dofs = model.topology.nodes, model.topology.dofs
    v = accumulate_outward(nodes.levels, nodes.parent, scatter_sum(kin.S * rate[:, None], dofs.node, len(nodes.body)))
    turn = v[:, :3]
    pos = v[:, 3:] + cross(turn, kin.pos - kin.origin)
    rot = jnp.swapaxes(cross(turn[:, None], jnp.swapaxes(kin.rot, -1, -2)), -1, -2)
    origin = take(pos, nodes.root)
    subspaces = partial(_subspaces, model)
    return Kinematics(pos, rot, origin, jax.jvp(subspaces, (kin.pos, kin.rot, kin.origin), (pos, rot, origin))[1])


def _local_frames(model: Model, q: Array) -> tuple[Array, Array]:
    """Frame of each node in its parent: the body's offset (first node of the body), then the joint."""
    t, nodes = model.topology, model.topology.nodes
    first = nodes.first_of_body[:, None]
    identity = jnp.array([1.0, 0, 0, 0], q.dtype)
    offset = jnp.where(first, take(model.bodies.pos, nodes.body), 0.0)
    turn = quat_to_matrix(jnp.where(first, take(model.bodies.quat, nodes.body), identity))
    if not t.joints:
        return offset, turn
    shift, rot = _joint_transforms(model, q)
    pick = np.where(nodes.joint >= 0, nodes.joint, len(t.joints))
    shift = take(jnp.concatenate([shift, jnp.zeros((1, 3), q.dtype)]), pick)
    rot = take(jnp.concatenate([rot, jnp.eye(3, dtype=q.dtype)[None]]), pick)
    free = np.isin(nodes.joint, t.joints_of("free"))
    offset = jnp.where(free[:, None], 0.0, offset)  # a free joint's coordinates are absolute
    turn = jnp.where(free[:, None, None], jnp.eye(3, dtype=q.dtype), turn)
    return offset + rotate(turn, shift), matmul(turn, rot)


def _joint_transforms(model: Model, q: Array) -> tuple[Array, Array]:
    """Displacement and rotation by each joint, in the frame in which its anchor and axis are given."""
    t = model.topology
    hinge, slide, ball, free = (t.joints_of(kind) for kind in ("hinge", "slide", "ball", "free"))
    eye = jnp.eye(3, dtype=q.dtype)
    angle = take(q - model.reference, t.q_start[hinge])
    axes = unit_axes(model)
    R_hinge = axis_angle_matrix(take(axes, hinge), angle)
    travel = take(q - model.reference, t.q_start[slide])
    R_ball = quat_to_matrix(take(q, t.q_start[ball][:, None] + np.arange(4)))
    R_free = quat_to_matrix(take(q, t.q_start[free][:, None] + np.arange(3, 7)))

    def about(joints: np.ndarray, R: Array) -> Array:
        anchor = take(model.joints.pos, joints)
        return anchor - rotate(R, anchor)

    shift = jnp.concatenate(
        [
            about(hinge, R_hinge),
            take(axes, slide) * travel[:, None],
            about(ball, R_ball),
            take(q, t.q_start[free][:, None] + np.arange(3)),
        ]
    )
    rot = jnp.concatenate([R_hinge, jnp.broadcast_to(eye, (len(slide), 3, 3)), R_ball, R_free])
    order = np.argsort(np.concatenate([hinge, slide, ball, free]))
    return take(shift, order), take(rot, order)


def unit_axes(model: Model) -> Float[Array, "njoint 3"]:
    """Axes of the joints at unit length, so that a gradient step on an axis only turns it."""
    axis = model.joints.axis
    hinged = np.array([j.kind in ("hinge", "slide") for j in model.topology.joints], dtype=bool)[:, None]
    return axis / jnp.where(hinged, jnp.linalg.norm(jnp.where(hinged, axis, 1.0), axis=-1, keepdims=True), 1.0)


def _subspaces(model: Model, pos: Array, rot: Array, origin: Array) -> Array:
    """Columns S of every degree of freedom: (w, (x - O) x w) for a rotation about w through x, (0, w) for a translation."""
    t, dofs = model.topology, model.topology.dofs
    if t.nv == 0:
        return jnp.zeros((0, 6), pos.dtype)
    kinds = np.array([j.kind for j in t.joints])[t.dof_joint]
    own_axis = np.isin(kinds, ["hinge", "slide"])
    column = (np.arange(t.nv) - t.v_start[t.dof_joint]) % 3
    axis = jnp.where(own_axis[:, None], take(unit_axes(model), t.dof_joint), jnp.eye(3, dtype=pos.dtype)[column])
    absolute = (kinds == "free") & ~dofs.rotational
    rot = take(rot, dofs.node)
    w = jnp.where(absolute[:, None], axis, rotate(rot, axis))
    anchor = jnp.where((kinds == "free")[:, None], 0.0, take(model.joints.pos, t.dof_joint))
    arm = take(pos - origin, dofs.node) + rotate(rot, anchor)
    turning = dofs.rotational[:, None]
    return jnp.concatenate([jnp.where(turning, w, 0.0), jnp.where(turning, cross(arm, w), w)], axis=-1)


def node_velocities(model: Model, kin: Kinematics, qd: Float[Array, " nv"]) -> tuple[Array, Array]:
    """Spatial velocity v of each node, and its velocity-product acceleration c = S' qd, at `kin.origin`.

    c = v_parent x S qd, since S is fixed in the parent or in the child and S qd x S qd = 0. A free joint's translations are
    fixed in the world instead, so there c = v_translation x S_rotation qd_rotation.
    """
    t, nodes, dofs = model.topology, model.topology.nodes, model.topology.dofs
    rates = kin.S * qd[:, None]
    joint_velocity = scatter_sum(rates, dofs.node, len(nodes.body))
    v = accumulate_outward(nodes.levels, nodes.parent, joint_velocity)
    carrier = jnp.where((nodes.parent >= 0)[:, None], take(v, nodes.parent), 0.0)
    moved = joint_velocity
    if len(t.joints_of("free")):
        free_dof = np.isin(t.dof_joint, t.joints_of("free"))
        free_node = np.isin(nodes.joint, t.joints_of("free"))[:, None]
        translating = scatter_sum(jnp.where((free_dof & ~dofs.rotational)[:, None], rates, 0.0), dofs.node, len(nodes.body))
        carrier = jnp.where(free_node, translating, carrier)
        moved = jnp.where(free_node, joint_velocity - translating, joint_velocity)
    return v, motion_cross(carrier, moved)


def node_accelerations(
    model: Model, kin: Kinematics, c: Float[Array, "nnode 6"], qdd: Float[Array, " nv"]
) -> Float[Array, "nnode 6"]:
    """Spatial acceleration of each node at `kin.origin`, gravity taken off, so that a body at rest accelerates upwards; c is the
    velocity-product acceleration of `node_velocities`."""
    nodes, dofs = model.topology.nodes, model.topology.dofs
    carried = scatter_sum(kin.S * qdd[:, None], dofs.node, len(nodes.body))
    base = jnp.concatenate([jnp.zeros(3, qdd.dtype), -model.gravity])
    return accumulate_outward(nodes.levels, nodes.parent, carried + c) + base[None]


def body_poses(model: Model, kin: Kinematics) -> tuple[Float[Array, "nbody 3"], Float[Array, "nbody 3 3"]]:
    """Position and rotation matrix of every body frame in the world."""
    last = model.topology.nodes.of_body
    return take(kin.pos, last), take(kin.rot, last)


def body_velocities(model: Model, kin: Kinematics, qd: Float[Array, " nv"]) -> Float[Array, "nbody 6"]:
    """Angular velocity and velocity of the frame's origin of every body, world axes."""
    last = model.topology.nodes.of_body
    v, _ = node_velocities(model, kin, qd)
    return shift_motion(take(v, last), take(kin.pos - kin.origin, last))
