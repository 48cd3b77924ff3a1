"""One task learned from several seeds, each a task of an executor."""

import dataclasses
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from flexor.cluster import AbstractExecutor, Arrays, Local, Work, results
from flexor.envs import AbstractTask
from flexor.files import write_whole
from flexor.learn.algorithm import AbstractAlgorithm
from flexor.learn.policy import Policy
from flexor.learn.recipe import Training, recipe
from flexor.learn.train import train

NAMES = ("policy.safetensors", "policy.json", "history.csv")


def train_seeds(
    task: AbstractTask,
    seeds: Sequence[int],
    out: str | os.PathLike[str],
    *,
    algorithm: AbstractAlgorithm | None = None,
    options: Training | None = None,
    executor: AbstractExecutor = Local(),
    progress: Callable[[int, int], None] | None = None,
) -> list[Policy]:
    """Policies of several seeds, each to the bits of `train` with that seed alone, in folders `out/seed0`, `out/seed1`, ...

    Checkpoints lie there too, on the machine that learns: where machines share the folder, or there is one, a seed whose worker
    was lost goes on from its checkpoint; elsewhere it starts again. `progress` is called with how many seeds are done.
    """
    if len(set(seeds)) < len(seeds) or not seeds:
        raise ValueError(f"seeds must be different whole numbers, at least one, got {list(seeds)}.")
    algorithm = recipe(task).algorithm if algorithm is None else algorithm
    options = recipe(task, type(algorithm)).options if options is None else options
    folder = Path(out).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    work = Work(_learner, (task, algorithm, options, str(folder)))
    policies = []
    for key, arrays in results(executor, work, {f"seed{seed}": seed for seed in seeds}, progress=progress):
        own = folder / key
        own.mkdir(exist_ok=True)
        write_whole({own / name: arrays[name].tobytes() for name in NAMES if name in arrays})
        policies.append(Policy.load(own / NAMES[0]))
    return policies


def _learner(task: AbstractTask, algorithm: AbstractAlgorithm, options: Training, folder: str) -> Callable[[int], Arrays]:
    """A function from a seed to the contents of the files of its policy."""

    def learn(seed: int) -> Arrays:
        own = Path(folder) / f"seed{seed}"
        own.mkdir(parents=True, exist_ok=True)
        policy = train(task, algorithm=algorithm, options=dataclasses.replace(options, seed=seed), out=own)
        with tempfile.TemporaryDirectory() as made:
            policy.save(Path(made) / NAMES[0])
            files = [Path(made) / NAMES[0], Path(made) / NAMES[1], own / NAMES[2]]
            return {file.name: np.frombuffer(file.read_bytes(), np.uint8) for file in files if file.is_file()}

    return learn
