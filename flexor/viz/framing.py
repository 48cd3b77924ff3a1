"""Where the camera looks: the space that a motion needs, or a camera that follows the robot if the motion is far larger than
the robot."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from flexor.model.model import Model

AZIMUTH, ELEVATION = -1.05, 0.3  # rad: of the camera as seen from what it looks at
FAR = 6.0  # times the robot's size that a motion may span before the camera follows it
MARGIN = 0.86  # of half the picture that the robot may fill


@dataclass(frozen=True)
class Framing:
    """A box of half extents `half` around `centre`, which has a row for each frame, and the height of the floor.

    `floor` is None where the model has a plane of its own.
    """

    centre: np.ndarray
    half: np.ndarray
    floor: float | None

    @property
    def radius(self) -> float:
        """Half of the box's diagonal."""
        return float(np.linalg.norm(self.half))

    @property
    def square(self) -> float:
        """Side of the floor's squares in m: some ten of them across the picture, a round number."""
        power = np.log10(1.2 * self.radius)
        return float(10.0 ** np.floor(power) * (0.5 if power % 1 > 0.5 else 0.25))

    def distance(self, width: float, height: float) -> float:
        """Distance from the centre at which a camera sees all corners of the box in a picture.

        Width and height are those of the picture at distance 1. A corner (x, y) across and z towards the camera is inside
        where |x| / (distance - z) is at most half the width, and likewise for y and the height.
        """
        ce, se, ca, sa = np.cos(ELEVATION), np.sin(ELEVATION), np.cos(AZIMUTH), np.sin(AZIMUTH)
        back, right = np.array([ce * ca, ce * sa, se]), np.array([-sa, ca, 0.0])
        corners = self.half * np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
        across = np.abs(corners @ np.stack([right, np.cross(back, right)], axis=1)) / (np.array([width, height]) / 2)
        return float((corners @ back + across.max(axis=1) / MARGIN).max())


def frame_motion(boxes: Sequence[tuple[np.ndarray, np.ndarray]], floor: float | None) -> Framing:
    """The framing of motions, each given by the lowest and highest corners (frames, 3) of what is drawn in every frame.

    Where the motion spans more than `FAR` times the robot's size along an axis, the camera follows along that axis.
    """
    low, high = np.min([b[0] for b in boxes], axis=0), np.max([b[1] for b in boxes], axis=0)
    size = float(np.median(np.linalg.norm(high - low, axis=1)))
    along = np.ptp((low + high) / 2, axis=0) > FAR * size
    middle = np.where(along, (low + high) / 2, (low.min(0) + high.max(0)) / 2)
    half = np.where(along, (high - low).max(0) / 2, (high.max(0) - low.min(0)) / 2)
    return Framing(middle, np.maximum(half, max(0.02 * size, 1e-3)), floor)


def floor_height(model: Model, low: np.ndarray, high: np.ndarray) -> float | None:
    """Height of the floor to draw: None where the model has a plane; else 0, unless the robot starts below, as a hanging one
    does: then the lowest height that it has at the start, or reaches nearby."""
    if any(g.shape == "plane" for g in model.topology.geoms):
        return None
    size = float(np.linalg.norm(high[0] - low[0]))
    start, lowest = float(low[0, 2]), float(low[:, 2].min())
    if start > -0.2 * size:
        return 0.0
    return lowest if start - lowest < size else start


def boxes(drawn: Sequence[dict[str, Any]], pos: np.ndarray, quat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest corner (frames, 3) of the shapes of `scene.shapes` in every frame; planes do not count."""
    low, high = np.full((len(pos), 3), np.inf), np.full((len(pos), 3), -np.inf)
    for shape in drawn:
        if shape["shape"] == "plane":
            continue
        local = Rotation.from_quat(shape["quat"], scalar_first=True).apply(_corners(shape)) + shape["pos"]
        turns = Rotation.from_quat(quat[:, shape["body"]], scalar_first=True).as_matrix()
        points = pos[:, shape["body"], None] + np.einsum("fij,pj->fpi", turns, local)
        low, high = np.minimum(low, points.min(1)), np.maximum(high, points.max(1))
    if not np.isfinite(low).all():
        return pos.min(1), pos.max(1)
    return low, high


def _corners(shape: dict[str, Any]) -> np.ndarray:
    """Points whose hull holds a shape, in the shape's own frame."""
    if shape["shape"] == "mesh":
        points = np.asarray(shape["vertices"], float)
        return points if len(points) <= 64 else np.array(list(product(*zip(points.min(0), points.max(0), strict=True))))
    a, b, c = shape["size"]
    round_shapes = {"sphere": (a, a, a), "capsule": (a, a, a + b), "cylinder": (a, a, b)}
    half = round_shapes.get(shape["shape"], (a, b, c))  # a box, or an ellipsoid
    return np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) * half
