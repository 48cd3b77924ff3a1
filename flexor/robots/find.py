"""Where robot descriptions are: those bundled with flexor, and those of an installed example-robot-data."""

import sys
from difflib import get_close_matches
from functools import cache
from importlib import metadata
from pathlib import Path

_BUNDLED = Path(__file__).parent / "descriptions"
_SUFFIXES = ("_simple_description", "_description", "_data")

# Folders with several robots in them: which one the short name means.
_CHOICES = {
    "alex": "alex_nub_hands",
    "alexander": "alexander_v1.lowerBodyOnly",
    "allegro_hand": "allegro_right_hand",
    "anymal_b": "anymal",
    "b1": "b1",
    "double_pendulum": "double_pendulum",
    "g1": "g1_29dof_rev_1_0",
    "icub": "icub",
    "iris": "iris",
    "panda": "panda",
    "romeo": "romeo",
    "simple_humanoid": "simple_humanoid",
    "so_arm": "so101",
    "solo": "solo12",
    "talos": "talos_full_v2",
    "tiago": "tiago",
    "ur": "ur5_robot",
}
# "ur3.urdf" of the collection is an empty file.
_ALIASES = {"ur3": "ur3_robot", "ur5": "ur5_robot", "ur10": "ur10_robot"}


def bundled() -> dict[str, Path]:
    """Short names of the robots that come with flexor, and their MJCF files."""
    return {p.stem: p for p in sorted(_BUNDLED.glob("*.xml"))}


@cache
def example_robots() -> dict[str, Path]:
    """Short names of the robots of example-robot-data (`pip install example-robot-data`), and their URDFs; empty without it.

    A name is that of the robot's folder without "_description", or of the URDF file where no other has it.
    """
    root = _example_root()
    if root is None:
        return {}
    files = sorted(root.glob("*/**/*.urdf"))
    stems = [f.stem for f in files]
    found = {f.stem: f for f in files if stems.count(f.stem) == 1}
    folders: dict[str, list[Path]] = {}
    for f in files:
        folders.setdefault(_short(f.relative_to(root).parts[0]), []).append(f)
    for name, inside in folders.items():
        wanted = [f for f in inside if f.stem == _CHOICES.get(name)] or (inside if len(inside) == 1 else [])
        if wanted:
            found[name] = wanted[0]
    found.update({alias: found[stem] for alias, stem in _ALIASES.items() if stem in found})
    return dict(sorted(found.items()))


def find(name: str) -> Path:
    """The description file of a robot by its short name, bundled ones first."""
    robots = {**example_robots(), **bundled()}
    if name in robots:
        return robots[name]
    close = get_close_matches(name, robots, n=1) or get_close_matches(name.lower(), robots, n=1)
    guess = f" Did you mean '{close[0]}'?" if close else ""
    others = [n for n in example_robots() if n not in bundled()]
    installed = f"; of example-robot-data: {', '.join(others)}" if others else ""
    hint = "" if others else " `pip install example-robot-data` adds some sixty real robots."
    names = f"Bundled robots: {', '.join(bundled())}{installed}."
    raise FileNotFoundError(f"there is no robot description '{name}'.{guess} {names}{hint}")


def _short(folder: str) -> str:
    for suffix in _SUFFIXES:
        if folder.endswith(suffix):
            return folder.removesuffix(suffix)
    return folder


def _example_root() -> Path | None:
    """The folder `robots` of example-robot-data: from the installed distribution's file list, else below the prefixes."""
    try:
        for file in metadata.distribution("example-robot-data").files or []:
            if "example-robot-data" in file.parts and file.suffix == ".urdf":
                path = Path(file.locate()).resolve()
                return next(p for p in path.parents if p.name == "robots" and p.parent.name == "example-robot-data")
    except (metadata.PackageNotFoundError, StopIteration):
        pass
    prefixes = [Path(sys.prefix), *(Path(p) / "cmeel.prefix" for p in sys.path if p)]
    roots = (prefix / "share" / "example-robot-data" / "robots" for prefix in prefixes)
    return next((r for r in roots if r.is_dir()), None)
