"""Recurrent networks that predict the motion of a swimmer without any physics: the baseline."""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

RATE, DECAY = 5e-3, 0.1  # of AdamW
Data = tuple[np.ndarray, np.ndarray, np.ndarray]  # q (runs, T+1, nv), qd (runs, T+1, nv), u (runs, T, nu)


class Lstm(eqx.Module):
    """An LSTM cell reads bends, velocities and controls, and a linear layer its state; the result moves q and qd on by a step.

    The first three coordinates are x, y and heading. Like the physics, the network knows that where the swimmer is and where it
    heads do not matter: it sees and predicts motion in the axes of the first link. That makes it far better here than one that
    reads sine and cosine of the heading. `scales` are the standard deviations of what it reads and writes, not trained.
    """

    cell: eqx.nn.LSTMCell
    out: eqx.nn.Linear

    def __init__(self, nv: int, nu: int, width: int, key: PRNGKeyArray):
        a, b = jax.random.split(key)
        self.cell = eqx.nn.LSTMCell(nv - 3 + nv + nu, width, key=a)
        self.out = jax.tree.map(lambda x: 0.1 * x, eqx.nn.Linear(width, 2 * nv, key=b))

    def __call__(
        self, scales: dict[str, Array], q: Float[Array, " nv"], qd: Float[Array, " nv"], u: Float[Array, "T nu"]
    ) -> tuple[Float[Array, "T+1 nv"], Float[Array, "T+1 nv"]]:
        """The motion from (q, qd) under the controls, reading nothing but its own predictions after the start."""

        def step(carry: Any, u: Array) -> Any:
            memory, q, qd = carry
            seen = (q[3:] / scales["bend"], turned(-q[2], qd) / scales["qd"], u / scales["u"])
            memory = self.cell(jnp.concatenate(seen), memory)
            dq, dqd = jnp.split(self.out(memory[0]), 2)
            q, qd = q + turned(q[2], scales["dq"] * dq), qd + turned(q[2], scales["dqd"] * dqd)
            return (memory, q, qd), (q, qd)

        zero = jnp.zeros(self.cell.hidden_size)
        _, (qs, qds) = jax.lax.scan(step, ((zero, zero), q, qd), u)
        return jnp.concatenate([q[None], qs]), jnp.concatenate([qd[None], qds])


def turned(angle: Any, v: Any) -> Any:
    """v with its first two numbers, a vector in the plane, turned by the angle."""
    c, s = jnp.cos(angle), jnp.sin(angle)
    x, y = v[..., 0], v[..., 1]
    return jnp.concatenate([jnp.stack([c * x - s * y, s * x + c * y], -1), v[..., 2:]], -1)


def measured(data: Data) -> dict[str, np.ndarray]:
    """The scales of a data set, and the spread of q and qd by which the loss weighs them."""
    q, qd, u = data
    change = {"dq": np.diff(q, axis=1), "dqd": np.diff(qd, axis=1)}
    local = {"qd": turned(-q[..., 2], qd)} | {name: turned(-q[:, :-1, 2], x) for name, x in change.items()}
    spread = {name: np.asarray(x).std((0, 1)) for name, x in local.items()} | {"bend": q[..., 3:].std((0, 1))}
    return spread | {"u": u.std((0, 1)), "loss_q": (q - q[:, :1]).std((0, 1)), "loss_qd": qd.std((0, 1))}


def train(
    data: Sequence[Data], width: int, horizons: Sequence[tuple[int, int]], epochs: int
) -> tuple[list[Lstm], list[dict[str, Array]]]:
    """A network for each data set and its scales; all networks are trained side by side.

    For each of `horizons` (steps, stride) the trajectories are cut into windows, and AdamW makes the squared error of the free
    prediction over the window small, each coordinate measured by its spread in the data.
    """
    nv, nu = data[0][0].shape[-1], data[0][2].shape[-1]
    scales = [{k: jnp.asarray(v) for k, v in measured(d).items()} for d in data]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *scales)
    nets = eqx.filter_vmap(lambda key: Lstm(nv, nu, width, key))(jax.random.split(jax.random.key(0), len(data)))
    weights, static = eqx.partition(nets, eqx.is_inexact_array)
    for steps, stride in horizons:
        windows = tuple(jnp.asarray(np.stack(x)) for x in zip(*(_windows(d, steps, stride) for d in data), strict=True))
        weights = jax.jit(jax.vmap(partial(_stage, static, epochs)))(weights, stacked, *windows)
    one_by_one = [jax.tree.map(itemgetter(i), weights) for i in range(len(data))]
    return [eqx.combine(w, static) for w in one_by_one], scales


def _stage(static: Any, epochs: int, weights: Any, scales: Any, q: Array, qd: Array, u: Array) -> Any:
    """The weights of one network after AdamW on whole batches; the rate decays to 1 %."""
    adam = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(optax.cosine_decay_schedule(RATE, epochs, 0.01), weight_decay=DECAY),
    )

    def loss(weights: Any) -> Array:
        predicted = jax.vmap(eqx.combine(weights, static), (None, 0, 0, 0))(scales, q[:, 0], qd[:, 0], u)
        return misfit(predicted, (q, qd), scales)

    def epoch(carry: Any, _: None) -> Any:
        weights, memory = carry
        update, memory = adam.update(jax.grad(loss)(weights), memory, weights)
        return (optax.apply_updates(weights, update), memory), None

    (weights, _), _ = jax.lax.scan(epoch, (weights, adam.init(weights)), length=epochs)
    return weights


def misfit(predicted: Any, true: Any, scales: Any) -> Array:
    """Mean squared errors of q and of qd, each number measured by its spread in the data, summed."""
    spread = (scales["loss_q"], scales["loss_qd"])
    return sum(jnp.mean(((a - b) / s) ** 2) for a, b, s in zip(predicted, true, spread, strict=True))


def predict(lstm: Lstm, scales: dict[str, Array], q: Any, qd: Any, u: Any) -> Any:
    """q and qd of all runs from their first states."""
    return jax.vmap(lstm, (None, 0, 0, 0))(scales, q, qd, u)


def _windows(data: Data, steps: int, stride: int) -> Data:
    q, qd, u = data
    starts = range(0, u.shape[1] - steps + 1, stride)
    return tuple(np.concatenate([x[:, a : a + n] for a in starts]) for x, n in ((q, steps + 1), (qd, steps + 1), (u, steps)))  # type: ignore[return-value]
