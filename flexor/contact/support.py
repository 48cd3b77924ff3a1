"""Convex shapes by their support functions, each in its own frame.

A shape is a *core* and a radius: the points within that radius of the core. A sphere's core is a point, a capsule's a segment;
the others are their own cores. For a direction d the core's support is its farthest point along d (van den Bergen 2003).

Derivatives of what touches need, besides, how the shape is curved where its outward normal is n: its *flat* directions, along
which the normal stays while the support moves (two on a face, one along an edge, none at a corner), and how far the support moves
where the normal turns (`curvature`; nothing at corners and edges, a radius on round sides).
"""

import abc
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from flexor.contact.placed import Placed
from flexor.spatial import cross, dot

CORNER_SIGNS = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])  # counter-clockwise
CAP = 0.7  # a cylinder rests on its cap where the normal's share along the axis is more than this, else on its side
TILT = 0.02  # rad: corners of a mesh that a tilt of the normal by this angle makes the lowest count as one face


class Flat(NamedTuple):
    """Whether a shape is flat at a normal in both directions (`face`, and `along` is the normal of the face) or in one (`edge`,
    and `along` is that one)."""

    face: Bool[Array, ""]
    edge: Bool[Array, ""]
    along: Float[Array, "3"]


class Feature(NamedTuple):
    """What a shape turns towards a direction n: four points of its surface in a plane, counter-clockwise about n (points of
    segments and triangles are repeated), where a slightly larger feature would have them, and the plane's normal."""

    corners: Float[Array, "4 3"]
    outward: Float[Array, "4 3"]
    normal: Float[Array, "3"]


def unit(v: Array) -> Array:
    """Unit vector of v; z for the zero vector, with a zero derivative there."""
    square = dot(v, v)
    zero = square <= jnp.finfo(v.dtype).tiny
    axis = jnp.zeros(3, v.dtype).at[2].set(1.0)
    return jnp.where(zero, axis, v / jnp.sqrt(jnp.where(zero, 1.0, square)))


def still(dtype: np.dtype) -> float:
    """Components of a unit normal below this count as zero."""
    return 3 * float(jnp.finfo(dtype).eps) ** 0.5


class AbstractShape(abc.ABC):
    """A convex shape. All vectors are in its own frame; directions need not have unit length, normals do."""

    touches_in_one_point = False
    curved = False

    @abc.abstractmethod
    def support(self, shape: Placed, d: Float[Array, "3"]) -> Float[Array, "3"]:
        """The core's farthest point along d."""

    @abc.abstractmethod
    def extent(self, shape: Placed) -> Float[Array, ""]:
        """Radius of a ball about the frame that holds the core."""

    @abc.abstractmethod
    def flat(self, shape: Placed, n: Float[Array, "3"], within: Array | float) -> Flat:
        """Where the core is flat at the outward normal n, or at one that differs by less than `within`, in rad."""

    @abc.abstractmethod
    def feature(self, shape: Placed, n: Float[Array, "3"]) -> Feature:
        """What the shape, radius included, turns towards n."""

    def moving(self, shape: Placed, point: Float[Array, "3"], n: Float[Array, "3"]) -> Float[Array, "3"]:
        """The core's point `point`, where n is normal, with the derivatives of the support by size and direction."""
        s = self.support(shape, n)
        return lax.stop_gradient(point) + (s - lax.stop_gradient(s))

    def onto(self, shape: Placed, point: Float[Array, "3"], n: Float[Array, "3"]) -> Float[Array, "3"]:
        """The point that is near `point` and has the normal n."""
        return point

    def curvature(self, shape: Placed, n: Float[Array, "3"], turn: Float[Array, "3"]) -> Float[Array, "3"]:
        """How the support moves where the normal n turns; nothing for corners and edges."""
        return jnp.zeros_like(n)

    def radius(self, shape: Placed) -> Float[Array, ""]:
        """By how much the shape is thicker than its core."""
        return jnp.zeros((), shape.size.dtype)

    def centre(self, shape: Placed) -> Float[Array, "3"]:
        """A point inside the core."""
        return jnp.zeros(3, shape.size.dtype)


