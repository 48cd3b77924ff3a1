"""Inertias, from first principles: a cloud of point masses."""

import jax.numpy as jnp
import numpy as np

from flexor.spatial import inertia_matrix, spatial_inertia

TOLERANCE = 1000 * np.finfo(float).eps  # a sum over 20 points of products of four numbers of order one


def test_six_numbers_in_mjcf_order():
    np.testing.assert_array_equal(inertia_matrix(jnp.arange(1.0, 7.0)), [[1, 4, 5], [4, 2, 6], [5, 6, 3]])


def test_a_cloud_of_points_has_its_inertia():
    rng = np.random.default_rng(1)
    m, x, v = rng.random(20), rng.normal(size=(20, 3)), rng.normal(size=6)
    com = m @ x / m.sum()
    y = x - com
    about_com = sum(mk * (yk @ yk * np.eye(3) - np.outer(yk, yk)) for mk, yk in zip(m, y, strict=True))
    I = np.asarray(spatial_inertia(jnp.asarray(m.sum()), jnp.asarray(com), jnp.asarray(about_com)))
    np.testing.assert_allclose(I, I.T, atol=TOLERANCE)
    velocity = v[3:] + np.cross(v[:3], x)
    p = m[:, None] * velocity
    np.testing.assert_allclose(I @ v, np.concatenate([np.cross(x, p).sum(0), p.sum(0)]), atol=TOLERANCE)
    np.testing.assert_allclose(v @ I @ v, np.sum(p * velocity), atol=TOLERANCE * 10)
    assert np.linalg.eigvalsh(I).min() > 0
