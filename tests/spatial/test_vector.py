"""Spatial vectors: the algebra's identities, and matrices by numpy."""

import numpy as np
import pytest

from flexor.spatial import cross, dot, force_cross, matmul, matvec, motion_cross, shift_force, shift_motion, skew

TOLERANCE = 50 * np.finfo(float).eps  # sums of at most a dozen products of numbers of order one


@pytest.fixture
def draw():
    rng = np.random.default_rng(0)
    return lambda *shape: rng.normal(size=shape)


def test_three_vectors_are_numpys(draw):
    a, b = draw(5, 3), draw(5, 3)
    np.testing.assert_allclose(cross(a, b), np.cross(a, b), atol=TOLERANCE)
    np.testing.assert_allclose((skew(a) @ b[..., None])[..., 0], np.cross(a, b), atol=TOLERANCE)
    np.testing.assert_allclose(dot(a, b), np.einsum("ni,ni->n", a, b), atol=TOLERANCE)


@pytest.mark.parametrize(("left", "right"), [((3, 3), (3, 3)), ((7, 3, 6), (7, 6, 2)), ((2, 4, 6, 6), (2, 4, 6, 6))])
def test_small_products_are_numpys(draw, left, right):
    A, B = draw(*left), draw(*right)
    np.testing.assert_allclose(matmul(A, B), A @ B, atol=TOLERANCE)
    np.testing.assert_allclose(matvec(A, B[..., 0]), (A @ B)[..., 0], atol=TOLERANCE)


def test_motion_cross_is_a_lie_bracket(draw):
    u, v, w = draw(4, 6), draw(4, 6), draw(4, 6)
    np.testing.assert_allclose(motion_cross(v, v), 0, atol=TOLERANCE)
    np.testing.assert_allclose(motion_cross(u, v), -np.asarray(motion_cross(v, u)), atol=TOLERANCE)
    jacobi = sum(motion_cross(a, motion_cross(b, c)) for a, b, c in ((u, v, w), (v, w, u), (w, u, v)))
    np.testing.assert_allclose(jacobi, 0, atol=4 * TOLERANCE)


def test_force_cross_is_minus_the_transpose(draw):
    v, m, f = draw(4, 6), draw(4, 6), draw(4, 6)
    np.testing.assert_allclose(dot(f, motion_cross(v, m)), -np.asarray(dot(force_cross(v, f), m)), atol=TOLERANCE)


def test_shifts_keep_power_and_add_up(draw):
    v, f, r, s = draw(4, 6), draw(4, 6), draw(4, 3), draw(4, 3)
    np.testing.assert_allclose(dot(shift_motion(v, r), shift_force(f, r)), dot(v, f), atol=TOLERANCE)
    for shift, x in ((shift_motion, v), (shift_force, f)):
        np.testing.assert_allclose(shift(shift(x, r), s), shift(x, r + s), atol=TOLERANCE)
        np.testing.assert_allclose(shift(shift(x, r), -r), x, atol=TOLERANCE)


def test_shifts_carry_cross_products_along(draw):
    v, m, f, r = draw(4, 6), draw(4, 6), draw(4, 6), draw(4, 3)
    there = motion_cross(shift_motion(v, r), shift_motion(m, r))
    np.testing.assert_allclose(there, shift_motion(motion_cross(v, m), r), atol=TOLERANCE)
    there = force_cross(shift_motion(v, r), shift_force(f, r))
    np.testing.assert_allclose(there, shift_force(force_cross(v, f), r), atol=2 * TOLERANCE)
