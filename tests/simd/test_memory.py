"""Arrays kept in memory, and eliminations in loops, against plain JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx


def test_stored_is_the_identity_for_all_transformations():
    x = jnp.arange(12.0).reshape(4, 3)
    f = lambda x: jnp.sum(jnp.sin(fx.simd.stored(x)) ** 2)  # noqa: E731
    plain = lambda x: jnp.sum(jnp.sin(x) ** 2)  # noqa: E731
    np.testing.assert_array_equal(jax.grad(f)(x), jax.grad(plain)(x))
    np.testing.assert_array_equal(jax.vmap(f)(x), jax.vmap(plain)(x))
    np.testing.assert_array_equal(jax.jvp(f, (x,), (x,))[1], jax.jvp(plain, (x,), (x,))[1])
    assert fx.simd.stored({"a": x, "b": None})["b"] is None


def walk(table, index, keep):
    """Rows of a table read by an index that only the running program knows, in a loop with a branch."""
    table, index = fx.simd.stored((table, index)) if keep else (table, index)

    def visit(total, i):
        row = table.at[i].get(mode="promise_in_bounds")
        total = total + jax.lax.cond(row[0] > 0, lambda r: jnp.sin(r), lambda r: 0 * r, row)
        return total, total[0]

    return jax.lax.scan(visit, jnp.zeros(3, table.dtype), index)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_loops_over_stored_rows_give_the_same(dtype):
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.normal(size=(5, 9, 3)), dtype)
    index = jnp.asarray(rng.integers(0, 9, (5, 20)), jnp.int32)
    kept, plain = (fx.simd.vmap(lambda t, i, keep=keep: walk(t, i, keep))(table, index) for keep in (True, False))
    np.testing.assert_array_equal(kept[0], plain[0])
    np.testing.assert_array_equal(kept[1], plain[1])
    gradient = [
        fx.simd.vmap(jax.grad(lambda t, i, keep=keep: jnp.sum(walk(t, i, keep)[0] ** 2)))(table, index)
        for keep in (True, False)
    ]
    np.testing.assert_allclose(*gradient, rtol=1e2 * jnp.finfo(dtype).eps)


def test_rows_by_numbers_that_are_the_same_for_all_lanes():
    """They are read again wherever they are used, by a number that is computed once for the call and kept."""
    table = np.arange(12.0).reshape(3, 4) + 1

    def f(x, order):
        kept = fx.simd.stored(jnp.asarray(table))
        first, second = (kept.at[order[i]].get(mode="promise_in_bounds") for i in range(2))
        return jax.lax.scan(lambda c, y: (c + y * first, y * second), jnp.zeros(4), x)

    x, order = jnp.arange(15.0).reshape(3, 5), jnp.asarray([2, 1], jnp.int32)
    found, expected = (g(f, (0, None))(x, order) for g in (fx.simd.vmap, jax.vmap))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-14), found, expected)


def test_loops_over_stored_rows_are_not_written_out():
    table = jnp.ones((9, 3))
    sizes = {}
    for keep in (True, False):
        for n in (20, 40):
            index = jnp.zeros(n, jnp.int32)
            found = fx.simd.inspect(lambda t, i, keep=keep: walk(t, i, keep)[0], table, index)
            sizes[keep, n] = sum(found.operations.values())
    assert sizes[True, 40] - sizes[True, 20] <= 40  # the index is copied to memory element by element
    assert sizes[False, 40] > 1.8 * sizes[False, 20]


def solved(H, b):
    n = len(H)
    F = fx.simd.eliminate(H, 1e-12)
    x = b
    for k in range(n):
        x = x.at[k].mul(F[k, k]).at[k + 1 :].add(-F[k + 1 :, k] * (x[k] * F[k, k]))
    for k in range(n - 1, -1, -1):
        x = x.at[k].add(-jnp.sum(F[k, k + 1 :] * x[k + 1 :]))
    return x


@pytest.mark.parametrize("kernels", [True, False])
def test_elimination_solves(kernels):
    rng = np.random.default_rng(1)
    H = jnp.asarray(rng.normal(size=(3, 12, 12)) + 6 * np.eye(12))
    b = jnp.asarray(rng.normal(size=(3, 12)))
    x = (fx.simd.vmap(solved) if kernels else jax.vmap(solved))(H, b)
    np.testing.assert_allclose(np.einsum("nij,nj->ni", H, x), b, atol=1e-12)  # cond(H) < 10: some tens of eps


def test_elimination_keeps_pivots_away_from_zero_and_has_derivatives():
    H = jnp.array([[0.0, 1.0], [1.0, 1.0]])
    F = fx.simd.eliminate(H, 1e-3)
    np.testing.assert_allclose(F[0, 0], 1e3)
    np.testing.assert_allclose(fx.simd.vmap(lambda H: fx.simd.eliminate(H, 1e-3))(H[None])[0], F)
    rng = np.random.default_rng(2)
    H, dH, b = rng.normal(size=(6, 6)) + 4 * np.eye(6), rng.normal(size=(6, 6)), rng.normal(size=6)
    x, dx = jax.jvp(lambda H: solved(H, jnp.asarray(b)), (jnp.asarray(H),), (jnp.asarray(dH),))
    np.testing.assert_allclose(dx, -np.linalg.solve(H, dH @ np.asarray(x)), rtol=1e-9)
