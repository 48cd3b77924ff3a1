"""Depth of two convex sets that overlap or touch, by rays through their difference.

With D = B - A as in `gjk.py`, a unit normal N from A to B separates the two sets by S(N) = min N.w over D; the signed distance is
the largest S(N), and -S is the shortest way that takes overlapping sets apart. A ray from a point c inside D leaves it through a
face; the face's inward normal is N, and q = S N the point of its plane nearest to the origin. Where q lies on the face, S is at a
local maximum. Elsewhere the next ray goes from c to q: it leaves D before q, through a face whose plane parts q from D, which
therefore is less deep: -S' < N'.N (-S) <= -S. So the depth falls from ray to ray.

Where a ray leaves D is found by a triangle that it passes (a portal; Snethen 2008, "XenoCollide"): the support against the
triangle's normal replaces one of its corners, until the triangle lies in the face. It begins small about c, inside D. Nothing
here divides by the distance, so that touching sets have a normal as good as any.

There may be several local maxima. The search begins at the best of the face that the ray from c to the origin leaves by, and of
`trials`; for two boxes these hold all candidates (Gottschalk et al. 1996), so that the depth is the least one. Of hulls with many
faces that overlap, the depth found may be a little more than the least one.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from flexor.contact.gjk import Support
from flexor.contact.support import unit
from flexor.spatial import cross, dot

CIRCLE = np.array([[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]])


class Separation(NamedTuple):
    """A unit normal from A to B, the signed distance along it, and the point of A in touch."""

    normal: Float[Array, "3"]
    distance: Float[Array, ""]
    point: Float[Array, "3"]


class _Ray(NamedTuple):
    """A direction from c, the triangle that it passes (relative to c) and its points of A; the best so far."""

    direction: Array
    corners: Array
    points: Array
    best: Separation
    going: Array
    tried: Array
    turns: Array


def separation(
    support: Support,
    trials: Array,
    centre: Array,
    point: Array,
    size: Array,
    tolerance: Array,
    wanted: Bool[Array, ""],
    most: int,
) -> Separation:
    """The separation of two sets that touch or overlap. `centre` lies inside D and comes from `point` of A; `size` is that of D.

    Takes at most `most` supports, and none where it is not `wanted`.
    """
    small = 1e-3 * size

    def start(direction: Array) -> tuple[Array, Array]:
        circle = jnp.asarray(CIRCLE, direction.dtype)
        side = unit(cross(direction, (jnp.arange(3) == jnp.argmin(jnp.abs(direction))).astype(direction.dtype)))
        other = cross(direction, side)
        return small * (circle[:, :1] * side[None] + circle[:, 1:] * other[None]), jnp.broadcast_to(point, (3, 3))

    def turn(ray: _Ray) -> _Ray:
        t = ray.corners
        first, trial = ray.tried < 0, (ray.tried >= 0) & (ray.tried < len(trials))
        outward = jnp.where(trial, -trials[jnp.clip(ray.tried, 0, len(trials) - 1)], unit(cross(t[1] - t[0], t[2] - t[0])))
        w, a = support(-outward)
        w_c = w - centre
        reached = trial | (dot(outward, w_c - t[0]) <= tolerance)
        distance = -dot(outward, w)
        pierced, a_pierced = _pierced(ray)
        better = reached & (distance > ray.best.distance + tolerance)
        new = Separation(-outward, distance, a_pierced)
        as_good = reached & (distance >= ray.best.distance - jnp.where(trial, 0.0, tolerance))
        best = Separation(*(jnp.where(as_good, x, y) for x, y in zip(new, ray.best, strict=True)))
        target = best.distance * best.normal - centre
        aside = target - pierced
        again = jnp.where(trial, ray.tried == len(trials) - 1, better & (dot(aside, aside) > tolerance * tolerance) & ~first)
        direction = jnp.where(again, unit(target), ray.direction)
        fresh, fresh_points = start(direction)
        replaced = _replaced(ray.direction, t, w_c)[:, None]
        corners = jnp.where(again, fresh, jnp.where(replaced, w_c[None], t))
        points = jnp.where(again, fresh_points, jnp.where(replaced, a[None], ray.points))
        tried = ray.tried + reached.astype(int)
        return _Ray(direction, corners, points, best, first | trial | ~reached | again, tried, ray.turns + 1)

    outward = unit(-centre)
    corners, points = start(outward)
    none = Separation(-outward, jnp.full((), -jnp.finfo(centre.dtype).max, centre.dtype), point)
    ray = lax.while_loop(
        lambda r: r.going & (r.turns < most),
        turn,
        _Ray(outward, corners, points, none, wanted, jnp.full((), -1), jnp.zeros((), int)),
    )
    # a search that never reached a face: the triangle as it is
    lost = ~(ray.best.distance > -jnp.inf)
    t = ray.corners
    outward = unit(cross(t[1] - t[0], t[2] - t[0]))
    last = Separation(-outward, -dot(outward, t[0] + centre), _pierced(ray)[1])
    return Separation(*(jnp.where(lost, x, y) for x, y in zip(last, ray.best, strict=True)))


def _sides(direction: Array, t: Array) -> Array:
    """Six times the volumes of the direction with the sides opposite to each corner: all positive where it passes inside."""
    normals = jnp.stack([cross(t[1], t[2]), cross(t[2], t[0]), cross(t[0], t[1])])
    return dot(normals, jnp.broadcast_to(direction, normals.shape))


def _pierced(ray: _Ray) -> tuple[Array, Array]:
    """Where the ray passes the triangle, relative to c, and its point of A."""
    share = jnp.maximum(_sides(ray.direction, ray.corners), 0.0)
    total = jnp.sum(share)
    share = jnp.where(total > 0, share, 1.0) / jnp.where(total > 0, total, 3.0)
    return tuple(jnp.sum(share[:, None] * x, axis=0) for x in (ray.corners, ray.points))  # type: ignore[return-value]


def _replaced(direction: Array, t: Array, w: Array) -> Array:
    """Which corner gives way to w, so that the direction still passes the triangle."""
    normal = cross(w, direction)
    s0, s1, s2 = (-dot(normal, corner) for corner in t)
    third, first = (s0 >= 0) & (s1 < 0), (s1 >= 0) & (s2 < 0)
    return jnp.stack([first & ~third, ~first & ~third, third])
