"""Up to four points in which two convex shapes touch: corners of the overlap of the two features that face each other.

Seen along the normal N, each shape turns a polygon of at most four corners towards the other (`Feature`). The corners of their
overlap are corners of the one inside the other, and crossings of their edges; the gap there is the difference of the heights of
the two planes along N. Of those not much shallower than the deepest, four are taken that span the overlap: one far out, the one
farthest from it, and one on either side of the line between them. The point of the separation itself (`Separation`) is among them
wherever it is deeper than all four: at corners and edges.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from flexor.contact.contacts import tangents
from flexor.contact.support import Feature, farthest
from flexor.spatial import dot

WIDER = 1e-5  # by this share of the shapes' size features are widened, so that corners on an edge are inside
SHALLOW = 0.05  # corners shallower than the deepest by this share of the size are left out
NARROW = 1e-3  # corners nearer to each other than this share of the size are one
FAR = 1.0  # m: the distance that rows without a point have beyond that of the pair


class Corners(NamedTuple):
    """Points in the plane across the normal, heights of the first shape's surface there, and gaps to the second's."""

    place: Float[Array, "n 2"]
    height: Float[Array, " n"]
    gap: Float[Array, " n"]
    valid: Bool[Array, " n"]


def four_points(
    first: Feature, second: Feature, normal: Array, middle: Array, distance: Array, size: Array, close: Array
) -> tuple[Float[Array, "4 3"], Float[Array, " 4"]]:
    """Points halfway between the surfaces, and distances along the normal, of four contacts; all in the same axes.

    `middle` and `distance` are those of the separation; `size` is that of the shapes, `close` the precision of distances.
    Rows that are not needed repeat `middle` at `FAR` beyond its distance.
    """
    frame = jnp.stack([*tangents(normal), normal])
    corners = _overlap(first, second, frame, middle, size)
    own = jnp.concatenate([jnp.zeros(2, distance.dtype), jnp.stack([-distance / 2, distance])])
    rows, valid = _with_deepest(*_spanning(corners, size), own, close)
    place, height, gap = rows[:, :2], rows[:, 2], rows[:, 3]
    out = jnp.concatenate([place, (height + gap / 2)[:, None]], axis=1)
    points = middle[None] + jnp.sum(out[:, :, None] * frame[None], axis=1)
    return jnp.where(valid[:, None], points, middle[None]), jnp.where(valid, gap, distance + FAR)


def _overlap(first: Feature, second: Feature, frame: Array, middle: Array, size: Array) -> Corners:
    """All corners of the overlap: four and four corners, sixteen crossings."""
    second = Feature(second.corners[::-1], second.outward[::-1], second.normal)
    (p, P, m), (q, Q, k) = (_seen(f, frame, middle, size) for f in (first, second))
    onto_q, onto_p = _height(q[0], k, p), _height(p[0], m, q)
    own = Corners(p[:, :2], p[:, 2], onto_q - p[:, 2], _inside(p[:, :2], Q))
    other = Corners(q[:, :2], onto_p, q[:, 2] - onto_p, _inside(q[:, :2], P))
    return Corners(*(jnp.concatenate(x) for x in zip(own, other, _crossings(p, q), strict=True)))


def _seen(feature: Feature, frame: Array, middle: Array, size: Array) -> tuple[Array, Array, Array]:
    """Corners, wider corners in the plane, and the plane's normal, in the frame."""
    corners = jnp.sum(frame[None] * (feature.corners - middle[None])[:, None], axis=-1)
    outward = jnp.sum(frame[None] * feature.outward[:, None], axis=-1)
    return corners, (corners + WIDER * size * outward)[:, :2], jnp.sum(frame * feature.normal[None], axis=-1)


def _height(corner: Array, normal: Array, at: Array) -> Array:
    """Height of the plane through a corner over places."""
    steep = jnp.abs(normal[2]) < 0.1
    slope = jnp.where(steep, 0.0, normal[:2] / jnp.where(steep, 1.0, normal[2]))
    away = at[:, :2] - corner[None, :2]
    return corner[2] - dot(away, jnp.broadcast_to(slope, away.shape))


def _inside(places: Array, polygon: Array) -> Array:
    """Whether places are inside a convex polygon, counter-clockwise."""
    edges = jnp.roll(polygon, -1, axis=0) - polygon
    away = places[:, None] - polygon[None]
    return jnp.all(_area(jnp.broadcast_to(edges, away.shape), away) >= 0, axis=1)


def _area(a: Array, b: Array) -> Array:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _crossings(p: Array, q: Array) -> Corners:
    """Where edges of the two polygons cross, seen along the normal."""
    d, e = jnp.roll(p, -1, axis=0) - p, jnp.roll(q, -1, axis=0) - q
    rows, columns = np.repeat(np.arange(4), 4), np.tile(np.arange(4), 4)
    p, d, q, e = p[rows], d[rows], q[columns], e[columns]
    det, away = _area(d, e), q - p
    squares = dot(d[:, :2], d[:, :2]) * dot(e[:, :2], e[:, :2])
    parallel = det * det <= 1e-8 * squares + jnp.finfo(p.dtype).tiny
    inverse = jnp.where(parallel, 0.0, 1 / jnp.where(parallel, 1.0, det))
    s, t = _area(away, e) * inverse, _area(away, d) * inverse
    valid = ~parallel & (s >= 0) & (s <= 1) & (t >= 0) & (t <= 1)
    on_p, on_q = p + s[:, None] * d, q[:, 2] + t * e[:, 2]
    return Corners(on_p[:, :2], on_p[:, 2], on_q - on_p[:, 2], valid)


def _spanning(corners: Corners, size: Array) -> tuple[Array, Array]:
    """Four rows (place, height, gap) that span the overlap, and which of them are needed."""
    place, height, gap, valid = corners
    deepest = jnp.min(jnp.where(valid, gap, jnp.inf))
    valid = valid & (gap <= deepest + SHALLOW * size)
    table = jnp.concatenate([place, height[:, None], gap[:, None]], axis=1)

    def best(score: Array) -> Array:
        return farthest(jnp.where(valid, score, -jnp.inf), table)

    far_out = jnp.asarray(np.array([0.83, 0.56]), place.dtype)
    one = best(SHALLOW * dot(place, jnp.broadcast_to(far_out, place.shape)) - gap)
    away = place - one[None, :2]
    two = best(dot(away, away))
    line = two[:2] - one[:2]
    left = _area(jnp.broadcast_to(line, away.shape), away)
    three, four = best(left), best(-left)
    length = jnp.sqrt(dot(line, line))
    aside = [jnp.abs(_area(line, x[:2] - one[:2])) > NARROW * size * length for x in (three, four)]
    signs = [_area(line, three[:2] - one[:2]) > 0, _area(line, four[:2] - one[:2]) < 0]
    some = jnp.any(valid)
    needed = [some, some & (length > NARROW * size), *(some & a & s for a, s in zip(aside, signs, strict=True))]
    return jnp.stack([one, two, three, four]), jnp.stack(needed)


def _with_deepest(
    table: Float[Array, "4 4"], valid: Bool[Array, " 4"], own: Float[Array, " 4"], close: Array
) -> tuple[Float[Array, "4 4"], Bool[Array, " 4"]]:
    """The rows with the separation's own in place of the one least needed, where it is deeper than all."""
    deeper = own[3] < jnp.min(jnp.where(valid, table[:, 3], jnp.inf)) - close
    least = jnp.argmax(jnp.where(valid, table[:, 3], jnp.inf))
    here = deeper & (jnp.arange(4) == least)
    return jnp.where(here[:, None], own[None], table), valid | here
