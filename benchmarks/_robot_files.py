"""Robot descriptions on this machine: every MJCF and URDF file of the installed packages and of named folders."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

OWN = "flexor"
SUFFIXES = (".xml", ".mjcf", ".urdf")
START = 20_000  # characters within which the first element of a file must stand


@dataclass(frozen=True)
class RobotFile:
    """A description: its path, where it comes from (a package's name or a folder), its path in there, and MJCF or URDF."""

    path: str
    package: str
    name: str
    kind: str


def first_element(path: Path) -> str:
    """Name of the first element of an XML file; empty where there is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(START)
    except OSError:
        return ""
    text = re.sub(r"<!--.*?-->|<\?.*?\?>|<!DOCTYPE[^>]*>", "", text, flags=re.DOTALL)
    found = re.search(r"<\s*([\w:.-]+)", text)
    return found[1] if found else ""


def described(paths: Iterable[Path], package: str, root: Path) -> Iterator[RobotFile]:
    """Those of the paths that begin as MJCF (<mujoco>) or as URDF (<robot>) does."""
    kinds = {"mujoco": "MJCF", "robot": "URDF"}
    for path in sorted(paths):
        kind = kinds.get(first_element(path))
        if kind is not None:
            yield RobotFile(str(path), package, _inside(path, root), kind)


def _inside(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def in_packages() -> list[RobotFile]:
    """Every description of every installed distribution but flexor itself, in the order of the packages' names."""
    found: dict[str, RobotFile] = {}
    for distribution in sorted(metadata.distributions(), key=lambda d: (d.name or "").lower()):
        if distribution.name == OWN:
            continue
        files = [f for f in distribution.files or () if f.suffix.lower() in SUFFIXES]
        paths = [Path(str(f.locate())).resolve() for f in files]
        root = Path(str(distribution.locate_file(""))).resolve()
        for robot in described((p for p in paths if p.is_file()), distribution.name, root):
            found.setdefault(robot.path, robot)
    return list(found.values())


def in_folder(folder: Path) -> list[RobotFile]:
    """Every description below a folder."""
    root = folder.resolve()
    paths = [p for p in root.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()]
    return list(described(paths, folder.name or str(folder), root))
