"""Rotations: identities, the matrix exponential as oracle, and derivatives where the textbook divides by zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from flexor.spatial import (
    axis_angle_matrix,
    matrix_to_quat,
    quat_exp,
    quat_log,
    quat_mul,
    quat_to_matrix,
    rotate,
    skew,
)

EPS = np.finfo(float).eps
IDENTITY = np.array([1.0, 0, 0, 0])


def vectors(n: int, size: float = 1.0):
    number = st.floats(-size, size, allow_nan=False, allow_subnormal=False)
    return st.lists(number, min_size=n, max_size=n).map(np.array)


quats = vectors(4).filter(lambda x: np.linalg.norm(x) > 0.1)


def jacobian(f):
    return jax.jit(jax.jacobian(f))


def hessian(f):
    return jax.jit(jax.hessian(f))


few = settings(max_examples=40, deadline=None)


@few
@given(quats, quats)
def test_products_of_quaternions_are_products_of_matrices(a, b):
    np.testing.assert_allclose(quat_to_matrix(quat_mul(a, b)), quat_to_matrix(a) @ quat_to_matrix(b), atol=50 * EPS)


@few
@given(quats, st.floats(0.01, 100), vectors(3))
def test_matrices_are_rotations_whatever_the_length_of_the_quaternion(quat, factor, v):
    R = np.asarray(quat_to_matrix(quat))
    np.testing.assert_allclose(R @ R.T, np.eye(3), atol=20 * EPS)
    assert np.linalg.det(R) == pytest.approx(1, abs=20 * EPS)
    np.testing.assert_allclose(quat_to_matrix(factor * quat), R, atol=20 * EPS)
    np.testing.assert_allclose(rotate(R, v), R @ v, atol=20 * EPS)


@few
@given(quats)
def test_matrix_to_quat_inverts(quat):
    unit = quat / np.linalg.norm(quat)
    back = np.asarray(matrix_to_quat(quat_to_matrix(unit)))
    assert back[0] >= 0
    assert min(np.abs(back - unit).max(), np.abs(back + unit).max()) < 100 * EPS


@pytest.mark.parametrize("axis", np.eye(3))
def test_half_turns_have_quaternions(axis):
    half = np.concatenate([[0.0], axis])
    np.testing.assert_allclose(np.abs(matrix_to_quat(quat_to_matrix(half))), half, atol=EPS)


@few
@given(vectors(3, 6.0))
def test_the_exponential_is_that_of_matrices(w):
    np.testing.assert_allclose(quat_to_matrix(quat_exp(w)), expm(np.asarray(skew(w))), atol=200 * EPS)
    angle = np.linalg.norm(w)
    if angle > 1e-3:
        np.testing.assert_allclose(axis_angle_matrix(w / angle, angle), expm(np.asarray(skew(w))), atol=200 * EPS)


@few
@given(vectors(3, 1.8))
def test_the_logarithm_inverts_the_exponential(w):
    # |w| < pi, the range of the logarithm
    np.testing.assert_allclose(quat_log(quat_exp(w)), w, atol=100 * EPS)
    np.testing.assert_allclose(quat_log(-np.asarray(quat_exp(w))), w, atol=100 * EPS)


def test_derivatives_at_the_identity():
    # exp(w) = (1 - |w|^2 / 8, w / 2) + O(w^3)
    zero = jnp.zeros(3)
    np.testing.assert_allclose(jacobian(quat_exp)(zero), np.vstack([np.zeros(3), np.eye(3) / 2]), atol=EPS)
    np.testing.assert_allclose(hessian(quat_exp)(zero)[0], -np.eye(3) / 4, atol=EPS)
    np.testing.assert_allclose(jacobian(quat_log)(jnp.asarray(IDENTITY))[:, 1:], 2 * np.eye(3), atol=EPS)
    R = jacobian(lambda w: quat_to_matrix(quat_exp(w)))(zero)
    np.testing.assert_allclose(R, np.moveaxis(np.asarray(skew(np.eye(3))), 0, -1), atol=EPS)


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-6, 0.9e-4, 1.1e-4, 2e-4, 0.0199, 0.0201, 0.5])
def test_series_and_closed_forms_meet(angle):
    """Value and derivative agree with those of exp(w/2) exp(w/2), whose argument is on the other side of the switch."""
    w = angle * jnp.array([2.0, -1.0, 2.0]) / 3

    def halves(w):
        return quat_mul(quat_exp(w / 2), quat_exp(w / 2))

    np.testing.assert_allclose(quat_exp(w), halves(w), atol=10 * EPS)
    np.testing.assert_allclose(jacobian(quat_exp)(w), jacobian(halves)(w), atol=20 * EPS)
    # the derivative of log(exp(w)) is the identity; dividing by an angle of 1e-4 costs four digits
    np.testing.assert_allclose(jacobian(lambda w: quat_log(quat_exp(w)))(w), np.eye(3), atol=1e-11)


@pytest.mark.parametrize("f", [quat_exp, lambda w: quat_log(quat_exp(w)), lambda w: quat_to_matrix(quat_exp(w))])
def test_single_precision_stays_single_and_finite(f):
    w = jnp.array([[0.0], [1e-20], [1e-4], [1.0]], jnp.float32) * jnp.ones((1, 3), jnp.float32)
    first, second = jax.jit(jax.vmap(lambda w: (f(w), jax.hessian(f)(w))))(w)
    assert first.dtype == second.dtype == jnp.float32
    assert jnp.isfinite(first).all()
    assert jnp.isfinite(second).all()
