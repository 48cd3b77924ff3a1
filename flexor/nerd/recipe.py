"""`Recipe`: everything that a learned solver is made of, as a TOML file: the robot, its true physics, what to sample, the
network, the training. The card of a trained network holds its recipe, so that it can be made and judged again."""

import dataclasses
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from flexor.cluster import AbstractExecutor, Local
from flexor.model.model import Model
from flexor.nerd.artefact import Nerd, sizes_named
from flexor.nerd.base import base_named
from flexor.nerd.data import sample
from flexor.nerd.evaluation import Passive, evaluate_passive, passive_metrics
from flexor.nerd.frames import Frames
from flexor.nerd.fresh import Fresh
from flexor.nerd.network import AbstractSizes, Sizes
from flexor.nerd.ranges import Ranges, made_of
from flexor.nerd.training import Progress, Training, train
from flexor.robots import load as load_robot
from flexor.solvers import Simulator
from flexor.solvers.table import CONTACTS, solver


@dataclass(frozen=True)
class Recipe:
    """A robot by name or file, true physics by `contact` and `substeps` for each step of `dt`, and how much to sample of what.
    With `fresh` there is no data set: data are drawn while the network is trained, anew every `fresh` steps."""

    robot: str
    dt: float = 1 / 60
    contact: str = "ncp"
    substeps: int = 1
    transitions: int = 1_000_000
    fresh: int = 0
    length: int = 100
    seed: int = 0
    reach: float = 0.12
    base: str = "coarse"
    ranges: Ranges = field(default_factory=Ranges)
    network: str = "transformer"
    sizes: AbstractSizes = field(default_factory=Sizes)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        if self.contact not in CONTACTS:
            raise ValueError(f"there is no contact '{self.contact}'; use one of {', '.join(CONTACTS)}.")
        base_named(self.base, self.substeps)
        if self.sizes.name != self.network:
            raise ValueError(f"the network is '{self.network}', but `sizes` are those of '{self.sizes.name}'.")
        if not self.dt > 0:
            raise ValueError(f"`dt` must be a positive number of seconds, got {self.dt}.")

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
        """From the tables of a file; `here` is the folder that contains the robot's file."""
        fields = dict(table)
        if "robot" not in fields:
            raise ValueError("the recipe has no 'robot'.")
        if here is not None and (here / str(fields["robot"])).is_file():
            fields["robot"] = str(here / fields["robot"])
        fields["ranges"] = Ranges.of(fields.get("ranges", {}))
        fields["sizes"] = made_of(sizes_named(fields.get("network", "transformer")), fields.get("sizes", {}), "sizes")
        fields["training"] = made_of(Training, fields.get("training", {}), "training")
        return made_of(Recipe, fields, "a recipe")  # type: ignore[no-any-return]

    def table(self) -> dict[str, Any]:
        """The tables that `of` reads."""
        return dataclasses.asdict(self)

    def model(self) -> Model:
        return load_robot(self.robot)

    def simulator(self, model: Model | None = None) -> Simulator:
        """The true physics, with its substeps; of the recipe's robot, or of another one."""
        truth = solver(self.contact, substeps=self.substeps)
        return Simulator(self.model() if model is None else model, truth, dt=self.dt)

    def frames(self, model: Model) -> Frames:
        base = base_named(self.base, self.substeps)
        return Frames(model.topology, self.dt, self.reach, base, jacobians=self.network == "tokens")

    def sample(
        self,
        path: str | os.PathLike[str],
        progress: Callable[[int, int], None] | None = None,
        executor: AbstractExecutor = Local(),
    ) -> Path:
        """Writes the data set; see `flexor.nerd.sample`."""
        return sample(
            self.simulator(), self.ranges, self.transitions, path, length=self.length, seed=self.seed, executor=executor,
            progress=progress,
        )  # fmt: skip

    def train(
        self,
        path: str | os.PathLike[str] | None = None,
        out: str | os.PathLike[str] | None = None,
        *,
        passive: bool = False,
        tensorboard: bool = False,
        progress: Progress | None = None,
    ) -> Nerd:
        """`flexor.nerd.train` on a data set of this recipe, which the card keeps, or on fresh data. With `passive`, errors of
        passive motion after 100 steps are noted beside the losses."""
        sim = self.simulator()
        frames = self.frames(sim.model)
        judge = passive_metrics(sim, frames, self.ranges) if passive else None
        if path is None and not self.fresh:
            raise ValueError("the recipe asks for a data set: give its path, or say `fresh` in the recipe.")
        data = Fresh(self.ranges, self.length, self.fresh, self.seed) if path is None else path
        nerd = train(
            sim, data, sizes=self.sizes, options=self.training, frames=frames, out=out, judge=judge, tensorboard=tensorboard,
            progress=progress,
        )  # fmt: skip
        return dataclasses.replace(nerd, card={"recipe": self.table(), **nerd.card})

    def evaluate(self, nerd: Nerd, *, steps: int = 1000, rollouts: int = 2048, seed: int = 500) -> Passive:
        """Passive motion from the recipe's states beside its true physics; see `evaluate_passive`."""
        truth = self.simulator(nerd.model).solver
        return evaluate_passive(nerd, truth=truth, ranges=self.ranges, steps=steps, rollouts=rollouts, seed=seed)


def _bundled(name: str | os.PathLike[str]) -> str:
    folder = resources.files("flexor.nerd").joinpath("pretrained")
    file = folder.joinpath(f"{name}.toml")
    if not file.is_file():
        names = ", ".join(sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")))
        raise FileNotFoundError(f"there is no recipe '{name}', neither a file nor one of {names}.")
    return file.read_text(encoding="utf-8")
