"""A recurrent network that predicts the motion of a double pendulum without any physics: the baseline."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

SPEED = 15.0  # rad/s: typical magnitude of a velocity
STEP = 0.1  # typical change of a scaled velocity in a frame


class Lstm(eqx.Module):
    """An LSTM cell reads sin q, cos q and qd, and a linear layer its state; the result moves q and qd on by a frame.

    It first reads the `before` states that led to the start, so that it may use history, and from there on its own predictions.
    """

    cell: eqx.nn.LSTMCell
    out: eqx.nn.Linear
    dt: float = eqx.field(static=True)

    def __init__(self, width: int, dt: float, key: PRNGKeyArray):
        a, b = jax.random.split(key)
        self.cell, self.out, self.dt = eqx.nn.LSTMCell(6, width, key=a), eqx.nn.Linear(width, 4, key=b), dt
        self.out = jax.tree.map(lambda x: 0.1 * x, self.out)

    def _advance(self, memory: Any, x: Float[Array, " 4"]) -> tuple[Any, Float[Array, " 4"]]:
        q, v = x[:2], x[2:] / SPEED
        memory = self.cell(jnp.concatenate([jnp.sin(q), jnp.cos(q), v]), memory)
        change = STEP * self.out(memory[0])
        v_new = v + change[2:]
        return memory, jnp.concatenate([q + self.dt * SPEED * ((v + v_new) / 2 + change[:2]), SPEED * v_new])

    def __call__(self, before: Float[Array, "n 4"], steps: int) -> Float[Array, "steps+1 2"]:
        """Angles from the last row of `before` on."""
        width = self.cell.hidden_size
        memory = (jnp.zeros(width), jnp.zeros(width))
        memory, _ = jax.lax.scan(lambda m, x: (self._advance(m, x)[0], None), memory, before[:-1])

        def ahead(carry: Any, _: None) -> tuple[Any, Array]:
            memory, x = self._advance(*carry)
            return (memory, x), x[:2]

        _, q = jax.lax.scan(ahead, (memory, before[-1]), length=steps)
        return jnp.concatenate([before[-1:, :2], q])


def train(
    lstm: Lstm, project: Any, data: tuple[Array, Array], judged: tuple[Array, Array],
    *, steps: int, rate: float, patience: int, block: int, batch: int = 256, seed: int = 0,
) -> tuple[Lstm, list[float]]:  # fmt: skip
    """The network with the best validation error along Adam, and that error after each block of steps.

    `data` and `judged` are (states that lead to the start, markers from there on); `project` turns angles into markers. The loss
    is the mean distance of the markers, over a horizon that grows to the whole in the first three blocks. Ends when `patience`
    blocks brought nothing.
    """
    rates = optax.cosine_decay_schedule(rate, steps, 0.02)
    adam = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rates))
    memory = adam.init(eqx.filter(lstm, eqx.is_inexact_array))

    frames = data[1].shape[1]

    def loss(lstm: Lstm, before: Array, markers: Array, share: Any) -> Array:
        seen = jax.vmap(lambda x: jax.vmap(project)(lstm(x, frames - 1)))(before)
        distance = jnp.sqrt(jnp.sum((seen - markers) ** 2, axis=-1) / 2 + 0.1)
        counts = jnp.arange(frames) < share * frames
        return jnp.sum(jnp.mean(distance, axis=0) * counts) / jnp.sum(counts)

    @eqx.filter_jit
    def block_of(lstm: Lstm, memory: Any, before: Array, markers: Array, share: Any) -> tuple[Lstm, Any]:
        weights, static = eqx.partition(lstm, eqx.is_inexact_array)

        def once(carry: Any, data: Any) -> tuple[Any, None]:
            weights, memory = carry
            gradient = jax.grad(lambda w: loss(eqx.combine(w, static), *data, share))(weights)
            update, memory = adam.update(gradient, memory)
            return (optax.apply_updates(weights, update), memory), None

        (weights, memory), _ = jax.lax.scan(once, (weights, memory), (before, markers))
        return eqx.combine(weights, static), memory

    judge = eqx.filter_jit(loss)
    rng = np.random.default_rng(seed)
    best, lowest, history = lstm, np.inf, []
    for i in range(steps // block):
        rows = rng.integers(0, len(data[0]), (block, batch))
        lstm, memory = block_of(lstm, memory, data[0][rows], data[1][rows], jnp.asarray(min(1.0, 0.25 * (i + 1))))
        history.append(float(judge(lstm, *judged, 1.0)))
        if history[-1] < lowest:
            best, lowest = lstm, history[-1]
        if len(history) - 1 - int(np.argmin(history)) >= patience:
            break
    return best, history
