"""`finetune`: a trained solver is adapted to recordings of the real robot, by the losses of `losses.py` on windows of them.

The normalisation stays that of the pretrained network.
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

from flexor.nerd.artefact import Nerd
from flexor.nerd.frames import dof_kinds
from flexor.nerd.losses import (
    AbstractLoss,
    AnchorLoss,
    Before,
    OneStepLoss,
    PositionLoss,
    RolloutLoss,
    position_errors,
    soft,
)
from flexor.nerd.network import trainable
from flexor.nerd.training import optimiser_of
from flexor.nerd.windows import PIECE, AbstractStarts, RegularStarts, SteadyStarts, Windows, over_pieces, windows
from flexor.solvers import Trajectory
from flexor.solvers.encoding import encode

Progress = Callable[[int, int, float], None]
Judge = Callable[[Any], float]


@dataclass(frozen=True)
class Finetuning:
    """The sum of `losses` is minimised with the optimiser of training, from `rate` to `last_rate`, on batches of `batch` windows
    of `window` steps, which start where `starts` says. `first` is the share of the windows that begin where a recording does.

    With `held_out` that share of the recordings, the last ones, is not learned from: every `every` steps they are rolled out as
    far as the shortest of them goes, or, where recorded velocities are not trusted, along their windows; the weights that follow
    them best are kept, the ones before fine-tuning among them."""

    losses: tuple[AbstractLoss, ...] = (OneStepLoss(), RolloutLoss(), AnchorLoss())
    starts: AbstractStarts = RegularStarts()  # noqa: RUF009
    steps: int = 1000
    batch: int = 32
    window: int = 24
    first: float = 0.0
    rate: float = 5e-4
    last_rate: float = 5e-6
    clip: float = 1.0
    held_out: float = 0.0
    every: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.losses or not all(isinstance(loss, AbstractLoss) for loss in self.losses):
            raise ValueError(f"`losses` must be one or more terms, for instance `(OneStepLoss(),)`, got {self.losses!r}.")
        if not 0 <= self.held_out < 1 or not 0 <= self.first <= 1:
            raise ValueError("`held_out` and `first` are shares: from 0 to 1, and `held_out` below 1.")
        if min(self.steps, self.batch, self.window, self.every) < 1:
            raise ValueError("`steps`, `batch`, `window` and `every` must be positive numbers.")

    def table(self) -> dict[str, Any]:
        """All of it as JSON, for cards."""
        return encode(self, CLASSES, "finetuning")[0]  # type: ignore[no-any-return]


CLASSES = {
    c.__name__: c for c in (Finetuning, OneStepLoss, RolloutLoss, PositionLoss, AnchorLoss, RegularStarts, SteadyStarts)
}


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
    encode = any(loss.needs_examples for loss in options.losses)
    data = windows(nerd, learn, options.window, options.starts, encode=encode)
    begins = np.flatnonzero(data.begin)
    if options.first and not len(begins):
        raise ValueError("`first` asks for windows from the first states of recordings, and none of these is steady.")
    optimiser, before = optimiser_of(options), Before(nerd, data)
    first = trainable(nerd.network)
    weights, memory = first, optimiser.init(first)
    chance = np.prod([loss.interest(before) for loss in options.losses], axis=0)
    chance = chance / chance.sum()
    advance = _advance(before, options, optimiser)
    judge = _judge(before, logs[len(learn) :], options)
    best, best_weights = judge(first), first
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
            best, best_weights = (score, weights) if score <= best else (best, best_weights)
    if not np.isfinite(float(value)):
        raise FloatingPointError("fine-tuning diverged: the loss is not finite. Try a smaller rate.")
    card = {**nerd.card, "fine-tuned": {"recordings": len(logs), **options.table()}}
    return dataclasses.replace(nerd, network=eqx.combine(best_weights, nerd.network), card=card)


def _advance(before: Before, options: Finetuning, optimiser: Any) -> Any:
    import optax

    terms = [(loss.weight, loss.term(before)) for loss in options.losses]
    network = before.nerd.network

    def total(weights: Any, rows: Windows) -> Array:
        each = eqx.filter_vmap(lambda n, first: sum(weight * term(n, first, rows) for weight, term in terms))
        return jnp.sum(each(eqx.combine(weights, network), network))

    @jax.jit
    def advance(weights: Any, memory: Any, rows: Windows) -> tuple[Any, Any, Array]:
        value, gradient = jax.value_and_grad(total)(weights, rows)
        update, memory = optimiser.update(gradient, memory, weights)
        return optax.apply_updates(weights, update), memory, value

    return advance


def _judge(before: Before, held_out: Sequence[Trajectory], options: Finetuning) -> Judge:
    """How far positions are off along recordings, in units of what they were before; zero where there is none. Windows are judged
    for every member of an ensemble, whole recordings for its mean."""
    if not held_out:
        return lambda weights: 0.0
    if options.starts.trusts_velocities:
        return _judge_recordings(before.nerd, held_out)
    return _judge_windows(before, held_out, options)


def _judge_windows(before: Before, held_out: Sequence[Trajectory], options: Finetuning) -> Judge:
    nerd, scale = before.nerd, jnp.asarray(before.scale, before.nerd.model.dtype)[None, None]
    rows = windows(nerd, held_out, options.window, options.starts, encode=False).r
    rows = rows[:: -(-len(rows) // (2 * PIECE))]  # two pieces are enough

    def error(network: Any, r: Array) -> Array:
        return jnp.mean(soft(position_errors(network, nerd.frames, nerd.model, r) / scale), axis=(1, 2))

    each = eqx.filter_vmap(error, in_axes=(0, None))
    mean = eqx.filter_jit(lambda network, r: jnp.mean(each(network, r), axis=0))
    return lambda weights: float(np.mean(over_pieces(partial(mean, eqx.combine(weights, nerd.network)), rows)))


def _judge_recordings(nerd: Nerd, held_out: Sequence[Trajectory]) -> Judge:
    steps, kinds = min(len(log) for log in held_out), dof_kinds(nerd.frames.topology)
    counts = (("q", steps + 1), ("qd", 1), ("u", steps))
    q, qd, u = (jnp.stack([getattr(log, name)[:n] for log in held_out]) for name, n in counts)

    @eqx.filter_jit
    def error(weights: Any) -> Array:
        sim = dataclasses.replace(nerd, network=eqx.combine(weights, nerd.network)).simulator()
        predicted = jax.vmap(lambda q, qd, u: sim.rollout(sim.reset(q, qd), u).q)(q[:, 0], qd[:, 0], u)
        delta = jax.vmap(jax.vmap(nerd.frames.difference))(q, predicted)
        return jnp.stack([jnp.mean(jnp.linalg.norm(delta[..., kinds == k], axis=-1)) for k in np.unique(kinds)])

    unit = error(trainable(nerd.network)) + 1e-8
    return lambda weights: float(jnp.mean(jnp.nan_to_num(error(weights), nan=jnp.inf) / unit))
