"""The fluid of a description: its shapes, and the tables of their numbers."""

import numpy as np

from flexor.model.description import Description
from flexor.model.topology import FluidShape

_MEDIUM = {"density": (), "viscosity": (), "wind": (3,)}
_SHAPE = {
    "pos": (3,),
    "quat": (4,),
    "size": (3,),
    **dict.fromkeys(("blunt_drag", "slender_drag", "angular_drag", "kutta_lift", "magnus_lift"), ()),
    "virtual_mass": (3,),
    "virtual_inertia": (3,),
}


def fluid_topology(d: Description) -> tuple[FluidShape, ...]:
    """The static part of all shapes in the fluid."""
    body = {b.name: i for i, b in enumerate(d.bodies)}
    return tuple(FluidShape(s.name, body[s.body], s.ellipsoid) for s in d.fluid_shapes)


def fluid_tables(d: Description) -> dict[str, dict[str, np.ndarray]]:
    """Rows of `Media` and `FluidShapes`."""
    return {
        "media": {f: _column(d.media, f, width) for f, width in _MEDIUM.items()},
        "fluid_shapes": {f: _column(d.fluid_shapes, f, width) for f, width in _SHAPE.items()},
    }


def _column(rows: list, field: str, width: tuple[int, ...]) -> np.ndarray:
    return np.array([getattr(r, field) for r in rows], float).reshape(len(rows), *width)
