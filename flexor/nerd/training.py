"""Training: batches of windows, and the one-step loss over all positions of each.

    loss = mean |(network(x) - y) / std(y)|^2

Everything random follows from the seed and the number of the step, and checkpoints hold the whole state, so that a run that was
killed and resumed ends with the same weights as one that was not.
"""

import csv
import io
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flexor.model.files import write_whole
from flexor.model.model import Model
from flexor.nerd.data import Data
from flexor.nerd.frames import Frames
from flexor.nerd.network import Norms, Sizes, Transformer

Progress = Callable[[int, int, float], None]
FLOOR = 1e-8  # deviation below which an input or a target is taken for constant


@dataclass(frozen=True)
class Training:
    """How to train: Adam with a rate that falls linearly from `rate` to `last_rate`, gradients clipped at norm `clip`.

    A batch is `batch` windows of `window` steps. `members` > 1 trains an ensemble. Every `every` steps the loss on the share
    `held_out` of the trajectories is noted and a checkpoint written.
    """

    steps: int = 20_000
    batch: int = 256
    window: int = 20
    rate: float = 1e-3
    last_rate: float = 1e-5
    clip: float = 1.0
    members: int = 1
    held_out: float = 0.05
    every: int = 500
    seed: int = 0


class Run(eqx.Module):
    """The state of a training run."""

    network: Transformer
    memory: Any
    step: Array


def windows(
    data: Data, frames: Frames, model: Model, rows: np.ndarray, starts: np.ndarray, length: int
) -> tuple[Array, Array]:
    """Inputs and targets of windows: (batch, length, n)."""
    at = starts[:, None] + np.arange(length)
    scene = jax.tree.map(lambda x: x[rows[:, None], at], data.scene)
    return _encode(frames, scene, data.next_q[rows[:, None], at], data.next_qd[rows[:, None], at])


@eqx.filter_jit
def _encode(frames: Frames, scene: Any, next_q: Any, next_qd: Any) -> tuple[Array, Array]:
    both = jax.vmap(jax.vmap(lambda s, q, qd: (frames.features(s), frames.target(s, q, qd))))
    return both(jax.tree.map(jnp.asarray, scene), jnp.asarray(next_q), jnp.asarray(next_qd))


