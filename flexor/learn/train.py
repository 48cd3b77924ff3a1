"""Training: stretches of robots and epochs over them, in turns.

Everything random follows from the seed and the number of the iteration, and a checkpoint holds the whole state, so that a run
that was interrupted and resumed ends with the same weights as one that was not.
"""

import csv
import io
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

from flexor.envs import AbstractTask, Episode
from flexor.files import write_whole
from flexor.learn.loop import Experience, Loop, check_terms
from flexor.learn.policy import Policy, policy_of
from flexor.learn.ppo import PPO, Learner, first, update

Progress = Callable[[int, int, dict[str, Any]], None]
CHECKPOINT = "checkpoint.npz"


@dataclass(frozen=True)
class Training:
    """How long and on how many robots: `iterations` stretches of `steps` steps. Training stops early where the mean
    return of the episodes that end in a stretch is `wanted`. A checkpoint is written every `every` iterations."""

    robots: int = 2048
    steps: int = 32
    iterations: int = 500
    wanted: float | None = None
    every: int = 10
    seed: int = 0


class Run(eqx.Module):
    """The state of a training run."""

    learner: Learner
    episodes: Episode


def train(
    task: AbstractTask,
    *,
    algorithm: PPO = PPO(),  # noqa: B008
    options: Training = Training(),  # noqa: B008
    out: str | os.PathLike[str] | None = None,
    tensorboard: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Policy:
    """A policy for a task. With `out`, a folder, checkpoints and `history.csv` are kept there, also when training is interrupted,
    and a run that finds a checkpoint of the same options resumes it; with `tensorboard` there are event files too. `progress` is
    called after every iteration with its number, how many there are, and the row of the history."""
    if tensorboard and out is None:
        raise ValueError("events for TensorBoard need a folder `out`.")
    folder = None if out is None else Path(out)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    loop = Loop(task, steps=options.steps, threads=threads)
    key = jax.random.key(options.seed)
    learn_key, robot_key, turn_key = jax.random.split(key, 3)
    learner = first(algorithm, task.observations, task.actions, learn_key, task.sim.model.dtype)
    mark = json.dumps([task.name, asdict(algorithm), asdict(options)])
    run, history = _restored(folder, Run(learner, loop.start(robot_key, options.robots)), mark)
    write = _events(folder) if tensorboard and folder is not None else lambda row: None
    try:
        while len(history) < options.iterations and not _reached(options, history):
            began = time.perf_counter()
            episodes, lived = loop(run.learner.actor, run.episodes)
            check_terms(task, lived.tally)
            learner, figures = update(algorithm, run.learner, lived, jax.random.fold_in(turn_key, len(history)))
            row = _row(len(history) + 1, lived, figures, history)
            row["steps_per_second"] = round(lived.rewards.size / (time.perf_counter() - began))
            run, history = Run(learner, episodes), [*history, row]
            write(row)
            if len(history) % options.every == 0:
                _keep(folder, run, history, mark)
            if progress is not None:
                progress(len(history), options.iterations, row)
    finally:
        _keep(folder, run, history, mark)
    return policy_of(run.learner.actor, task, algorithm=asdict(algorithm), training=asdict(options), seed=options.seed,
                     metrics=history[-1] if history else {})  # fmt: skip


def _row(iteration: int, lived: Experience, figures: dict[str, Any], history: list[dict[str, Any]]) -> dict[str, Any]:
    """What is noted of an iteration; where no episode came to an end, the return and length of the one before."""
    tally = lived.tally
    episodes = int(jnp.sum(tally.episodes))
    before = history[-1] if history else {"return": None, "length": None}
    ended = {name: before[name] for name in ("return", "length")}
    if episodes:
        ended = {"return": float(jnp.sum(tally.returns)) / episodes, "length": int(jnp.sum(tally.lengths)) / episodes}
    terms = {f"reward/{name}": float(jnp.sum(x)) / lived.rewards.size for name, x in tally.terms.items()}
    facts = {name: float(x) for name, x in figures.items()}
    counts = {"iteration": iteration, "steps": iteration * lived.rewards.size, "episodes": episodes}
    return {**counts, **ended, "diverged": int(jnp.sum(tally.diverged)), **terms, **facts}


def _reached(options: Training, history: list[dict[str, Any]]) -> bool:
    last = history[-1]["return"] if history else None
    return options.wanted is not None and last is not None and last >= options.wanted


def _events(folder: Path) -> Callable[[dict[str, Any]], None]:
    """Writes rows of the history as scalars that TensorBoard shows."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ImportError('events for TensorBoard need a writer: `pip install "flexor[tensorboard]"`.') from error
    writer = SummaryWriter(str(folder))

    def write(row: dict[str, Any]) -> None:
        for name, value in row.items():
            if value is not None:
                writer.add_scalar(name, value, int(row["steps"]))
        writer.flush()

    return write


def _plain(run: Run) -> tuple[list[Any], list[Any], Any]:
    """Leaves of a run; the same with keys as integers; and the form."""
    leaves, form = jax.tree.flatten(run)
    return leaves, [jax.random.key_data(x) if _is_key(x) else x for x in leaves], form


def _is_key(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


def _keep(folder: Path | None, run: Run, history: list[dict[str, Any]], mark: str) -> None:
    """Writes the checkpoint whole or not at all, and the history beside it."""
    if folder is None or not history:
        return
    packed, table = io.BytesIO(), io.StringIO(newline="")
    leaves = {f"leaf{k}": np.asarray(x) for k, x in enumerate(_plain(run)[1])}
    np.savez(packed, mark=mark, history=json.dumps(history), **leaves)  # type: ignore[arg-type]
    writer = csv.DictWriter(table, list(history[0]))
    writer.writeheader()
    writer.writerows(history)
    write_whole({folder / CHECKPOINT: packed.getvalue(), folder / "history.csv": table.getvalue().encode()})


def _restored(folder: Path | None, run: Run, mark: str) -> tuple[Run, list[dict[str, Any]]]:
    path = None if folder is None else folder / CHECKPOINT
    if path is None or not path.is_file():
        return run, []
    try:
        with np.load(path) as file:
            stored = {name: file[name] for name in file.files}
    except Exception as error:
        raise ValueError(f"the checkpoint '{path}' cannot be read ({error}); remove it to start again.") from error
    if str(stored.get("mark")) != mark:
        raise ValueError(f"the checkpoint '{path}' belongs to another training run; remove it, or choose another folder.")
    leaves, _, form = _plain(run)
    new = [jnp.asarray(stored[f"leaf{k}"]) for k in range(len(leaves))]
    new = [jax.random.wrap_key_data(y) if _is_key(x) else y for x, y in zip(leaves, new, strict=True)]
    return jax.tree.unflatten(form, new), json.loads(str(stored["history"]))
