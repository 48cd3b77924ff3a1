"""`finetune`: a trained solver is adapted to recordings of the real robot.

    loss = mean huber(one step) + share mean huber(several steps) + pull |w - w0|^2

The normalisation stays that of the pretrained network, and `pull` holds the weights near its own, w0.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flexor import simd
from flexor.model.model import Control, Model
from flexor.nerd.artefact import Nerd
from flexor.nerd.frames import Frames
from flexor.nerd.network import Transformer
from flexor.nerd.training import loss, member, optimiser_of, trainable, unrolled_loss
from flexor.solvers import Trajectory

Progress = Callable[[int, int, float], None]
PIECE = 256  # windows encoded at once


@dataclass(frozen=True)
class Finetuning:
    """The optimiser of training, from `rate` to `last_rate`. A batch is `batch` windows of `window` steps: all single steps of
    them, and with weight `share` the rollout from their first."""

    steps: int = 1000
    batch: int = 32
    window: int = 24
    rate: float = 5e-4
    last_rate: float = 5e-6
    clip: float = 1.0
    huber: float = 0.05
    share: float = 1.0
    pull: float = 1e-3
    seed: int = 0


class Windows(eqx.Module):
    """Pieces of recordings: inputs and targets (n, window, ...), states and torques (n, window + 1, ...)."""

    x: Any
    y: Any
    r: Any


def finetune(
    nerd: Nerd,
    logs: Sequence[Trajectory],
    options: Finetuning = Finetuning(),  # noqa: B008
    *,
    progress: Progress | None = None,
) -> Nerd:
    """The solver after training on recordings at its own step. Every member of an ensemble is trained alike."""
    data = windows(nerd, logs, options.window)
    optimiser = optimiser_of(options)
    first = trainable(nerd.network)
    weights, memory = first, optimiser.init(first)
    advance = _advance(nerd, options, optimiser, first)
    rng = np.random.default_rng(options.seed)
    value = jnp.nan
    for step in range(options.steps):
        rows = rng.integers(0, len(data.x), options.batch)
        weights, memory, value = advance(weights, memory, jax.tree.map(lambda x: x[rows], data))  # noqa: B023
        if progress is not None:
            progress(step + 1, options.steps, float(value))
    if not np.isfinite(float(value)):
        raise FloatingPointError("the loss left the finite numbers while fine-tuning: a smaller rate may help.")
    facts = {**nerd.card, "fine-tuned": {"recordings": len(logs), **dataclasses.asdict(options)}}
    return dataclasses.replace(nerd, network=eqx.combine(weights, nerd.network), card=facts)


def _advance(nerd: Nerd, options: Finetuning, optimiser: Any, first: Any) -> Any:
    import optax

    def total(weights: Any, rows: Windows) -> Array:
        whole = eqx.combine(weights, nerd.network)
        away = sum(jnp.sum((a - b) ** 2) for a, b in zip(jax.tree.leaves(weights), jax.tree.leaves(first), strict=True))
        each = [_loss(member(whole, i), nerd.frames, nerd.model, rows, options) for i in range(len(whole.embed))]
        return jnp.sum(jnp.stack(each)) + options.pull * away

    @jax.jit
    def advance(weights: Any, memory: Any, rows: Windows) -> tuple[Any, Any, Array]:
        value, gradient = jax.value_and_grad(total)(weights, rows)
        update, memory = optimiser.update(gradient, memory, weights)
        return optax.apply_updates(weights, update), memory, value

    return advance


def _loss(network: Transformer, frames: Frames, model: Model, rows: Windows, options: Finetuning) -> Array:
    value = loss(network, rows.x, rows.y, options.huber)
    return value + options.share * unrolled_loss(network, frames, model, rows.r, options.huber) if options.share else value


def windows(nerd: Nerd, logs: Sequence[Trajectory], length: int) -> Windows:
    """All windows of the recordings, half overlapping, those from their first states among them."""
    pieces: list[tuple[np.ndarray, ...]] = []
    for i, log in enumerate(logs):
        _check(nerd, log, i, length)
        last = len(log) - length
        at = np.unique(np.append(np.arange(0, last + 1, max(1, length // 2)), last))[:, None] + np.arange(length + 1)
        pieces.append(tuple(np.asarray(z, np.float32)[k] for z, k in ((log.q, at), (log.qd, at), (log.u, at[:, :-1]))))
    if not pieces:
        raise ValueError("fine-tuning needs recordings, and there is none.")
    q, qd, u = (np.concatenate(z) for z in zip(*pieces, strict=True))
    count = -len(q) % PIECE + len(q)
    rows = np.arange(count) % len(q)  # whole pieces: one compilation
    made = [_encoded(nerd.frames, nerd.model, q[k], qd[k], u[k]) for k in np.split(rows, count // PIECE)]
    return jax.tree.map(lambda *z: np.concatenate(z)[: len(q)], *made)


@eqx.filter_jit
def _encoded(frames: Frames, model: Model, q: Any, qd: Any, u: Any) -> Windows:
    def one(q: Array, qd: Array, u: Array, new_q: Array, new_qd: Array) -> tuple[Array, Array, Array]:
        scene = frames.observe(model, q, qd, Control(u=u, tau=jnp.zeros(model.nv)))
        ahead = frames.foresee(model, scene)
        return frames.features(scene, ahead), frames.target(scene, ahead, new_q, new_qd), scene.torque

    n, t = u.shape[:2]
    steps = (
        jnp.asarray(z, model.dtype).reshape(n * t, z.shape[-1]) for z in (q[:, :-1], qd[:, :-1], u, q[:, 1:], qd[:, 1:])
    )
    x, y, torque = (z.reshape(n, t, z.shape[-1]) for z in simd.vmap(one)(*steps))
    return Windows(x, y, jnp.concatenate([q, qd, jnp.pad(torque, ((0, 0), (0, 1), (0, 0)))], axis=-1))


def _check(nerd: Nerd, log: Trajectory, i: int, length: int) -> None:
    t = nerd.model.topology
    if np.shape(log.q)[-1] != t.nq or np.shape(log.qd)[-1] != t.nv:
        raise ValueError(f"recording {i} has {np.shape(log.q)[-1]} coordinates; '{t.name}' has {t.nq}.")
    if not all(np.isfinite(np.asarray(z)).all() for z in (log.q, log.qd, log.u)):
        raise ValueError(f"recording {i} holds numbers that are not finite.")
    steps = np.diff(np.asarray(log.time))
    if not np.allclose(steps, nerd.dt, rtol=1e-2):
        raise ValueError(f"recording {i} has steps of {np.median(steps):g} s; the solver steps by {nerd.dt:g} s.")
    if len(log) < length:
        raise ValueError(f"recording {i} has {len(log)} steps; windows of {length} do not fit.")
