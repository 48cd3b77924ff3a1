"""Any two convex shapes: distance, normal and up to four points, from their support functions (`support.py`).

Cores that are apart are handled by `gjk.py`; cores that touch or overlap, which those with a radius hardly ever do, by
`depth.py`; `manifold.py` finds the points.

**Derivatives** do not go through the searches. With the solution (N, S, a, b), b - a = S N, the distance has the derivative
N.(b' - a') of the two points as they move with their shapes (envelope theorem). N stays perpendicular to P (b - a) = 0, P the
projection across N, while a and b are the supports of A and -B along N. So, with C the rates at which these move where
N turns,

    (C_A + C_B + S) N' = P (b' - a') at fixed N.

On a face N turns with the face, along an edge it stays perpendicular to the edge: C is infinite in these directions. Where two
faces are in touch, the larger one has the say. Gaps and points at the corners follow by the rules of
differentiation from the features. These are the derivatives for the features in touch now: where a small motion changes the
feature (a box that lies flat begins to tip), distance and points have derivatives from one side only, and N may jump; the one
given is that of the feature found. How N depends on the vertices of a mesh is left out, and the distance sees a vertex where it
is the support.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from flexor.contact.depth import Separation, separation
from flexor.contact.gjk import nearest
from flexor.contact.manifold import four_points
from flexor.contact.placed import Placed, Touch
from flexor.contact.support import SHAPES_BY_NAME, AbstractShape, Feature, still, unit
from flexor.spatial import cross, dot, matmul, matvec, rotate

TURNS = {4: (32, 48), 8: (64, 96)}  # most supports for the distance and for the depth, by bytes of a number
NEWTON = 9  # steps that make the normal of round shapes exact
REFINED = (1e-2, 1e-4)  # a normal this near to a flat direction is tried along it, by turns, and as it is


def convex_pair(a: str, b: str) -> Callable[[Placed, Placed], Touch]:
    """The narrow phase of two kinds of convex shapes."""
    return partial(touch, SHAPES_BY_NAME[a], SHAPES_BY_NAME[b])


def touch(kind_a: AbstractShape, kind_b: AbstractShape, a: Placed, b: Placed) -> Touch:
    """One row where a shape is round on all sides, else four."""
    b = b._replace(pos=b.pos - a.pos)  # all relative to a: small numbers have small rounding errors
    origin, a = a.pos, a._replace(pos=jnp.zeros_like(a.pos))
    found = _separation(kind_a, kind_b, *lax.stop_gradient((a, b)))
    size = _size(kind_a, kind_b, a, b)
    N0, S0 = found.normal, found.distance
    on_a = kind_a.moving(a, rotate(a.rot.T, found.point), rotate(a.rot.T, N0))
    on_b = kind_b.moving(b, rotate(b.rot.T, found.point + S0 * N0 - b.pos), -rotate(b.rot.T, N0))
    core_a, core_b = rotate(a.rot, on_a), b.pos + rotate(b.rot, on_b)
    between = core_b - core_a
    turning = _turning(kind_a, kind_b, a, b, N0, S0, size, still(N0.dtype))
    N = _normal(turning, a, b, N0, between - lax.stop_gradient(between))
    along = dot(N0, between)
    S = S0 + (along - lax.stop_gradient(along))
    ra, rb = kind_a.radius(a), kind_b.radius(b)
    distance = S - ra - rb
    touched = _touched(kind_a, kind_b, a, b, found, turning, N, S)
    middle = touched + ((S + ra - rb) / 2) * N
    if kind_a.touches_in_one_point or kind_b.touches_in_one_point:
        middles, distances = middle[None], distance[None]
    else:
        feature_a, feature_b = _turned(kind_a, a, N), _turned(kind_b, b, -N)
        close = 4 * jnp.finfo(size.dtype).eps ** 0.75 * size
        middles, distances = four_points(feature_a, feature_b, N, middle, distance, lax.stop_gradient(size), close)
    half = 0.5 * distances[:, None] * N[None]
    return Touch(origin[None] + middles - half, origin[None] + middles + half, jnp.broadcast_to(N, half.shape), distances)


def _turned(kind: AbstractShape, shape: Placed, n: Array) -> Feature:
    """The feature towards n in the world's axes."""
    f = kind.feature(shape, rotate(shape.rot.T, n))
    return Feature(shape.pos[None] + rotate(shape.rot, f.corners), rotate(shape.rot, f.outward), rotate(shape.rot, f.normal))


