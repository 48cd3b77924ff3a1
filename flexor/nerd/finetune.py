"""`finetune`: a trained solver is adapted to recordings of the real robot.

    loss = single mean huber(one step) + share mean huber(several steps) + path mean soft(|dq| / |dq|_0) + pull |w - w0|^2

The normalisation stays that of the pretrained network, and `pull` holds the weights near its own, w0. The term `path` is how far
positions are off along rollouts, in units of what it was before, soft(e) = 3 log(1 + e / 3): of velocities it needs the first,
and with `steady` not even that (`steady.py`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flexor import simd
from flexor.model.model import Control, Model
from flexor.nerd.artefact import Nerd
from flexor.nerd.frames import Frames, dof_kinds
from flexor.nerd.network import Transformer
from flexor.nerd.steady import lift
from flexor.nerd.steady import steady as steady_instants
from flexor.nerd.training import loss, member, optimiser_of, trainable, unrolled_loss
from flexor.nerd.unrolled import path_errors
from flexor.solvers import Trajectory

Progress = Callable[[int, int, float], None]
PIECE = 256  # windows encoded at once
MOST = 2.0  # times as often as others a window is drawn at most


@dataclass(frozen=True)
class Finetuning:
    """The optimiser of training, from `rate` to `last_rate`. A batch is `batch` windows of `window` steps: all single steps of
    them with weight `single`, and the rollout from their first, with weight `share` of all errors and `path` of positions.
    `first` is the share of the windows that begin where a recording does. With `path` windows are drawn by how far the solver
    was off along them before.

    With `steady` > 0 windows begin at steady instants alone, found by parabolas over 2 `steady` + 1 instants, from the states
    that these give, moved out of what overlaps. Gradients by the state are cut to `limit` at every step back.

    With `held_out` > 0 that share of the recordings, the last ones, is not learned from: every `every` steps they are rolled out
    as far as the shortest of them goes, or with `steady` and `path` along their windows, and the weights that do so best are
    kept, the ones before fine-tuning among them."""

    steps: int = 1000
    batch: int = 32
    window: int = 24
    rate: float = 5e-4
    last_rate: float = 5e-6
    clip: float = 1.0
    huber: float = 0.05
    single: float = 1.0
    share: float = 1.0
    path: float = 0.0
    first: float = 0.0
    limit: float = 1e3
    pull: float = 1e-3
    steady: int = 0
    held_out: float = 0.0
    every: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1 or not 0 <= self.first <= 1:
            raise ValueError("`held_out` and `first` are shares: from 0 to 1, and `held_out` below 1.")
        if min(self.steps, self.batch, self.window, self.every) < 1:
            raise ValueError("`steps`, `batch`, `window` and `every` must be positive numbers.")


class Windows(eqx.Module):
    """Pieces of recordings: inputs and targets (n, window, ...), None where only rollouts are learned from, states and torques
    (n, window + 1, ...), and whether a recording begins there (n)."""

    x: Any
    y: Any
    r: Any
    begin: Any


def finetune(
    nerd: Nerd,
    logs: Sequence[Trajectory],
    options: Finetuning = Finetuning(),  # noqa: B008
    *,
    progress: Progress | None = None,
) -> Nerd:
    """The solver after training on recordings at its own step. Members of an ensemble learn from the same windows, in units of
    the first one's errors, and their gradients are clipped together."""
    learn = logs[: len(logs) - round(options.held_out * len(logs))]
    data = windows(nerd, learn, options.window, options.steady, encode=options.single > 0)
    begins = np.flatnonzero(data.begin)
    if options.first and not len(begins):
        raise ValueError("`first` asks for windows from the first states of recordings, and none of these is steady.")
    optimiser = optimiser_of(options)
    first = trainable(nerd.network)
    weights, memory = first, optimiser.init(first)
    typical, chance = _before(nerd, data, options)
    advance = _advance(nerd, options, optimiser, first, typical)
    judge = _judge(nerd, logs[len(learn) :], options, typical)
    best, kept = judge(first), first
    rng = np.random.default_rng(options.seed)
    value = jnp.nan
    for step in range(options.steps):
        rows = rng.choice(len(data.r), options.batch, p=chance)
        if options.first:
            rows = np.where(rng.random(options.batch) < options.first, rng.choice(begins, options.batch), rows)
        weights, memory, value = advance(weights, memory, jax.tree.map(lambda x: x[rows], data))  # noqa: B023
        if progress is not None:
            progress(step + 1, options.steps, float(value))
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            score = judge(weights)
            best, kept = (score, weights) if score <= best else (best, kept)
    if not np.isfinite(float(value)):
        raise FloatingPointError("the loss left the finite numbers while fine-tuning: a smaller rate may help.")
    facts = {**nerd.card, "fine-tuned": {"recordings": len(logs), **dataclasses.asdict(options)}}
    return dataclasses.replace(nerd, network=eqx.combine(kept, nerd.network), card=facts)


