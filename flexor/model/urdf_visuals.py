"""Reads the <visual> elements of a URDF: primitives, meshes and materials.

As in RViz, a mesh that brings materials of its own keeps them, and the material of the element colours the others.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import cache

import numpy as np

from flexor.model.frames import rpy_quat
from flexor.model.meshes import find_mesh, read_surfaces
from flexor.model.origin import Origin
from flexor.model.visuals import Appearance, Colour, Surface, Visual, placed

SHAPES = ("sphere", "box", "cylinder", "capsule", "mesh")


class UnreadableVisual(ValueError):
    """A visual shape that is left out; the message says why."""


def urdf_appearance(text: str, origin: Origin) -> Appearance:
    """The visual shapes of a URDF text, in the frames of their links."""
    try:
        robot = ET.fromstring(text.lstrip())
    except ET.ParseError as error:
        return Appearance(missing=(f"the description is no longer XML: {error}",))
    palette: dict[str, Colour] = {}
    found: list[Visual] = []
    missing: list[str] = []
    for material in robot.iter("material"):
        try:
            colour = _colour(material)
        except ValueError as error:
            missing.append(f"the colour of material '{material.get('name')}': {error}")
        else:
            palette.update({} if colour is None else {material.get("name", ""): colour})
    folder = None if origin.path is None else origin.path.resolve().parent

    @cache  # the legs of a robot share their meshes
    def surfaces(uri: str, *scale: float) -> tuple[Surface, ...]:
        path, places = find_mesh(uri, folder, origin.package_dirs)
        if path is None:
            raise UnreadableVisual(f"it was not found; looked at {', '.join(places[:3])}{', …' if len(places) > 3 else ''}")
        return tuple(_scaled(s, np.array(scale)) for s in read_surfaces(path))

    for link in robot.findall("link"):
        for i, element in enumerate(link.findall("visual")):
            name = element.get("name") or f"{link.get('name')}_visual{i}"
            try:
                found.append(_visual(element, name, link.get("name", ""), palette, surfaces))
            except Exception as error:  # mesh readers raise anything
                missing.append(f"visual '{name}' of link '{link.get('name')}' ({_what(element)}): {error}")
    return Appearance(tuple(found), tuple(missing))


def _what(element: ET.Element) -> str:
    mesh = element.find("geometry/mesh")
    return "a shape" if mesh is None else f"mesh '{mesh.get('filename')}'"


def _visual(
    element: ET.Element, name: str, body: str, palette: dict[str, Colour], surfaces: Callable[..., tuple[Surface, ...]]
) -> Visual:
    shape = next((e for e in element.findall("geometry/*") if e.tag in SHAPES), None)
    if shape is None:
        raise UnreadableVisual(f"its geometry is none of {', '.join(SHAPES)}")
    origin, material = element.find("origin"), element.find("material")
    rgba = None if material is None else _colour(material) or palette.get(material.get("name", ""))
    pos, quat = _numbers(origin, "xyz", 3, 0.0), rpy_quat(_numbers(origin, "rpy", 3, 0.0))
    if shape.tag != "mesh":
        return Visual(name, body, shape.tag, *placed(pos, quat, _size(shape)), rgba=rgba)
    scale = _numbers(shape, "scale", 3, 1.0)
    made = surfaces(shape.get("filename", ""), *scale.tolist())
    return Visual(name, body, "mesh", *placed(pos, quat), rgba=rgba, surfaces=made)


def _scaled(surface: Surface, scale: np.ndarray) -> Surface:
    """A surface times the scale of its element; a mirror turns its faces over."""
    if (scale == 1).all():
        return surface
    faces = surface.faces[:, ::-1] if np.prod(scale) < 0 else surface.faces
    return Surface(surface.vertices * scale.astype(surface.vertices.dtype), faces, surface.rgba, surface.colours)


def _size(shape: ET.Element) -> np.ndarray:
    """MuJoCo's size numbers, as of the collision shapes."""
    if shape.tag == "box":
        return _numbers(shape, "size", 3, 0.0) / 2
    return np.array([_numbers(shape, "radius", 1, 0.0)[0], _numbers(shape, "length", 1, 0.0)[0] / 2, 0.0])


def _colour(material: ET.Element) -> Colour | None:
    """The colour of a material element; a texture, which only its image tells, has none."""
    colour = material.find("color")
    if colour is None:
        return None
    r, g, b, a = np.clip(_numbers(colour, "rgba", 4, 1.0), 0, 1).tolist()
    return r, g, b, a


def _numbers(element: ET.Element | None, key: str, count: int, default: float) -> np.ndarray:
    text = None if element is None else element.get(key)
    if text is None:
        return np.full(count, default)
    numbers = np.array([float(x) for x in re.split(r"[\s,]+", text.strip()) if x])
    if len(numbers) != count or not np.isfinite(numbers).all():
        raise UnreadableVisual(f'{key}="{text}" should be {count} numbers')
    return numbers
