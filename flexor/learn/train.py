"""Training: stretches of robots and epochs over them, in turns.

Everything random follows from the seed and the number of the iteration, and a checkpoint holds the whole state, so that a run
that was interrupted and resumed ends with the same weights as one that was not.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flexor.envs import AbstractTask, Episode
from flexor.files import checkpoint_bytes, csv_bytes, read_checkpoint, write_whole
from flexor.learn.algorithm import AbstractAlgorithm, AbstractLearner
from flexor.learn.loop import Experience, Loop, check_terms
from flexor.learn.policy import Policy, policy_of
from flexor.learn.recipe import Training, recipe

Progress = Callable[[int, int, dict[str, Any]], None]
CHECKPOINT = "checkpoint.npz"
BOUNDS = ("iterations", "wanted", "minutes", "every")  # options of a run that do not change what it learns on the way


class Run(eqx.Module):
    """The state of a training run."""

    learner: AbstractLearner
    episodes: Episode


def train(
    task: AbstractTask,
    *,
    algorithm: AbstractAlgorithm | None = None,
    options: Training | None = None,
    out: str | os.PathLike[str] | None = None,
    tensorboard: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Policy:
    """A policy for a task, by default with the settings of its `recipe`. With `out`, a folder, checkpoints and `history.csv` are
    kept there, also when training is interrupted, and a run that finds a checkpoint of the same options resumes it; with
    `tensorboard` there are event files too. `progress` is called after every iteration with its number, how many there are, and
    the row of the history."""
    algorithm = recipe(task).algorithm if algorithm is None else algorithm
    options = recipe(task, type(algorithm)).options if options is None else options
    if tensorboard and out is None:
        raise ValueError("events for TensorBoard need a folder `out`.")
    began, folder = time.perf_counter(), None if out is None else Path(out)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    turn = algorithm.turns(task, steps=options.steps, threads=threads)
    robots = Loop(task, steps=options.steps, threads=threads).start
    key = jax.random.key(options.seed)
    learn_key, robot_key, turn_key = jax.random.split(key, 3)
    learner = algorithm.first(task, learn_key)
    settings = asdict(algorithm)  # type: ignore[call-overload]
    kept = {name: x for name, x in asdict(options).items() if name not in BOUNDS}
    mark = json.dumps([task.name, settings, kept])
    run, history = _restored(folder, Run(learner, robots(robot_key, options.robots)), mark)
    write = _events(folder) if tensorboard and folder is not None else lambda row: None
    try:
        while len(history) < options.iterations and not _reached(options, history):
            learner, episodes, lived, figures = turn(run.learner, run.episodes, jax.random.fold_in(turn_key, len(history)))
            check_terms(task, lived.tally)
            row = _row(len(history) + 1, lived, figures, history)
            began = _timed(row, began, history)
            run, history = Run(learner, episodes), [*history, row]
            write(row)
            if len(history) % options.every == 0:
                _keep(folder, run, history, mark)
            if progress is not None:
                progress(len(history), options.iterations, row)
    finally:
        _keep(folder, run, history, mark)
    card = {"algorithm": {"name": type(algorithm).__name__, **settings}, "training": asdict(options), "seed": options.seed}
    return policy_of(run.learner.actor, task, **card, metrics=history[-1] if history else {})


def _row(iteration: int, lived: Experience, figures: dict[str, Any], history: list[dict[str, Any]]) -> dict[str, Any]:
    """What is noted of an iteration. Return and length are means of the latest episodes, at least one for each robot once there
    are so many: robots that started together reach the end of their time together, and between those moments only failures
    end."""
    tally = lived.tally
    sums = {"returns": float(jnp.sum(tally.returns)), "lengths": int(jnp.sum(tally.lengths))}
    counts = {"iteration": iteration, "steps": iteration * lived.rewards.size, "episodes": int(jnp.sum(tally.episodes))}
    some: list[dict[str, Any]] = []
    episodes = 0
    for row in ({**counts, **sums}, *reversed(history)):
        some, episodes = [*some, row], episodes + row["episodes"]
        if episodes >= len(lived.rewards):
            break
    latest = {"return": None, "length": None}
    if episodes:
        latest = {name: sum(row[f"{name}s"] for row in some) / episodes for name in latest}
    terms = {f"reward/{name}": float(jnp.sum(x)) / lived.rewards.size for name, x in tally.terms.items()}
    facts = {name: float(x) for name, x in figures.items()}
    return {**counts, **latest, **sums, "diverged": int(jnp.sum(tally.diverged)), **terms, **facts}


def _timed(row: dict[str, Any], began: float, history: list[dict[str, Any]]) -> float:
    """Notes the time of an iteration that began then, and that of all of them; returns when the next one begins."""
    now = time.perf_counter()
    before = history[-1] if history else {"seconds": 0.0, "steps": 0}
    row["seconds"] = round(before["seconds"] + now - began, 3)
    row["steps_per_second"] = round((row["steps"] - before["steps"]) / (now - began))
    return now


def _reached(options: Training, history: list[dict[str, Any]]) -> bool:
    """Whether a run has the return that was wanted, or no time left."""
    if not history:
        return False
    last = history[-1]["return"]
    late = options.minutes is not None and history[-1]["seconds"] >= 60 * options.minutes
    return late or (options.wanted is not None and last is not None and last >= options.wanted)


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


def _keep(folder: Path | None, run: Run, history: list[dict[str, Any]], mark: str) -> None:
    """Writes the checkpoint whole or not at all, and the history beside it."""
    if folder is None or not history:
        return
    packed = checkpoint_bytes(mark, run, history)
    write_whole({folder / CHECKPOINT: packed, folder / "history.csv": csv_bytes(history)})


def kept_iterations(folder: Path) -> int:
    """How many iterations the checkpoint in a folder has; none where there is no checkpoint."""
    path = folder / CHECKPOINT
    return len(json.loads(str(np.load(path)["history"]))) if path.is_file() else 0


def _restored(folder: Path | None, run: Run, mark: str) -> tuple[Run, list[dict[str, Any]]]:
    path = None if folder is None else folder / CHECKPOINT
    if path is None or not path.is_file():
        return run, []
    return read_checkpoint(path, mark, run)
