"""How a robot looks: the visual shapes of its description, with their meshes and colours.

They are no part of the model. `appearance` reads them again from the description that the model came from (`Topology.origin`)
when somebody wants to see the robot, so that loading and simulating cost nothing more. A model without such a description, as
one of a saved simulator, has no visuals and is drawn by its collision shapes.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int, UInt8
from numpy.typing import ArrayLike

from flexor.model.model import Model
from flexor.model.origin import Origin

Colour = tuple[float, float, float, float]
"""Red, green, blue and opacity, from 0 to 1."""


@dataclass(frozen=True, eq=False)
class Surface:
    """Triangles of one material, in m. `rgba` is None where the file gives no colour; `colours` are those of the vertices,
    where a texture or the file paints each of them."""

    vertices: Float[np.ndarray, "n 3"]
    faces: Int[np.ndarray, "m 3"]
    rgba: Colour | None = None
    colours: UInt8[np.ndarray, "n 3"] | None = None


@dataclass(frozen=True, eq=False)
class Visual:
    """A shape to look at, fixed to a body. `shape` and `size` are MuJoCo's, with `surfaces` for a mesh. `rgba` is the colour of
    what has none of its own, None where the description is silent. `geom` names the shape of the model that it also is, whose
    numbers count."""

    name: str
    body: str
    shape: str
    pos: Float[np.ndarray, "3"]
    quat: Float[np.ndarray, "4"]
    size: Float[np.ndarray, "3"]
    rgba: Colour | None = None
    surfaces: tuple[Surface, ...] = ()
    geom: str | None = None


@dataclass(frozen=True, eq=False)
class Appearance:
    """The visual shapes of a robot, and a sentence for each that could not be read."""

    visuals: tuple[Visual, ...] = ()
    missing: tuple[str, ...] = ()


def appearance(model: Model) -> Appearance:
    """The visual shapes of the description that a model came from; none where there is no description.

    What cannot be read, such as a mesh that is not there, is listed in `missing`, and nothing raises.
    """
    origin = model.topology.origin
    return Appearance() if origin is None else _read(origin, _changed(origin))


def _changed(origin: Origin) -> int | None:
    """When the description was last written: one that is edited is read again."""
    try:
        return None if origin.path is None else origin.path.stat().st_mtime_ns
    except OSError:
        return None


@lru_cache(maxsize=8)
def _read(origin: Origin, changed: int | None) -> Appearance:
    text = origin.text
    try:
        if origin.path is not None:
            text = origin.path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return Appearance(missing=(f"the description '{origin.path}' can no longer be read: {error.strerror}",))
    if text is not None:
        from flexor.model.urdf import is_urdf

        if is_urdf(text):
            from flexor.model.urdf_visuals import urdf_appearance

            return urdf_appearance(text, origin)
    from flexor.model.mjcf_visuals import mjcf_appearance

    return mjcf_appearance(origin)


def placed(pos: ArrayLike, quat: ArrayLike, size: ArrayLike = (0.0, 0.0, 0.0)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pose and size of a `Visual` as arrays."""
    return np.array(pos, float), np.array(quat, float), np.array(size, float)
