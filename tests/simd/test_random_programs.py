"""Random programs against XLA."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

import flexor as fx

UNARY = [
    jnp.sin,
    jnp.tanh,
    jnp.abs,
    lambda x: x**2,
    lambda x: -x,
    lambda x: jnp.sqrt(jnp.abs(x)),
    lambda x: jnp.exp(-x * x),
    jnp.floor,
]
BINARY = [
    jnp.add,
    jnp.subtract,
    jnp.multiply,
    jnp.maximum,
    lambda x, y: jnp.where(x > y, x, 0.5 * y),
    lambda x, y: x / (1 + y * y),
]
SHAPES = [
    lambda x: x[::-1], lambda x: jnp.roll(x, 1), lambda x: jnp.cumsum(x), lambda x: x - x.mean(), lambda x: jnp.sort(x),
    lambda x: x.at[0].add(x[-1]), lambda x: x.reshape(2, 2).T.ravel(), lambda x: jnp.outer(x, x) @ x / 4,
    lambda x: x[jnp.argmax(x)] * x,
    lambda x: lax.scan(lambda c, y: (0.5 * c + y, c), x[0], x)[1],
    lambda x: lax.cond(x[0] > x[1], jnp.cos, lambda z: z, x),
    lambda x: lax.while_loop(lambda z: jnp.max(jnp.abs(z)) > 1, lambda z: z / 2, x),
]  # fmt: skip
STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=14
)


def program(steps):
    def f(x, y):
        values = [x, y]
        for kind, which, a, b in steps:
            first, second = values[a % len(values)], values[b % len(values)]
            if kind == 0:
                values.append(UNARY[which % len(UNARY)](first))
            elif kind == 1:
                values.append(BINARY[which % len(BINARY)](first, second))
            else:
                values.append(SHAPES[which % len(SHAPES)](first))
        return values[-1], sum(v.sum() for v in values)

    return f


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, dtype=st.sampled_from([np.float32, np.float64]), size=st.integers(1, 21), seed=st.integers(0, 9))
def test_random_programs_agree_with_xla(steps, dtype, size, seed):
    x, y = (jnp.asarray(z, dtype) for z in np.random.default_rng(seed).uniform(-2, 2, (2, size, 4)))
    f = program(steps)
    found, exact = fx.simd.vmap(f)(x, y), jax.vmap(f)(x.astype(float), y.astype(float))
    single = jax.vmap(f)(x, y)
    for a, b, c in zip(found, exact, single, strict=True):
        # a program may amplify rounding, or jump: XLA's own distance from the double result is the yardstick
        scale = np.max(np.abs(b), initial=1.0)
        allowed = 1e3 * np.finfo(dtype).eps * scale + 30 * np.max(np.abs(np.asarray(c, float) - b), initial=0.0)
        np.testing.assert_allclose(np.asarray(a, float), b, rtol=0, atol=allowed)