def norms_of(data: Data, frames: Frames, model: Model, seed: int = 0, most: int = 20_000) -> Norms:
    """Means and deviations over some thousand transitions; numbers that never change get deviation one."""
    n, t = data.shape
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, n, -(-most // t))
    x, y = windows(data, frames, model, rows, np.zeros(len(rows), int), t)
    x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
    found: list[Array] = []
    for v in (np.asarray(x, float), np.asarray(y, float)):
        found += [jnp.asarray(v.mean(0)), jnp.asarray(np.where(v.std(0) > FLOOR, v.std(0), 1.0))]
    return Norms(*found)


def loss(network: Transformer, x: Array, y: Array) -> Array:
    """Mean square error in units of the targets' deviations, over all positions of all windows."""
    return jnp.mean(((jax.vmap(network.sequence)(x) - y) / network.norms.y_std) ** 2)


def train(
    model: Model,
    data: Data,
    *,
    sizes: Sizes = Sizes(),  # noqa: B008
    options: Training = Training(),  # noqa: B008
    frames: Frames | None = None,
    out: str | os.PathLike[str] | None = None,
    start: Transformer | None = None,
    progress: Progress | None = None,
) -> tuple[Transformer, list[dict[str, float]]]:
    """Trains a network (an ensemble, in the leading axis) and returns it with the history of its losses.

    With `out`, a folder, checkpoints and `history.csv` are kept there, and a run that finds a checkpoint of the same options
    goes on from it. `start` continues from given weights with their normalisation.
    """
    import optax

    frames = Frames(model.topology) if frames is None else frames
    folder = None if out is None else Path(out)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    n, t = data.shape
    if t < options.window:
        raise ValueError(f"windows of {options.window} steps do not fit into trajectories of {t}.")
    held = max(1, round(options.held_out * n))
    if n - held < 1:
        raise ValueError(f"{n} trajectories are too few to hold some out.")
    optimiser = optax.chain(
        optax.clip_by_global_norm(options.clip),
        optax.adam(optax.linear_schedule(options.rate, options.last_rate, options.steps)),
    )
    run = _first(data, frames, model, sizes, options, optimiser, start)
    run, history = _restore(folder, run, options, data)
    advance = _advance(optimiser)
    judge = eqx.filter_jit(eqx.filter_vmap(loss, in_axes=(eqx.if_array(0), None, None)))
    test = windows(data, frames, model, *_draw(options, 10**9, n - held, n, t), options.window)
    while int(run.step) < options.steps:
        step = int(run.step)
        x, y = windows(data, frames, model, *_draw(options, step, 0, n - held, t), options.window)
        run, value = advance(run, x, y)
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            row = {"step": step + 1, "loss": float(jnp.mean(value)), "held_out": float(jnp.mean(judge(run.network, *test)))}
            if not np.isfinite(row["loss"]):
                raise FloatingPointError(f"the loss left the finite numbers at step {step + 1}: a smaller rate may help.")
            history.append(row)
            _keep(folder, run, history, options, data)
        if progress is not None:
            progress(step + 1, options.steps, history[-1]["held_out"] if history else float("nan"))
    return run.network, history


def _draw(options: Training, step: int, low: int, high: int, t: int) -> tuple[np.ndarray, np.ndarray]:
    """Trajectories and first steps of the windows of a batch: a function of the seed and the number of the step alone."""
    rng = np.random.default_rng((options.seed, step))
    return rng.integers(low, high, options.batch), rng.integers(0, t - options.window + 1, options.batch)


def _first(
    data: Data, frames: Frames, model: Model, sizes: Sizes, options: Training, optimiser: Any, start: Transformer | None
) -> Run:
    if start is None:
        norms = norms_of(data, frames, model, options.seed)
        keys = jax.random.split(jax.random.key(options.seed), options.members)
        network = eqx.filter_jit(eqx.filter_vmap(lambda k: Transformer.build(sizes, norms, k)))(keys)
    else:
        network = start
    return Run(network, optimiser.init(trainable(network)), jnp.zeros((), jnp.int32))


def trainable(network: Transformer) -> Any:
    """The weights without the normalisation."""
    weights = eqx.filter(network, eqx.is_inexact_array)
    return eqx.tree_at(lambda n: n.norms, weights, None)


def _advance(optimiser: Any) -> Callable[[Run, Array, Array], tuple[Run, Array]]:
    import optax

    @eqx.filter_jit
    def advance(run: Run, x: Array, y: Array) -> tuple[Run, Array]:
        weights = trainable(run.network)

        def total(weights: Any) -> tuple[Array, Array]:
            whole = eqx.combine(weights, run.network)
            each = eqx.filter_vmap(loss, in_axes=(eqx.if_array(0), None, None))(whole, x, y)
            return jnp.sum(each), each

        gradient, value = jax.grad(total, has_aux=True)(weights)
        update, memory = optimiser.update(gradient, run.memory, weights)
        network = eqx.combine(optax.apply_updates(weights, update), run.network)
        return Run(network, memory, run.step + 1), value

    return advance


def _signature(options: Training, data: Data, run: Run) -> str:
    shapes = [tuple(x.shape) for x in jax.tree.leaves(eqx.filter(run.network, eqx.is_array))]
    return json.dumps([asdict(options), data.hash, data.shape, shapes], sort_keys=True)


def _keep(folder: Path | None, run: Run, history: list[dict[str, float]], options: Training, data: Data) -> None:
    """Writes the checkpoint whole or not at all, and the history beside it."""
    if folder is None:
        return
    leaves = {f"leaf{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(eqx.filter(run, eqx.is_array)))}
    packed = io.BytesIO()
    np.savez(packed, signature=_signature(options, data, run), history=json.dumps(history), **leaves)  # type: ignore[arg-type]
    write_whole({folder / "checkpoint.npz": packed.getvalue()})
    with (folder / "history.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(history[0]))
        writer.writeheader()
        writer.writerows(history)


def _restore(folder: Path | None, run: Run, options: Training, data: Data) -> tuple[Run, list[dict[str, float]]]:
    path = None if folder is None else folder / "checkpoint.npz"
    if path is None or not path.is_file():
        return run, []
    try:
        with np.load(path) as file:
            kept = {name: file[name] for name in file.files}
    except Exception as error:
        raise ValueError(f"the checkpoint '{path}' cannot be read ({error}); remove it to start again.") from error
    if str(kept.get("signature")) != _signature(options, data, run):
        raise ValueError(f"the checkpoint '{path}' belongs to another training run; remove it or name another folder.")
    arrays, fixed = eqx.partition(run, eqx.is_array)
    leaves, form = jax.tree.flatten(arrays)
    restored = [jnp.asarray(kept[f"leaf{i}"]) for i in range(len(leaves))]
    return eqx.combine(jax.tree.unflatten(form, restored), fixed), json.loads(str(kept["history"]))
