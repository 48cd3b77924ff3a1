"""`simd.vmap` and `simd.jit`: the meaning of `jax.vmap`, under all of JAX's transformations."""

import gc
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.simd import machine, primitive

RNG = np.random.default_rng(1)
X = jnp.asarray(RNG.normal(size=(45, 3)))
W = jnp.asarray(RNG.normal(size=(3, 2)))


def f(x, w):
    return {"a": jnp.tanh(x @ w), "b": jnp.sum(x * x), "c": x[0] > 0}


def same(a, b, tolerance=1e-13):
    for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert u.dtype == v.dtype
        np.testing.assert_allclose(u, v, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("in_axes", "out_axes"), [((0, None), 0), ((1, None), 0), ((0, None), {"a": 1, "b": 0, "c": 0}), ([-1, None], -1)]
)
def test_axes_mean_what_they_mean_in_jax(in_axes, out_axes):
    x = X if in_axes[0] == 0 else X.T
    if out_axes == -1:
        same(
            fx.simd.vmap(lambda x, w: x @ w, in_axes, out_axes)(x, W), jax.vmap(lambda x, w: x @ w, in_axes, out_axes)(x, W)
        )
    else:
        same(fx.simd.vmap(f, in_axes, out_axes)(x, W), jax.vmap(f, in_axes, out_axes)(x, W))


def test_trees_and_shared_results():
    g = lambda tree, y: (tree["x"] + y, y)  # noqa: E731
    args = {"x": X, "z": jnp.ones(45)}, jnp.ones(3)
    out = fx.simd.vmap(g, ({"x": 0, "z": 0}, None), (0, None))(*args)
    same(out, jax.vmap(g, ({"x": 0, "z": 0}, None), (0, None))(*args))


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 9, 16, 17, 45])
def test_batches_of_any_size(size):
    same(fx.simd.vmap(f, (0, None))(X[:size], W), jax.vmap(f, (0, None))(X[:size], W))
    gradient = jax.grad(lambda w: fx.simd.vmap(f, (0, None))(X[:size], w)["a"].sum())(W)
    same(gradient, jax.grad(lambda w: jax.vmap(f, (0, None))(X[:size], w)["a"].sum())(W))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_an_example_gives_the_same_bits_anywhere(dtype):
    """Whatever the batch size, the place in the batch, the number of threads, and alone."""

    def g(x):
        y, _ = jax.lax.scan(lambda c, _: (jnp.sin(c) * x + jnp.exp(-c * c) @ x / (1 + c @ c), None), x, None, length=300)
        return jax.lax.while_loop(lambda z: z[0] < 5, lambda z: z * 1.1 + 0.3, y)

    x = jnp.asarray(RNG.normal(size=(203, 3)), dtype)
    whole = np.asarray(fx.simd.vmap(g)(x))
    np.testing.assert_array_equal(fx.simd.vmap(g, threads=1)(x), whole)
    np.testing.assert_array_equal(fx.simd.vmap(g)(x[57:94]), whole[57:94])
    np.testing.assert_array_equal(fx.simd.vmap(g)(x[::-1])[::-1], whole)
    np.testing.assert_array_equal(fx.simd.vmap(g)(x[11:12])[0], whole[11])
    np.testing.assert_array_equal(fx.simd.jit(g)(x[11]), whole[11])


def test_gradients_of_shared_arguments_do_not_depend_on_threads():
    gradients = [
        jax.grad(lambda w, t=t: fx.simd.vmap(f, (0, None), threads=t)(jnp.tile(X, (20, 1)), w)["a"].sum())(W)
        for t in (1, None)
    ]
    np.testing.assert_array_equal(*gradients)


def loss(run, x, w):
    return jnp.sum(run(f, (0, None))(x, w)["a"] ** 2)


def test_transformations_outside():
    for derivative in (jax.grad, jax.jacfwd, jax.jacrev, jax.hessian):
        for k in (0, 1):
            found = derivative(lambda *a: loss(fx.simd.vmap, *a), argnums=k)(X[:5], W)
            same(found, derivative(lambda *a: loss(jax.vmap, *a), argnums=k)(X[:5], W), 1e-11)
    tangents = jax.jvp(lambda x: fx.simd.vmap(f, (0, None))(x, W)["a"], (X,), (jnp.cos(X),))
    same(tangents, jax.jvp(lambda x: jax.vmap(f, (0, None))(x, W)["a"], (X,), (jnp.cos(X),)))


