"""What a robot description file says, as plain data: written by the MJCF and URDF readers, read by `build`.

Elements refer to each other by name; every name is unique among its kind. The world is the body "world" and stands first.
Bodies are in depth-first order, joints grouped by body in that order.
"""

import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike

from flexor.model.frames import IDENTITY
from flexor.model.origin import Origin
from flexor.model.topology import CONVEX, SHAPES

UNLIMITED = (-np.inf, np.inf)
WORLD = "world"

PAIR_KINDS = frozenset(f"{a}-{b}" for i, a in enumerate(SHAPES) for b in SHAPES[i:] if b in CONVEX)
"""`ignore` entries that drop the pairs of two shapes, such as "box-box"."""

IGNORABLE = PAIR_KINDS | {
    *("actuator", "adhesion", "anisotropic", "ball-limit", "condim", "ellipsoid", "equality", "flex", "fluid"),
    *(
        "frictionloss",
        "gravcomp",
        "hfield",
        "limit",
        "margin",
        "mocap",
        "override",
        "plugin",
        "polynomial",
        "sdf",
        "sleep",
        "solref",
        "springyield",
        "surfacevel",
    ),
    "tendon",
}
"""Everything that `load(..., ignore=...)` can leave out of a robot."""


class DescriptionError(ValueError):
    """A robot description that cannot be loaded; the message names the element and the file."""


class ModelWarning(UserWarning):
    """Something doubtful in a robot description that was loaded anyway."""


SOLREF, SOLIMP = (0.02, 1.0), (0.9, 0.95, 0.001, 0.5, 2.0)
"""MuJoCo's defaults of `solref` and `solimp`."""


@dataclass
class ComplianceSpec:
    """A soft constraint; see `Compliances`."""

    stiffness: float
    damping: float
    impedance: ArrayLike
    response: float
    rotation_response: float = 0.0


@dataclass
class BodySpec:
    """A body: its frame in its parent's frame, mass in kg, centre of mass in m and inertia about it in kg m^2 (xx yy zz xy
    xz yz), both in body axes. `gravcomp` is the share of its weight that is compensated; a `mocap` body is moved from outside.
    `response` is the acceleration for a unit of force on it in the reference configuration, in 1/kg, for soft contacts."""

    name: str
    parent: str
    pos: ArrayLike = (0.0, 0.0, 0.0)
    quat: ArrayLike = IDENTITY
    mass: float = 0.0
    com: ArrayLike = (0.0, 0.0, 0.0)
    inertia: ArrayLike = (0.0,) * 6
    gravcomp: float = 0.0
    compensated: bool = False
    mocap: bool = False
    response: float = 0.0


@dataclass
class JointSpec:
    """A joint of a body; `range` is None when unlimited. `reference` and `rest` are its coordinates in the drawing and with
    slack spring. `compliance` is that of its limits, None where they are hard."""

    name: str
    kind: str
    body: str
    reference: ArrayLike
    rest: ArrayLike
    pos: ArrayLike = (0.0, 0.0, 0.0)
    axis: ArrayLike = (0.0, 0.0, 1.0)
    stiffness: float = 0.0
    damping: float = 0.0
    armature: float = 0.0
    frictionloss: float = 0.0
    range: tuple[float, float] | None = None
    force_range: tuple[float, float] = UNLIMITED
    dry_friction: bool = False
    actuated_gravcomp: bool = False
    compliance: ComplianceSpec | None = None


@dataclass
class GeomSpec:
    """A shape on a body, with MuJoCo's size numbers and collision bits. `vertices` of a mesh may be a function, called only
    when the mesh takes part in a pair; `exact` vertices are taken as they are, with `outline` given (see `Geom`). Those of a
    height field are a `grid`, and its third size is how far its base reaches below zero. `solref`, `solimp` and `solmix` are
    MuJoCo's, from which the softness of a pair is mixed. `surface_velocity` is that of `Geoms`."""

    name: str
    shape: str
    body: str
    pos: ArrayLike = (0.0, 0.0, 0.0)
    quat: ArrayLike = IDENTITY
    size: ArrayLike = (0.0, 0.0, 0.0)
    vertices: np.ndarray | Callable[[], np.ndarray] | None = None
    exact: bool = False
    outline: int = 0
    grid: tuple[int, int] | None = None
    contype: int = 1
    conaffinity: int = 1
    condim: int = 3
    priority: int = 0
    friction: float = 1.0
    margin: float = 0.0
    torsion: float = 0.0
    rolling: float = 0.0
    solref: ArrayLike = SOLREF
    solimp: ArrayLike = SOLIMP
    solmix: float = 1.0
    surface_velocity: ArrayLike = (0.0,) * 6
    adhesion: float = 0.0
    gap: float = 0.0


@dataclass
class PairSpec:
    """Two geoms that collide whatever their collision bits say. `compliance` is None where the contact is hard."""

    a: str
    b: str
    friction: float = 1.0
    condim: int = 3
    margin: float = 0.0
    margined: bool = False
    torsion: float = 0.0
    rolling: float = 0.0
    adhesion: float = 0.0
    gap: float = 0.0
    sticky: bool = False
    restitution: float = 0.0
    compliance: ComplianceSpec | None = None


