"""`load`: a robot description, as a file, a text or an object of MuJoCo's, becomes a `Model`."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexor.model.build import build
from flexor.model.description import Description, DescriptionError, add_floating, add_ground, ignore_set
from flexor.model.model import Model
from flexor.model.origin import Origin
from flexor.model.urdf import first_element, is_urdf, read_urdf

if TYPE_CHECKING:  # MuJoCo is imported where its objects or MJCF are read
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
    """The model of a robot description.

    `x` is the path or text of a URDF or MJCF file, an `MjSpec` or an `MjModel`. `floating` puts a free joint under the root
    body, `ground` adds the plane z = 0. What flexor does not have raises, unless its kind is in `ignore` and it is left out.
    `self_collision` keeps the pairs of two moving bodies; by default URDFs have none and MJCF files decide. URDF meshes of
    the form package://name/file are looked for in `package_dirs` too; one that is not found raises, or, with missing="skip",
    its shape is left out and a warning lists it. Hulls of meshes keep `mesh_vertices` corners.
    """
    if missing not in ("raise", "skip"):
        raise ValueError(f'`missing` says what happens to meshes that are not found, "raise" or "skip"; got {missing!r}.')
    ignored = ignore_set(ignore)
    d = read(x, ignore=ignored, package_dirs=package_dirs, mesh_vertices=mesh_vertices, self_collision=self_collision,
             skip_missing=missing == "skip")  # fmt: skip
    if floating:
        add_floating(d)
    if ground:
        add_ground(d)
    return build(d, self_collision=self_collision is not False, dtype=dtype)


def read(
    x: Any,
    *,
    ignore: frozenset[str],
    package_dirs: Sequence,
    mesh_vertices: int,
    self_collision: bool | None,
    skip_missing: bool = False,
) -> Description:
    """The description behind whatever `load` takes."""
    if not isinstance(x, str | os.PathLike):
        return _read_object(x, ignore=ignore, mesh_vertices=mesh_vertices)
    text, path = _text(x)
    folders = tuple(Path(folder).absolute() for folder in package_dirs)
    origin = Origin(text=text, package_dirs=folders) if path is None else Origin(path.absolute(), package_dirs=folders)
    source = "XML text" if path is None else path.name
    if is_urdf(text):
        d = read_urdf(
            text,
            source=source,
            folder=None if path is None else path.resolve().parent,
            ignore=ignore,
            package_dirs=package_dirs,
            mesh_vertices=mesh_vertices,
            self_collision=bool(self_collision),
            skip_missing=skip_missing,
        )
        d.origin = origin
        return d
    if first_element(text) in ("sdf", "world", "model"):
        raise DescriptionError(
            f"{source}: this is an SDF file of Gazebo, which flexor does not read; convert it to MJCF first (`sdf2mjcf file.sdf "
            "file.xml`, of the package sdformat-mjcf)."
        )
    import mujoco

    from flexor.model.mjcf import read_mjcf

    from_xml = mujoco.MjModel.from_xml_string if path is None else mujoco.MjModel.from_xml_path
    m = _compile(lambda: from_xml(text if path is None else os.fspath(path)), source)
    name = _model_name(m) or ("robot" if path is None else path.stem)
    d = read_mjcf(m, name=name, source=source, ignore=ignore, mesh_vertices=mesh_vertices)
    d.origin = origin
    return d


def _read_object(x: Any, *, ignore: frozenset[str], mesh_vertices: int) -> Description:
    """The description of an `MjSpec` or an `MjModel`."""
    import mujoco

    from flexor.model.mjcf import read_mjcf

    if isinstance(x, mujoco.MjSpec):
        x = _compile(x.compile, x.modelname or "MjSpec")
    if not isinstance(x, mujoco.MjModel):
        raise TypeError(f"load takes a path, a text, an MjSpec or an MjModel, not {type(x).__name__}.")
    name = _model_name(x) or "robot"
    d = read_mjcf(x, name=name, source=f"MjModel '{name}'", ignore=ignore, mesh_vertices=mesh_vertices)
    d.origin = Origin(compiled=x)
    return d


def _text(x: str | os.PathLike) -> tuple[str, Path | None]:
    """The XML text, and the path it was read from, if any."""
    if isinstance(x, str) and x.lstrip().startswith("<"):
        return x, None
    path = Path(x).expanduser()
    if path.is_dir():
        raise IsADirectoryError(f"'{path}' is a folder; load takes the URDF or MJCF file in it.")
    if not path.is_file():
        raise FileNotFoundError(f"there is no robot description '{path}'.")
    try:
        return path.read_text(encoding="utf-8-sig"), path
    except UnicodeDecodeError:
        return path.read_text(encoding="latin-1"), path


def _compile(make: Any, source: str) -> "mujoco.MjModel":
    try:
        return make()
    except ValueError as error:
        raise DescriptionError(f"{source}: MuJoCo cannot read it: {' '.join(str(error).split())}") from error


def _model_name(m: "mujoco.MjModel") -> str:
    name = m.names.split(b"\0", 1)[0].decode()
    return "" if name == "MuJoCo Model" else name