def test_transformations_inside():
    g = lambda x: jnp.sum(jnp.sin(x) * x**2)  # noqa: E731
    for derivative in (jax.grad, jax.value_and_grad, jax.hessian, jax.jacfwd):
        same(fx.simd.vmap(derivative(g))(X), jax.vmap(derivative(g))(X))
        same(fx.simd.vmap(derivative(jax.checkpoint(g)))(X), jax.vmap(derivative(jax.checkpoint(g)))(X))
    same(fx.simd.vmap(lambda x: jax.jvp(g, (x,), (x,)))(X), jax.vmap(lambda x: jax.jvp(g, (x,), (x,)))(X))
    same(fx.simd.vmap(lambda x: jax.vmap(jnp.sin)(x))(X), jnp.sin(X))


def test_within_jit_scan_and_vmap():
    run = fx.simd.vmap(lambda x: jnp.sin(x) + 1)
    same(jax.jit(run)(X), jnp.sin(X) + 1)
    same(jax.lax.scan(lambda c, _: (run(c), None), X, None, length=3)[0], jnp.sin(jnp.sin(jnp.sin(X) + 1) + 1) + 1)
    stack = jnp.stack([X, 2 * X])
    same(jax.vmap(run)(stack), jnp.sin(stack) + 1)
    same(jax.vmap(fx.simd.vmap(lambda x, w: x @ w, (0, None)), (None, 0))(X, jnp.stack([W, -W])), jnp.stack([X @ W, -X @ W]))
    same(jax.vmap(jax.grad(lambda w: loss(fx.simd.vmap, X, w)))(jnp.stack([W, -W])),
         jax.vmap(jax.grad(lambda w: loss(jax.vmap, X, w)))(jnp.stack([W, -W])), 1e-11)  # fmt: skip
    same(fx.simd.vmap(fx.simd.jit(jnp.sin))(X), jnp.sin(X))
    same(jax.vmap(fx.simd.jit(lambda x: jnp.sin(x)))(X), jnp.sin(X))


def test_traced_values_that_a_function_closes_over_are_shared_arguments():
    x, w = jnp.linspace(0.0, 1.0, 7), 1.3

    def total(w, vmap):
        return jnp.sum(vmap(lambda a: jnp.sin(a * w) + w**2)(x))

    for transform in (jax.grad, jax.hessian):
        found, wanted = (jax.jit(transform(lambda w, v=v: total(w, v)))(w) for v in (fx.simd.vmap, jax.vmap))
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    each = jax.vmap(lambda w: fx.simd.vmap(lambda a: a * w)(x))(jnp.arange(3.0))
    np.testing.assert_allclose(each, jnp.arange(3.0)[:, None] * x[None], rtol=1e-6)
    assert jax.jit(lambda w: fx.simd.jit(lambda a: a * w)(2.0))(3.0) == 6.0


def test_a_function_is_traced_once_whatever_the_size_of_the_batch():
    traced = []

    def g(x, w):
        traced.append(x.dtype)
        return jnp.sin(x) @ w

    batched = fx.simd.vmap(g, (0, None))
    for size in (3, 7, 45):
        same(batched(X[:size], W), jnp.sin(X[:size]) @ W)
    assert len(traced) == 1
    batched(X.astype(jnp.float32), W.astype(jnp.float32))
    assert [t.name for t in traced] == ["float64", "float32"]


def test_a_trace_that_closes_over_traced_values_is_not_kept():
    @jax.jit
    def both(w):
        return [fx.simd.vmap(lambda x: x @ w)(X[:size]) for size in (4, 9)]

    held = [None]
    one = fx.simd.vmap(lambda x: x @ held[0])  # one function, two surroundings

    @jax.jit
    def again(w, x):
        held[0] = w
        return one(x)

    for w, x in ((W, X), (2 * W, X[:5])):  # another size: JAX's own cache does not know it
        same(both(w), [X[:4] @ w, X[:9] @ w])
        same(again(w, x), x @ w)


def test_the_collector_is_back_after_a_function_that_fails():
    def fails(x):
        assert not gc.isenabled()
        raise KeyError("mine")

    assert gc.isenabled()
    with pytest.raises(KeyError, match="mine"):
        fx.simd.vmap(fails)(jnp.ones(3))
    assert gc.isenabled()


def test_keyword_arguments_have_their_batch_first():
    g = lambda x, *, scale: x * scale  # noqa: E731
    same(fx.simd.vmap(g)(X, scale=X[:, 0]), jax.vmap(g)(X, scale=X[:, 0]))
    same(fx.simd.jit(g)(X, scale=2.0), 2 * X)


