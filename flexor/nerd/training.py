"""Training: batches of windows, and the one-step loss over all positions of each.

    loss = mean huber((network(x) - y) / std(y))

Everything random follows from the seed and the number of the step, and checkpoints hold the whole state, so that a run that was
interrupted and resumed ends with the same weights as one that was not.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flexor.files import checkpoint_bytes, csv_bytes, read_checkpoint, write_whole
from flexor.model.model import Model
from flexor.nerd.artefact import Nerd
from flexor.nerd.calibration import doubt_of
from flexor.nerd.data import Data
from flexor.nerd.examples import Examples
from flexor.nerd.frames import Frames
from flexor.nerd.fresh import Fresh, Pool, pool_of
from flexor.nerd.losses import one_step_loss, rollout_loss
from flexor.nerd.network import AbstractNetwork, AbstractSizes, Sizes, member, trainable
from flexor.nerd.placement import Placement, check_same_step, placement
from flexor.nerd.warning import FEWEST
from flexor.solvers import Simulator

Progress = Callable[[int, int, float], None]
Judge = Callable[[AbstractNetwork], dict[str, float]]
History = list[dict[str, Any]]
CHECKPOINT = "checkpoint.npz"


@dataclass(frozen=True)
class Training:
    """How to train: Muon and Adam with a rate that falls linearly from `rate` to `last_rate`, gradients clipped at norm `clip`.
    The loss is linear in errors beyond `huber` standard deviations of the target; a larger one counts impacts more.

    A batch is `batch` windows of `window` steps. With `rollout` > 0 the network also goes on by itself for so many steps from the
    first of each window, and that loss counts by `share`. `members` > 1 trains an ensemble. Every `every` steps the loss on the
    share `held_out` of the trajectories is noted and a checkpoint written.
    """

    steps: int = 20_000
    batch: int = 256
    window: int = 20
    rate: float = 1e-3
    last_rate: float = 1e-5
    clip: float = 1.0
    huber: float = 0.05
    rollout: int = 0
    share: float = 0.1
    members: int = 1
    held_out: float = 0.05
    every: int = 500
    seed: int = 0


class Run(eqx.Module):
    """The state of a training run."""

    network: AbstractNetwork
    memory: Any
    step: Array


def losses(ensemble: AbstractNetwork, x: Any, y: Any, h: float) -> Array:
    """The loss of every member, one after the other: batched products of small matrices are slow on CPUs."""
    return jnp.stack([one_step_loss(member(ensemble, i), x, y, h) for i in range(ensemble.members)])


def train(
    sim: Simulator,
    data: Fresh | Data | str | os.PathLike[str],
    *,
    sizes: AbstractSizes = Sizes(),  # noqa: B008
    options: Training = Training(),  # noqa: B008
    frames: Frames | None = None,
    out: str | os.PathLike[str] | None = None,
    judge: Judge | None = None,
    tensorboard: bool = False,
    progress: Progress | None = None,
) -> Nerd:
    """A learned solver for the robot of a simulator: a network, or an ensemble, trained on a data set of its steps or its file
    (`sample`), or on data drawn as it goes (`Fresh`). `frames` chooses what it reads and what is computed before it, by
    default `Frames(topology, dt)`.

    With `out`, a folder, checkpoints and `history.csv` are kept there, also when training is interrupted, and a run that finds a
    checkpoint of the same options resumes it. What `judge` returns for a network, for instance errors of passive motion, is
    recorded beside the losses, and with `tensorboard` written there as events too. The card has the last row of the history
    (`metrics`) and all of it (`history`). Where JAX has joined several processes (`flexor.cluster.join`), they train together,
    and the first writes the files.
    """
    if tensorboard and out is None:
        raise ValueError("events for TensorBoard need a folder `out`.")
    writes = tensorboard and jax.process_index() == 0
    write = _events(Path(out)) if writes and out is not None else lambda row: None
    model = sim.model
    frames = frames or Frames(model.topology, float(sim.dt))
    folder = None if out is None else Path(out)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    pool = pool_of(data, options.held_out, options.window, sim, frames)
    shown = pool.first
    _check(options, shown)
    run, history = _fit(pool, sizes, options, frames, model, folder, judge, write, progress)
    minutes = round((time.perf_counter() - start) / 60, 1)
    card = {
        "training": asdict(options),
        "data": dict(shown.facts),
        "seed": options.seed,
        "metrics": history[-1],
        "history": history,
        "minutes of training": minutes,
    }
    doubt = None
    if shown.shape[0] - pool.learned >= FEWEST:  # a smaller data set gives a solver without a warning
        doubt = doubt_of(pool.at(0)[0].x[: pool.learned or None], shown, pool.learned, frames, run.network.dtype)
    return Nerd(model, run.network, frames, card, sim.solver, shown.ranges, doubt)


def _check(options: Training, shown: Examples) -> None:
    """Raises if the data set and the options are incompatible."""
    t = shown.shape[1]
    if t < options.window:
        raise ValueError(f"windows of {options.window} steps do not fit into trajectories of {t}.")
    own_ground = shown.ranges is None or shown.ranges.planes is None
    if options.rollout >= options.window or (options.rollout and not own_ground):
        raise ValueError("rollouts in the loss must be shorter than a window, and need data on the robot's own ground.")


def _fit(
    pool: Pool,
    sizes: AbstractSizes,
    options: Training,
    frames: Frames,
    model: Model,
    folder: Path | None,
    judge: Judge | None,
    write: Callable[[dict[str, Any]], None],
    progress: Progress | None,
) -> tuple["Run", History]:
    """The run after all steps, from its beginning or its checkpoint, and the history of its losses."""
    optimiser, shown = optimiser_of(options), pool.first
    run, history = _restore(folder, _first(shown, sizes, frames, options, optimiser), options, shown)
    place = placement(options.batch)
    check_same_step(int(run.step))
    run, advance, judged = place.everywhere(run), _advance(optimiser, options, frames, model, place), eqx.filter_jit(losses)
    judged_by = _draw(options, 10**9, shown.chances(options.window), pool.learned, shown.shape[0])
    test = shown.windows(*judged_by, options.window)[:2]
    complete = run, history  # the last complete step, which is kept after Ctrl-C
    try:
        while int(run.step) < options.steps:
            step = int(run.step)
            learned, chances, last = pool.at(step)
            batch = learned.windows(*_draw(options, step, chances, 0, last), options.window)
            run, value = advance(run, *place.spread(batch))
            if (step + 1) % options.every == 0 or step + 1 == options.steps:
                here = place.here(run)
                found = place.here(value), judged(here.network, *test, options.huber)
                loss, held_out = (float(jnp.mean(x)) for x in found)
                if not np.isfinite(loss):
                    raise FloatingPointError(
                        f"training diverged at step {step + 1}: the loss is not finite. Try a smaller rate."
                    )
                row = {"step": step + 1, "loss": loss, "held_out": held_out, **(judge(here.network) if judge else {})}
                history = [*history, {k: v if np.isfinite(v) else None for k, v in row.items()}]
                write(history[-1])
                _keep(folder if place.writes else None, here, history, options, shown)
            complete = run, history
            if progress is not None:
                progress(step + 1, options.steps, history[-1]["held_out"] if history else float("nan"))
    except KeyboardInterrupt:
        _keep(folder if place.writes else None, place.here(complete[0]), complete[1], options, shown)
        raise
    return place.here(run), history


def optimiser_of(options: Any) -> Any:
    """Muon (Jordan et al. 2024) for matrices, Adam at a fifth of the rate for the rest; clipped gradients, falling rates."""
    import optax
    from optax.contrib import MuonDimensionNumbers, muon

    def rate(share: float) -> Any:
        return optax.linear_schedule(share * options.rate, share * options.last_rate, options.steps)

    axes = MuonDimensionNumbers(reduction_axis=2, output_axis=1)  # the first axis counts the members

    def matrices(weights: Any) -> Any:
        return jax.tree.map(lambda w: axes if w.ndim == 3 else None, weights)

    steps = muon(rate(1.0), adam_learning_rate=rate(0.2), muon_weight_dimension_numbers=matrices)
    return optax.chain(optax.clip_by_global_norm(options.clip), steps)


def _events(folder: Path) -> Callable[[dict[str, Any]], None]:
    """Writes rows of the history as scalars that TensorBoard shows."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ImportError('events for TensorBoard need a writer: `pip install "flexor[tensorboard]"`.') from error
    writer = SummaryWriter(str(folder))

    def write(row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "step" and value is not None:
                writer.add_scalar(name, value, int(row["step"]))
        writer.flush()

    return write


def _draw(options: Training, step: int, chances: np.ndarray, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Trajectories and first steps of the windows of a batch, each as likely as it has targets (`Examples.chances`): a function
    of the seed and the number of the step alone."""
    bounds = chances[first, 0], chances[last, 0]
    if bounds[0] == bounds[1]:
        raise ValueError("too few trajectories of the data set touch anything: sample more, or from other ranges.")
    at = np.random.default_rng((options.seed, step)).uniform(*bounds, options.batch)
    return np.divmod(np.searchsorted(chances.ravel(), at, side="right") - 1, chances.shape[1])


def _first(shown: Examples, sizes: AbstractSizes, frames: Frames, options: Training, optimiser: Any) -> Run:
    norms = shown.norms(options.seed)
    keys = jax.random.split(jax.random.key(options.seed), options.members)
    network = eqx.filter_jit(eqx.filter_vmap(lambda k: sizes.build(frames, norms, k)))(keys)
    return Run(network, optimiser.init(trainable(network)), jnp.zeros((), jnp.int32))


def _advance(
    optimiser: Any, options: Training, frames: Frames, model: Model, place: Placement
) -> Callable[..., tuple[Run, Array]]:
    import optax

    @eqx.filter_jit
    def advance(run: Run, x: Array, y: Array, raw: Array) -> tuple[Run, Array]:
        weights = trainable(run.network)

        def total(weights: Any) -> tuple[Array, Array]:
            whole = eqx.combine(weights, run.network)
            each = losses(whole, x, y, options.huber)
            if not options.rollout:
                return jnp.sum(each), each
            members = [member(whole, i) for i in range(whole.members)]
            further = [rollout_loss(m, frames, model, raw[:, : options.rollout + 1], options.huber) for m in members]
            return jnp.sum(each + options.share * jnp.stack(further)), each

        gradient, value = jax.grad(total, has_aux=True)(weights)
        update, memory = optimiser.update(gradient, run.memory, weights)
        network = eqx.combine(optax.apply_updates(weights, update), run.network)
        return place.everywhere((Run(network, memory, run.step + 1), value))

    return advance


def _signature(options: Training, data: Examples, run: Run) -> str:
    shapes = [tuple(x.shape) for x in jax.tree.leaves(eqx.filter(run.network, eqx.is_array))]
    return json.dumps([asdict(options), data.hash, data.shape, shapes], sort_keys=True)


def _keep(folder: Path | None, run: Run, history: History, options: Training, data: Examples) -> None:
    """Writes the checkpoint whole or not at all, and the history beside it."""
    if folder is None:
        return
    packed = checkpoint_bytes(_signature(options, data, run), eqx.filter(run, eqx.is_array), history)
    write_whole({folder / CHECKPOINT: packed, **({folder / "history.csv": csv_bytes(history)} if history else {})})


def kept_steps(folder: str | os.PathLike[str]) -> int | None:
    """How many steps the checkpoint in a folder has behind it; None where there is none."""
    path = Path(folder) / CHECKPOINT
    if not path.is_file():
        return None
    with np.load(path) as file:
        return int(file[max((n for n in file.files if n.startswith("leaf")), key=lambda n: int(n[4:]))])


def _restore(folder: Path | None, run: Run, options: Training, data: Examples) -> tuple[Run, History]:
    path = None if folder is None else folder / CHECKPOINT
    if path is None or not path.is_file():
        return run, []
    arrays, fixed = eqx.partition(run, eqx.is_array)
    restored, history = read_checkpoint(path, _signature(options, data, run), arrays)
    return eqx.combine(restored, fixed), history
