"""`Contacts`: the fixed-size list of places where two bodies touch or may touch, and its Jacobian."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flexor.contact.soft import Soft
from flexor.dynamics import Kinematics, body_poses, body_velocities
from flexor.model.model import Model, Pairs
from flexor.model.topology import INDEX
from flexor.simd import stored
from flexor.spatial import cross, dot, gathered, rotate, shift_motion, take
from flexor.taps import Handler, listening, tap


class Contacts(eqx.Module):
    """Candidates in a fixed order, whether they touch or not. World axes.

    `distance` is negative where the bodies overlap; `normal` points from body a to body b; `point_a` and `point_b` lie on
    the two surfaces, `distance` and the margin of their pair apart along the normal. `pairs` holds the contact parameters of each
    candidate, `pair` the number of its pair and `bodies` those of its two bodies: known arrays where candidates have their places
    (`detect`), else found at each instant (`near_contacts`). `soft` has the laws of soft contacts, None where all are hard.
    `surface` is how the surface of b moves against that of a beside their bodies, at the point: angular velocity and velocity,
    None where no shape carries (`Geoms.surface_velocity`).
    """

    point_a: Float[Array, "ncon 3"]
    point_b: Float[Array, "ncon 3"]
    normal: Float[Array, "ncon 3"]
    distance: Float[Array, " ncon"]
    pairs: Pairs
    bodies: Int[Array, "ncon 2"] | np.ndarray
    pair: Int[Array, " ncon"] | np.ndarray
    condim: Int[Array, " ncon"] | np.ndarray
    soft: Soft | None = None
    surface: Float[Array, "ncon 6"] | None = None

    def __len__(self) -> int:
        return len(self.pair)

    @property
    def friction(self) -> Float[Array, " ncon"]:
        """Coulomb's coefficient, zero for a pair without friction."""
        return jnp.where(self.condim > 1, self.pairs.friction, 0.0)

    @property
    def spin_friction(self) -> Float[Array, "ncon 2"]:
        """Coefficients of torsional and of rolling friction in m, zero for a pair without."""
        torsion = jnp.where(self.condim > 3, self.pairs.torsion, 0.0)
        return jnp.stack([torsion, jnp.where(self.condim > 4, self.pairs.rolling, 0.0)], axis=-1)

    def carry(self, rows: int) -> Float[Array, "ncon rows"] | None:
        """What moving surfaces add to the velocities of each contact: to those along the tangents, and where there are more
        than three `rows`, to that about the normal; nothing along the normal and in rolling, as in MuJoCo."""
        if self.surface is None:
            return None
        first, second = tangents(self.normal)
        none = jnp.zeros_like(self.distance)
        along = [none, dot(first, self.surface[:, 3:]), dot(second, self.surface[:, 3:])]
        spin = [dot(self.normal, self.surface[:, :3]), none, none]
        return jnp.stack((along + spin)[:rows], axis=1)

    @property
    def point(self) -> Float[Array, "ncon 3"]:
        """Halfway between the two surfaces: where the forces act."""
        return (self.point_a + self.point_b) / 2


def no_contacts(model: Model) -> Contacts:
    """No candidates at all."""
    none = jnp.zeros((0, 3), model.dtype)
    pairs = jax.tree.map(lambda x: x[:0], model.pairs)
    return Contacts(none, none, none, none[:, 0], pairs, np.zeros((0, 2), INDEX), np.zeros(0, INDEX), np.zeros(0, INDEX))


def tapped(model: Model, kin: Kinematics, contacts: Contacts, tap: Handler = tap) -> tuple[Contacts, Float[Array, " ncon"]]:
    """Gives points, depth and normal their names; the contacts as a listener may have changed them, and their depth."""
    if not listening():
        return contacts, -contacts.distance
    old_point, old_depth = contacts.point, -contacts.distance
    point, depth = tap("contact.point", old_point), tap("contact.depth", old_depth)
    normal = tap("contact.normal", contacts.normal)
    a, b = contacts.point_a, contacts.point_b
    if point is not old_point:
        a, b = a + (point - old_point), b + (point - old_point)
    distance = contacts.distance if depth is old_depth else -depth
    pos, rot = (gathered(x, contacts.bodies[:, 1]) for x in body_poses(model, kin))
    tap("contact.local_point", rotate(jnp.swapaxes(rot, -1, -2), point - pos))
    tap("contact.local_normal", rotate(jnp.swapaxes(rot, -1, -2), normal))
    new = (a, b, normal, distance)
    return eqx.tree_at(lambda c: (c.point_a, c.point_b, c.normal, c.distance), contacts, new), depth