def test_integer_arguments_and_results_have_no_gradient():
    g = lambda x, i: (x * i.astype(x.dtype), i + 1)  # noqa: E731
    i = jnp.arange(45)
    found = jax.grad(lambda x: fx.simd.vmap(g)(x, i)[0].sum())(X[:, 0])
    same(found, i.astype(float))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: fx.simd.vmap(f, (None, None))(X, W), "needs an argument with a batch axis"),
        (lambda: fx.simd.vmap(jnp.add)(X, X[:3]), "batches of different sizes: argument 0 has 45, argument 1 has 3"),
        (lambda: fx.simd.vmap(jnp.sin, 2)(X), "has 2 dimensions, so none with the index 2"),
        (lambda: fx.simd.vmap(f, (0, None, 0))(X, W), "`in_axes` must be an integer, None, or a tree"),
        (lambda: fx.simd.vmap(jnp.sin, 0, None)(X), "axis None in `out_axes` is not the same for all examples"),
        (lambda: fx.simd.vmap(f, threads=0), "`threads` must be a positive number, got 0"),
    ],
)
def test_bad_calls_say_what_is_wrong(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_without_kernels_the_same_call_is_jax_vmap_with_one_notice(monkeypatch):
    monkeypatch.setattr(machine, "supported", lambda: "no kernels for processors of type 'abacus'")
    primitive._warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same(fx.simd.vmap(lambda x: x * 3)(X), 3 * X)
        same(fx.simd.vmap(lambda x: x * 4)(X), 4 * X)
    notices = [str(w.message) for w in caught if "flexor.simd" in str(w.message)]
    assert notices == [
        "flexor.simd: no kernels for processors of type 'abacus'; the same calls run through jax.vmap and XLA."
    ]
    with pytest.raises(RuntimeError, match="abacus"):
        fx.simd.inspect(jnp.sin, 1.0)


def test_inspect_tells_what_the_code_is():
    about = fx.simd.inspect(lambda x, y: x * y + jnp.sqrt(y), 1.0, 2.0, batch=64)
    assert about.operations == {"load": 2, "fma": 1, "sqrt": 1}
    assert about.flops == 3
    assert about.measured_ns > 0
    assert about.code_bytes > 100
    assert "operations" in str(about)


def test_zeros_and_ones_cost_nothing_and_equal_expressions_are_shared():
    def g(x):
        R = jnp.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])
        return R @ (R.T @ x) + 0 * jnp.sin(x) + (x[0] * x[1] - x[1] * x[0] + x * 1) / 2

    arithmetic = fx.simd.inspect(g, X[0], batch=8).operations
    assert "sin" not in arithmetic
    assert sum(arithmetic.values()) <= 3 + 1 + 1 + 3 * 3  # loads, product and its difference, and three sums with a factor


def test_rows_of_elementary_functions_and_copies_of_trajectories_are_loops():
    """The code grows with neither; values and derivatives are XLA's."""

    def f(x):
        ys = jax.lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, None, length=1000)[1]
        return jnp.concatenate([x[None], ys])

    x = jnp.linspace(-1, 1, 8 * 200, dtype=jnp.float32).reshape(8, 200)
    np.testing.assert_allclose(fx.simd.vmap(f)(x[:, :3]), jax.vmap(f)(x[:, :3]), rtol=1e-5)
    assert sum(fx.simd.inspect(f, x[0, :3]).operations.values()) < 200

    def g(x):
        return jnp.sum(jnp.tanh(x) * jnp.exp(-x))

    np.testing.assert_allclose(fx.simd.vmap(g)(x), jax.vmap(g)(x), rtol=2e-5)
    np.testing.assert_allclose(fx.simd.vmap(jax.grad(g))(x), jax.vmap(jax.grad(g))(x), rtol=2e-6, atol=1e-6)
    assert sum(fx.simd.inspect(g, x[0]).operations.values()) < 200 * 10


STUCK = """
import jax, jax.numpy as jnp, flexor as fx

def inner(n):  # ends where n is not zero
    return jax.lax.while_loop(lambda k: k < 5, lambda k: k + n, 0)

def outer(n):
    return jax.lax.while_loop(lambda c: c[0] > 0, lambda c: (c[0] - 1, c[1] + inner(c[0])), (n, 0))[1]

print(fx.simd.vmap(outer)(jnp.array([3, 1, 0, 2])).tolist())
"""


def test_lanes_that_have_left_a_loop_keep_no_inner_loop_going():
    """Here they would go on for ever: after its last turn a lane's n is zero."""
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split("\n")[0] == "[17, 5, 0, 11]", done.stdout + done.stderr
