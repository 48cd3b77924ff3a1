"""Rows by known numbers are those of numpy, and so are their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flexor.spatial import take

X = np.random.default_rng(0).normal(size=(5, 2, 3))


@pytest.mark.parametrize(
    "rows",
    [[1, 2, 3], [0, 1, 2, 3, 4], [4, 0, 0, 2], [-1, 0], [-2, -1], [3], [[0, 1], [4, 4]], [[2, 3, 4]]],
    ids=lambda r: str(r).replace(" ", ""),
)
@pytest.mark.parametrize("x", [X, X[:, 0], X[:, 0, 0]], ids=["matrices", "vectors", "numbers"])
def test_rows_are_those_of_numpy(x, rows):
    rows = np.array(rows)
    np.testing.assert_array_equal(take(jnp.asarray(x), rows), x[rows])
    weight = np.random.default_rng(1).normal(size=x[rows].shape)
    expected = np.zeros_like(x)
    np.add.at(expected, rows, weight)
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(weight * take(x, rows)))(jnp.asarray(x)), expected, rtol=1e-14)


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_no_rows_of_anything_are_nothing(shape):
    assert take(jnp.zeros((0, 3)), np.zeros(shape, int)).shape == (*shape, 3)


@pytest.mark.parametrize("rows", [[5], [0, 5], [4, 5], [-6, 0]], ids=str)
def test_rows_that_are_not_there_raise(rows):
    with pytest.raises(IndexError, match="an array that has 5"):
        take(jnp.asarray(X), np.array(rows))


@pytest.mark.parametrize(("rows", "operation"), [([1, 2], "slice"), ([2, 1], "gather")])
def test_one_operation_is_traced(rows, operation):
    program = jax.make_jaxpr(lambda x: take(x, np.array(rows)))(jnp.asarray(X))
    assert [e.primitive.name for e in program.jaxpr.eqns] == [operation]
