"""The options that every command with a robot shares, and the loading itself."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import jax
import numpy as np
import typer

from flexor.contact.detect import candidates
from flexor.files import read_arrays
from flexor.model.model import Model
from flexor.model.parameters import replace
from flexor.robots import bundled, example_robots, load
from flexor.solvers import Simulator
from flexor.solvers.artefact import open as open_simulator

Executor = Annotated[
    str, typer.Option(metavar="NAME", help="Who computes: local, ray, or ray:ADDRESS of a cluster; see docs/cluster.md.")
]


@dataclass(frozen=True)
class Robot:
    """A robot as the command line describes it; the fields are options of every command under `takes_robot`."""

    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="URDF or MJCF file, the name of a robot, or the folder of a saved simulator."),
    ]
    floating: Annotated[bool, typer.Option("--floating", help="Put a free joint under the root body.")] = False
    ground: Annotated[bool, typer.Option("--ground", help="Add the plane z = 0.")] = False
    ignore: Annotated[
        list[str] | None, typer.Option(help="Kind of element to leave out, such as `tendon`; may be repeated.")
    ] = None
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Set parameters by pattern, such as `*.damping=0.1`; may be repeated."
        ),
    ] = None
    mesh_vertices: Annotated[
        int | None, typer.Option(min=4, help="Corners of a mesh's hull that are kept, 32 by default.")
    ] = None
    package_dirs: Annotated[
        list[Path] | None, typer.Option(help="Folder in which package:// meshes are looked for; may be repeated.")
    ] = None
    missing: Annotated[
        str | None, typer.Option(help="What to do about meshes that are not found: `raise` (default) or `skip`.")
    ] = None
    self_collision: Annotated[
        bool | None,
        typer.Option(
            "--self-collision/--no-self-collision", help="Contact between the robot's own bodies.", show_default=False
        ),
    ] = None

    @property
    def folder(self) -> Path | None:
        """The folder of a saved simulator that FILE names, if it does; a robot's name comes first, as in `fx.load`."""
        path = Path(self.file)
        is_folder = (path / "simulator.json").is_file() or (path / "fit.json").is_file()
        return path if is_folder and self.file not in {**bundled(), **example_robots()} else None

    def load(self) -> Model:
        """The model; `--ignore a,b` means the same as two options."""
        if self.folder is not None:
            return self.open().model
        kinds = [kind for given in self.ignore or () for kind in given.split(",")]
        missing = [folder for folder in self.package_dirs or () if not folder.is_dir()]
        if missing:
            raise FileNotFoundError(f"--package-dirs names '{missing[0]}', which is not a folder.")
        model = load(
            self.file, floating=self.floating, ground=self.ground, ignore=kinds,
            mesh_vertices=32 if self.mesh_vertices is None else self.mesh_vertices, package_dirs=self.package_dirs or (),
            self_collision=self.self_collision, missing=self.missing or "raise",
        )  # fmt: skip
        return self._set(model)

    def open(self) -> Simulator:
        """The saved simulator in FILE, in the precision in which it was saved."""
        assert self.folder is not None
        given = [
            f.name for f in fields(self) if f.name not in ("file", "values") and getattr(self, f.name) not in (None, False)
        ]
        if given:
            option = "--" + given[0].replace("_", "-")
            raise ValueError(
                f"'{self.file}' is a saved simulator, whose robot is complete: {option} cannot be given with it."
            )
        if any(x.dtype == np.float64 for x in read_arrays(self.folder / "arrays.safetensors").values()):
            use_float64()
        sim = open_simulator(self.folder)
        return Simulator(self._set(sim.model), sim.solver, dt=sim.dt)

    def _set(self, model: Model) -> Model:
        for given in self.values or ():  # in their order: later ones win
            model = replace(model, dict([_assignment(given)]))
        return model


def _assignment(text: str) -> tuple[str, Any]:
    """Pattern and value of `NAME=VALUE`; a value is a number, or numbers with commas between them."""
    pattern, sign, value = text.partition("=")
    try:
        numbers = np.array([float(x) for x in value.split(",")])
    except ValueError:
        numbers = np.array([])
    if not (pattern and sign and numbers.size):
        raise ValueError(
            f"--set takes NAME=VALUE, such as `body.trunk.mass=2.5` or `gravity=0,0,-1.62`; got '{text}'. "
            "`flexor info FILE --parameters '*'` lists the names."
        )
    return pattern.strip(), numbers if numbers.size > 1 else float(numbers[0])


def takes_robot(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `Robot` in the place of its first argument, which is a `Robot`."""
    hints = get_type_hints(Robot, include_extras=True)
    own = list(inspect.signature(command).parameters.values())[1:]
    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(f.name, keyword, default=f.default, annotation=hints[f.name])
        if f.name != "file"
        else inspect.Parameter(f.name, keyword, annotation=hints[f.name])
        for f in fields(Robot)
    ]

    @wraps(command)
    def with_options(**given: Any) -> None:
        robot = Robot(**{f.name: given.pop(f.name) for f in fields(Robot)})
        command(robot, **given)

    parameters = [options[0], *(p.replace(kind=keyword) for p in own), *options[1:]]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_options


def size(model: Model) -> str:
    """Degrees of freedom and contact candidates of a robot in words: what the time of a compilation depends on."""
    count = len(candidates(model.topology))
    return f"{model.nv} degrees of freedom" + (f" and {count} contact candidates" if count else "")


def use_float64() -> None:
    """Switches JAX to double precision for this process; it must run before the first array is made."""
    jax.config.update("jax_enable_x64", True)


def numbers(text: str) -> list[int]:
    """What `--seeds 0,1,2` says."""
    parts = text.split(",")
    if not all(x.strip().isdigit() for x in parts):
        raise ValueError(f"--seeds takes whole numbers with commas between them, such as 0,1,2; got '{text}'.")
    return [int(x) for x in parts]
