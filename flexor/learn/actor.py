"""`Actor` and `Critic`: small perceptrons over normalised observations, of one robot."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from flexor.learn.pieces import mean_over

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: jnp.maximum(x, 0),
    "tanh": jnp.tanh,
    "elu": lambda x: jnp.where(x > 0, x, jnp.expm1(jnp.minimum(x, 0))),
}
"""Nonlinearities by name."""


class Perceptron(eqx.Module):
    """x -> ... f(f(x W1 + b1) W2 + b2) ... Wn + bn. Weights have an input in every row, so that kernels read them in order."""

    weights: tuple[Float[Array, "i o"], ...]
    biases: tuple[Float[Array, " o"], ...]
    activation: str = eqx.field(static=True)

    @staticmethod
    def build(sizes: Sequence[int], key: PRNGKeyArray, *, activation: str, last: float, dtype: Any) -> "Perceptron":
        """Random weights: orthogonal, with gain sqrt 2, and `last` in the last layer (Andrychowicz et al. 2021)."""
        if activation not in ACTIVATIONS:
            raise ValueError(f"there is no activation '{activation}'; there are {', '.join(ACTIVATIONS)}.")
        keys = jax.random.split(key, len(sizes) - 1)
        gains = [np.sqrt(2.0)] * (len(sizes) - 2) + [last]
        weights = [
            jax.nn.initializers.orthogonal(gain)(k, shape, jnp.float32).astype(dtype)
            for gain, k, shape in zip(gains, keys, pairwise(sizes), strict=True)
        ]
        return Perceptron(tuple(weights), tuple(jnp.zeros(n, dtype) for n in sizes[1:]), activation)

    def __call__(self, x: Float[Array, "*batch i"]) -> Float[Array, "*batch o"]:
        f = ACTIVATIONS[self.activation]
        spread = (None,) * (x.ndim - 1)
        for W, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = f(x @ W + b[spread])
        return x @ self.weights[-1] + self.biases[-1][spread]


class Norm(eqx.Module):
    """Mean and deviation of what was observed so far, and of how many observations: those of a stretch are merged into them
    (Chan, Golub & LeVeque 1979). Observations are counted in units of the deviation, within +- `bound` of them."""

    mean: Float[Array, " n"]
    square: Float[Array, " n"]
    count: Float[Array, ""]
    bound: float = eqx.field(static=True, default=10.0)

    @staticmethod
    def fresh(n: int, dtype: Any) -> "Norm":
        return Norm(jnp.zeros(n, dtype), jnp.ones(n, dtype), jnp.full((), 1e-4, dtype))

    @property
    def deviation(self) -> Float[Array, " n"]:
        return jnp.sqrt(self.square + 1e-8)

    def __call__(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        spread = (None,) * (x.ndim - 1)
        return jnp.clip((x - self.mean[spread]) / self.deviation[spread], -self.bound, self.bound)

    def merged(self, x: Float[Array, "robots steps n"]) -> "Norm":
        """With further observations."""
        n = jnp.asarray(x.shape[0] * x.shape[1], self.count.dtype)
        robots, steps = jnp.arange(x.shape[0]), x.shape[1]
        mean = mean_over(lambda some: jnp.mean(x[some], axis=(0, 1)), robots, steps=steps)
        square = mean_over(lambda some: jnp.mean((x[some] - mean[None, None]) ** 2, axis=(0, 1)), robots, steps=steps)
        total = self.count + n
        delta = mean - self.mean
        both = self.count * self.square + n * square + delta**2 * (self.count * n / total)
        return Norm(self.mean + delta * (n / total), both / total, total, self.bound)


class Actor(eqx.Module):
    """A Gaussian policy: the mean of an action at an observation, and the logarithm of its deviation, the same everywhere."""

    norm: Norm
    net: Perceptron
    log_deviation: Float[Array, " m"]

    def __call__(self, observation: Float[Array, "*batch n"]) -> Float[Array, "*batch m"]:
        """The mean."""
        return self.net(self.norm(observation))

    def astype(self, dtype: Any) -> "Actor":
        """The same policy in another precision."""
        return jax.tree.map(lambda x: jnp.asarray(x, dtype), self)
