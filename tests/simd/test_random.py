"""Random numbers in kernels are JAX's own; XLA is the oracle, to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx

SINGLE, DOUBLE = jnp.float32, jnp.float64
SAME = {
    "uniform": lambda k: jax.random.uniform(k, (5,), SINGLE),
    "uniform of a range, double": lambda k: jax.random.uniform(k, (3,), DOUBLE, -0.3, 1.7),
    "bernoulli": lambda k: jax.random.bernoulli(k, 0.3, (5,)),
    "randint": lambda k: jax.random.randint(k, (4,), -3, 1000),
    "split": lambda k: jax.random.split(k, 3),
    "fold_in": lambda k: jax.random.fold_in(k, 7),
    "permutation": lambda k: jax.random.permutation(k, 6),
    "choice": lambda k: jax.random.choice(k, jnp.arange(5.0), (3,)),
    "a key in a loop": lambda k: jax.lax.scan(lambda c, _: tuple(jax.random.split(c)), k, None, length=40)[1],
    "a key made inside": lambda k: jax.random.bits(jax.random.key(jax.random.randint(k, (), 0, 9)), (2,)),
}


def words(x):
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


@pytest.fixture(scope="module")
def keys():
    return jax.random.split(jax.random.key(3), 301)


@pytest.mark.parametrize("name", SAME)
def test_the_same_numbers_as_xla(name, keys):
    f = SAME[name]
    batch = words(fx.simd.vmap(f)(keys))
    np.testing.assert_array_equal(batch, words(jax.vmap(f)(keys)))
    np.testing.assert_array_equal(words(fx.simd.jit(f)(keys[0])), batch[0])


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_normal_numbers_are_those_of_xla_as_users_run_it(dtype, keys):
    """XLA fuses products into sums when it optimises, which the suite has switched off: other last digits."""

    def f(k):
        return jax.random.normal(k, (20,), dtype)

    compiled = jax.jit(jax.vmap(f)).lower(keys).compile(compiler_options={"xla_backend_optimization_level": 3})
    batch = np.asarray(fx.simd.vmap(f)(keys))
    np.testing.assert_array_equal(batch, compiled(keys))
    np.testing.assert_array_equal(fx.simd.jit(f)(keys[0]), batch[0])
    assert 0.98 < batch.std() < 1.02


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_the_inverse_error_function_at_its_edges(dtype):
    """Exactly XLA's between the ends, in every range of its polynomials; infinite at the ends, nan beyond."""
    eps = np.finfo(dtype).eps
    edges = [
        -1,
        -1 + eps,
        -1 + eps / 2,
        -0.9966,
        -0.9,
        -0.65,
        -0.64,
        -1e-30,
        -0.0,
        0,
        0.3,
        1 - eps / 2,
        1,
        1.5,
        np.inf,
        np.nan,
    ]
    x = jnp.asarray([*edges, *np.linspace(-1, 1, 4001)], dtype)
    compiled = jax.jit(jax.lax.erf_inv).lower(x).compile(compiler_options={"xla_backend_optimization_level": 3})
    np.testing.assert_array_equal(fx.simd.vmap(jax.lax.erf_inv)(x), compiled(x))


def test_a_raw_key_and_a_shared_key():
    def f(k, x):
        return x + jax.random.uniform(k)

    x, key = jnp.arange(4.0), jax.random.key(5)
    for k in (key, jax.random.key_data(key)):
        found = fx.simd.vmap(f, in_axes=(None, 0))(k, x)
        np.testing.assert_array_equal(found, jax.vmap(f, in_axes=(None, 0))(k, x))


def test_a_gradient_through_noise(keys):
    def f(x, k):
        return jnp.sum(jax.random.uniform(k, (3,)) * x**2)

    x = jnp.ones((301, 3))
    found = jax.grad(lambda x: fx.simd.vmap(f)(x, keys).sum())(x)
    np.testing.assert_allclose(found, 2 * jax.vmap(lambda k: jax.random.uniform(k, (3,)))(keys), rtol=1e-12)


def test_other_keys_are_refused():
    with pytest.raises(fx.simd.UnsupportedError, match="threefry keys, not from 'rbg'"):
        fx.simd.jit(lambda k: jax.random.uniform(k))(jax.random.key(0, impl="rbg"))


@pytest.mark.parametrize("bits", [(5, 10), (8, 7), (4, 3), (8, 23), (11, 20)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_reduce_precision_rounds(bits, dtype):
    rng = np.random.default_rng(0)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 65504.0, 65520.0, 6e-8, 1.0 + 2**-11, 1.0 + 3 * 2**-11]
    x = jnp.asarray(np.concatenate([rng.normal(size=200) * 10.0 ** rng.integers(-9, 9, 200), edges]), dtype)
    f = lambda a: jax.lax.reduce_precision(a, *bits)  # noqa: E731
    np.testing.assert_array_equal(fx.simd.vmap(f)(x), f(x))