@dataclass
class ActuatorSpec:
    """An actuator on a joint, a tendon, a site, a slider-crank or a body: see `Actuator` for what is pushed on, `Actuators`
    for the law, `Activations` for that of the activation. `muscle` has the fields of `Muscles` by name."""

    name: str
    joint: str | None = None
    gear: float = 1.0
    gain: float = 1.0
    bias: ArrayLike = (0.0, 0.0, 0.0)
    ctrl_range: tuple[float, float] = UNLIMITED
    force_range: tuple[float, float] = UNLIMITED
    delay: float = 0.0
    samples: int = 0
    in_parent: bool = False
    tendon: str | None = None
    site: str | None = None
    reference: str | None = None
    slider: str | None = None
    direction: ArrayLike = (0.0,) * 6
    crank_length: float = 0.0
    gain_slope: ArrayLike = (0.0, 0.0)
    varying: bool = False
    circular: bool = False
    dynamics: str = "none"
    early: bool = False
    time_constant: float = 0.0
    release_time: float = 0.0
    smoothing: float = 0.0
    act_range: tuple[float, float] = UNLIMITED
    muscle: dict[str, ArrayLike] | None = None
    body: str | None = None


@dataclass
class SiteSpec:
    """A frame fixed to a body; `size` is that of the zone of a touch sensor there."""

    name: str
    body: str
    pos: ArrayLike = (0.0, 0.0, 0.0)
    quat: ArrayLike = IDENTITY
    size: ArrayLike = (0.005, 0.005, 0.005)


@dataclass
class EqualitySpec:
    """A coupling of two hinge or slide joints, or one joint held at a constant (`second` is None); see `Equalities`. `kind` is
    joint or tendon; of tendons, `response` is that of the row in 1/kg."""

    name: str
    first: str
    second: str | None = None
    coefficients: ArrayLike = (0.0, 1.0, 0.0, 0.0, 0.0)
    kind: str = "joint"
    response: float | None = None
    compliance: ComplianceSpec | None = None


@dataclass
class LoopSpec:
    """Two bodies held together; see `Loops`. The responses are the inverse masses and inertias of both bodies together, in 1/kg
    and 1/(kg m^2), from which the other parameters are derived."""

    name: str
    first: str
    second: str
    weld: bool = False
    anchor_a: ArrayLike = (0.0, 0.0, 0.0)
    anchor_b: ArrayLike = (0.0, 0.0, 0.0)
    quat: ArrayLike = IDENTITY
    torquescale: float = 1.0
    response: float = 1.0
    rotation_response: float = 1.0
    compliance: ComplianceSpec | None = None


@dataclass
class WrapSpec:
    """A step of a tendon's path (see `Wrap`); `target` names its joint, site or geom, `value` is the coefficient of a joint or
    the divisor of a pulley."""

    kind: str
    target: str = ""
    value: float = 0.0
    side: str | None = None


@dataclass
class TendonSpec:
    """A tendon; see `Tendons`. `range` is None when unlimited; `response` is J M^-1 J^T in the reference configuration, in 1/kg,
    from which the parameters of its limit are derived."""

    name: str
    path: list[WrapSpec]
    stiffness: float = 0.0
    damping: float = 0.0
    armature: float = 0.0
    frictionloss: float = 0.0
    spring_range: tuple[float, float] = (0.0, 0.0)
    range: tuple[float, float] | None = None
    force_range: tuple[float, float] = UNLIMITED
    reference: float = 0.0
    response: float = 1.0
    dry_friction: bool = False
    inertial: bool = False
    compliance: ComplianceSpec | None = None


@dataclass
class MediumSpec:
    """The fluid around a robot; see `Media`."""

    name: str
    density: float = 0.0
    viscosity: float = 0.0
    wind: ArrayLike = (0.0, 0.0, 0.0)


@dataclass
class FluidShapeSpec:
    """What a fluid acts on; see `FluidShapes`."""

    name: str
    body: str
    ellipsoid: bool = False
    pos: ArrayLike = (0.0, 0.0, 0.0)
    quat: ArrayLike = IDENTITY
    size: ArrayLike = (0.0, 0.0, 0.0)
    blunt_drag: float = 0.0
    slender_drag: float = 0.0
    angular_drag: float = 0.0
    kutta_lift: float = 0.0
    magnus_lift: float = 0.0
    virtual_mass: ArrayLike = (0.0, 0.0, 0.0)
    virtual_inertia: ArrayLike = (0.0, 0.0, 0.0)


@dataclass
class SensorFrameSpec:
    """What a sensor is fixed to; see `SensorFrame`. `pos` and `quat` are those of inertial frames and geoms."""

    kind: str
    name: str
    body: str
    pos: ArrayLike = (0.0, 0.0, 0.0)
    quat: ArrayLike = IDENTITY


