"""What is fixed about a robot: its tree, the kinds of its joints and shapes, its names. Hashable: JAX may trace on it.

Generalised coordinates and their order are MuJoCo's. A *node* is a moving frame with at most one joint: a body with three
hinges is a chain of three nodes, a welded body one node without a joint, and the world is node 0. All recursions of the
dynamics run over the levels of the node tree, or over the levels of the degrees of freedom.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from flexor.model.origin import Origin

JOINT_NQ = {"hinge": 1, "slide": 1, "ball": 4, "free": 7}
JOINT_NV = {"hinge": 1, "slide": 1, "ball": 3, "free": 6}
# The type of index arrays. NumPy's int64 would be another type in each of JAX's precisions, and jaxlib keeps the converted
# array of an object that lives on (a cached property, a constant of a module) whatever the precision is by then.
INDEX = np.dtype("int32")
CONVEX = ("sphere", "capsule", "box", "cylinder", "ellipsoid", "mesh")
SHAPES = ("plane", "hfield", *CONVEX)


@dataclass(frozen=True)
class Joint:
    """A joint by which `body` moves against its parent; `kind` is hinge, slide, ball or free. `actuated_gravcomp` counts the
    gravity compensation that it feels among its actuators, within their `force_range`."""

    name: str
    kind: str
    body: int
    limited: bool = False
    dry_friction: bool = False
    actuated_gravcomp: bool = False


@dataclass(frozen=True)
class Geom:
    """A collision shape on a body. A mesh or a height field owns rows `start:stop` of the model's vertices; those of a field are
    a `grid` of so many rows (along y) and columns (along x), row by row.

    `outline` counts the corners of the polygon of which the mesh is a prism along its z axis: its vertices are then the
    outline, counter-clockwise, at the lower z, and the same outline at the upper z. It is zero for any other mesh.
    The surface of a shape that `carries` moves (`Geoms.surface_velocity`).
    """

    name: str
    shape: str
    body: int
    start: int = 0
    stop: int = 0
    outline: int = 0
    grid: tuple[int, int] | None = None
    carries: bool = False


@dataclass(frozen=True)
class Pair:
    """Two shapes that may touch, in the order of `SHAPES`. `condim` is MuJoCo's: 1 without friction, 3 with friction against
    sliding, 4 against turning about the normal too, 6 against rolling as well. `margined` says that they touch at a distance
    (`Pairs.margin`), `sticky` that they attract each other (`Pairs.adhesion`)."""

    name: str
    a: int
    b: int
    condim: int = 3
    margined: bool = False
    sticky: bool = False


DYNAMICS = ("none", "integrator", "filter", "filterexact", "muscle")


@dataclass(frozen=True)
class Actuator:
    """An actuator: what it pushes on, and which laws it has.

    It pushes on a `joint` (in the axes of the joint's parent where `in_parent`), on a `tendon`, on a `site`, against the site
    `reference` if there is one, or on the pin `site` of a crank whose rod slides along the z axis of the site `slider`; or it
    pulls a `body` against whatever it touches (adhesion).
    `samples` counts the past inputs that are kept for its delay; an actuator with none cannot have a delay. `dynamics` is the law
    of its activation (see `Activations`); the force of an `early` one is that of the activation after the step. Its force is
    affine, with a gain that may vary with length and velocity (`varying`), or that of a `muscle`. The input of a `circular` one
    is an angle of a rotation in space, of which the turn that is nearest to its length counts.
    """

    name: str
    joint: int | None = None
    samples: int = 0
    in_parent: bool = False
    tendon: int | None = None
    site: int | None = None
    reference: int | None = None
    slider: int | None = None
    dynamics: str = "none"
    early: bool = False
    varying: bool = False
    muscle: bool = False
    circular: bool = False
    body: int | None = None


@dataclass(frozen=True)
class Site:
    """A frame fixed to a body: a tool, a sensor, a foot. It has no part in the motion."""

    name: str
    body: int


@dataclass(frozen=True)
class Equality:
    """Ties the coordinate of a hinge or slide, `first`, to that of another joint, `second`, or to a constant where it is None;
    or, where `kind` is tendon, the length of a tendon to that of another."""

    name: str
    first: int
    second: int | None = None
    kind: str = "joint"


@dataclass(frozen=True)
class Loop:
    """Holds a point of body `first` to a point of body `second`, and, as a `weld`, their orientations as well."""

    name: str
    first: int
    second: int
    weld: bool = False


@dataclass(frozen=True)
class Wrap:
    """A step of a tendon's path. `kind` is joint (of a fixed tendon), or site, sphere, cylinder or pulley (of a spatial one);
    `index` is that of the joint, the site or the geom that it passes around, -1 for a pulley; `side` is the site that says on
    which side it passes a geom."""

    kind: str
    index: int = -1
    side: int | None = None


@dataclass(frozen=True)
class Tendon:
    """A length that depends on the configuration, and forces along it: `fixed`, a sum over joints, or the length of a path.

    `limited`, `dry_friction` and `inertial` say whether it has a range, dry friction and an armature.
    """

    name: str
    path: tuple[Wrap, ...]
    limited: bool = False
    dry_friction: bool = False
    inertial: bool = False

    @property
    def fixed(self) -> bool:
        return self.path[0].kind == "joint"


@dataclass(frozen=True)
class Compliance:
    """A soft constraint: a pair, the limits of a joint or a tendon, an equality or a loop (`kind`), and its number."""

    kind: str
    owner: str
    index: int

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.owner}"


@dataclass(frozen=True)
class FluidShape:
    """What a fluid acts on: an ellipsoid on a body, or the box that stands for it."""

    name: str
    body: int
    ellipsoid: bool = False


@dataclass(frozen=True)
class SensorFrame:
    """What a sensor is fixed to: a "body", a "site" (its `index`), or a frame of its own on a body, the "inertial" one or that of
    a "geom" (`index` is its row in `Model.sensor_frames`)."""

    kind: str
    name: str
    body: int
    index: int = -1


@dataclass(frozen=True)
class Sensor:
    """A sensor of the description, `kind` as MJCF calls it: on a frame, maybe seen from another, or on the joint, tendon or
    actuator `index`. A positive `cutoff` bounds what it measures. `zone` is the shape within which a touch sensor feels contacts:
    that of its site, of the size `Sites.size`."""

    name: str
    kind: str
    index: int = -1
    frame: SensorFrame | None = None
    reference: SensorFrame | None = None
    cutoff: float = 0.0
    zone: str = ""


@dataclass(frozen=True)
class Topology:
    """The static part of a `Model`. `bodies[0]` is the world; joints are grouped by body, bodies in depth-first order.

    `mocap` are the bodies on the world that are moved from outside (`Control.mocap_pos`), `compensated` those whose weight is
    compensated (`Bodies.gravcomp`). `media` names the fluid around the robot, if there is one.
    `refused_sensors` are those of the description that flexor does not have, each with the reason. `origin` is the description
    itself, for those who look at the robot; it is not written to files.
    """

    name: str
    bodies: tuple[str, ...]
    parents: tuple[int, ...]
    joints: tuple[Joint, ...]
    geoms: tuple[Geom, ...] = ()
    pairs: tuple[Pair, ...] = ()
    actuators: tuple[Actuator, ...] = ()
    keyframes: tuple[str, ...] = ()
    sites: tuple[Site, ...] = ()
    equalities: tuple[Equality, ...] = ()
    mocap: tuple[int, ...] = ()
    compensated: tuple[int, ...] = ()
    media: tuple[str, ...] = ()
    fluid_shapes: tuple[FluidShape, ...] = ()
    sensors: tuple[Sensor, ...] = ()
    refused_sensors: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    tendons: tuple[Tendon, ...] = ()
    loops: tuple[Loop, ...] = ()
    compliances: tuple[Compliance, ...] = ()
    origin: Origin | None = field(default=None, compare=False, repr=False, metadata={"saved": False})

    def compliant(self, kind: str, count: int) -> np.ndarray:
        """Of each of `count` elements of a kind, the row of its compliance, -1 where it is hard."""
        rows = np.full(count, -1, INDEX)
        for i, c in enumerate(self.compliances):
            if c.kind == kind:
                rows[c.index] = i
        return rows

    @cached_property
    def contact_rows(self) -> int:
        """Directions in which a contact may push: three, or four or six where a pair has torsional or rolling friction."""
        return max([3, *(p.condim for p in self.pairs)])

    @cached_property
    def adhesive(self) -> np.ndarray:
        """Indices of the actuators that pull bodies against what they touch."""
        return np.array([i for i, a in enumerate(self.actuators) if a.body is not None], dtype=INDEX)

    @cached_property
    def sticky(self) -> bool:
        """Whether anything attracts what it touches."""
        return bool(self.pairs) and (len(self.adhesive) > 0 or any(p.sticky for p in self.pairs))

    @cached_property
    def carried(self) -> bool:
        """Whether any pair has a shape whose surface moves."""
        return any(self.geoms[g].carries for p in self.pairs for g in (p.a, p.b))

    @cached_property
    def nq(self) -> int:
        return sum(JOINT_NQ[j.kind] for j in self.joints)

    @cached_property
    def nv(self) -> int:
        return sum(JOINT_NV[j.kind] for j in self.joints)

    @property
    def nu(self) -> int:
        return len(self.actuators)

    @cached_property
    def q_start(self) -> np.ndarray:
        """First coordinate of each joint."""
        return np.cumsum([0] + [JOINT_NQ[j.kind] for j in self.joints])[:-1].astype(INDEX)

    @cached_property
    def v_start(self) -> np.ndarray:
        """First degree of freedom of each joint."""
        return np.cumsum([0] + [JOINT_NV[j.kind] for j in self.joints])[:-1].astype(INDEX)

    @cached_property
    def dof_joint(self) -> np.ndarray:
        """Joint of each degree of freedom."""
        return np.array([i for i, j in enumerate(self.joints) for _ in range(JOINT_NV[j.kind])], dtype=INDEX)

    def joints_of(self, *kinds: str) -> np.ndarray:
        """Indices of the joints of the given kinds."""
        return np.array([i for i, j in enumerate(self.joints) if j.kind in kinds], dtype=INDEX)

    @cached_property
    def limited(self) -> np.ndarray:
        """Indices of the hinges and slides with limits."""
        return np.array([i for i, j in enumerate(self.joints) if j.limited and j.kind != "ball"], dtype=INDEX)

    @cached_property
    def limited_balls(self) -> np.ndarray:
        """Indices of the ball joints with limits, on the angle of their rotation."""
        return np.array([i for i, j in enumerate(self.joints) if j.limited and j.kind == "ball"], dtype=INDEX)

    @cached_property
    def dry(self) -> np.ndarray:
        """Degrees of freedom with dry friction."""
        return np.flatnonzero([self.joints[j].dry_friction for j in self.dof_joint])

    @cached_property
    def limited_tendons(self) -> np.ndarray:
        """Indices of the tendons with limits."""
        return np.array([i for i, t in enumerate(self.tendons) if t.limited], dtype=INDEX)

    @cached_property
    def dry_tendons(self) -> np.ndarray:
        """Indices of the tendons with dry friction."""
        return np.array([i for i, t in enumerate(self.tendons) if t.dry_friction], dtype=INDEX)

    @cached_property
    def inertial_tendons(self) -> np.ndarray:
        """Indices of the tendons with an armature."""
        return np.array([i for i, t in enumerate(self.tendons) if t.inertial], dtype=INDEX)

    @cached_property
    def activations(self) -> tuple[Actuator, ...]:
        """The actuators that have an activation."""
        return tuple(a for a in self.actuators if a.dynamics != "none")

    @cached_property
    def activated(self) -> np.ndarray:
        """Their indices."""
        return np.array([i for i, a in enumerate(self.actuators) if a.dynamics != "none"], dtype=INDEX)

    @property
    def na(self) -> int:
        return len(self.activated)

    @cached_property
    def muscles(self) -> tuple[Actuator, ...]:
        """The actuators with the force of a muscle."""
        return tuple(a for a in self.actuators if a.muscle)

    @cached_property
    def transmissions(self) -> tuple[Actuator, ...]:
        """The actuators that push along a direction of their own: on ball and free joints and sites, or by a slider-crank."""
        return tuple(a for a in self.actuators if self.is_wide(a))

    def is_wide(self, a: Actuator) -> bool:
        """Whether an actuator has a row in `Model.transmissions`."""
        return a.site is not None or (a.joint is not None and self.joints[a.joint].kind in ("ball", "free"))

    @cached_property
    def sensor_frames(self) -> tuple[str, ...]:
        """Names of the rows of `Model.sensor_frames`: `inertial.<body>` or `geom.<geom>`."""
        frames = (
            f for s in self.sensors for f in (s.frame, s.reference) if f is not None and f.kind in ("inertial", "geom")
        )
        return tuple(dict.fromkeys(f"{f.kind}.{f.name}" for f in frames))

    @cached_property
    def delayed(self) -> np.ndarray:
        """Indices of the actuators that may have a delay."""
        return np.array([i for i, a in enumerate(self.actuators) if a.samples], dtype=int)

    @cached_property
    def samples(self) -> int:
        """How many past inputs a state keeps."""
        return max((a.samples for a in self.actuators), default=0)

    @cached_property
    def nodes(self) -> "Nodes":
        return _nodes(self)

    @cached_property
    def dofs(self) -> "Dofs":
        return _dofs(self)

    def dof_name(self, dof: int) -> str:
        """Name of a degree of freedom: the joint's, with an axis where the joint has several."""
        j = int(self.dof_joint[dof])
        axes = {1: ("",), 3: (".wx", ".wy", ".wz"), 6: (".vx", ".vy", ".vz", ".wx", ".wy", ".wz")}
        return self.joints[j].name + axes[JOINT_NV[self.joints[j].kind]][dof - int(self.v_start[j])]

    def q_name(self, index: int) -> str:
        """Name of a coordinate: the joint's, with an axis where the joint has several."""
        j = int(np.searchsorted(self.q_start, index, side="right")) - 1
        quat = (".qw", ".qx", ".qy", ".qz")
        axes = {1: ("",), 4: quat, 7: (".x", ".y", ".z", *quat)}
        return self.joints[j].name + axes[JOINT_NQ[self.joints[j].kind]][index - int(self.q_start[j])]


@dataclass(frozen=True, eq=False)
class Nodes:
    """The tree of moving frames. `levels` lists the nodes by depth, the world alone in the first."""

    body: np.ndarray
    joint: np.ndarray
    parent: np.ndarray
    root: np.ndarray
    of_body: np.ndarray
    first_of_body: np.ndarray
    levels: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class Dofs:
    """The tree of degrees of freedom: `parent` is -1 at the root; `owner[n]` is the dof that carries node n, or -1."""

    node: np.ndarray
    parent: np.ndarray
    owner: np.ndarray
    first_of_node: np.ndarray
    rotational: np.ndarray
    levels: tuple[np.ndarray, ...]
    moves: np.ndarray  # (nnode, nv): whether the dof moves the node


def _levels(parent: np.ndarray) -> tuple[np.ndarray, ...]:
    depth = np.zeros(len(parent), dtype=INDEX)
    for i, p in enumerate(parent):
        depth[i] = 0 if p < 0 else depth[p] + 1
    return tuple(np.flatnonzero(depth == d).astype(INDEX) for d in range(depth.max() + 1)) if len(parent) else ()


def _nodes(topology: Topology) -> Nodes:
    body, joint, parent, last, first = [0], [-1], [-1], [0], [True]
    for b in range(1, len(topology.bodies)):
        own = [i for i, j in enumerate(topology.joints) if j.body == b] or [-1]
        for k, j in enumerate(own):
            parent.append(last[topology.parents[b]] if k == 0 else len(body) - 1)
            body.append(b)
            joint.append(j)
            first.append(k == 0)
        last.append(len(body) - 1)
    root = list(range(len(body)))
    for n in range(1, len(body)):
        if parent[n] != 0:
            root[n] = root[parent[n]]
    bodies, joints, parents, roots, lasts = (np.array(x, INDEX) for x in (body, joint, parent, root, last))
    return Nodes(bodies, joints, parents, roots, lasts, np.array(first), _levels(parents))


def _dofs(topology: Topology) -> Dofs:
    nodes = topology.nodes
    node_of_joint = {int(j): n for n, j in enumerate(nodes.joint) if j >= 0}
    node = np.array([node_of_joint[int(j)] for j in topology.dof_joint], dtype=INDEX)
    owner = np.full(len(nodes.body), -1, INDEX)
    parent = np.full(len(node), -1, INDEX)
    first = np.zeros(len(node), dtype=bool)
    moves = np.zeros((len(nodes.body), len(node)), dtype=bool)
    for n in range(1, len(nodes.body)):
        above = owner[n] = owner[nodes.parent[n]]
        moves[n] = moves[nodes.parent[n]]
        for k, d in enumerate(np.flatnonzero(node == n)):
            parent[d], above, first[d] = above, d, k == 0
            moves[n, d] = True
        owner[n] = above
    rotational = np.zeros(len(node), dtype=bool)
    for j, start in zip(topology.joints, topology.v_start, strict=True):
        if j.kind == "free":
            rotational[start + 3 : start + 6] = True
        else:
            rotational[start : start + JOINT_NV[j.kind]] = j.kind != "slide"
    return Dofs(node, parent, owner, first, rotational, _levels(parent), moves)