def tangents(normal: Float[Array, "... 3"]) -> tuple[Float[Array, "... 3"], Float[Array, "... 3"]]:
    """Two unit vectors that make a right-handed frame with the unit normal, without a singularity (Duff et al. 2017)."""
    x, y, z = normal[..., 0], normal[..., 1], normal[..., 2]
    sign = jnp.where(z < 0, -1.0, 1.0).astype(normal.dtype)
    a = -1 / (sign + z)
    b = x * y * a
    first = jnp.stack([1 + sign * x * x * a, sign * b, -sign * x], axis=-1)
    second = jnp.stack([b, sign + y * y * a, -y], axis=-1)
    return first, second


def contact_jacobian(
    model: Model, kin: Kinematics, contacts: Contacts, rows: Int[Array, " k"] | None = None
) -> Float[Array, "ncon 3 nv"]:
    """Rows that give the velocity of b against a along the normal and the two tangents, at the point between the surfaces.

    Of all candidates, or of the given rows.
    """
    parts = (senses(model, contacts.bodies), contacts.point, contacts.normal)
    sense, point, normal = (x if rows is None else x[rows] for x in parts)
    return jax.vmap(partial(jacobian_of_one, model, kin))(sense, point, normal)


def senses(model: Model, bodies: Int[Array, "*n 2"] | np.ndarray) -> Int[Array, "*n nv"]:
    """Whether a degree of freedom moves body b of a candidate (1), body a (-1), or both or none (0)."""
    moves = model.topology.dofs.moves[model.topology.nodes.of_body].astype(INDEX)
    if isinstance(bodies, np.ndarray):
        return jnp.asarray(moves[bodies[..., 1]] - moves[bodies[..., 0]])
    table = stored(jnp.asarray(moves))
    return gathered(table, bodies[..., 1]) - gathered(table, bodies[..., 0])


def jacobian_of_one(
    model: Model,
    kin: Kinematics,
    sense: Int[Array, " nv"],
    point: Float[Array, "3"],
    normal: Float[Array, "3"],
    rows: int = 3,
) -> Float[Array, "rows nv"]:
    """The rows of one candidate: velocity along the normal and the tangents; and where four or six `rows` are asked for, angular
    velocity about the normal, and about the tangents."""
    arm = point[None] - take(kin.origin, model.topology.dofs.node)
    columns = kin.S[:, 3:] + cross(kin.S[:, :3], arm)
    frame = jnp.stack([normal, *tangents(normal)])
    sign = sense[:, None].astype(columns.dtype)

    def along(frame: Array, columns: Array) -> Array:
        columns = jnp.where(sense[:, None] == 0, 0.0, sign * columns)
        return jnp.sum(frame[:, None] * columns[None], axis=-1)

    linear = along(frame, columns)
    return linear if rows == 3 else jnp.concatenate([linear, along(frame[: rows - 3], kin.S[:, :3])])


def relative_velocity(
    model: Model,
    kin: Kinematics,
    qd: Float[Array, " nv"],
    bodies: Int[Array, "n 2"] | np.ndarray,
    points: tuple[Array, Array],
) -> Float[Array, "n 3"]:
    """Velocities of the second of two bodies against the first, (n, 2) of them, each at a point of its own, world axes."""
    place, twist = body_poses(model, kin)[0], body_velocities(model, kin, qd)
    a, b = (
        shift_motion(gathered(twist, bodies[:, side]), point - gathered(place, bodies[:, side]))[:, 3:]
        for side, point in enumerate(points)
    )
    return b - a


def contact_velocity(model: Model, kin: Kinematics, contacts: Contacts, qd: Float[Array, " nv"]) -> Float[Array, "ncon 3"]:
    """What `contact_jacobian` times qd is, at a fraction of its cost."""
    if not len(contacts):
        return jnp.zeros((0, 3), qd.dtype)
    v = relative_velocity(model, kin, qd, contacts.bodies, (contacts.point, contacts.point))
    frame = jnp.stack([contacts.normal, *tangents(contacts.normal)], axis=1)
    return jnp.sum(frame * v[:, None], axis=-1)
