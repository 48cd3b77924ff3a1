"""Recursion over trees against loops."""

import jax.numpy as jnp
import numpy as np
import pytest

from flexor.dynamics.recursion import accumulate_inward, accumulate_outward, inward, outward, scatter_sum


def random_tree(rng, n):
    """Parents (-1 at two roots or more) and levels."""
    parent = np.array([-1, -1, *(int(rng.integers(-1, i)) for i in range(2, n))])
    depth = np.zeros(n, int)
    for i in range(n):
        depth[i] = 0 if parent[i] < 0 else depth[parent[i]] + 1
    return parent, tuple(np.flatnonzero(depth == d) for d in range(depth.max() + 1))


@pytest.mark.parametrize("seed", range(3))
def test_accumulation(seed):
    rng = np.random.default_rng(seed)
    parent, levels = random_tree(rng, 12)
    x = rng.integers(-9, 9, size=(12, 2)).astype(float)
    out, back = x.copy(), x.copy()
    for i in range(12):
        if parent[i] >= 0:
            out[i] += out[parent[i]]
    for i in reversed(range(12)):
        if parent[i] >= 0:
            back[parent[i]] += back[i]
    np.testing.assert_array_equal(accumulate_outward(levels, parent, jnp.asarray(x)), out)
    np.testing.assert_array_equal(accumulate_inward(levels, parent, jnp.asarray(x)), back)


def test_outward_and_inward_pass_pytrees():
    rng = np.random.default_rng(5)
    parent, levels = random_tree(rng, 9)
    x = {"a": jnp.asarray(rng.normal(size=9)), "b": jnp.asarray(rng.normal(size=(9, 2)))}

    def f(above, own):
        return {"a": 2 * above["a"] + own["a"], "b": above["b"] - own["b"]}

    y = outward(levels, parent, f, {"a": jnp.asarray(1.0), "b": jnp.ones(2)}, x)
    for i in range(9):
        above = (1.0, np.ones(2)) if parent[i] < 0 else (y["a"][parent[i]], y["b"][parent[i]])
        assert float(y["a"][i]) == pytest.approx(2 * float(above[0]) + float(x["a"][i]), rel=1e-14)
        np.testing.assert_allclose(y["b"][i], above[1] - x["b"][i], rtol=1e-14)

    def g(below, own):
        return below + own, below

    children = inward(levels, parent, g, jnp.zeros(()), x["a"])
    total = np.asarray(accumulate_inward(levels, parent, x["a"]))
    np.testing.assert_allclose(children, [sum(total[k] for k in range(9) if parent[k] == i) for i in range(9)], atol=1e-14)


def test_scatter_sum_adds_and_leaves_zero():
    x = jnp.arange(1.0, 7.0)
    np.testing.assert_array_equal(scatter_sum(x, np.array([2, 0, 2, 2, 0, 4]), 5), [7, 0, 8, 0, 6])
    np.testing.assert_array_equal(scatter_sum(jnp.zeros((0, 3)), np.zeros(0, int), 2), np.zeros((2, 3)))
