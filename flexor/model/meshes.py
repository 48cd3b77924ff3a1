"""Mesh files of URDFs: where they are, and their vertices."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np


def find_mesh(uri: str, base: Path | None, package_dirs: Sequence[str | os.PathLike] = ()) -> tuple[Path | None, list[str]]:
    """The file of a mesh URI, or None, and the places that were looked at.

    package://name/rest is looked for as name/rest below `package_dirs`, the folders of ROS_PACKAGE_PATH and all parents of
    the URDF's folder `base`, and as rest below `package_dirs` and folders called name; file:// and absolute paths as they
    are; others relative to `base` and `package_dirs`.
    """
    if uri.startswith(("package://", "model://")):
        candidates = _in_packages(unquote(uri.split("://", 1)[1]).lstrip("/"), base, package_dirs)
    else:
        path = Path(unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri)
        roots = [r for r in (base, *map(Path, package_dirs)) if r is not None]
        candidates = [path] if path.is_absolute() else [r / path for r in roots] or [path]
    for candidate in candidates:
        if candidate.is_file():
            return candidate, []
    return None, list(dict.fromkeys(str(c) for c in candidates))


def _in_packages(rest: str, base: Path | None, package_dirs: Sequence[str | os.PathLike]) -> list[Path]:
    package, _, inside = rest.partition("/")
    ros = [Path(p) for p in os.environ.get("ROS_PACKAGE_PATH", "").split(os.pathsep) if p]
    parents = [] if base is None else [base, *base.parents]
    candidates = []
    for folder in [*map(Path, package_dirs), *ros, *parents]:
        candidates.append(folder / rest)
        if folder.name == package or folder in map(Path, package_dirs):
            candidates.append(folder / inside)
    return candidates


def read_vertices(path: Path, scale: np.ndarray) -> np.ndarray:
    """Vertices of a mesh file in m, times `scale`, in the frame that the file means (scene transforms applied)."""
    import trimesh

    loaded: Any = trimesh.load(path, process=False, skip_materials=True)
    if isinstance(loaded, trimesh.Scene):
        loaded = loaded.to_geometry()
    vertices = np.asarray(loaded.vertices, float)
    if not len(vertices) or not np.isfinite(vertices).all():
        raise ValueError(f"mesh '{path}' has no finite vertices.")
    return vertices * np.asarray(scale, float)
