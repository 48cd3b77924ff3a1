"""Encoders: the state at a start from what was measured up to it."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from flexor.augment.networks import Perceptron
from flexor.ode.field import random_perceptron


class AbstractEncoder(eqx.Module):
    """`past` rows end at the start: times, values with zeros where `seen` is 0, and the inputs at the ends of the intervals."""

    past: eqx.AbstractVar[int]

    @abc.abstractmethod
    def start(
        self, t: Float[Array, " n"], y: Float[Array, "n ny"], seen: Float[Array, "n ny"], u: Float[Array, "m nu"]
    ) -> Array:
        """x at the last of the n = `past` rows; u are the m = n inputs of the intervals that begin at them."""


class Past(AbstractEncoder):
    """A linear map and a network of the rows of the past: (y - mean) / std, which of them are seen, u alike, and the times before
    the start in units of `time` where they are irregular."""

    past: int = eqx.field(static=True)
    W: Float[Array, "nx n"]
    net: Perceptron
    y: Any = eqx.field(static=True)
    u: Any = eqx.field(static=True)
    time: float = eqx.field(static=True)
    irregular: bool = eqx.field(static=True)

    @staticmethod
    def build(past: int, states: int, y: Any, u: Any, time: float, irregular: bool, width: int, key: PRNGKeyArray) -> "Past":
        """Random weights; `y`, `u` are means and deviations. The first states start as the last values."""
        ny, nu = len(y[0]), len(u[0])
        n = past * (ny + (ny + 1 if irregular else 0) + nu)
        dtype = jnp.zeros(0).dtype
        W = jnp.zeros((states, n), dtype)
        k = np.arange(min(ny, states))
        W = W.at[k, (past - 1) * ny + k].set(1.0)
        net = random_perceptron(n, states, width, 1, key, dtype)
        net = eqx.tree_at(lambda m: m.layers[-1], net, jax.tree.map(lambda x: 0.1 * x, net.layers[-1]))
        return Past(past, W, net, y, u, time, irregular)

    def start(self, t: Array, y: Array, seen: Array, u: Array) -> Array:
        (my, sy), (mu, su) = (tuple(jnp.asarray(v, y.dtype)[None] for v in m) for m in (self.y, self.u))
        parts = [((y - my) / sy * seen).ravel(), ((u - mu) / su).ravel()]
        if self.irregular:
            parts += [seen.ravel(), (t - t[-1]) / self.time]
        z = jnp.concatenate(parts)
        return self.W @ z + self.net(z)


class Measured(AbstractEncoder):
    """x is what was measured at the start: every state has a column, and all of them must be seen."""

    past: int = eqx.field(static=True, default=1)

    def start(self, t: Array, y: Array, seen: Array, u: Array) -> Array:
        return y[-1]
