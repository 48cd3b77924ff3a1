"""Surfaces that move where their shapes stay: conveyor belts, treadmills, turntables.

A shape's surface has the velocity v + w x r beside that of its body, r from the shape's origin, v and w fixed to the shape
(`Geoms.surface_velocity`). Friction and torsional friction of a contact oppose the slip between the two surfaces: the relative
velocity of the bodies at the point, and that of their surfaces, seen along the tangents and about the normal (MuJoCo's
`surfacevel`).
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from flexor.contact.contacts import Contacts
from flexor.dynamics import Kinematics, body_poses
from flexor.model.model import Model
from flexor.model.topology import INDEX
from flexor.simd import stored
from flexor.spatial import cross, gathered, matmul, quat_to_matrix, rotate, take


def with_surfaces(model: Model, kin: Kinematics, contacts: Contacts) -> Contacts:
    """The contacts with the velocities of their surfaces; as they are where no shape of a pair carries."""
    if not model.topology.carried:
        return contacts
    pos, twist = _surfaces(model, kin)
    ends = np.array([(p.a, p.b) for p in model.topology.pairs], INDEX)
    if isinstance(contacts.pair, np.ndarray):
        a, b = (_at(take(pos, g), take(twist, g), contacts.point) for g in ends[contacts.pair].T)
        return _carrying(contacts, b - a)
    first, second, pos, twist = stored((jnp.asarray(ends[:, 0]), jnp.asarray(ends[:, 1]), pos, twist))

    def visit(_: None, item: tuple[Array, Array]) -> tuple[None, Array]:
        geoms = (gathered(first, item[0]), gathered(second, item[0]))
        a, b = (_at(gathered(pos, g), gathered(twist, g), item[1]) for g in geoms)
        return None, b - a

    return _carrying(contacts, lax.scan(visit, None, (contacts.pair, contacts.point))[1])


def _carrying(contacts: Contacts, surface: Float[Array, "n 6"]) -> Contacts:
    return eqx.tree_at(lambda c: c.surface, contacts, surface, is_leaf=lambda x: x is None)


def _surfaces(model: Model, kin: Kinematics) -> tuple[Float[Array, "ngeom 3"], Float[Array, "ngeom 6"]]:
    """Origins of all shapes, and angular velocity and velocity of their surfaces there, in the world's axes."""
    g = model.geoms
    owner = np.array([x.body for x in model.topology.geoms], INDEX)
    pos, rot = (take(x, owner) for x in body_poses(model, kin))
    turned = matmul(rot, quat_to_matrix(g.quat))
    parts = [rotate(turned, g.surface_velocity[:, 3:]), rotate(turned, g.surface_velocity[:, :3])]
    return pos + rotate(rot, g.pos), jnp.concatenate(parts, axis=1)


def _at(origin: Float[Array, "*n 3"], twist: Float[Array, "*n 6"], point: Float[Array, "*n 3"]) -> Float[Array, "*n 6"]:
    """Angular velocity and velocity of a surface at a point."""
    turning = twist[..., :3]
    return jnp.concatenate([turning, twist[..., 3:] + cross(turning, point - origin)], axis=-1)
