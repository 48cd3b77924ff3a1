"""The shortest way of a string past a sphere or an infinite cylinder, by MuJoCo's rules.

In the plane of a circle of radius r the string goes from d0 to d1, both outside. It wraps where the straight way crosses the
circle, or where it passes behind it as seen from the *side site*, if there is one: then it runs along a tangent, an arc and
another tangent, past the side of the side site or the shorter way. A side site within the shape asks
for the way through the inside instead: to the point of the circle where the way from d0 to d1 is shortest, unless the straight
way crosses the circle by itself. For a cylinder that is the view along its axis, along which the string climbs evenly.

Everything has finite derivatives, also where a string does not wrap. Where it begins to, its length is continuously
differentiable: the tangents then are the straight way.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flexor.spatial import cross, dot, matvec

BISECTIONS, NEWTON_STEPS = 12, 4  # for the point inside; after the former it is known to 1e-3 rad, then Newton's converges


class Passage(NamedTuple):
    """Where a string touches a shape first and last, and how far it runs along it; meaningless where it does not wrap."""

    wraps: Bool[Array, ""]
    first: Float[Array, "3"]
    last: Float[Array, "3"]
    arc: Float[Array, ""]


class _Circle(NamedTuple):
    """The same in the plane."""

    wraps: Array
    first: Array
    last: Array
    arc: Array


def passage(
    x0: Float[Array, "3"],
    x1: Float[Array, "3"],
    pos: Float[Array, "3"],
    rot: Float[Array, "3 3"],
    radius: Float[Array, ""],
    sphere: Bool[Array, ""],
    side: Float[Array, "3"] | None,
) -> Passage:
    """The way from x0 to x1 past a sphere or a cylinder along the z axis of the frame (pos, rot); `side` is the side site."""
    p0, p1 = matvec(rot.T, x0 - pos), matvec(rot.T, x1 - pos)
    a0, a1 = _plane(p0, p1, sphere)
    flat = lambda p: jnp.stack([dot(a0, p), dot(a1, p)])  # noqa: E731
    d0, d1 = flat(p0), flat(p1)
    if side is None:
        found = _around(d0, d1, None, radius)
    else:
        at = matvec(rot.T, side - pos)
        outside, inside = _around(d0, d1, _unit(flat(at)), radius), _inside(d0, d1, radius)
        within = dot(at, at) < radius**2
        found = jax.tree.map(lambda a, b: jnp.where(within, a, b), inside, outside)
    first, last = (a0 * t[0] + a1 * t[1] for t in (found.first, found.last))
    # along a cylinder the height grows evenly with the way in the plane
    ways = jnp.stack([_length(found.first - d0), found.arc, _length(d1 - found.last)])
    share = jnp.cumsum(ways)[:2] / jnp.sum(ways)
    climb = jnp.where(sphere, 0.0, p1[2] - p0[2])
    up = jnp.array([0.0, 0.0, 1.0], p0.dtype)
    first = first + jnp.where(sphere, 0.0, p0[2] + share[0] * climb) * up
    last = last + jnp.where(sphere, 0.0, p0[2] + share[1] * climb) * up
    arc = _length(jnp.stack([found.arc, (share[1] - share[0]) * climb]))
    small = jnp.finfo(p0.dtype).tiny
    apart = (dot(p0, p0) > small) & (dot(p1, p1) > small)
    return Passage(found.wraps & apart, pos + matvec(rot, first), pos + matvec(rot, last), arc)


def _plane(p0: Array, p1: Array, sphere: Array) -> tuple[Array, Array]:
    """Two unit vectors of the plane: x and y of a cylinder; of a sphere the direction of p0 and, across it, that of p1."""
    x, y, _ = jnp.eye(3, dtype=p0.dtype)
    a0 = _unit(p0)
    rest = p1 - dot(p1, a0) * a0
    other = cross(a0, jnp.where(jnp.abs(a0[0]) < 0.6, x, y))
    straight = dot(rest, rest) <= jnp.finfo(p0.dtype).eps ** 2 * dot(p1, p1)
    a1 = _unit(jnp.where(straight, other, rest))
    return jnp.where(sphere, a0, x), jnp.where(sphere, a1, y)


def _around(d0: Array, d1: Array, side: Array | None, radius: Array) -> _Circle:
    """The way about the outside; `side` is the direction of the side site. With angles counted from there, -pi to pi, the way
    goes straight from that of d0 to that of d1: it never crosses the ray opposite to the side site."""
    way = d1 - d0
    square = dot(way, way)
    nearest = d0 + jnp.clip(-dot(way, d0) / jnp.where(square > 0, square, 1.0), 0.0, 1.0) * way
    free = dot(nearest, nearest) > radius**2
    ways = [_tangents(d0, d1, turn, radius) for turn in (1.0, -1.0)]
    if side is None:
        scores = [jnp.where(_crosses(d0, a, d1, b), -jnp.inf, -dot(a - b, a - b)) for a, b in ways]
        clockwise = scores[0] > scores[1]
    else:
        turns = [side[0] * d[1] - side[1] * d[0] for d in (d0, d1)]
        free = free & ((dot(side, nearest) >= 0) | (turns[0] * turns[1] > 0))
        angles = [jnp.arctan2(turn, dot(side, d)) for turn, d in zip(turns, (d0, d1), strict=True)]
        clockwise = angles[0] > angles[1]
    first, last = (jnp.where(clockwise, a, b) for a, b in zip(*ways, strict=True))
    turned = first[1] * last[0] - first[0] * last[1]
    angle = jnp.arctan2(jnp.where(clockwise, turned, -turned), dot(first, last))
    angle = jnp.where(angle < -jnp.sqrt(jnp.finfo(d0.dtype).eps), angle + 2 * jnp.pi, angle)
    possible = (dot(d0, d0) >= radius**2) & (dot(d1, d1) >= radius**2) & (square > 0) & (radius > 0)
    return _Circle(possible & ~free & ~_crosses(d0, first, d1, last), first, last, radius * angle)


def _tangents(d0: Array, d1: Array, turn: float, radius: Array) -> tuple[Array, Array]:
    """Where the tangents from d0 and d1 touch that leave the circle on one side: turn 1, the arc from the first to the last goes
    clockwise, or -1."""

    def touch(d: Array, turn: float) -> Array:
        square = dot(d, d)
        beyond = jnp.sqrt(jnp.maximum(square - radius**2, jnp.finfo(d.dtype).tiny))
        across = jnp.stack([d[1], -d[0]])
        return radius * (radius * d + turn * beyond * across) / jnp.where(square > 0, square, 1.0)

    return touch(d0, turn), touch(d1, -turn)


def _crosses(p1: Array, p2: Array, p3: Array, p4: Array) -> Array:
    """Whether the segment from p1 to p2 meets that from p3 to p4."""
    a, b, c = p2 - p1, p4 - p3, p1 - p3
    det = b[1] * a[0] - b[0] * a[1]
    safe = jnp.where(jnp.abs(det) > jnp.finfo(det.dtype).tiny, det, 1.0)
    s, t = (b[0] * c[1] - b[1] * c[0]) / safe, (a[0] * c[1] - a[1] * c[0]) / safe
    return (jnp.abs(det) > jnp.finfo(det.dtype).tiny) & (s >= 0) & (s <= 1) & (t >= 0) & (t <= 1)


def _inside(d0: Array, d1: Array, radius: Array) -> _Circle:
    """The way through a point of the circle, at the angle from d0 at which it is shortest, where both ends see the point. There
    its slope by the angle grows: bisection and Newton's method find its zero, and the last two steps carry the derivatives."""
    way, (l0, l1) = d1 - d0, (_length(d0), _length(d1))
    square = dot(way, way)
    share = -dot(way, d0) / jnp.where(square > 0, square, 1.0)
    nearest = d0 + share * way
    hit = (share > 0) & (share < 1) & (dot(nearest, nearest) <= radius**2)
    turn = d0[0] * d1[1] - d0[1] * d1[0]
    between = jnp.arctan2(jnp.abs(turn), dot(d0, d1))

    def seen(length: Array) -> Array:
        return jnp.arctan2(jnp.sqrt(jnp.maximum(length**2 - radius**2, 0.0)), radius)

    def slope(angle: Array, l0: Array, l1: Array, between: Array, radius: Array) -> tuple[Array, Array]:
        total, rate = jnp.zeros_like(angle), jnp.zeros_like(angle)
        for length, phi, sign in ((l0, angle, 1.0), (l1, between - angle, -1.0)):
            s, c = radius * length * jnp.sin(phi), radius * length * jnp.cos(phi)
            apart = jnp.sqrt(jnp.maximum(radius**2 + length**2 - 2 * c, jnp.finfo(s.dtype).tiny))
            total, rate = total + sign * s / apart, rate + (c - (s / apart) ** 2) / apart
        return total, rate

    fixed = jax.lax.stop_gradient((l0, l1, between, radius))

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        early = slope(middle, *fixed)[0] < 0
        return jnp.where(early, middle, low), jnp.where(early, high, middle)

    def newton(angle: Array, data: tuple[Array, ...]) -> Array:
        value, rate = slope(angle, *data)
        return angle - value / jnp.where(rate > 0, rate, jnp.inf)

    start = jax.lax.stop_gradient((jnp.maximum(between - seen(l1), 0.0), jnp.minimum(between, seen(l0))))
    low, high = jax.lax.fori_loop(0, BISECTIONS, halve, start)
    angle = jax.lax.fori_loop(0, NEWTON_STEPS, lambda _, a: jnp.clip(newton(a, fixed), low, high), (low + high) / 2)
    for _ in range(2):  # twice: then second derivatives are right, too
        angle = newton(angle, (l0, l1, between, radius))
    ahead = _unit(d0)
    across = jnp.where(turn < 0, -1.0, 1.0) * jnp.stack([-ahead[1], ahead[0]])
    point = radius * (jnp.cos(angle) * ahead + jnp.sin(angle) * across)
    return _Circle((l0 > radius) & (l1 > radius) & (radius > 0) & ~hit, point, point, jnp.zeros_like(l0))


def _length(v: Array) -> Array:
    return jnp.sqrt(jnp.maximum(dot(v, v), jnp.finfo(v.dtype).tiny))


def _unit(v: Array) -> Array:
    return v / _length(v)
