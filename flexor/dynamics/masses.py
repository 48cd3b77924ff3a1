"""Inertias of the nodes, and momenta by them. What is joined rigidly is one mass: bodies without joints count at the node that
carries them, where they cost nothing unless their parameters are differentiated."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.kinematics import Kinematics
from flexor.dynamics.recursion import outward, scatter_sum
from flexor.model.model import Model
from flexor.spatial import (
    cross,
    dot,
    inertia_matrix,
    matmul,
    matvec,
    quat_to_matrix,
    rotate,
    rotated_inertia,
    six_of,
    spatial_inertia,
    take,
)


def node_inertias(model: Model, kin: Kinematics) -> Float[Array, "nnode 6 6"]:
    """Spatial inertia of each node with what it carries rigidly, at `kin.origin`, world axes."""
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
    mass, com, six = _joined(model)
    return mass, kin.pos + rotate(kin.rot, com) - kin.origin, six


def _joined(model: Model) -> tuple[Array, Array, Array]:
    """Mass, centre of mass and rotational inertia about it of each node, in its axes; zero at nodes that another one
    carries.

    Of several bodies m = sum m_i, c = sum m_i c_i / m, I = sum R_i I_i R_i^T + m_i (d_i^2 - d_i d_i^T) with d_i = c_i - c.
    """
    nodes, dofs = model.topology.nodes, model.topology.dofs
    n, bodies = len(nodes.body), model.bodies
    own = nodes.of_body[nodes.body] == np.arange(n)  # a body's mass is at its last node
    carrier = np.where(dofs.owner >= 0, dofs.node[dofs.owner] if len(dofs.node) else 0, np.arange(n))
    mass = jnp.where(own, take(bodies.mass, nodes.body), 0.0)
    six = jnp.where(own[:, None], take(bodies.inertia, nodes.body), 0.0)
    com = take(bodies.com, nodes.body)
    welded = carrier != np.arange(n)
    if not welded.any():
        return mass, com, six
    pos, rot = _within(model, welded)
    at, total = pos + rotate(rot, com), scatter_sum(mass, carrier, n)
    centre = scatter_sum(mass[:, None] * at, carrier, n) / jnp.where(total > 0, total, 1.0)[:, None]
    d = at - take(centre, carrier)
    eye = jnp.eye(3, dtype=d.dtype)[None]
    about = (dot(d, d)[:, None, None] * eye - d[:, :, None] * d[:, None, :]) * mass[:, None, None]
    about = scatter_sum(six_of(about + rotated_inertia(rot, six)), carrier, n)
    several = np.isin(np.arange(n), carrier[welded])
    alone = ~welded & ~several
    return jnp.where(alone, mass, total), jnp.where(alone[:, None], com, centre), jnp.where(alone[:, None], six, about)


def _within(model: Model, welded: np.ndarray) -> tuple[Array, Array]:
    """Position and rotation of every node in the frame of the node that carries it."""
    nodes, dtype = model.topology.nodes, model.dtype
    here = jnp.zeros(3, dtype), jnp.eye(3, dtype=dtype)
    own = take(model.bodies.pos, nodes.body), quat_to_matrix(take(model.bodies.quat, nodes.body))

    def compose(above: tuple[Array, Array], own: tuple[Array, ...]) -> tuple[Array, Array]:
        pos, rot, welded = own
        at, turn = above[0] + rotate(above[1], pos), matmul(above[1], rot)
        return jnp.where(welded[:, None], at, here[0]), jnp.where(welded[:, None, None], turn, here[1])

    return outward(nodes.levels, nodes.parent, compose, here, (*own, jnp.asarray(welded)))
