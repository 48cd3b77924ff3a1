"""`load` by name: the robots of `find`, and everything that `flexor.model.load` takes."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexor.model.load import load as load_model
from flexor.model.model import Model
from flexor.robots.find import find

if TYPE_CHECKING:
    import mujoco


def load(
    x: "str | os.PathLike | mujoco.MjSpec | mujoco.MjModel",
    *,
    floating: bool = False,
    ground: bool = False,
    ignore: Collection[str] = (),
    self_collision: bool | None = None,
    package_dirs: Sequence[str | os.PathLike] = (),
    mesh_vertices: int = 32,
    missing: str = "raise",
    dtype: Any = None,
) -> Model:
    """The model of a robot: a bundled name ("quadruped"), a name of example-robot-data ("anymal_c"), the path or text of a
    URDF or MJCF file, an `MjSpec` or an `MjModel`. The options are those of `flexor.model.load.load`.

    A name that is also a file in the working directory means the bundled robot; write "./name" for the file.
    """
    if isinstance(x, str) and _is_name(x):
        x = find(x)
    return load_model(
        x,
        floating=floating,
        ground=ground,
        ignore=ignore,
        self_collision=self_collision,
        package_dirs=package_dirs,
        mesh_vertices=mesh_vertices,
        missing=missing,
        dtype=dtype,
    )


def _is_name(x: str) -> bool:
    """Whether a string can only be a short name: no markup, no folder, and no file of the endings that descriptions have."""
    plain = not x.lstrip().startswith("<") and "/" not in x and os.sep not in x
    return (
        plain
        and Path(x).suffix.lower() not in (".xml", ".urdf", ".mjcf", ".sdf", ".world", ".xacro")
        and x not in (".", "..")
    )
