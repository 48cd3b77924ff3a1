"""Options that every command with a robot shares, and the loading itself."""

from typing import Annotated

import jax
import typer

from flexor.model.model import Model
from flexor.robots.load import load

File = Annotated[str, typer.Argument(metavar="FILE", help="URDF or MJCF file, or the name of a robot.")]
Floating = Annotated[bool, typer.Option("--floating", help="Put a free joint under the root body.")]
Ground = Annotated[bool, typer.Option("--ground", help="Add the plane z = 0.")]
Ignore = Annotated[
    list[str] | None, typer.Option("--ignore", help="Kind of element to leave out, such as `tendon`; may be repeated.")
]


def use_float64() -> None:
    """Switches JAX to double precision for this process; it must run before the first array is made."""
    jax.config.update("jax_enable_x64", True)


def load_robot(file: str, floating: bool, ground: bool, ignore: list[str] | None) -> Model:
    """The model that the shared options describe; `--ignore a,b` means the same as two options."""
    kinds = [kind for given in ignore or () for kind in given.split(",")]
    return load(file, floating=floating, ground=ground, ignore=kinds)
