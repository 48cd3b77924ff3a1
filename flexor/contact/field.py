"""A convex shape on a height field: a surface of triangles over a grid, filled to below.

Vertex (r, c) of the grid is row r ncol + c of the field's vertices. Each cell has two triangles that share its diagonal from
(r, c) to (r + 1, c + 1), as in MuJoCo. A triangle stands for the prism below it, and a prism is a convex mesh: `convex.py` finds
where it touches. All prisms below the shape are looked at in a loop, so neither the program nor its memory grows with the field;
of all their points those remain that are deepest and farthest out in four directions, and only these have derivatives.

**Inner edges.** Prisms side by side have edges and faces between them that the surface has not. A point p of the surface with
the normal N is one of a contact only if no part of the surface at p rises along N: N.(w - p) <= 0 for the far corner w of the
triangle beyond an edge that p lies on, and for all vertices w around a vertex that p is at. So a ball rolls over a plane of
triangles as over a plane. Where that test fails, as deep below the surface, the triangle's plane takes the place of its prism, if
the shape's lowest point along the triangle's normal is over or under the triangle, or its centre is under it.

**Derivatives by the heights.** To first order a triangle moves at a point of it as a rigid body does: with that point, with the
edge that it is nearest to, and with its plane.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from flexor.contact.convex import touch
from flexor.contact.placed import Placed, Touch
from flexor.contact.support import SHAPES_BY_NAME, AbstractShape, unit
from flexor.model.topology import INDEX
from flexor.spatial import cross, dot, gathered, rotate

FAR = 1e6  # m: the distance of a place that is empty
LATERAL = np.array(
    [[0.83, 0.56], [-0.56, 0.83], [-0.83, -0.56], [0.56, -0.83]]
)  # at an angle to the edges of boxes and cells
NEAR = 0.1  # of a shape's size: gaps up to which points far out count where no reach is given
EDGE = 1e-3  # of a triangle: as near to an edge a point lies on it
LEVEL = 1e-3  # a normal within this angle of the triangle's is the triangle's own

# Rows and columns from a cell's first vertex to the corners of its two triangles, counter-clockwise from above, and to the far
# corner of the triangle across from each of these.
CORNERS = np.array([[[0, 0], [0, 1], [1, 1]], [[0, 0], [1, 1], [1, 0]]], INDEX)
BEYOND = np.array([[[1, 2], [1, 0], [-1, 0]], [[2, 1], [0, -1], [0, 1]]], INDEX)
AROUND = np.array([[0, 1], [1, 1], [1, 0], [0, -1], [-1, -1], [-1, 0]], INDEX)  # a vertex, those that an edge leads to


class _Triangle(NamedTuple):
    """Corners of a triangle; the far corner of the neighbour across from each, then the vertices around each, with whether there
    are such; in the frame of the field."""

    corners: Float[Array, "3 3"]
    around: Float[Array, "3 7 3"]
    there: Bool[Array, "3 7"]


class _Window(NamedTuple):
    """First and last row and column of the cells below a shape, and its lowest and highest z, in the frame of the field."""

    first: Int[Array, "2"]
    last: Int[Array, "2"]
    lowest: Float[Array, ""]
    highest: Float[Array, ""]
    empty: Bool[Array, ""]


def field_pair(shape: str, grid: tuple[int, int]) -> partial[Touch]:
    """The narrow phase of a height field with so many rows and columns of vertices and a kind of convex shapes."""
    return partial(field_touch, SHAPES_BY_NAME[shape], grid)


def field_touch(
    kind: AbstractShape, grid: tuple[int, int], field: Placed, shape: Placed, reach: Float[Array, ""] | None = None
) -> Touch:
    """Up to five points: the deepest, and the farthest out in four directions of those with a gap below `reach`."""
    local = shape._replace(pos=rotate(field.rot.T, shape.pos - field.pos), rot=_relative(field.rot, shape.rot))
    chosen = _search(kind, grid, *lax.stop_gradient((field, local, reach)))
    count = _rows(kind)

    def fill(code: Array, at: Array) -> Touch:
        cell = code // (2 * count)
        triangle = _triangle(field, grid, cell // grid[1], cell % grid[1], (code // count) % 2)
        found = _one(kind, triangle, local, at)
        row = code % count
        return Touch(*(jnp.sum(jnp.where(_at(row, count, x), x, 0.0), axis=0) for x in found))

    def visit(_: None, place: tuple[Array, Array]) -> tuple[None, Touch]:
        code, at = place
        none = Touch(
            *(jnp.zeros(3, shape.pos.dtype),) * 2, unit(jnp.zeros(3, shape.pos.dtype)), jnp.full((), FAR, shape.pos.dtype)
        )
        return None, lax.cond(code >= 0, fill, lambda *_: none, jnp.maximum(code, 0), at)

    found = lax.scan(visit, None, chosen)[1]
    points = [field.pos[None] + rotate(field.rot, x) for x in (found.point_a, found.point_b)]
    return Touch(points[0], points[1], rotate(field.rot, found.normal), found.distance)


def _relative(rot: Array, other: Array) -> Array:
    return jnp.sum(rot[:, :, None] * other[:, None, :], axis=0)


def _at(row: Array, count: int, like: Array) -> Array:
    here = jnp.arange(count, dtype=INDEX) == row
    return here.reshape(-1, *(1,) * (like.ndim - 1))


def _rows(kind: AbstractShape) -> int:
    return 1 if kind.touches_in_one_point else 4


def _search(
    kind: AbstractShape, grid: tuple[int, int], field: Placed, shape: Placed, reach: Array | None
) -> tuple[Int[Array, " 5"], Float[Array, "5 3"]]:
    """Where the points are: ((cell, triangle), row of its contact) as one number, -1 for a place that is empty; and the points of
    the field, in its frame."""
    size = kind.extent(shape) + kind.radius(shape)
    within = NEAR * size if reach is None else reach
    window = _window(kind, grid, field, shape, size if reach is None else reach)
    lateral = jnp.asarray(LATERAL, size.dtype)
    count = _rows(kind)

    def look(r: Array, c: Array, half: Array, best: Array, codes: Array, at: Array) -> tuple[Array, Array, Array]:
        triangle = _triangle(field, grid, r, c, half)
        found = _one(kind, triangle, shape)
        code = ((r * grid[1] + c) * 2 + half) * count
        for row in range(count):
            out = jnp.sum(lateral * found.point_b[row, None, :2], axis=-1)
            score = jnp.concatenate([-found.distance[row][None], jnp.where(found.distance[row] < within, out, -jnp.inf)])
            better = (score > best) & (found.distance[row] < 0.5 * FAR)
            best, codes = jnp.where(better, score, best), jnp.where(better, code + row, codes)
            at = jnp.where(better[:, None], found.point_a[row, None], at)
        return best, codes, at

    def visit(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        r, c, half, *now = carry
        top = jnp.max(_triangle(field, grid, r, c, half).corners[:, 2])
        near = (jnp.asarray(True) if reach is None else top > window.lowest - within) & (window.highest > -field.size[2])
        now = lax.cond(near, look, lambda r, c, half, *now: tuple(now), r, c, half, *now)
        wraps = (half == 1) & (c == window.last[1])
        c = jnp.where(half == 1, jnp.where(wraps, window.first[1], c + 1), c)
        return r + wraps.astype(INDEX), c, 1 - half, *now

    empty = jnp.full(5, -jnp.inf, size.dtype), jnp.full(5, -1, INDEX), jnp.zeros((5, 3), size.dtype)
    start = (*window.first, jnp.zeros((), INDEX), *empty)
    *_, codes, at = lax.while_loop(lambda carry: (carry[0] <= window.last[0]) & ~window.empty, visit, start)
    again = jnp.stack([jnp.any(codes[:i] == codes[i]) if i else jnp.asarray(False) for i in range(5)])
    return jnp.where(again, -1, codes), at


def _window(kind: AbstractShape, grid: tuple[int, int], field: Placed, shape: Placed, reach: Array) -> _Window:
    """The cells below a box around the shape, wider by the reach."""
    assert field.vertices is not None
    dtype = shape.pos.dtype
    ends = []
    for sign in (-1.0, 1.0):
        axes = sign * np.eye(3)
        far = [kind.support(shape, rotate(shape.rot.T, jnp.asarray(axis, dtype))) for axis in axes]
        ends.append(jnp.stack([rotate(shape.rot, x)[i] for i, x in enumerate(far)]) + sign * kind.radius(shape))
    low, high = (shape.pos + x for x in ends)
    corner, other = field.vertices[0, :2], field.vertices[-1, :2]
    cells = np.array([grid[1] - 1, grid[0] - 1])
    spacing = (other - corner) / jnp.asarray(cells, dtype)
    last = jnp.asarray(cells - 1, dtype)
    begin, end = (
        jnp.clip(jnp.floor((x - corner) / spacing), 0.0, last)[::-1].astype(INDEX)
        for x in (low[:2] - reach, high[:2] + reach)
    )
    empty = jnp.any((high[:2] + reach < corner) | (low[:2] - reach > other))
    return _Window(begin, end, low[2], high[2], empty)


def _triangle(field: Placed, grid: tuple[int, int], r: Array, c: Array, half: Array) -> _Triangle:
    vertices = field.vertices
    assert vertices is not None
    here = jnp.stack([r, c]).astype(INDEX)
    limit = np.array(grid, INDEX) - 1

    def of(offsets: np.ndarray) -> tuple[Array, Array]:
        place = here[None] + jnp.where(half == 0, offsets[0], offsets[1])
        inside = jnp.all((place >= 0) & (place <= limit[None]), axis=1)
        place = jnp.clip(place, 0, limit[None])
        return gathered(vertices, place[:, 0] * grid[1] + place[:, 1]), inside

    corners, _ = of(CORNERS)
    others = np.concatenate([BEYOND[:, :, None], CORNERS[:, :, None] + AROUND], axis=2)
    around, there = of(others.reshape(2, 21, 2))
    return _Triangle(corners, around.reshape(3, 7, 3), there.reshape(3, 7))


def _one(kind: AbstractShape, triangle: _Triangle, shape: Placed, at: Array | None = None) -> Touch:
    """Points of a shape on one triangle, with the derivatives of the point `at` by its corners; in the frame of the field."""
    corners = lax.stop_gradient(triangle.corners)
    size = lax.stop_gradient(kind.extent(shape) + kind.radius(shape))
    wide = jnp.sqrt(jnp.max(dot(corners - corners[:1], corners - corners[:1])))
    centre = jnp.mean(corners, axis=0)
    floor = jnp.min(corners[:, 2]) - 2 * (size + wide) - centre[2]  # deep enough to leave by the top
    top = corners - centre[None]
    prism = jnp.concatenate([top, top.at[:, 2].set(floor)])
    pos, rot = (centre, jnp.eye(3, dtype=centre.dtype)) if at is None else _moving(triangle.corners, centre, at)
    placed = Placed(pos, rot, jnp.zeros(3, centre.dtype), prism)
    found = touch(SHAPES_BY_NAME["mesh"], kind, placed, shape)
    sound = _sound(triangle, found)
    plane = _on_plane(kind, triangle, shape)
    fall_back = ~jnp.any(sound & (found.distance < lax.stop_gradient(jnp.min(found.distance)) + 0.5))
    found = found._replace(distance=jnp.where(sound, found.distance, FAR))
    rows = len(found.distance)
    first = jnp.arange(rows) == 0
    plane_rows = Touch(*(jnp.broadcast_to(x, (rows, *x.shape)) for x in plane))
    plane_rows = plane_rows._replace(distance=jnp.where(first, plane_rows.distance, FAR))
    return jax.tree.map(lambda x, y: jnp.where(fall_back, x, y), plane_rows, found)


def _moving(corners: Array, centre: Array, at: Array) -> tuple[Array, Array]:
    """The centre and the identity, with derivatives: those of a rigid body that moves as the triangle does at a point of it."""
    share = _shares(corners, at[None])[0]
    share = lax.stop_gradient(share)
    least = jnp.arange(3) == jnp.argmin(share)
    x = unit(jnp.sum(jnp.where(least[:, None], jnp.roll(corners, 1, axis=0) - jnp.roll(corners, -1, axis=0), 0.0), axis=0))
    z = _normal(corners)
    frame = jnp.stack([x, cross(z, x), z])
    turn = _relative(frame, lax.stop_gradient(frame))
    turn = turn - lax.stop_gradient(turn)
    moved = jnp.sum(share[:, None] * corners, axis=0)
    shift = moved - lax.stop_gradient(moved) + jnp.sum(turn * lax.stop_gradient(centre - at)[None], axis=1)
    return centre + shift, jnp.eye(3, dtype=centre.dtype) + turn


def _shares(corners: Float[Array, "3 3"], p: Float[Array, "n 3"]) -> Float[Array, "n 3"]:
    """Coordinates of points in the triangle, seen from above: they add up to one, and all are positive inside."""
    a, b, c = corners[0, None, :2], corners[1, None, :2], corners[2, None, :2]

    def area(u: Array, v: Array) -> Array:
        return u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]

    x = p[:, :2]
    whole = area(b - a, c - a)
    parts = [area(c - b, x - b), area(a - c, x - c), area(b - a, x - a)]
    return jnp.stack(parts, axis=-1) / whole[:, None]


def _normal(corners: Array) -> Float[Array, "3"]:
    return unit(cross(corners[1] - corners[0], corners[2] - corners[0]))


def _sound(triangle: _Triangle, found: Touch) -> Bool[Array, " n"]:
    """Which points are contacts with the surface, and not with what lies between its prisms."""
    triangle, found = lax.stop_gradient((triangle, found))
    level = dot(found.normal, jnp.broadcast_to(_normal(triangle.corners), found.normal.shape)) > 1 - LEVEL**2 / 2
    share = _shares(triangle.corners, found.point_a)
    on_edge, at_corner = share < EDGE, share > 1 - 2 * EDGE
    concerned = jnp.concatenate([on_edge[..., None], jnp.broadcast_to(at_corner[..., None], (*share.shape, 6))], axis=-1)
    away = triangle.around[None] - found.point_a[:, None, None]
    rising = dot(away, jnp.broadcast_to(found.normal[:, None, None], away.shape))
    rises = rising > LEVEL * jnp.sqrt(dot(away, away))
    inner = jnp.any(concerned & triangle.there[None] & rises, axis=(1, 2))
    return level | ((found.normal[:, 2] > 0) & ~inner)


def _on_plane(kind: AbstractShape, triangle: _Triangle, shape: Placed) -> Touch:
    """The lowest point along the triangle's normal, if it is over or under the triangle, or the centre under it; far away if
    not."""
    n = _normal(triangle.corners)
    down = -rotate(shape.rot.T, n)
    core = kind.moving(shape, kind.support(*lax.stop_gradient((shape, down))), down)
    point = shape.pos + rotate(shape.rot, core) - kind.radius(shape) * n
    distance = dot(n, point - triangle.corners[0])
    centre = shape.pos + rotate(shape.rot, kind.centre(shape))
    places = lax.stop_gradient(jnp.stack([point, centre]))
    inside = jnp.all(_shares(lax.stop_gradient(triangle.corners), places) > -EDGE, axis=-1)
    inside = inside[0] | (inside[1] & (dot(n, centre - triangle.corners[0]) < 0))
    return Touch(point - distance * n, point, n, jnp.where(inside, distance, FAR))
