"""Mesh files of URDFs: where they are, their vertices, and the surfaces that one looks at."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from flexor.model.visuals import Colour, Surface


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


def read_surfaces(path: Path) -> tuple[Surface, ...]:
    """The surfaces of a mesh file (.obj, .stl, .dae and what else trimesh reads), one for each material, in the frame that
    `read_vertices` means. Textures and painted vertices become colours of the vertices."""
    import trimesh

    scene: Any = trimesh.load_scene(path, process=False)
    found = []
    for node in scene.graph.nodes_geometry:
        transform, name = scene.graph[node]
        mesh = scene.geometry[name]
        if not len(getattr(mesh, "faces", ())):
            continue  # lines and points
        vertices = trimesh.transform_points(mesh.vertices, transform).astype(np.float32)
        if not np.isfinite(vertices).all():
            raise ValueError(f"mesh '{path}' has vertices that are not finite")
        faces = np.asarray(mesh.faces, np.int32)
        mirrored = np.linalg.det(transform[:3, :3]) < 0
        found.append(Surface(vertices, faces[:, ::-1] if mirrored else faces, *_paint(mesh)))
    if not found:
        raise ValueError(f"mesh '{path}' has no triangles")
    return tuple(found)


def _paint(mesh: Any) -> tuple[Colour | None, np.ndarray | None]:
    """The colour of a mesh as a whole, and of each of its vertices; None for what the file does not give."""
    visual = mesh.visual
    if visual.kind in ("vertex", "face"):
        return None, np.array(visual.vertex_colors[:, :3])
    material = getattr(visual, "material", None)
    if material is None:
        return None, None
    image = getattr(material, "image", None) or getattr(material, "baseColorTexture", None)
    uv = getattr(visual, "uv", None)
    if image is not None and uv is not None and len(uv) == len(mesh.vertices):
        from trimesh.visual.color import uv_to_color

        colours = uv_to_color(uv, image)
        return None, None if colours is None else np.array(colours[:, :3])
    r, g, b, a = (np.asarray(material.main_color, float) / 255).tolist()
    return (r, g, b, a), None
