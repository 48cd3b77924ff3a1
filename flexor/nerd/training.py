"""Training: batches of windows, and the one-step loss over all positions of each.

    loss = mean huber((network(x) - y) / std(y))

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
from flexor.nerd.data import Data, blocks
from flexor.nerd.examples import Examples, examples
from flexor.nerd.frames import Frames
from flexor.nerd.network import Sizes, Transformer
from flexor.nerd.unrolled import unrolled_errors

Progress = Callable[[int, int, float], None]
Judge = Callable[[Transformer], dict[str, float]]


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

    network: Transformer
    memory: Any
    step: Array


def huber(error: Array, h: float) -> Array:
    """h^2 (sqrt(1 + (e / h)^2) - 1): quadratic for what is learned well, linear beyond h, for impacts are rare and large and
    would drown the rest."""
    return h**2 * (jnp.sqrt(1 + (error / h) ** 2) - 1)


def loss(network: Transformer, x: Any, y: Any, h: float) -> Array:
    """Mean over all positions that have targets, of errors in units of the targets' deviations."""
    asked = jnp.isfinite(y)
    errors = jnp.where(asked, network.sequence(x) - jnp.where(asked, y, 0.0), 0.0) / network.norms.y_std
    return jnp.sum(huber(errors, h)) / jnp.maximum(jnp.sum(asked), 1)


def unrolled_loss(network: Transformer, frames: Frames, model: Model, raw: Any, h: float) -> Array:
    """The loss of several steps; `raw` are states and torques (batch, steps + 1, n)."""
    t = frames.topology
    q, qd, torque = raw[..., : t.nq], raw[..., t.nq : t.nq + t.nv], raw[:, :-1, t.nq + t.nv :]
    errors = jax.vmap(lambda q, qd, push: unrolled_errors(network, frames, model, q, qd, push))(q, qd, torque)
    return jnp.mean(huber(errors, h))


def member(ensemble: Transformer, i: int) -> Transformer:
    """One network of an ensemble."""
    return jax.tree.map(lambda w: w[i] if eqx.is_array(w) else w, ensemble)


def losses(ensemble: Transformer, x: Any, y: Any, h: float) -> Array:
    """The loss of every member, one after the other: batched products of small matrices are slow on CPUs."""
    return jnp.stack([loss(member(ensemble, i), x, y, h) for i in range(len(ensemble.embed))])


def train(
    model: Model,
    data: Data | str | os.PathLike[str],
    *,
    sizes: Sizes = Sizes(),  # noqa: B008
    options: Training = Training(),  # noqa: B008
    frames: Frames | None = None,
    out: str | os.PathLike[str] | None = None,
    judge: Judge | None = None,
    tensorboard: bool = False,
    progress: Progress | None = None,
) -> tuple[Transformer, list[dict[str, float]]]:
    """Trains a network (an ensemble, in the leading axis) on a data set or its file; returns it with the history of its losses.

    With `out`, a folder, checkpoints and `history.csv` are kept there, and a run that finds a checkpoint of the same options
    goes on from it. What `judge` says of a network, for instance errors of passive motion, is noted beside the losses, and with
    `tensorboard` written there as events too.
    """
    if tensorboard and out is None:
        raise ValueError("events for TensorBoard need a folder `out`.")
    write = _events(Path(out)) if tensorboard and out is not None else lambda row: None
    frames = frames or Frames(model.topology, next(blocks(data, model, 1)).dt if not isinstance(data, Data) else data.dt)
    folder = None if out is None else Path(out)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    shown = examples(data, model, frames)
    n, t = shown.shape
    if t < options.window:
        raise ValueError(f"windows of {options.window} steps do not fit into trajectories of {t}.")
    if options.rollout >= options.window or (options.rollout and not shown.own_ground):
        raise ValueError("rollouts in the loss must be shorter than a window, and need data on the robot's own ground.")
    held = max(1, round(options.held_out * n))
    if n - held < 1:
        raise ValueError(f"{n} trajectories are too few to hold some out.")
    optimiser = optimiser_of(options)
    run, history = _restore(folder, _first(shown, sizes, options, optimiser), options, shown)
    advance = _advance(optimiser, options, frames, model)
    judged, place = eqx.filter_jit(losses), _placement(options.batch)
    chances = shown.chances(options.window)
    test = shown.windows(*_draw(options, 10**9, chances, n - held, n), options.window)[:2]
    while int(run.step) < options.steps:
        step = int(run.step)
        run, value = advance(run, *place(shown.windows(*_draw(options, step, chances, 0, n - held), options.window)))
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            row = {
                "step": step + 1,
                "loss": float(jnp.mean(value)),
                "held_out": float(jnp.mean(judged(run.network, *test, options.huber))),
            }
            if not np.isfinite(row["loss"]):
                raise FloatingPointError(f"the loss left the finite numbers at step {step + 1}: a smaller rate may help.")
            history.append(row | (judge(run.network) if judge else {}))
            write(history[-1])
            _keep(folder, run, history, options, shown)
        if progress is not None:
            progress(step + 1, options.steps, history[-1]["held_out"] if history else float("nan"))
    return run.network, history


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