def _size(kind_a: AbstractShape, kind_b: AbstractShape, a: Placed, b: Placed) -> Float[Array, ""]:
    """Radius of a ball that holds the difference of the shapes, about the centre."""
    return kind_a.extent(a) + kind_b.extent(b) + kind_a.radius(a) + kind_b.radius(b)


def _separation(kind_a: AbstractShape, kind_b: AbstractShape, a: Placed, b: Placed) -> Separation:
    """Normal, signed distance and the point of a, of the cores, found in the frame of a and turned back."""
    R, p = matmul(a.rot.T, b.rot), rotate(a.rot.T, b.pos)
    size = _size(kind_a, kind_b, a, b)
    eps = jnp.finfo(size.dtype).eps
    tolerance, touching = eps**0.75 * size, 10 * eps**0.6 * size

    def support(d: Array) -> tuple[Array, Array]:
        on_a = kind_a.support(a, d)
        return p + matvec(R, kind_b.support(b, -matvec(R.T, d))) - on_a, on_a

    centre_a = kind_a.centre(a)
    centre = p + matvec(R, kind_b.centre(b)) - centre_a
    turns = TURNS[size.dtype.itemsize]
    curved = kind_a.curved or kind_b.curved
    rough = jnp.maximum(tolerance, 1e-6 * size) if curved else tolerance
    v, point = nearest(support, unit(centre), rough, touching, turns[0])
    square = dot(v, v)
    apart = square > touching * touching
    length = jnp.sqrt(jnp.where(apart, square, 1.0))
    rough = jnp.maximum(tolerance, 1e-5 * size) if curved else tolerance
    deep = separation(support, _trials(R, unit(centre)), centre, centre_a, size, rough, ~apart, turns[1])
    found = Separation(*(jnp.where(apart, x, y) for x, y in zip((v / length, length, point), deep, strict=True)))
    if curved:
        found = _refined(kind_a, kind_b, a._replace(rot=jnp.eye(3, dtype=R.dtype)), b._replace(pos=p, rot=R), found, size)
    return Separation(rotate(a.rot, found.normal), found.distance, rotate(a.rot, found.point))


def _refined(
    kind_a: AbstractShape, kind_b: AbstractShape, a: Placed, b: Placed, found: Separation, size: Array
) -> Separation:
    """A few of Newton's steps for N, (C_A + C_B + S) dN = P (b - a), as long as S grows: where a shape is round, the searches
    come near in few turns, and then slowly nearer."""
    slack = 4 * jnp.finfo(size.dtype).eps * size
    within = jnp.asarray([*REFINED, still(size.dtype)], size.dtype)

    def across(N: Array) -> Array:
        return b.pos + matvec(b.rot, kind_b.support(b, -matvec(b.rot.T, N))) - kind_a.support(a, N)

    def step(k: Array, now: Separation) -> Separation:
        N = now.normal
        # what is nearly flat may be flat or not, in each direction: all are tried
        t = _turning(kind_a, kind_b, a, b, N, now.distance, size, within[k % 3])
        y = matvec(t.frame, across(N))
        for weight, e in zip(t.weights, t.edges, strict=True):
            y = y - jnp.where(weight > 0, dot(e, y), 0.0) * e
        for weight, e, along in zip(t.weights, t.edges, t.along, strict=True):
            y = y - weight * dot(N, along) * e
        N = unit(N + jnp.sum(_solve(t.M, y)[:, None] * t.frame, axis=0))
        N = jnp.where(t.face_a, t.along[0], jnp.where(t.face_b, -t.along[1], N))
        S = dot(N, across(N))
        better = now.distance - slack <= S
        return Separation(*(jnp.where(better, x, y) for x, y in zip((N, S, now.point), now, strict=True)))

    N, S, point = lax.fori_loop(0, NEWTON, step, found._replace(distance=dot(found.normal, across(found.normal))))
    n_b = -matvec(b.rot.T, N)
    point = kind_a.onto(a, point, N)
    on_b = matvec(b.rot, kind_b.onto(b, matvec(b.rot.T, point + S * N - b.pos), n_b)) + b.pos
    return Separation(N, S, kind_a.onto(a, on_b - S * N, N))


