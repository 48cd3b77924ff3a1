"""Convex hulls of meshes: their corners, a reduced set of them, and whether they are a prism."""

import numpy as np

# MuJoCo keeps vertices in single precision; a face counts as flat and parallel within this share of the mesh's size.
_FLAT = 1e-5


def hull_corners(vertices: np.ndarray) -> np.ndarray:
    """Corners of the convex hull of points in m, in the order given. Points in a plane or on a line are kept as they are."""
    from scipy.spatial import ConvexHull, QhullError

    vertices = _distinct(np.asarray(vertices, float))
    try:
        return vertices[np.sort(ConvexHull(vertices).vertices)]
    except (QhullError, ValueError):
        return vertices


def _distinct(points: np.ndarray) -> np.ndarray:
    """The first of equal points each, in the order given; files of triangles have every corner several times."""
    order = np.lexsort(points.T)  # stable, so that the first of equals comes first
    in_order = points[order]
    first = np.ones(len(points), bool)
    first[1:] = (in_order[1:] != in_order[:-1]).any(axis=1)
    return points[np.sort(order[first])]


def reduce_corners(corners: np.ndarray, count: int) -> np.ndarray:
    """At most `count` of the corners: the extremes along the axes, then always the corner farthest from those chosen."""
    if len(corners) <= count:
        return corners
    size = np.ptp(corners, axis=0)
    chosen = list(dict.fromkeys(int(i) for i in np.concatenate([corners.argmin(0), corners.argmax(0)])))[:count]
    distance = np.min(np.linalg.norm(corners[:, None] - corners[chosen], axis=-1), axis=1)
    while len(chosen) < count and distance.max() > _FLAT * size.max():
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(corners - corners[chosen[-1]], axis=-1))
    return corners[np.sort(chosen)]


def as_prism(corners: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Position, rotation matrix and vertices of the frame in which the hull is a prism along z; None if it is not a prism.

    Of several axes (a box has three) the one nearest to the direction `z` is taken. The vertices are the outline, counter-
    clockwise, at the lower z, then the same outline at the upper z (see `Geom.outline`).
    """
    from scipy.spatial import ConvexHull, QhullError

    try:
        normals = ConvexHull(corners).equations[:, :3]
    except (QhullError, ValueError):
        return None
    # rounded: directions that differ by rounding alone must compete by their sign only, so that the choice is stable
    scores = np.round(normals @ np.asarray(z, float), 6)
    tried: list[np.ndarray] = []
    for axis in normals[np.argsort(-scores, kind="stable")]:
        if not any(abs(abs(axis @ t) - 1) < 1e-4 for t in tried):
            tried.append(axis)
            found = _prism_along(corners, axis)
            if found is not None:
                return found
    return None


def _prism_along(corners: np.ndarray, axis: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    tolerance = _FLAT * np.ptp(corners, axis=0).max()
    height = corners @ axis
    low, high = height < height.min() + tolerance, height > height.max() - tolerance
    if not (low | high).all() or low.sum() != high.sum() or (low & high).any():
        return None
    # the frame nearest to the present one: as little turning as possible, so that a mesh drawn along z keeps its axes
    x = np.eye(3)[np.argmin(np.abs(axis))]
    x = x - axis * (x @ axis)
    x /= np.linalg.norm(x)
    R = np.stack([x, np.cross(axis, x), axis], axis=1)
    centre = R @ np.append((corners @ R)[:, :2].mean(0), (height.min() + height.max()) / 2)
    local = (corners - centre) @ R
    bottom, top = local[low, :2], local[high, :2]
    order = np.argsort(np.arctan2(bottom[:, 1], bottom[:, 0]))
    bottom = bottom[order]
    nearest = np.argmin(np.linalg.norm(bottom[:, None] - top, axis=-1), axis=1)
    if len(set(nearest)) != len(top) or np.abs(bottom - top[nearest]).max() > tolerance:
        return None
    outline = (bottom + top[nearest]) / 2
    half = (height[high].mean() - height[low].mean()) / 2
    rows = [np.column_stack([outline, np.full(len(outline), s * half)]) for s in (-1, 1)]
    return centre, R, np.concatenate(rows)