class Ball(AbstractShape):
    """A sphere: a point with a radius."""

    touches_in_one_point = True

    def support(self, shape: Placed, d: Array) -> Array:
        return jnp.zeros_like(d)

    def extent(self, shape: Placed) -> Array:
        return jnp.zeros((), shape.size.dtype)

    def radius(self, shape: Placed) -> Array:
        return shape.size[0]

    def flat(self, shape: Placed, n: Array, within: Array | float) -> Flat:
        return Flat(jnp.zeros((), bool), jnp.zeros((), bool), n)

    def onto(self, shape: Placed, point: Array, n: Array) -> Array:
        return jnp.zeros_like(point)

    def feature(self, shape: Placed, n: Array) -> Feature:
        raise NotImplementedError("a ball touches in one point")


class Capsule(AbstractShape):
    """A segment along z with a radius."""

    def support(self, shape: Placed, d: Array) -> Array:
        return _along_z(jnp.where(d[2] < 0, -shape.size[1], shape.size[1]))

    def extent(self, shape: Placed) -> Array:
        return shape.size[1]

    def radius(self, shape: Placed) -> Array:
        return shape.size[0]

    def moving(self, shape: Placed, point: Array, n: Array) -> Array:
        return _along_z(_scaled(point[2], shape.size[1]))

    def flat(self, shape: Placed, n: Array, within: Array | float) -> Flat:
        return Flat(jnp.zeros((), bool), jnp.abs(n[2]) < within, _along_z(jnp.ones((), n.dtype)))

    def onto(self, shape: Placed, point: Array, n: Array) -> Array:
        return _along_z(jnp.clip(point[2], -shape.size[1], shape.size[1]))

    def feature(self, shape: Placed, n: Array) -> Feature:
        """The line of the surface that is nearest to n, along the segment."""
        z = _along_z(jnp.ones((), n.dtype))
        side = unit(cross(n, z))
        corners = _signs(n)[:, :1] * (shape.size[1] * z)[None] + (shape.size[0] * n)[None]
        return Feature(corners, _outward(z, side), unit(cross(z, side)))


class Box(AbstractShape):
    """A box of the given half lengths."""

    def support(self, shape: Placed, d: Array) -> Array:
        return jnp.where(d < 0, -shape.size, shape.size)

    def extent(self, shape: Placed) -> Array:
        return jnp.sqrt(dot(shape.size, shape.size))

    def moving(self, shape: Placed, point: Array, n: Array) -> Array:
        return _scaled(point, shape.size)

    def flat(self, shape: Placed, n: Array, within: Array | float) -> Flat:
        flat = jnp.abs(n) < within
        count = jnp.sum(flat.astype(n.dtype))
        axis = jnp.where(flat, 0.0, jnp.where(n < 0, -1.0, 1.0)).astype(n.dtype)
        return Flat(count == 2, count == 1, jnp.where(count == 2, axis, flat.astype(n.dtype)))

    def onto(self, shape: Placed, point: Array, n: Array) -> Array:
        within = jnp.clip(point, -shape.size, shape.size)
        return jnp.where(jnp.abs(n) < still(n.dtype), within, self.support(shape, n))

    def feature(self, shape: Placed, n: Array) -> Feature:
        """The face whose normal is nearest to n."""
        places = jnp.arange(3)
        face = jnp.argmax(jnp.abs(n))
        first, second = ((places == (face + k) % 3).astype(n.dtype) for k in (1, 2))
        normal = jnp.where(places == face, jnp.where(n < 0, -1.0, 1.0), 0.0).astype(n.dtype)
        second = second * jnp.sum(normal)  # so that first, second and normal are right-handed
        outward = _outward(first, second)
        return Feature((outward + normal[None]) * shape.size[None], outward, normal)