def _judge(nerd: Nerd, held: Sequence[Trajectory], options: Finetuning, typical: Array) -> Callable[[Any], float]:
    """How far positions are off along recordings, in units of what they were before; zero where there is none. Windows are judged
    for every member of an ensemble, whole recordings for its mean."""
    if not held:
        return lambda weights: 0.0
    if options.steady and options.path:
        rows = windows(nerd, held, options.window, options.steady, encode=False).r
        rows = rows[:: -(-len(rows) // (2 * PIECE))]  # two pieces say enough
        each = eqx.filter_vmap(
            lambda n, r: jnp.mean(_soft(_paths(n, nerd, r, options) / typical), axis=(1, 2)), in_axes=(0, None)
        )
        along = eqx.filter_jit(lambda whole, r: jnp.mean(each(whole, r), axis=0))
        return lambda weights: float(np.mean(_over_pieces(partial(along, eqx.combine(weights, nerd.network)), rows)))
    steps = min(len(log) for log in held)
    q, qd, u = (jnp.stack([getattr(log, k)[:n] for log in held]) for k, n in (("q", steps + 1), ("qd", 1), ("u", steps)))

    @eqx.filter_jit
    def off(weights: Any) -> Array:
        sim = dataclasses.replace(nerd, network=eqx.combine(weights, nerd.network)).simulator()
        ran = jax.vmap(lambda q, qd, u: sim.rollout(sim.reset(q, qd), u).q)(q[:, 0], qd[:, 0], u)
        apart, kinds = jax.vmap(jax.vmap(nerd.frames.difference))(q, ran), dof_kinds(nerd.frames.topology)
        return jnp.stack([jnp.mean(jnp.linalg.norm(apart[..., kinds == k], axis=-1)) for k in np.unique(kinds)])

    before = off(trainable(nerd.network))
    return lambda weights: float(jnp.mean(jnp.nan_to_num(off(weights), nan=jnp.inf) / (before + 1e-8)))


def _before(nerd: Nerd, data: "Windows", options: Finetuning) -> tuple[Array, np.ndarray]:
    """How far positions are off before fine-tuning, by kind of coordinate, and with what chance a window is drawn: by how far it
    is off itself, in these units, up to `MOST` times."""
    if not options.path:
        return jnp.ones(1), np.full(len(data.r), 1 / len(data.r))
    network = member(nerd.network, 0)
    off = eqx.filter_jit(lambda r: jnp.mean(_paths(network, nerd, r, options), axis=1))
    each = np.nan_to_num(_over_pieces(off, data.r), nan=0.0, posinf=0.0)
    typical = each.mean(axis=0)
    chance = np.minimum((each / typical).mean(axis=1), MOST) + 1e-6
    return jnp.asarray(typical), chance / chance.sum()


def _in_pieces(n: int) -> list[np.ndarray]:
    """Rows in pieces of one size, so that one compilation serves them; the last piece begins again with the first."""
    rows = np.arange(-n % PIECE + n) % n
    return np.split(rows, len(rows) // PIECE)


def _over_pieces(f: Callable[[Array], Array], rows: np.ndarray) -> np.ndarray:
    """f of all rows, piece by piece."""
    return np.concatenate([f(rows[k]) for k in _in_pieces(len(rows))])[: len(rows)]


def _soft(error: Array) -> Array:
    return 3 * jnp.log1p(error / 3)


def _paths(network: Transformer, nerd: Nerd, raw: Any, options: Finetuning) -> Array:
    t = nerd.frames.topology
    q, qd, torque = raw[..., : t.nq], raw[..., t.nq : t.nq + t.nv], raw[:, :-1, t.nq + t.nv :]
    limit = options.limit * options.path / len(raw)  # of the gradient of a mean
    return jax.vmap(lambda q, qd, push: path_errors(network, nerd.frames, nerd.model, q, qd, push, limit))(q, qd, torque)


def _advance(nerd: Nerd, options: Finetuning, optimiser: Any, first: Any, typical: Array) -> Any:
    import optax

    def total(weights: Any, rows: Windows) -> Array:
        whole = eqx.combine(weights, nerd.network)
        away = sum(jnp.sum((a - b) ** 2) for a, b in zip(jax.tree.leaves(weights), jax.tree.leaves(first), strict=True))
        each = eqx.filter_vmap(lambda network: _loss(network, nerd, rows, options, typical))(whole)
        return jnp.sum(each) + options.pull * away

    @jax.jit
    def advance(weights: Any, memory: Any, rows: Windows) -> tuple[Any, Any, Array]:
        value, gradient = jax.value_and_grad(total)(weights, rows)
        update, memory = optimiser.update(gradient, memory, weights)
        return optax.apply_updates(weights, update), memory, value

    return advance


def _loss(network: Transformer, nerd: Nerd, rows: Windows, options: Finetuning, typical: Array) -> Array:
    value = jnp.zeros(())
    if options.single:
        value += options.single * loss(network, rows.x, rows.y, options.huber)
    if options.share:
        value += options.share * unrolled_loss(network, nerd.frames, nerd.model, rows.r, options.huber)
    if options.path:
        value += options.path * jnp.mean(_soft(_paths(network, nerd, rows.r, options) / typical))
    return value


def windows(nerd: Nerd, logs: Sequence[Trajectory], length: int, steady: int = 0, *, encode: bool = True) -> Windows:
    """All windows of the recordings, half overlapping, those from their first states among them; or all that begin at steady
    instants, every other one."""
    if not logs:
        raise ValueError("fine-tuning needs recordings, and there is none.")
    for i, log in enumerate(logs):
        _check(nerd, log, i, length)
    starts = [_regular(len(log), length) for log in logs]
    found = steady_instants(nerd.frames, nerd.model, [np.asarray(log.q) for log in logs], steady) if steady else None
    if found is not None:
        starts = [s.at[s.at <= len(log) - length][::2] for s, log in zip(found, logs, strict=True)]
    begins = np.concatenate([at == 0 for at in starts])
    if not len(begins):
        raise ValueError("no instant of the recordings is steady: their coordinates follow no parabola anywhere.")
    q, qd, u = (
        np.concatenate(
            [
                np.asarray(getattr(log, k), np.float32)[at[:, None] + np.arange(n)]
                for log, at in zip(logs, starts, strict=True)
            ]
        )
        for k, n in (("q", length + 1), ("qd", length + 1), ("u", length))
    )
    if found is not None:
        rows = [np.searchsorted(s.at, at) for s, at in zip(found, starts, strict=True)]
        q[:, 0], qd[:, 0] = (
            np.concatenate([getattr(s, k)[r] for s, r in zip(found, rows, strict=True)]) for k in ("q", "qd")
        )
        q += np.asarray(jax.jit(jax.vmap(lambda q: lift(nerd.frames, nerd.model, q)))(q[:, 0]))[:, None]
    made = [_encoded(nerd.frames, nerd.model, encode, q[k], qd[k], u[k]) for k in _in_pieces(len(q))]
    x, y, r = jax.tree.map(lambda *z: np.concatenate(z)[: len(q)], *made)
    return Windows(x, y, r, begins)


def _regular(steps: int, length: int) -> np.ndarray:
    """Where half overlapping windows begin in a recording."""
    last = steps - length
    return np.unique(np.append(np.arange(0, last + 1, max(1, length // 2)), last))


@eqx.filter_jit
def _encoded(frames: Frames, model: Model, encode: bool, q: Any, qd: Any, u: Any) -> tuple[Any, Any, Array]:
    """Inputs and targets, where they are asked for, and states with torques."""

    def one(q: Array, qd: Array, u: Array, new_q: Array, new_qd: Array) -> tuple[Any, Any, Array]:
        scene = frames.observe(model, q, qd, Control(u=u, tau=jnp.zeros(model.nv)))
        if not encode:
            return None, None, scene.torque
        ahead = frames.foresee(model, scene)
        return frames.features(scene, ahead), frames.target(scene, ahead, new_q, new_qd), scene.torque

    n, t = u.shape[:2]
    steps = (
        jnp.asarray(z, model.dtype).reshape(n * t, z.shape[-1]) for z in (q[:, :-1], qd[:, :-1], u, q[:, 1:], qd[:, 1:])
    )
    x, y, torque = jax.tree.map(lambda z: z.reshape(n, t, z.shape[-1]), simd.vmap(one)(*steps))
    return x, y, jnp.concatenate([q, qd, jnp.pad(torque, ((0, 0), (0, 1), (0, 0)))], axis=-1)


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
