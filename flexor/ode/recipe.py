"""`train`: from recordings to an `Ode`; `Recipe`: all that it is made of, also as a TOML file."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flexor.files import read_toml
from flexor.identify.log import Log
from flexor.identify.tables import read_columns, read_csv, read_parquet
from flexor.ode.artefact import Ode, Parts
from flexor.ode.encoder import Past
from flexor.ode.series import Series
from flexor.ode.stepping import RungeKutta4
from flexor.ode.system import StateSpace, _moments
from flexor.ode.training import Progress, Training, fit


@dataclass(frozen=True)
class Recipe:
    """A black box in state space and its training.

    `states` numbers, networks of `depth` hidden layers of `width`, an encoder of `past` rows, `substeps` of RK4 in every interval
    between rows. `time` (s): about the time in which the system reacts; 0: ten rows. The last `held_out` of every recording
    chooses among the weights where `train` gets no validation. `stages` follow one another, from short to long stretches.
    `outputs` and `inputs` are the columns of files (`series`), inputs `held` or linear between their rows.
    """

    states: int = 2
    width: int = 16
    depth: int = 1
    past: int = 5
    substeps: int = 1
    time: float = 0.0
    held_out: float = 0.2
    seed: int = 0
    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    held: bool = True
    stages: tuple[Training, ...] = field(default_factory=lambda: (Training(),))

    def __post_init__(self) -> None:
        for name in ("states", "width", "past", "substeps"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be a positive number, got {getattr(self, name)!r}.")
        if not 0 < self.held_out < 1:
            raise ValueError(f"`held_out` must be a share between 0 and 1, got {self.held_out}.")

    @staticmethod
    def read(path: str | os.PathLike[str]) -> "Recipe":
        """From a TOML file; `[[stages]]` are tables of `Training`."""
        return Recipe.of(read_toml(Path(path), "recipe"))

    @staticmethod
    def of(table: Mapping[str, Any]) -> "Recipe":
        """From the tables of a file."""
        given = dict(table)
        stages = given.pop("stages", None)
        if stages is not None:
            given["stages"] = tuple(_made(Training, s, "a stage") for s in stages)
        for name in {"outputs", "inputs"} & set(given):
            given[name] = tuple(given[name])
        made: Recipe = _made(Recipe, given, "a recipe")
        return made

    def series(self, path: str | os.PathLike[str]) -> Series:
        """A recording from a file with the column `time`; empty cells of the outputs were not measured."""
        path = Path(path)
        readers = {
            ".csv": read_csv,
            ".parquet": read_parquet,
            ".h5": read_columns,
            ".hdf5": read_columns,
            ".npz": read_columns,
        }
        if not self.outputs:
            raise ValueError("the recipe has no `outputs`: name the columns that are measured.")
        if not path.is_file():
            raise FileNotFoundError(f"there is no recording '{path}'.")
        if path.suffix not in readers:
            raise ValueError(f"'{path.name}' must end in {', '.join(readers)}.")
        table = readers[path.suffix](path)
        absent = [c for c in ("time", *self.outputs, *self.inputs) if c not in table]
        if absent:
            raise ValueError(f"'{path.name}' has no column '{absent[0]}'; it has {', '.join(table)}.")
        y, u = (np.stack([table[c] for c in names], axis=1) if names else None for names in (self.outputs, self.inputs))
        assert y is not None
        return Series(table["time"], y, u, held=self.held, name=path.name)

    def build(self, logs: Sequence[Series]) -> Parts:
        """The untrained system, in units of the recordings."""
        y = np.concatenate([s.values for s in logs])
        for k in np.flatnonzero(~np.isfinite(y).any(axis=0)):
            name = repr(self.outputs[k]) if self.outputs else k
            raise ValueError(f"output {name} was never measured in the recordings to train on.")
        u = np.concatenate([np.zeros((0, 0)) if s.inputs is None else s.inputs for s in logs])
        steps = np.concatenate([np.diff(s.time) for s in logs])
        time = self.time or 10 * float(np.median(steps))
        irregular = bool(np.ptp(steps) > 1e-3 * np.median(steps)) or bool(np.isnan(y).any())
        keys = jax.random.split(jax.random.key(self.seed))
        system = StateSpace.build(self.states, y, u, time, self.width, self.depth, keys[0])
        encoder = Past.build(self.past, self.states, _moments(y), _moments(u), time, irregular, self.width, keys[1])
        return Parts(system, encoder, RungeKutta4(self.substeps))


def train(
    logs: Sequence[Series | Log],
    recipe: Recipe = Recipe(),  # noqa: B008
    *,
    start: Parts | None = None,
    validation: Sequence[Series | Log] | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Ode:
    """An `Ode` of the recordings, by the stages of the recipe. `start` is a system of your own with its encoder and method, in
    the place of the recipe's black box; `validation` are recordings to choose by. With `out`, a folder, every stage keeps its
    checkpoints there and the same call resumes them."""
    train_on, judged = [Series.of(x) for x in logs], None if validation is None else [Series.of(x) for x in validation]
    if not train_on:
        raise ValueError("there are no recordings to train on.")
    if judged is None:
        cut = [round(len(s.time) * (1 - recipe.held_out)) for s in train_on]
        for s, c in zip(train_on, cut, strict=True):
            if not 0 < c < len(s.time):
                left = "train on" if c == 0 else "choose by"
                raise ValueError(
                    f"'{s.name}' has {len(s.time)} rows: with `held_out` = {recipe.held_out:g} none is left to {left}."
                )
        judged = [s.between(c, len(s.time)) for s, c in zip(train_on, cut, strict=True)]
        train_on = [s.between(0, c) for s, c in zip(train_on, cut, strict=True)]
    parts = recipe.build(train_on) if start is None else start
    made = Ode(parts, {"recipe": dataclasses.asdict(recipe), "own system": start is not None})
    total, before = sum(s.steps for s in recipe.stages), 0
    for k, stage in enumerate(recipe.stages):
        shown = None if progress is None else _later(progress, before, total)
        folder = None if out is None else Path(out) / f"stage{k + 1}"
        made = fit(made, train_on, stage, validation=judged, out=folder, progress=shown)
        before += stage.steps
    return made


def _later(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _, error: progress(before + done, total, error)


def _made(kind: type, fields: Mapping[str, Any], what: str) -> Any:
    names = [f.name for f in dataclasses.fields(kind)]
    unknown = [k for k in fields if k not in names]
    if unknown:
        raise ValueError(f"{what} has no '{unknown[0]}'; it has {', '.join(names)}.")
    return kind(**fields)
