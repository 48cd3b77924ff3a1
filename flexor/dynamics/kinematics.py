"""Forward kinematics: where every frame is, and how every degree of freedom moves what it carries.

All spatial quantities of a robot are written in world axes at one point, the origin of the robot's root body, so that
transforms between bodies disappear from the recursions and float32 keeps its digits far from the world's origin.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.recursion import accumulate_outward, outward, scatter_sum
from flexor.model.model import Model
from flexor.spatial import (
    axis_angle_matrix,
    cross,
    inertia_matrix,
    matmul,
    matvec,
    motion_cross,
    quat_to_matrix,
    rotate,
    rotated_inertia,
    shift_motion,
    spatial_inertia,
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
    nodes = model.topology.nodes
    local = _local_frames(model, q)

    def compose(above: tuple[Array, Array], own: tuple[Array, Array]) -> tuple[Array, Array]:
        return above[0] + rotate(above[1], own[0]), matmul(above[1], own[1])

    start = (jnp.zeros(3, q.dtype), jnp.eye(3, dtype=q.dtype))
    pos, rot = outward(nodes.levels, nodes.parent, compose, start, local)
    origin = take(pos, nodes.root)
    return Kinematics(pos, rot, origin, _subspaces(model, pos, rot, origin))


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
    """Axes of the joints at unit length, so that a gradient step on an axis turns it and does nothing else."""
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


def node_inertias(model: Model, kin: Kinematics) -> Float[Array, "nnode 6 6"]:
    """Spatial inertia of each node at `kin.origin`, world axes; a body's inertia sits on its last node."""
    mass, com, six = _node_masses(model, kin)
    return spatial_inertia(mass, com, rotated_inertia(kin.rot, six))


def node_momenta(model: Model, kin: Kinematics, v: Float[Array, "nnode 6"]) -> Float[Array, "nnode 6"]:
    """Inertia of each node times its motion vector, without the matrix: fewer operations for one or two vectors, and many
    fewer in derivatives."""
    mass, com, six = _node_masses(model, kin)
    turning, R = v[:, :3], kin.rot
    linear = mass[:, None] * (v[:, 3:] + cross(turning, com))
    inner = matvec(inertia_matrix(six), matvec(jnp.swapaxes(R, -1, -2), turning))
    return jnp.concatenate([matvec(R, inner) + cross(com, linear), linear], axis=-1)


def _node_masses(model: Model, kin: Kinematics) -> tuple[Array, Array, Array]:
    """Mass, centre of mass from `kin.origin` in world axes, and rotational inertia in its own axes, of each node."""
    nodes = model.topology.nodes
    own = nodes.of_body[nodes.body] == np.arange(len(nodes.body))
    mass = jnp.where(own, take(model.bodies.mass, nodes.body), 0.0)
    six = jnp.where(own[:, None], take(model.bodies.inertia, nodes.body), 0.0)
    return mass, kin.pos + rotate(kin.rot, take(model.bodies.com, nodes.body)) - kin.origin, six


def body_poses(model: Model, kin: Kinematics) -> tuple[Float[Array, "nbody 3"], Float[Array, "nbody 3 3"]]:
    """Position and rotation matrix of every body frame in the world."""
    last = model.topology.nodes.of_body
    return take(kin.pos, last), take(kin.rot, last)


def body_velocities(model: Model, kin: Kinematics, qd: Float[Array, " nv"]) -> Float[Array, "nbody 6"]:
    """Angular velocity and velocity of the frame's origin of every body, world axes."""
    last = model.topology.nodes.of_body
    v, _ = node_velocities(model, kin, qd)
    return shift_motion(take(v, last), take(kin.pos - kin.origin, last))
