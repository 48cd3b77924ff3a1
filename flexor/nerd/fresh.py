"""`Fresh`: data drawn while a network is trained, so that it sees no transition for long. Nothing is written to disk."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flexor.files import digest
from flexor.nerd import data as data_sets
from flexor.nerd.data import Data, block, chunks, finite, head
from flexor.nerd.examples import Examples, examples
from flexor.nerd.frames import Frames
from flexor.nerd.ranges import Ranges
from flexor.solvers import Simulator


@dataclass(frozen=True)
class Fresh:
    """A source of data for `train`: every `steps` steps of training, the trajectories of `length` steps are replaced by new ones,
    a function of the seed and of how often that has happened. The first ones are held out, and give the normalisation."""

    ranges: Ranges = field(default_factory=Ranges)
    length: int = 100
    steps: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.length < 2 or self.steps < 1:
            raise ValueError(f"fresh data need trajectories of two steps and a positive number of steps, got {self!r}.")

    def source(self, sim: Simulator, frames: Frames) -> Callable[[int], Examples]:
        """The examples by their number."""
        self.ranges.check(sim.model)
        make = chunks(sim, self.ranges, self.length, self.seed, data_sets.CHUNK)
        facts = self._facts(sim)

        def part(number: int) -> Examples:
            arrays = make(number)
            good = finite(arrays)
            return examples(block({name: x[good] for name, x in arrays.items()}, facts, sim.model, None), sim.model, frames)

        return part

    def _facts(self, sim: Simulator) -> dict[str, Any]:
        facts = {
            **head(sim, self.ranges, self.length, self.seed),
            "fresh": True,
            "steps of training with the same": self.steps,
        }
        return {**facts, "hash": f"fresh {digest(json.dumps(facts, sort_keys=True, default=str).encode())[:16]}"}


@dataclass
class Pool:
    """The data of a training run: `first` are those that are judged by, the `learned` trajectories of them excepted. Fresh data
    come in parts, one after the other; those of a data set are always the same."""

    first: Examples
    learned: int
    window: int
    steps: int = 0
    part: Callable[[int], Examples] | None = None
    _kept: tuple[int, Examples, np.ndarray] | None = None

    def at(self, step: int) -> tuple[Examples, np.ndarray, int]:
        """The examples of a step, the chances of their windows, and how many trajectories are learned from."""
        number = 0 if self.part is None else 1 + step // self.steps
        if self._kept is None or self._kept[0] != number:
            shown = self.first if self.part is None else self.part(number)
            self._kept = number, shown, shown.chances(self.window)
        _, shown, chances = self._kept
        return shown, chances, self.learned or shown.shape[0]


def pool_of(data: Fresh | Data | str | os.PathLike[str], share: float, window: int, sim: Simulator, frames: Frames) -> Pool:
    """The pool of a source of fresh data, or of a data set or its file, whose last `share` is held out."""
    if isinstance(data, Fresh):
        part = data.source(sim, frames)
        return Pool(part(0), 0, window, data.steps, part)
    shown = examples(data, sim.model, frames)
    n = shown.shape[0]
    learned = n - max(1, round(share * n))
    if learned < 1:
        raise ValueError(f"{n} trajectories are too few to hold some out.")
    return Pool(shown, learned, window)