def _trials(R: Array, towards: Array) -> Float[Array, "16 3"]:
    """Normals worth a try: the axes of the two frames and their products, which hold all that part two boxes, on the side of
    `towards`, and that itself."""
    mine, other = jnp.eye(3, dtype=R.dtype), R.T
    products = jnp.stack([cross(x, y) for x in mine for y in other])
    squares = dot(products, products)
    parallel = squares < 1e-6
    products = jnp.where(parallel[:, None], towards[None], products / jnp.sqrt(jnp.where(parallel, 1.0, squares))[:, None])
    axes = jnp.concatenate([mine, other, products])
    along = dot(axes, jnp.broadcast_to(towards, axes.shape))
    return jnp.concatenate([jnp.where((along < 0)[:, None], -axes, axes), towards[None]])


def _normal(turning: "_Turning", a: Placed, b: Placed, N: Array, shift: Array) -> Float[Array, "3"]:
    """The normal with its derivative; `shift` is zero, with the derivative of b - a at fixed normal."""
    turned_a, turned_b = (rotate(s.rot, lax.stop_gradient(rotate(s.rot.T, N))) for s in (a, b))
    y = matvec(turning.frame, shift)
    for weight, e, along, turned in zip(turning.weights, turning.edges, turning.along, (turned_a, turned_b), strict=True):
        y = y + weight * dot(along, turned - N) * e
    free = unit(N + jnp.sum(_solve(turning.M, y)[:, None] * turning.frame, axis=0))
    return jnp.where(turning.face_a, turned_a, jnp.where(turning.face_b, turned_b, free))


def _touched(
    kind_a: AbstractShape,
    kind_b: AbstractShape,
    a: Placed,
    b: Placed,
    found: Separation,
    turning: "_Turning",
    N: Array,
    S: Array,
) -> Float[Array, "3"]:
    """The point of a's core in touch. It lies and moves with a, or, in directions in which a is flat and b is not, with b; where
    two edges cross it is where they do. The searches are near it, but need not be there."""
    n_a, n_b = rotate(a.rot.T, N), -rotate(b.rot.T, N)
    here, away = rotate(a.rot.T, found.point), rotate(b.rot.T, found.point + found.distance * found.normal - b.pos)
    on_a = rotate(a.rot, kind_a.moving(a, _onto(kind_a, a, here, n_a), n_a))
    on_b = b.pos + rotate(b.rot, kind_b.moving(b, _onto(kind_b, b, away, n_b), n_b)) - S * N
    slip = matvec(turning.frame, on_b - on_a)
    (face_a, face_b), (edge_a, edge_b) = turning.faces, (w > 0 for w in turning.weights)
    e, f = turning.edges
    across = jnp.stack([-f[1], f[0]])
    sine = dot(across, e)
    crossed = edge_a & edge_b & (jnp.abs(sine) > 1e-3)
    meeting = dot(across, slip) / jnp.where(crossed, sine, 1.0) * e
    one, two = (jnp.where(face, slip, jnp.where(edge, dot(g, slip), 0.0) * g)
                for face, edge, g in ((face_a, edge_a, e), (face_b, edge_b, f)))  # fmt: skip
    with_b = jnp.where(crossed, meeting, (slip + one - two) / 2)
    return on_a + jnp.sum(with_b[:, None] * turning.frame, axis=0)


