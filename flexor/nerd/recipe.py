"""`Recipe`: everything that a learned solver is made of, as a TOML file: the robot, its true physics, what to sample, the
network, the training. The card of a trained network holds its recipe, so that it can be made and judged again."""

import dataclasses
import os
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from flexor.contact import NCP, Penalty
from flexor.model.model import Model
from flexor.nerd.artefact import Nerd
from flexor.nerd.data import facts, sample
from flexor.nerd.evaluation import Passive, passive_judge
from flexor.nerd.frames import Frames
from flexor.nerd.network import Sizes, Transformer
from flexor.nerd.ranges import Planes, Ranges
from flexor.nerd.training import Progress, Training, train
from flexor.robots import load as load_robot
from flexor.solvers import RigidSolver, Simulator

CONTACTS: dict[str, Callable[[], Any]] = {"ncp": NCP, "penalty": Penalty, "none": lambda: None}


@dataclass(frozen=True)
class Recipe:
    """A robot by name or file, true physics by `contact` and `substeps` for each step of `dt`, and how much to sample of what."""

    robot: str
    dt: float = 1 / 60
    contact: str = "ncp"
    substeps: int = 1
    transitions: int = 1_000_000
    length: int = 100
    seed: int = 0
    reach: float = 0.12
    base: str = "coarse"
    ranges: Ranges = field(default_factory=Ranges)
    sizes: Sizes = field(default_factory=Sizes)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        if self.contact not in CONTACTS:
            raise ValueError(f"the contact '{self.contact}' is not known; there are {', '.join(CONTACTS)}.")
        if self.dt <= 0:
            raise ValueError(f"a step must be longer than nothing, got {self.dt} s.")

    @staticmethod
    def read(source: str | os.PathLike[str]) -> "Recipe":
        """From a TOML file, or the recipe of a pretrained solver by its name."""
        path = Path(source)
        text = path.read_text(encoding="utf-8") if path.is_file() else _bundled(source)
        try:
            return Recipe.of(tomllib.loads(text), path.resolve().parent)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"'{path.name}' is not TOML: {error}.") from error

    @staticmethod
    def of(table: Mapping[str, Any], here: Path | None = None) -> "Recipe":
        """From the tables of a file; `here` is the folder that a robot's file is looked for in."""
        fields = dict(table)
        if "robot" not in fields:
            raise ValueError("a recipe lacks its 'robot'.")
        if here is not None and (here / str(fields["robot"])).is_file():
            fields["robot"] = str(here / fields["robot"])
        ranges = dict(fields.pop("ranges", {}))
        if ranges.get("planes") is not None:
            ranges["planes"] = _made(Planes, {k: _pair(v) for k, v in ranges["planes"].items()}, "ranges.planes")
        for part in ("q", "qd"):
            ranges[part] = {name: _pair(v) for name, v in dict(ranges.get(part, {})).items()}
        fields["ranges"] = _made(Ranges, ranges, "ranges")
        fields["sizes"] = _made(Sizes, fields.get("sizes", {}), "sizes")
        fields["training"] = _made(Training, fields.get("training", {}), "training")
        return _made(Recipe, fields, "a recipe")  # type: ignore[no-any-return]

    def table(self) -> dict[str, Any]:
        """The tables that `of` reads."""
        return dataclasses.asdict(self)

    def model(self) -> Model:
        return load_robot(self.robot)

    def simulator(self) -> Simulator:
        """The true physics, without its substeps."""
        return Simulator(self.model(), RigidSolver(contact=CONTACTS[self.contact]()), dt=self.dt)

    def frames(self, model: Model) -> Frames:
        return Frames(model.topology, self.dt, self.reach, self.base, self.substeps)

    def sample(self, path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> Path:
        """Writes the data set; see `flexor.nerd.sample`."""
        return sample(
            self.simulator(), self.ranges, self.transitions, path, length=self.length, substeps=self.substeps, seed=self.seed,
            progress=progress,
        )  # fmt: skip

    def train(
        self,
        path: str | os.PathLike[str],
        out: str | os.PathLike[str] | None = None,
        *,
        passive: bool = False,
        tensorboard: bool = False,
        progress: Progress | None = None,
    ) -> Nerd:
        """Trains on a data set of this recipe; checkpoints go to the folder `out`. With `passive`, errors of passive motion
        after 100 steps are noted beside the losses."""
        model = self.model()
        frames = self.frames(model)

        found = self._judge(model, frames, 100, 256, 500) if passive else None

        def judge(network: Transformer) -> dict[str, float]:
            assert found is not None
            row = found(network).rows((100,))[0]
            return {name: float(value) for name, value in row.items() if "mean" in name or name == "diverged"}

        begun = time.perf_counter()
        network, history = train(
            model, path, sizes=self.sizes, options=self.training, frames=frames, out=out, judge=judge if passive else None,
            tensorboard=tensorboard, progress=progress,
        )  # fmt: skip
        minutes = round((time.perf_counter() - begun) / 60, 1)
        made = {"data": facts(path), "seed": self.training.seed, "metrics": history[-1], "minutes of training": minutes}
        return Nerd(model, network, frames, {"recipe": self.table(), **made})

    def evaluate(self, nerd: Nerd, *, steps: int = 1000, rollouts: int = 2048, seed: int = 500) -> Passive:
        """Passive motion from the recipe's states beside its true physics; see `evaluate_passive`."""
        return self._judge(nerd.model, nerd.frames, steps, rollouts, seed)(nerd.network)

    def _judge(self, model: Model, frames: Frames, steps: int, rollouts: int, seed: int) -> Callable[[Transformer], Passive]:
        return passive_judge(
            model, frames, self.simulator().solver, self.ranges, substeps=self.substeps, steps=steps,
            rollouts=rollouts, seed=seed,
        )  # fmt: skip


def _made(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    names = [f.name for f in dataclasses.fields(kind)]
    unknown = [key for key in table if key not in names]
    if unknown:
        raise ValueError(f"{where} has the key '{unknown[0]}', which is not known; there are {', '.join(names)}.")
    return kind(**table)


def _pair(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _bundled(name: str | os.PathLike[str]) -> str:
    folder = resources.files("flexor.nerd").joinpath("pretrained")
    file = folder.joinpath(f"{name}.toml")
    if not file.is_file():
        names = ", ".join(sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")))
        raise FileNotFoundError(f"there is no recipe '{name}', neither a file nor one of {names}.")
    return file.read_text(encoding="utf-8")
