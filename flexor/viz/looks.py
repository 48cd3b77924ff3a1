"""What a viewer draws: the visual shapes of a robot with their colours, their meshes light enough for a page; and collision
shapes where the description has nothing to look at."""

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from flexor.model.description import ModelWarning
from flexor.model.model import Model
from flexor.model.visuals import Appearance, Surface, Visual, appearance
from flexor.viz.scene import collision_shapes, links

TRIANGLES = 30_000
"""Of all meshes of a robot together, unless one asks for more: some 300 kB of a page."""

PLAIN = (0.62, 0.64, 0.66, 1.0)
"""The colour of a part without one, on a robot that has colours."""


def looks(model: Model, *, triangles: int = TRIANGLES) -> list[dict[str, Any]]:
    """What is drawn of a robot, as plain data like `scene.shapes`, each with a colour `rgba` (None: the robot's).

    These are the visual shapes, the planes and height fields, and where rigidly joined bodies have no visual shape, their
    collision shapes or links. Meshes have at most `triangles` triangles in all, and a `surface` that shapes may share. A
    warning lists what is missing.
    """
    seen = appearance(model)
    if seen.missing:
        count = "a visual shape is" if len(seen.missing) == 1 else f"{len(seen.missing)} visual shapes are"
        warnings.warn(f"{model.topology.name}: {count} missing: {'; '.join(seen.missing)}.", ModelWarning, stacklevel=2)
    body = {name: i for i, name in enumerate(model.topology.bodies)}
    physical = collision_shapes(model)
    geoms = {s["name"]: s for s in physical}
    visuals = [v for v in seen.visuals if v.body in body]
    light = _light(seen, triangles)
    found = [part for v in visuals for part in _parts(v, body[v.body], geoms, light)]
    if any(_coloured(part) for part in found):
        found = [part if _coloured(part) else {**part, "rgba": PLAIN} for part in found]
    group = rigid_groups(model)
    dressed = {group[part["body"]] for part in found}
    field = {g.name for g in model.topology.geoms if g.grid or g.shape == "plane"}
    found += [{**s, "rgba": None} for s in physical if s["name"] in field or group[s["body"]] not in dressed]
    bare = links(model, [b for b in range(len(group)) if group[b] in dressed])
    return found + [{**s, "rgba": None} for s in bare]


def _coloured(part: dict[str, Any]) -> bool:
    painted = part.get("surface")
    return part["rgba"] is not None or (painted is not None and painted.colours is not None)


def rigid_groups(model: Model) -> list[int]:
    """Of each body the one whose joint moves it, 0 for those that stand still."""
    t = model.topology
    moved = {j.body for j in t.joints} | set(t.mocap)
    group = [0]
    for b in range(1, len(t.bodies)):
        group.append(b if b in moved else group[t.parents[b]])
    return group


def _parts(
    visual: Visual, body: int, geoms: dict[str, dict[str, Any]], light: dict[Surface, Surface]
) -> list[dict[str, Any]]:
    """A visual shape as plain data; a mesh is one part for each of its materials."""
    if visual.geom in geoms:
        return [{**geoms[visual.geom], "rgba": visual.rgba}]
    pose = {"body": body, "pos": visual.pos.tolist(), "quat": visual.quat.tolist(), "size": visual.size.tolist()}
    common = {"shape": visual.shape, "name": visual.name, **pose}
    if visual.shape != "mesh":
        return [{**common, "rgba": visual.rgba}]
    made = []
    for surface in (light[s] for s in visual.surfaces):
        triangles = {"vertices": surface.vertices, "faces": surface.faces, "surface": surface}
        rgba = surface.rgba if surface.rgba is not None or surface.colours is not None else visual.rgba
        made.append({**common, "rgba": rgba, **triangles})
    return made


@lru_cache(maxsize=8)
def _light(seen: Appearance, triangles: int) -> dict[Surface, Surface]:
    """Every surface with fewer triangles, at most so many in all; large meshes give up more of theirs."""
    surfaces = list(dict.fromkeys(s for v in seen.visuals for s in v.surfaces))
    share = allotted([len(s.faces) for s in surfaces], triangles)
    return {s: simplified(s, n) for s, n in zip(surfaces, share, strict=True)}


def allotted(counts: Sequence[int], total: int) -> list[int]:
    """How many triangles each mesh keeps: all where they fit, else shares of the total by the root of their number."""
    if sum(counts) <= total:
        return list(counts)
    kept: dict[int, int] = {}
    left, most = float(total), dict(enumerate(counts))
    while most:
        unit = left / sum(np.sqrt(n) for n in most.values())
        small = {i: n for i, n in most.items() if n <= unit * np.sqrt(n)}
        if not small:
            return [kept.get(i, max(4, int(unit * np.sqrt(n)))) for i, n in enumerate(counts)]
        kept.update(small)
        left -= sum(small.values())
        most = {i: n for i, n in most.items() if i not in small}
    return [kept[i] for i in range(len(counts))]


def simplified(surface: Surface, triangles: int) -> Surface:
    """The surface with about so many triangles, by quadric error metrics (Garland and Heckbert 1997); corners at one place
    become one, and a new corner takes the colour of the nearest old one."""
    import fast_simplification
    from scipy.spatial import cKDTree

    points, first, inverse = np.unique(surface.vertices, axis=0, return_index=True, return_inverse=True)
    faces = inverse.ravel()[surface.faces]
    faces = faces[(faces != np.roll(faces, 1, axis=1)).all(1)]
    colours = None if surface.colours is None else surface.colours[first]
    if len(faces) <= triangles or not len(faces):
        return Surface(points, faces.astype(np.int32), surface.rgba, colours)
    kept, triples = fast_simplification.simplify(points.astype(np.float32), faces.astype(np.int32), target_count=triangles)
    if colours is not None:
        colours = colours[cKDTree(points).query(kept)[1]]
    return Surface(kept, triples, surface.rgba, colours)