def _onto(kind: AbstractShape, shape: Placed, point: Array, n: Array) -> Float[Array, "3"]:
    """The point with the normal n that is near `point`, without a derivative."""
    return kind.onto(*lax.stop_gradient((shape, point, n)))


class _Turning(NamedTuple):
    """How the normal answers: a frame across it, the matrix C_A + C_B + S with stiff terms for edges, these terms, and whether
    the normal is that of a face of one of the two."""

    frame: Float[Array, "2 3"]
    M: Float[Array, "2 2"]
    weights: tuple[Array, Array]
    edges: tuple[Array, Array]
    along: tuple[Array, Array]
    faces: tuple[Array, Array]
    face_a: Array
    face_b: Array


def _turning(
    kind_a: AbstractShape,
    kind_b: AbstractShape,
    a: Placed,
    b: Placed,
    N: Array,
    S: Array,
    size: Array,
    within: Array | float,
) -> _Turning:
    a, b, size = lax.stop_gradient((a, b, size))
    flat_a, flat_b = kind_a.flat(a, rotate(a.rot.T, N), within), kind_b.flat(b, -rotate(b.rot.T, N), within)
    face_a = flat_a.face & (~flat_b.face | (kind_a.extent(a) >= kind_b.extent(b)))
    along_a, along_b = rotate(a.rot, flat_a.along), rotate(b.rot, flat_b.along)
    x = jnp.where(flat_a.edge, along_a, jnp.where(flat_b.edge, along_b, cross(N, _other(N))))
    x = unit(x - dot(x, N) * N)
    frame = jnp.stack([x, cross(N, x)])
    M = _curvature(kind_a, a, N, frame) + _curvature(kind_b, b, -N, frame) + S * jnp.eye(2, dtype=N.dtype)
    stiff = 0.3 * size / jnp.finfo(size.dtype).eps ** 0.5
    edges, weights = (
        (matvec(frame, along_a), matvec(frame, along_b)),
        (
            jnp.where(flat_a.edge, stiff, 0.0),
            jnp.where(flat_b.edge, stiff, 0.0),
        ),
    )
    for e, weight in zip(edges, weights, strict=True):
        M = M + weight * e[:, None] * e[None]
    return _Turning(frame, M, weights, edges, (along_a, along_b), (flat_a.face, flat_b.face), face_a, flat_b.face & ~face_a)


def _solve(M: Array, y: Array) -> Array:
    """M^-1 y; zero where M is not positive, as it is at a maximum of S."""
    det = M[0, 0] * M[1, 1] - M[0, 1] * M[1, 0]
    trace = M[0, 0] + M[1, 1]
    sound = (det > 4 * jnp.finfo(M.dtype).eps * trace * trace) & (trace > 0)
    inverse = jnp.where(sound, 1 / jnp.where(sound, det, 1.0), 0.0)
    return inverse * jnp.stack([M[1, 1] * y[0] - M[0, 1] * y[1], M[0, 0] * y[1] - M[1, 0] * y[0]])


def _curvature(kind: AbstractShape, shape: Placed, n: Array, frame: Array) -> Float[Array, "2 2"]:
    """How far the support of a core moves along the axes of the frame where the normal turns towards them."""
    rows = [kind.curvature(shape, rotate(shape.rot.T, n), rotate(shape.rot.T, t)) for t in frame]
    return jnp.stack([matvec(frame, rotate(shape.rot, r)) for r in rows], axis=1)


def _other(n: Array) -> Array:
    """The coordinate axis that is farthest from n."""
    return (jnp.arange(3) == jnp.argmin(jnp.abs(n))).astype(n.dtype)