class Cylinder(AbstractShape):
    """A cylinder about z: radius and half length."""

    curved = True

    def support(self, shape: Placed, d: Array) -> Array:
        rim = shape.size[0] * _radial(d)
        return rim + _along_z(jnp.where(d[2] < 0, -shape.size[1], shape.size[1]))

    def extent(self, shape: Placed) -> Array:
        return jnp.sqrt(dot(shape.size[:2], shape.size[:2]))

    def moving(self, shape: Placed, point: Array, n: Array) -> Array:
        """On the side as the support; on the cap the point moves with the cylinder alone, and with its size."""
        side = self.support(shape, n)
        across, along = side.at[2].set(0.0), _along_z(_scaled(point[2], shape.size[1]))
        on_side = lax.stop_gradient(point.at[2].set(0.0)) + (across - lax.stop_gradient(across))
        on_cap = _scaled(point.at[2].set(0.0), shape.size[0])
        return jnp.where(_upright(n, still(n.dtype)), on_cap, on_side) + along

    def onto(self, shape: Placed, point: Array, n: Array) -> Array:
        within, s = still(n.dtype), self.support(shape, n)
        height = jnp.where(jnp.abs(n[2]) < within, jnp.clip(point[2], -shape.size[1], shape.size[1]), s[2])
        return jnp.where(_upright(n, within), point, s).at[2].set(height)

    def curvature(self, shape: Placed, n: Array, turn: Array) -> Array:
        """Round the rim; the cap is flat."""
        moved = jax.jvp(lambda d: shape.size[0] * _radial(d), (n,), (turn,))[1]
        return jnp.where(_upright(n, still(n.dtype)), 0.0, moved)

    def flat(self, shape: Placed, n: Array, within: Array | float) -> Flat:
        return Flat(_upright(n, within), jnp.abs(n[2]) < within, _along_z(jnp.where(n[2] < 0, -1.0, 1.0).astype(n.dtype)))

    def feature(self, shape: Placed, n: Array) -> Feature:
        """A square in the rim of the cap, or the line of the side that is nearest to n."""
        dtype, up = n.dtype, jnp.where(n[2] < 0, -1.0, 1.0).astype(n.dtype)
        radius, half, z = shape.size[0], shape.size[1], _along_z(up)
        x, y = jnp.array([1.0, 0, 0], dtype), jnp.array([0, 1.0, 0], dtype)
        square = _outward(x, up * y) * 0.5**0.5
        out = _radial(n)
        line = _outward(cross(z, out), z)
        ends = (radius * out)[None] + _signs(n)[:, 1:] * (half * z)[None]
        cap = jnp.abs(n[2]) > CAP
        corners = jnp.where(cap, radius * square + (half * z)[None], ends)
        return Feature(corners, jnp.where(cap, square, line), jnp.where(cap, z, out))


class Ellipsoid(AbstractShape):
    """An ellipsoid of the given semi-axes."""

    touches_in_one_point = True
    curved = True

    def support(self, shape: Placed, d: Array) -> Array:
        return shape.size * unit(shape.size * d)

    def onto(self, shape: Placed, point: Array, n: Array) -> Array:
        return self.support(shape, n)

    def curvature(self, shape: Placed, n: Array, turn: Array) -> Array:
        return jax.jvp(lambda d: self.support(shape, d), (n,), (turn,))[1]

    def extent(self, shape: Placed) -> Array:
        return jnp.max(shape.size)

    def flat(self, shape: Placed, n: Array, within: Array | float) -> Flat:
        return Flat(jnp.zeros((), bool), jnp.zeros((), bool), n)

    def feature(self, shape: Placed, n: Array) -> Feature:
        raise NotImplementedError("an ellipsoid touches in one point")


class Mesh(AbstractShape):
    """The convex hull of vertices. A vertex may be there more than once."""

    def support(self, shape: Placed, d: Array) -> Array:
        vertices = _vertices(shape)
        return farthest(_heights(vertices, d), vertices)

    def extent(self, shape: Placed) -> Array:
        vertices = _vertices(shape)
        return jnp.sqrt(jnp.max(dot(vertices, vertices)))

    def centre(self, shape: Placed) -> Array:
        return jnp.mean(_vertices(shape), axis=0)

    def onto(self, shape: Placed, point: Array, n: Array) -> Array:
        """In the face, on the edge or at the corner that is highest along n."""
        flat, top = self.flat(shape, n, still(n.dtype)), self.support(shape, n)
        arm = point - top
        on_edge = dot(flat.along, arm) * flat.along
        return top + jnp.where(flat.face, arm - dot(n, arm) * n, jnp.where(flat.edge, on_edge, 0.0))

    def flat(self, shape: Placed, n: Array, within: Array | float) -> Flat:
        """By the tilted supports that are as high as the highest vertex."""
        corners = self.feature(shape, n).corners
        vertices = _vertices(shape)
        top, size = jnp.max(_heights(vertices, n)), self.extent(shape)
        level = dot(corners, jnp.broadcast_to(n, corners.shape)) > top - within * size
        first = farthest(level.astype(n.dtype), corners)
        arms = jnp.where(level[:, None], corners - first[None], 0.0)
        lengths = dot(arms, arms)
        longest = farthest(lengths, arms)
        area = jnp.max(jnp.abs(dot(cross(jnp.broadcast_to(longest, arms.shape), arms), jnp.broadcast_to(n, arms.shape))))
        face = area > 1e-3 * jnp.max(lengths)
        edge = jnp.max(lengths) > 1e-6 * size * size
        return Flat(face & edge, edge & ~face, jnp.where(face, _plane(corners, n), unit(longest)))

    def feature(self, shape: Placed, n: Array) -> Feature:
        """The highest vertices along four normals, each tilted a little away from n."""
        first = unit(cross(n, _least(n)))
        second = cross(n, first)
        turn = np.array([[0.83, 0.56], [-0.56, 0.83], [-0.83, -0.56], [0.56, -0.83]])  # at an angle to the edges of boxes
        outward = jnp.asarray(turn[:, :1], n.dtype) * first[None] + jnp.asarray(turn[:, 1:], n.dtype) * second[None]
        vertices = _vertices(shape)
        corners = jnp.stack([farthest(_heights(vertices, n + TILT * t), vertices) for t in outward])
        return Feature(corners, outward, _plane(corners, n))


