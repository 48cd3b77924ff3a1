"""Reads the fluid of an `MjModel` and the shapes on which it acts: ellipsoids for geoms that ask for them, elsewhere a box for
each body, with the body's inertia."""

import mujoco
import numpy as np

from flexor.model.description import Description, FluidShapeSpec, MediumSpec, static_bodies, unique
from flexor.model.extension import FLUID_PREFIX
from flexor.model.mjcf_refusals import Names

SMALLEST = 1e-15  # MuJoCo's mjMINVAL: bodies of less mass feel no fluid


def read_fluid(m: mujoco.MjModel, d: Description, names: Names) -> None:
    """The medium and its shapes, where there is one and fluids are not ignored."""
    if not (m.opt.density or m.opt.viscosity) or "fluid" in d.ignore:
        return
    d.media = [MediumSpec("fluid", float(m.opt.density), float(m.opt.viscosity), m.opt.wind.copy())]
    taken: set[str] = set()
    static = static_bodies(d)
    for b in range(1, m.nbody):
        if m.body_mass[b] < SMALLEST or names["body"][b] in static:
            continue
        geoms = np.flatnonzero(m.geom_bodyid == b)
        ellipsoids = [g for g in geoms if m.geom_fluid[g, 0] > 0]
        made = [_ellipsoid(m, int(g), names, d) for g in ellipsoids] or [_box(m, b, names)]
        for shape in made:
            shape.name = unique(shape.name, taken)
            taken.add(shape.name)
        d.fluid_shapes += made


def _box(m: mujoco.MjModel, b: int, names: Names) -> FluidShapeSpec:
    """The box of uniform density that has the body's mass and inertia."""
    moments = m.body_inertia[b]
    edges = np.sqrt(np.maximum(moments.sum() - 2 * moments, SMALLEST) / m.body_mass[b] * 6)
    return FluidShapeSpec(
        name=names["body"][b],
        body=names["body"][b],
        pos=m.body_ipos[b].copy(),
        quat=m.body_iquat[b].copy(),
        size=edges,
    )


def _ellipsoid(m: mujoco.MjModel, g: int, names: Names, d: Description) -> FluidShapeSpec:
    kind, size, numbers = int(m.geom_type[g]), m.geom_size[g], m.geom_fluid[g]
    if numbers[0] != 1:
        d.refuse(
            "fluid", f"geom '{names['geom'][g]}' interacts with the fluid at a share of {numbers[0]}; flexor's do entirely"
        )
    axes = {
        int(mujoco.mjtGeom.mjGEOM_SPHERE): (size[0], size[0], size[0]),
        int(mujoco.mjtGeom.mjGEOM_CAPSULE): (size[0], size[0], size[1] + size[0]),
        int(mujoco.mjtGeom.mjGEOM_CYLINDER): (size[0], size[0], size[1]),
    }.get(kind, size)
    blunt, slender, angular, kutta, magnus = numbers[1:6]
    return FluidShapeSpec(
        name=names["geom"][g].removeprefix(FLUID_PREFIX),
        body=names["body"][m.geom_bodyid[g]],
        ellipsoid=True,
        pos=m.geom_pos[g].copy(),
        quat=m.geom_quat[g].copy(),
        size=np.array(axes),
        blunt_drag=float(blunt),
        slender_drag=float(slender),
        angular_drag=float(angular),
        kutta_lift=float(kutta),
        magnus_lift=float(magnus),
        virtual_mass=numbers[6:9].copy(),
        virtual_inertia=numbers[9:12].copy(),
    )
