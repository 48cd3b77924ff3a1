"""Narrow phase: distance, normal and surface points of two shapes. World axes; the normal points from the first to the second.

Every function takes its two shapes as `Placed` and returns `Touch` with one row for each candidate. Signed distances are exact
outside and inside the shapes named here; derivatives are finite everywhere. Pairs without a closed form are those of `convex.py`.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flexor.contact.convex import convex_pair
from flexor.contact.field import field_pair
from flexor.contact.placed import Placed, Touch
from flexor.contact.support import unit
from flexor.model.topology import CONVEX, Geom
from flexor.spatial import dot, rotate

_CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=float)


def _unit(v: Array) -> tuple[Array, Array]:
    """Unit vector and length; (z, 0) for the zero vector, with a zero derivative there."""
    square = dot(v, v)
    zero = square == 0
    length = jnp.sqrt(jnp.where(zero, 1.0, square))
    axis = jnp.zeros(3, v.dtype).at[2].set(1.0)
    return jnp.where(zero[..., None], axis, v / length[..., None]), jnp.where(zero, 0.0, length)


def _balls_on_plane(plane: Placed, centres: Array, radius: Array | float) -> Touch:
    normal = plane.rot[:, 2]
    normals = jnp.broadcast_to(normal, centres.shape)
    distance = dot(centres - plane.pos[None], normals) - radius
    point_b = centres - radius * normals
    return Touch(point_b - distance[:, None] * normals, point_b, normals, distance)


def _ends(capsule: Placed) -> Array:
    half = capsule.rot[:, 2] * capsule.size[1]
    return jnp.stack([capsule.pos - half, capsule.pos + half])


def plane_sphere(plane: Placed, sphere: Placed) -> Touch:
    return _balls_on_plane(plane, sphere.pos[None], sphere.size[0])


def plane_capsule(plane: Placed, capsule: Placed) -> Touch:
    return _balls_on_plane(plane, _ends(capsule), capsule.size[0])


def plane_box(plane: Placed, box: Placed) -> Touch:
    return _balls_on_plane(
        plane, box.pos[None] + rotate(box.rot, jnp.asarray(_CORNERS, box.size.dtype) * box.size[None]), 0.0
    )


def plane_mesh(plane: Placed, mesh: Placed) -> Touch:
    """One candidate for each vertex of the convex hull."""
    assert mesh.vertices is not None
    return _balls_on_plane(plane, mesh.pos[None] + rotate(mesh.rot, mesh.vertices), 0.0)


def plane_cylinder(plane: Placed, cylinder: Placed) -> Touch:
    """The lowest points of the two rims, and two more on the lower rim, a third of a turn to each side, on which it stands."""
    normal, axis = plane.rot[:, 2], cylinder.rot[:, 2]
    radius, half = cylinder.size[0], cylinder.size[1]
    down = -normal + dot(normal, axis) * axis
    upright = dot(down, down) < 1e-12
    down, _ = _unit(jnp.where(upright, cylinder.rot[:, 0], down))
    side = jnp.cross(axis, down)
    lower = jnp.where(dot(normal, axis) > 0, -1.0, 1.0) * half * axis
    third = -0.5 * down, 0.75**0.5 * side
    rim = jnp.stack([lower + radius * down, -lower + radius * down])
    stand = jnp.stack([lower + radius * (third[0] + third[1]), lower + radius * (third[0] - third[1])])
    return _balls_on_plane(plane, cylinder.pos[None] + jnp.concatenate([rim, stand]), 0.0)


def _two_balls(a: Array, radius_a: Array, b: Array, radius_b: Array) -> Touch:
    normal, length = _unit(b - a)
    distance = length - radius_a - radius_b
    return Touch((a + radius_a * normal)[None], (b - radius_b * normal)[None], normal[None], distance[None])


def sphere_sphere(a: Placed, b: Placed) -> Touch:
    return _two_balls(a.pos, a.size[0], b.pos, b.size[0])


def sphere_capsule(sphere: Placed, capsule: Placed) -> Touch:
    axis, half = capsule.rot[:, 2], capsule.size[1]
    t = jnp.clip(dot(sphere.pos - capsule.pos, axis), -half, half)
    return _two_balls(sphere.pos, sphere.size[0], capsule.pos + t * axis, capsule.size[0])


def capsule_capsule(a: Placed, b: Placed) -> Touch:
    """Closest points of the two axes (Ericson 2005, section 5.1.9); one candidate."""
    da, db, r = a.rot[:, 2], b.rot[:, 2], a.pos - b.pos
    ha, hb = a.size[1], b.size[1]
    c, ra, rb = dot(da, db), dot(da, r), dot(db, r)
    det = 1 - c * c
    parallel = det < 1e-10
    s = jnp.where(parallel, 0.0, (c * rb - ra) / jnp.where(parallel, 1.0, det))
    s = jnp.clip(s, -ha, ha)
    t = jnp.clip(rb + c * s, -hb, hb)
    s = jnp.clip(c * t - ra, -ha, ha)
    return _two_balls(a.pos + s * da, a.size[0], b.pos + t * db, b.size[0])


def _box_distance(box: Placed, point: Array) -> tuple[Array, Array]:
    """Signed distance of a point from a box and the outward normal there, world axes."""
    p, h = rotate(box.rot.T, point - box.pos), box.size
    outside = p - jnp.clip(p, -h, h)
    direction, length = _unit(outside)
    room = h - jnp.abs(p)
    face = jnp.argmin(room)
    inward = jnp.where(jnp.arange(3) == face, jnp.where(p < 0, -1.0, 1.0), 0.0).astype(p.dtype)
    inside = length == 0
    return jnp.where(inside, -room[face], length), rotate(box.rot, jnp.where(inside, inward, direction))


def _ball_outside(centre: Array, radius: Array, distance: Array, outward: Array) -> Touch:
    """A ball against a shape at the given signed distance of its centre; the ball is the first body."""
    return Touch(
        (centre - radius * outward)[None],
        (centre - distance * outward)[None],
        -outward[None],
        (distance - radius)[None],
    )


def sphere_box(sphere: Placed, box: Placed) -> Touch:
    return _ball_outside(sphere.pos, sphere.size[0], *_box_distance(box, sphere.pos))


def capsule_box(capsule: Placed, box: Placed) -> Touch:
    """The point of the axis nearest to the box, and the far end of the part of the axis that lies over the same face."""
    start, end = _ends(capsule)
    p, q = rotate(box.rot.T, start - box.pos), rotate(box.rot.T, end - box.pos)
    nearest = _nearest_on_segment(p, q - p, box.size)
    far = _far_over_face(p, q - p, box.size, nearest)
    touches = []
    for t in (nearest, far):
        centre = start + t * (end - start)
        touches.append(_ball_outside(centre, capsule.size[0], *_box_distance(box, centre)))
    return Touch(*(jnp.concatenate(rows) for rows in zip(*touches, strict=True)))


def _nearest_on_segment(p: Array, d: Array, h: Array) -> Array:
    """t in [0, 1] with p + t d nearest to the box |x| <= h: the root of a monotone, piecewise linear slope."""
    moving = jnp.abs(d) > 1e-12
    safe = jnp.where(moving, d, 1.0)
    breaks = jnp.concatenate([jnp.where(moving, (h - p) / safe, 0.0), jnp.where(moving, (-h - p) / safe, 0.0)])
    ends = jnp.array([0.0, 1.0], p.dtype)
    breaks = jnp.sort(jnp.concatenate([ends, jnp.clip(breaks, 0.0, 1.0)]))
    x = p[None] + breaks[:, None] * d[None]
    slope = dot(x - jnp.clip(x, -h[None], h[None]), jnp.broadcast_to(d, x.shape))
    left = jnp.max(jnp.where(slope < 0, breaks, 0.0))
    slope_left = jnp.max(jnp.where(slope < 0, slope, -jnp.inf))
    reached = slope >= 0
    right = jnp.min(jnp.where(reached, breaks, 1.0))
    slope_right = jnp.min(jnp.where(reached, slope, jnp.inf))
    between = reached.any() & (slope[0] < 0)
    gap = jnp.where(between, slope_right - slope_left, 1.0)
    t = left + (right - left) * jnp.where(between, -slope_left, 0.0) / gap
    return jnp.where(between, t, jnp.where(slope[0] >= 0, 0.0, 1.0))


def _far_over_face(p: Array, d: Array, h: Array, nearest: Array) -> Array:
    """The end, farther from `nearest`, of the part of the segment that lies over the face nearest to it."""
    x = p + nearest * d
    face = jnp.argmax(jnp.abs(x) - h)
    moving = (jnp.abs(d) > 1e-12) & (jnp.arange(3) != face)
    safe = jnp.where(moving, d, 1.0)
    one, two = (-h - p) / safe, (h - p) / safe
    low = jnp.clip(jnp.max(jnp.where(moving, jnp.minimum(one, two), 0.0)), 0.0, 1.0)
    high = jnp.clip(jnp.min(jnp.where(moving, jnp.maximum(one, two), 1.0)), 0.0, 1.0)
    empty = low >= high
    low, high = jnp.where(empty, 0.0, low), jnp.where(empty, 1.0, high)
    return jnp.where(jnp.abs(high - nearest) > jnp.abs(low - nearest), high, low)


def sphere_prism(sphere: Placed, mesh: Placed) -> Touch:
    """A ball against a polygon with height, convex or not: the pusher's tip."""
    assert mesh.vertices is not None
    outline = mesh.vertices[: len(mesh.vertices) // 2]
    low, high = outline[0, 2], mesh.vertices[-1, 2]
    p = rotate(mesh.rot.T, sphere.pos - mesh.pos)
    flat, normal = _polygon_distance(outline[:, :2], p[:2])
    middle = (low + high) / 2
    over = jnp.abs(p[2] - middle) - (high - low) / 2
    up = jnp.where(p[2] < middle, -1.0, 1.0).astype(p.dtype)
    gaps = jnp.stack([jnp.maximum(flat, 0.0), jnp.zeros_like(flat), jnp.maximum(over, 0.0)])
    weights, length = _unit(gaps)
    side = jnp.where((flat <= 0) & (over <= 0), (flat >= over).astype(p.dtype), weights[0])
    cap = jnp.where((flat <= 0) & (over <= 0), (flat < over).astype(p.dtype), weights[2])
    distance = jnp.where((flat <= 0) & (over <= 0), jnp.maximum(flat, over), length)
    outward = jnp.concatenate([side * normal, (cap * up)[None]])
    return _ball_outside(sphere.pos, sphere.size[0], distance, rotate(mesh.rot, outward))


def _polygon_distance(corners: Array, p: Array) -> tuple[Array, Array]:
    """Signed distance of a point from a simple polygon (counter-clockwise) and the outward normal, in its plane.

    The nearest edge decides; a point is inside when a ray from it crosses the outline an odd number of times.
    """
    following = jnp.roll(corners, -1, axis=0)
    edge = following - corners
    square = dot(edge, edge)
    t = jnp.clip(dot(p[None] - corners, edge) / square, 0.0, 1.0)
    gap = p[None] - (corners + t[:, None] * edge)
    outward = jnp.stack([edge[:, 1], -edge[:, 0]], axis=-1) / jnp.sqrt(square)[:, None]
    height = dot(p[None] - corners, outward)
    below = corners[:, 1] <= p[1]
    crossing = (below != (following[:, 1] <= p[1])) & (below == (height < 0))
    inside = jnp.sum(crossing.astype(int)) % 2 == 1
    face = jnp.argmin(dot(gap, gap))
    away = gap[face]
    length2 = dot(away, away)
    on_face = length2 == 0
    length = jnp.sqrt(jnp.where(on_face, 1.0, length2))
    sign = jnp.where(inside, -1.0, 1.0).astype(p.dtype)
    normal = jnp.where(on_face, outward[face], sign * away / length)
    return jnp.where(on_face, height[face], sign * length), normal


def plane_ellipsoid(plane: Placed, ellipsoid: Placed) -> Touch:
    """The point of the ellipsoid farthest against the plane's normal."""
    deepest = ellipsoid.size * unit(ellipsoid.size * rotate(ellipsoid.rot.T, -plane.rot[:, 2]))
    return _balls_on_plane(plane, (ellipsoid.pos + rotate(ellipsoid.rot, deepest))[None], 0.0)


NARROW_PHASE: dict[tuple[str, str], Callable[[Placed, Placed], Touch]] = {
    **{(a, b): convex_pair(a, b) for i, a in enumerate(CONVEX) for b in CONVEX[i:]},
    ("plane", "sphere"): plane_sphere,
    ("plane", "capsule"): plane_capsule,
    ("plane", "box"): plane_box,
    ("plane", "cylinder"): plane_cylinder,
    ("plane", "ellipsoid"): plane_ellipsoid,
    ("plane", "mesh"): plane_mesh,
    ("sphere", "sphere"): sphere_sphere,
    ("sphere", "capsule"): sphere_capsule,
    ("capsule", "capsule"): capsule_capsule,
    ("sphere", "box"): sphere_box,
    ("capsule", "box"): capsule_box,
    ("sphere", "prism"): sphere_prism,
}


def narrow_phase(a: Geom, b: Geom) -> Callable[..., Touch]:
    """The function of two geoms' shapes; that of a height field takes a reach as well."""
    return field_pair(b.shape, a.grid) if a.grid else NARROW_PHASE[kinds(a, b)]


def kinds(a: Geom, b: Geom) -> tuple[str, str]:
    """The key of two geoms in `NARROW_PHASE`: their shapes, but a ball against a prism has a way of its own, since the prism's
    outline need not be convex."""
    return ("sphere", "prism") if a.shape == "sphere" and b.outline else (a.shape, b.shape)