SHAPES_BY_NAME: dict[str, AbstractShape] = {
    "sphere": Ball(),
    "capsule": Capsule(),
    "box": Box(),
    "cylinder": Cylinder(),
    "ellipsoid": Ellipsoid(),
    "mesh": Mesh(),
}


def farthest(score: Float[Array, " n"], rows: Float[Array, "n k"]) -> Float[Array, " k"]:
    """The row with the largest score, the first of equals, by halves: the same few operations for every member of a batch."""
    score = lax.stop_gradient(score)
    while len(score) > 1:
        half = (len(score) + 1) // 2
        rest = len(score) - half
        better = jnp.concatenate([score[half:] > score[:rest], jnp.zeros(half - rest, bool)])
        other, others = (jnp.concatenate([x[half:], x[rest:half]]) for x in (score, rows))
        score, rows = jnp.where(better, other, score[:half]), jnp.where(better[:, None], others, rows[:half])
    return rows[0]


def _vertices(shape: Placed) -> Array:
    assert shape.vertices is not None
    return shape.vertices


def _heights(vertices: Array, d: Array) -> Array:
    return dot(vertices, jnp.broadcast_to(d, vertices.shape))


def _scaled(point: Array, size: Array) -> Array:
    """The point, moving with the size in proportion."""
    share = lax.stop_gradient(point / jnp.where(size > 0, size, 1.0))
    moved = share * size
    return lax.stop_gradient(point) + (moved - lax.stop_gradient(moved))


def _along_z(z: Array) -> Array:
    zero = jnp.zeros_like(z)
    return jnp.stack([zero, zero, z])


def _radial(d: Array) -> Array:
    """Unit vector of the part of d across z; x where there is none, with a zero derivative."""
    square = d[0] * d[0] + d[1] * d[1]
    none = square <= jnp.finfo(d.dtype).tiny
    length = jnp.sqrt(jnp.where(none, 1.0, square))
    return jnp.stack([jnp.where(none, 1.0, d[0] / length), jnp.where(none, 0.0, d[1] / length), jnp.zeros_like(length)])


def _upright(n: Array, within: Array | float) -> Array:
    """Whether a unit normal is along z."""
    return n[0] * n[0] + n[1] * n[1] < within**2


def _outward(first: Array, second: Array) -> Array:
    """The corners of a square of half length one, counter-clockwise about first x second."""
    return _signs(first)[:, :1] * first[None] + _signs(first)[:, 1:] * second[None]


def _signs(like: Array) -> Array:
    return jnp.asarray(CORNER_SIGNS, like.dtype)


def _least(n: Array) -> Array:
    """The coordinate axis that is farthest from n."""
    return (jnp.arange(3) == jnp.argmin(jnp.abs(n))).astype(n.dtype)


def _plane(corners: Array, n: Array) -> Array:
    """Unit normal, on the side of n, of the plane through four corners; where they lie on a line or in a point, the normal
    nearest to n."""
    one, two = corners[2] - corners[0], corners[3] - corners[1]
    across = cross(one, two)
    length = jnp.maximum(dot(one, one), dot(two, two))
    thin = dot(across, n) <= 1e-3 * length
    along = unit(jnp.where(dot(one, one) >= dot(two, two), one, two))
    point = length <= jnp.finfo(n.dtype).tiny
    return unit(jnp.where(point, n, jnp.where(thin, n - dot(n, along) * along, across)))
