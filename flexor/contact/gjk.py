"""Distance of two convex sets apart, by the algorithm of Gilbert, Johnson and Keerthi (1988).

D = B - A holds the differences b - a of all points of the two sets; its point nearest to the origin is the shortest way from A to
B. Each turn takes the support w of D against the nearest point v so far, and then the point nearest to the origin of the simplex
of w and at most three earlier supports; only faces of the simplex at w can hold it. |v| - v.w / |v| bounds the error of |v|
(van den Bergen 2003, section 4.3). All turns do the same operations, and what a simplex lacks is a copy of w.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from flexor.contact.support import farthest
from flexor.spatial import cross, dot

Support = Callable[[Array], tuple[Array, Array]]
"""The point w = b - a of D that is least along a direction, and its a."""


class Nearest(NamedTuple):
    """The point of D nearest to the origin, zero where D holds the origin, and the point of A it comes from."""

    v: Float[Array, "3"]
    point: Float[Array, "3"]


class _Simplex(NamedTuple):
    v: Array
    point: Array
    corners: Array
    points: Array
    going: Array
    turns: Array


def nearest(support: Support, start: Array, tolerance: Array, enough: Array, most: int) -> Nearest:
    """The point of D nearest to the origin, within `tolerance`; a distance below `enough` ends the search.

    `start` is a direction to begin with. Takes at most `most` turns.
    """
    w, a = support(start)

    def turn(s: _Simplex) -> _Simplex:
        w, a = support(s.v)
        length = jnp.sqrt(dot(s.v, s.v))
        close = dot(s.v, s.v) - dot(s.v, w) <= tolerance * length
        v, point, corners, points, inside = _closest(w, a, s.corners, s.points)
        better = ~close & (dot(v, v) < dot(s.v, s.v))
        going = better & ~inside & (dot(v, v) > enough * enough)
        new = _Simplex(v, point, corners, points, going, s.turns + 1)
        kept = [jnp.where(better, x, y) for x, y in zip(new[:4], s[:4], strict=True)]
        return _Simplex(kept[0], kept[1], kept[2], kept[3], going, s.turns + 1)

    first = _Simplex(
        w, a, jnp.broadcast_to(w, (3, 3)), jnp.broadcast_to(a, (3, 3)), dot(w, w) > enough * enough, jnp.zeros((), int)
    )
    s = lax.while_loop(lambda s: s.going & (s.turns < most), turn, first)
    return Nearest(s.v, s.point)


def _closest(w: Array, a: Array, corners: Array, points: Array) -> tuple[Array, Array, Array, Array, Array]:
    """The point nearest to the origin of the tetrahedron of w and three corners, if it is on a face at w: the point, what it is
    on A, the corners that span it, and whether the tetrahedron holds the origin."""
    tiny, eps = jnp.finfo(w.dtype).tiny, jnp.finfo(w.dtype).eps
    one = jnp.ones((), w.dtype)
    edges, arms = corners - w[None], points - a[None]
    squares, against = dot(edges, edges), -dot(edges, jnp.broadcast_to(w, edges.shape))
    t = jnp.clip(against / jnp.where(squares > tiny, squares, 1.0), 0.0, 1.0)
    shares = [t[k] * (jnp.arange(3) == k).astype(w.dtype) for k in range(3)]
    valid = [jnp.ones((), bool)] * 3
    for i, j in ((0, 1), (1, 2), (2, 0)):
        product = dot(edges[i], edges[j])
        det = squares[i] * squares[j] - product * product
        flat = det <= eps * squares[i] * squares[j] + tiny
        inverse = jnp.where(flat, 0.0, 1 / jnp.where(flat, one, det))
        s = (against[i] * squares[j] - against[j] * product) * inverse
        u = (against[j] * squares[i] - against[i] * product) * inverse
        places = jnp.arange(3)
        shares.append(s * (places == i).astype(w.dtype) + u * (places == j).astype(w.dtype))
        valid.append(~flat & (s > 0) & (u > 0) & (s + u < 1))
    share = jnp.stack(shares)
    found = w[None] + sum(share[:, k : k + 1] * edges[k][None] for k in range(3))
    score = jnp.where(jnp.stack(valid), -dot(found, found), -jnp.inf)
    best = farthest(score, jnp.concatenate([found, share], axis=1))
    v, weights = best[:3], best[3:]
    point = a + sum(weights[k] * arms[k] for k in range(3))
    used = (weights > 0)[:, None]
    inside = _holds_origin(w, edges)
    v = jnp.where(inside, 0.0, v)
    return v, point, jnp.where(used, corners, w[None]), jnp.where(used, points, a[None]), inside


def _holds_origin(w: Array, edges: Array) -> Array:
    """Whether the tetrahedron with a corner w and the edges from there holds the origin: all its coordinates are positive."""
    normals = jnp.stack([cross(edges[1], edges[2]), cross(edges[2], edges[0]), cross(edges[0], edges[1])])
    volume = dot(edges[0], normals[0])
    size = jnp.sqrt(jnp.max(dot(edges, edges)))
    flat = jnp.abs(volume) <= jnp.finfo(w.dtype).eps * size**3
    share = -dot(normals, jnp.broadcast_to(w, normals.shape)) / jnp.where(flat, 1.0, volume)
    return ~flat & jnp.all(share > 0) & (jnp.sum(share) < 1)
