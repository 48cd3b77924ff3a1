"""Sums over contacts, for those who listen: the wrench on every body, and what touch sensors feel."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from flexor.contact.contacts import Contacts, tangents
from flexor.dynamics import Kinematics, body_poses
from flexor.dynamics.recursion import scatter_sum
from flexor.model.model import Model
from flexor.model.topology import INDEX, Sensor
from flexor.spatial import cross, gathered, matmul, quat_to_matrix, rotate
from flexor.taps import Handler, listening, tap

Interval = tuple[Array, Array]


def contact_sums(model: Model, kin: Kinematics, contacts: Contacts, force: Float[Array, "ncon rows"]) -> dict[str, Array]:
    """By the names of their taps. `force` is that on body b along the normal and the tangents, then moments about these."""
    sums = {"link.contact_force": contact_wrenches(model, kin, contacts, force)}
    touch = [s for s in model.topology.sensors if s.kind == "touch"]
    if touch:
        felt = [_touch(model, kin, contacts, force[:, 0], s) for s in touch]
        sums["touch.force"] = jnp.stack(felt)
    return sums


def tap_sums(
    model: Model, kin: Kinematics, contacts: Contacts, force: Float[Array, "ncon rows"], named: Handler = tap
) -> None:
    """Gives the sums their names, if anybody listens."""
    if listening():
        for name, value in contact_sums(model, kin, contacts, force).items():
            named(name, value)


def contact_wrenches(
    model: Model, kin: Kinematics, contacts: Contacts, force: Float[Array, "ncon rows"]
) -> Float[Array, "nbody 6"]:
    """Moment about its origin and force of all contacts on each body, world axes."""
    place, number = body_poses(model, kin)[0], len(model.topology.bodies)
    if not len(contacts):
        return jnp.zeros((number, 6), force.dtype)
    frame = jnp.stack([contacts.normal, *tangents(contacts.normal)], axis=1)
    f = jnp.sum(frame * force[:, :3, None], axis=1)
    spin = jnp.sum(frame[:, : force.shape[1] - 3] * force[:, 3:, None], axis=1)
    on_b, on_a = (
        jnp.concatenate([spin + cross(contacts.point - gathered(place, contacts.bodies[:, side]), f), f], axis=1)
        for side in (1, 0)
    )
    if isinstance(contacts.bodies, np.ndarray):
        return scatter_sum(on_b, contacts.bodies[:, 1], number) - scatter_sum(on_a, contacts.bodies[:, 0], number)

    def add(total: Array, item: tuple[Array, Array, Array]) -> tuple[Array, None]:
        bodies, b, a = item
        mine = [(np.arange(number, dtype=INDEX) == bodies[side])[:, None] for side in (1, 0)]
        return total + jnp.where(mine[0], b[None], 0.0) - jnp.where(mine[1], a[None], 0.0), None

    return lax.scan(add, jnp.zeros((number, 6), force.dtype), (jnp.asarray(contacts.bodies), on_b, on_a))[0]


def _touch(model: Model, kin: Kinematics, contacts: Contacts, normal_force: Array, sensor: Sensor) -> Float[Array, ""]:
    """Sum of the normal forces on the sensor's body whose rays meet its zone: each begins at the contact and goes outwards, so
    that a contact within the zone counts, and one beneath it (MuJoCo's rule)."""
    assert sensor.frame is not None
    if not len(contacts):
        return jnp.zeros((), normal_force.dtype)
    pos, rot = (x[sensor.frame.body] for x in body_poses(model, kin))
    sites, s = model.sites, sensor.frame.index
    place, turn = pos + rotate(rot, sites.pos[s]), matmul(rot, quat_to_matrix(sites.quat[s]))
    on_a, on_b = (contacts.bodies[:, side] == sensor.frame.body for side in (0, 1))
    ray = jnp.where(jnp.asarray(on_b)[:, None], -contacts.normal, contacts.normal)
    start, along = rotate(turn.T, contacts.point - place[None]), rotate(turn.T, ray)
    counts = (on_a | on_b) & meets(sensor.zone, sites.size[s], start, along)
    return jnp.sum(jnp.where(counts, jnp.maximum(normal_force, 0.0), 0.0))


def meets(shape: str, size: Float[Array, "3"], start: Float[Array, "n 3"], ray: Float[Array, "n 3"]) -> Bool[Array, " n"]:
    """Whether rays meet a shape, in its own frame; those that begin inside do."""
    if shape in ("sphere", "ellipsoid"):
        axes = size if shape == "ellipsoid" else jnp.full(3, size[0])
        return _ahead(_round(start / axes[None], ray / axes[None]))
    if shape == "box":
        return _ahead(_common(*(_slab(start[:, i], ray[:, i], size[i]) for i in range(3))))
    side = _round(start[:, :2] / size[0], ray[:, :2] / size[0])
    inside = _ahead(_common(side, _slab(start[:, 2], ray[:, 2], size[1])))
    if shape == "cylinder":
        return inside
    ends = (start - jnp.stack([0 * size[1], 0 * size[1], end * size[1]])[None] for end in (-1.0, 1.0))
    low, high = (_ahead(_round(x / size[0], ray / size[0])) for x in ends)
    return inside | low | high


def _ahead(span: Interval) -> Array:
    """Whether an interval along a ray has something at or after its start."""
    return jnp.maximum(span[0], 0.0) <= span[1]


def _common(*spans: Interval) -> Interval:
    low, high = span = spans[0]
    for other in spans[1:]:
        low, high = span = jnp.maximum(low, other[0]), jnp.minimum(high, other[1])
    return span


def _slab(x: Array, v: Array, half: Array) -> Interval:
    """Where -half <= x + t v <= half."""
    v = jnp.where(jnp.abs(v) < jnp.finfo(v.dtype).tiny ** 0.5, jnp.finfo(v.dtype).tiny ** 0.5, v)
    a, b = (-half - x) / v, (half - x) / v
    return jnp.minimum(a, b), jnp.maximum(a, b)


def _round(x: Float[Array, "n k"], v: Float[Array, "n k"]) -> Interval:
    """Where |x + t v| <= 1; an empty interval where that is nowhere."""
    a = jnp.maximum(jnp.sum(v * v, axis=1), jnp.finfo(v.dtype).tiny ** 0.5)
    b, c = jnp.sum(x * v, axis=1), jnp.sum(x * x, axis=1) - 1
    square = b * b - a * c
    root = jnp.sqrt(jnp.maximum(square, 0.0))
    low, high = (-b - root) / a, (-b + root) / a
    return low, jnp.where(square < 0, low - 1, high)