def _events(folder: Path) -> Callable[[dict[str, float]], None]:
    """Writes rows of the history as scalars that TensorBoard shows."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ImportError('events for TensorBoard need a writer: `pip install "flexor[tensorboard]"`.') from error
    writer = SummaryWriter(str(folder))

    def write(row: dict[str, float]) -> None:
        for name, value in row.items():
            if name != "step":
                writer.add_scalar(name, value, int(row["step"]))
        writer.flush()

    return write


def _placement(batch: int) -> Callable[[Any], Any]:
    """Puts batches on all devices of JAX, a share on each, where there are several that divide them."""
    devices = jax.devices()
    if len(devices) == 1 or batch % len(devices):
        return lambda arrays: arrays
    mesh = jax.sharding.Mesh(np.array(devices), ("batch",))
    shared = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    return lambda arrays: jax.device_put(arrays, shared)


def _draw(options: Training, step: int, chances: np.ndarray, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Trajectories and first steps of the windows of a batch, each as likely as it has targets (`Examples.chances`): a function
    of the seed and the number of the step alone."""
    bounds = chances[first, 0], chances[last, 0]
    if bounds[0] == bounds[1]:
        raise ValueError("too few trajectories of the data set touch anything: sample more, or others.")
    at = np.random.default_rng((options.seed, step)).uniform(*bounds, options.batch)
    return np.divmod(np.searchsorted(chances.ravel(), at, side="right") - 1, chances.shape[1])


def _first(shown: Examples, sizes: Sizes, options: Training, optimiser: Any) -> Run:
    norms = shown.norms(options.seed)
    keys = jax.random.split(jax.random.key(options.seed), options.members)
    network = eqx.filter_jit(eqx.filter_vmap(lambda k: Transformer.build(sizes, norms, k)))(keys)
    return Run(network, optimiser.init(trainable(network)), jnp.zeros((), jnp.int32))


def trainable(network: Transformer) -> Any:
    """The weights without the normalisation."""
    weights = eqx.filter(network, eqx.is_inexact_array)
    return eqx.tree_at(lambda n: n.norms, weights, None)


def _advance(optimiser: Any, options: Training, frames: Frames, model: Model) -> Callable[..., tuple[Run, Array]]:
    import optax

    @eqx.filter_jit
    def advance(run: Run, x: Array, y: Array, raw: Array) -> tuple[Run, Array]:
        weights = trainable(run.network)

        def total(weights: Any) -> tuple[Array, Array]:
            whole = eqx.combine(weights, run.network)
            each = losses(whole, x, y, options.huber)
            if not options.rollout:
                return jnp.sum(each), each
            members = [member(whole, i) for i in range(len(whole.embed))]
            further = [unrolled_loss(m, frames, model, raw[:, : options.rollout + 1], options.huber) for m in members]
            return jnp.sum(each + options.share * jnp.stack(further)), each

        gradient, value = jax.grad(total, has_aux=True)(weights)
        update, memory = optimiser.update(gradient, run.memory, weights)
        network = eqx.combine(optax.apply_updates(weights, update), run.network)
        return Run(network, memory, run.step + 1), value

    return advance


def _signature(options: Training, data: Examples, run: Run) -> str:
    shapes = [tuple(x.shape) for x in jax.tree.leaves(eqx.filter(run.network, eqx.is_array))]
    return json.dumps([asdict(options), data.hash, data.shape, shapes], sort_keys=True)


def _keep(folder: Path | None, run: Run, history: list[dict[str, float]], options: Training, data: Examples) -> None:
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


def _restore(folder: Path | None, run: Run, options: Training, data: Examples) -> tuple[Run, list[dict[str, float]]]:
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