@dataclass
class SensorSpec:
    """A sensor; see `Sensor`. `target` names its joint, tendon or actuator."""

    name: str
    kind: str
    target: str | None = None
    frame: SensorFrameSpec | None = None
    reference: SensorFrameSpec | None = None
    cutoff: float = 0.0
    zone: str = ""


@dataclass
class Description:
    """A whole robot. `source` names the file in errors; `overrides` sets parameters by name after all defaults
    (`pair.floor~foot.stiffness`, patterns allowed)."""

    name: str
    source: str
    origin: Origin | None = None
    bodies: list[BodySpec] = field(default_factory=lambda: [BodySpec(WORLD, "")])
    joints: list[JointSpec] = field(default_factory=list)
    geoms: list[GeomSpec] = field(default_factory=list)
    pairs: list[PairSpec] = field(default_factory=list)
    exclusions: list[tuple[str, str]] = field(default_factory=list)
    actuators: list[ActuatorSpec] = field(default_factory=list)
    sites: list[SiteSpec] = field(default_factory=list)
    equalities: list[EqualitySpec] = field(default_factory=list)
    tendons: list[TendonSpec] = field(default_factory=list)
    media: list[MediumSpec] = field(default_factory=list)
    fluid_shapes: list[FluidShapeSpec] = field(default_factory=list)
    sensors: list[SensorSpec] = field(default_factory=list)
    refused_sensors: list[tuple[str, str]] = field(default_factory=list)
    loops: list[LoopSpec] = field(default_factory=list)
    gravity: ArrayLike = (0.0, 0.0, -9.81)
    keyframes: dict[str, np.ndarray] = field(default_factory=dict)
    overrides: dict[str, np.ndarray] = field(default_factory=dict)
    filter_parent: bool = True
    collisions: bool = True
    ignore: frozenset[str] = frozenset()
    mesh_vertices: int = 32
    allow_massless: bool = False

    def refuse(self, kind: str, what: str) -> None:
        """Raises for an element, unless its kind is ignored; `what` says which and why."""
        if kind not in self.ignore:
            raise DescriptionError(f'{self.source}: {what}; pass ignore=["{kind}"] to leave it out.')

    def fail(self, what: str) -> NoReturn:
        """Raises for an element that cannot be left out."""
        raise DescriptionError(f"{self.source}: {what}.")

    def warn(self, what: str) -> None:
        """Warns about something doubtful that is loaded anyway."""
        warnings.warn(f"{self.source}: {what}.", ModelWarning, stacklevel=2)


def ignore_set(ignore: Collection[str] | str) -> frozenset[str]:
    """The checked set of `ignore` kinds."""
    kinds = frozenset([ignore] if isinstance(ignore, str) else ignore)
    unknown = sorted(kinds - IGNORABLE)
    if unknown:
        raise ValueError(f"cannot ignore {unknown[0]!r}; `ignore` may contain {', '.join(sorted(IGNORABLE))}.")
    return kinds


def unique(wanted: str, taken: Iterable[str]) -> str:
    """`wanted`, or `wanted_2`, `wanted_3`, … when it is taken."""
    used, name, n = set(taken), wanted, 2
    while name in used:
        name, n = f"{wanted}_{n}", n + 1
    return name


def static_bodies(description: Description) -> set[str]:
    """Names of the bodies welded to the world, the world included."""
    moving = {j.body for j in description.joints}
    static = {WORLD}
    for b in description.bodies[1:]:
        if b.parent in static and b.name not in moving:
            static.add(b.name)
    return static


def add_floating(description: Description) -> None:
    """Puts a free joint named "root" under the single body that stands on the world; nothing if it is there already."""
    d = description
    tops = [b for b in d.bodies[1:] if b.parent == WORLD]
    if len(tops) != 1:
        names = ", ".join(f"'{b.name}'" for b in tops) or "none"
        d.fail(f"floating=True needs exactly one body on the world, found {names}; give it a free joint in the file instead")
    top = tops[0]
    own = [j for j in d.joints if j.body == top.name]
    if any(j.kind == "free" for j in own):
        return
    if own:
        d.fail(f"floating=True cannot free body '{top.name}', which already moves by joint '{own[0].name}'")
    pose = np.concatenate([np.asarray(top.pos, float), np.asarray(top.quat, float)])
    d.joints.insert(0, JointSpec(unique("root", [j.name for j in d.joints]), "free", top.name, pose, pose))
    d.keyframes = {k: np.concatenate([pose, q]) for k, q in d.keyframes.items()}


def add_ground(description: Description) -> None:
    """Adds the plane z = 0, a geom "ground" on the world that meets every geom with any collision bit."""
    if any(g.name == "ground" for g in description.geoms):
        description.fail("ground=True, but the description already has a geom named 'ground'; leave ground=False")
    if not any(g.contype or g.conaffinity for g in description.geoms):
        description.fail("ground=True, but the robot has no shape that may collide, so it would fall through")
    every = 0xFFFFFFFF
    # lowest priority: friction and condim of the pair are then those of the robot's geom
    plane = GeomSpec("ground", "plane", WORLD, contype=every, conaffinity=every, priority=-(2**31))
    description.geoms.insert(0, plane)
