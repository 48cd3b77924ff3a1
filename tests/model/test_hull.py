"""Hulls, their reduction, and prisms."""

import numpy as np
import pytest

from flexor.model.frames import matrix_quat, quat_matrix, quat_rpy, rpy_quat
from flexor.model.hull import as_prism, hull_corners, reduce_corners

ANGLES = np.linspace(0, 2 * np.pi, 5, endpoint=False)
PENTAGON = np.column_stack([np.cos(ANGLES), np.sin(ANGLES)])


def prism(outline: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.concatenate([np.column_stack([outline, np.full(len(outline), z)]) for z in (low, high)])


def test_hull_drops_inner_points():
    rng = np.random.default_rng(0)
    cube = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).reshape(3, -1).T.astype(float)
    assert len(hull_corners(np.concatenate([cube, rng.uniform(-0.9, 0.9, (50, 3))]))) == 8
    assert len(hull_corners(np.eye(3))) == 3


def test_reduction_keeps_the_extremes():
    points = np.random.default_rng(1).normal(size=(500, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    few = reduce_corners(points, 20)
    assert len(few) == 20
    np.testing.assert_array_equal(few.min(0), points.min(0))
    np.testing.assert_array_equal(few.max(0), points.max(0))


@pytest.mark.parametrize("seed", range(5))
def test_a_turned_prism_is_found(seed):
    rng = np.random.default_rng(seed)
    R = quat_matrix(rng.normal(size=4))
    shift = rng.normal(size=3)
    corners = prism(PENTAGON, -0.2, 0.5) @ R.T + shift
    corners = corners[rng.permutation(10)].astype(np.float32).astype(float)
    pos, rot, vertices = as_prism(corners, R[:, 2])
    again = vertices @ rot.T + pos
    distance = np.linalg.norm(again[:, None] - corners, axis=-1).min(1)
    assert distance.max() < 1e-6
    np.testing.assert_allclose(rot.T @ rot, np.eye(3), atol=1e-12)
    assert np.linalg.det(rot) > 0
    lower, upper = vertices[:5], vertices[5:]
    np.testing.assert_array_equal(lower[:, :2], upper[:, :2])
    assert np.all(lower[:, 2] == -upper[:, 2])
    assert np.ptp(lower[:, 2]) == 0
    assert lower[0, 2] < 0
    x, y = lower[:, 0], lower[:, 1]
    assert np.sum(x * np.roll(y, -1) - y * np.roll(x, -1)) > 0  # shoelace: counter-clockwise


def test_no_prism():
    tilted = prism(PENTAGON, 0, 1)
    tilted[5:, 0] += 0.3
    assert as_prism(tilted, np.array([0, 0, 1])) is None
    assert as_prism(np.random.default_rng(0).normal(size=(12, 3)), np.array([0, 0, 1])) is None


def test_a_box_stands_on_the_axis_asked_for():
    box = prism(np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) * [1, 2], -3, 3)
    for axis in np.eye(3):
        assert abs(as_prism(box, axis)[1][:, 2] @ axis) == pytest.approx(1)


@pytest.mark.parametrize("pitch", [0.3, np.pi / 2, -np.pi / 2])
def test_rotations_return(pitch):
    R = quat_matrix(rpy_quat([0.4, pitch, -1.1]))
    np.testing.assert_allclose(quat_matrix(rpy_quat(quat_rpy(rpy_quat([0.4, pitch, -1.1])))), R, atol=1e-8)
    np.testing.assert_allclose(quat_matrix(matrix_quat(R)), R, atol=1e-12)
