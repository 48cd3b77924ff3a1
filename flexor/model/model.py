"""`Model`: every number of a robot as a differentiable leaf, its `Topology` beside it; `State` and `Control`."""

import dataclasses
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.model.pytree import Pytree
from flexor.model.topology import Topology


class Bodies(eqx.Module):
    """Frame of each body in its parent, and its inertia: mass, centre of mass, and inertia about it (xx yy zz xy xz yz), in
    the body's axes. Row 0 is the world. `gravcomp` is the share of the body's weight that a force at its centre of mass takes
    away, in the bodies of `Topology.compensated`."""

    pos: Float[Array, "nbody 3"]
    quat: Float[Array, "nbody 4"]
    mass: Float[Array, " nbody"]
    com: Float[Array, "nbody 3"]
    inertia: Float[Array, "nbody 6"]
    gravcomp: Float[Array, " nbody"]


class Joints(eqx.Module):
    """Anchor and axis in the body frame; passive forces. Limits act on `range`, of a ball joint on the angle of its
    rotation; `force_range` bounds the actuators' sum.

    `limit_stiffness` and `limit_damping` serve the penalty model, `limit_cfm` and `limit_baumgarte` the NCP.
    """

    pos: Float[Array, "njoint 3"]
    axis: Float[Array, "njoint 3"]
    stiffness: Float[Array, " njoint"]
    damping: Float[Array, " njoint"]
    armature: Float[Array, " njoint"]
    frictionloss: Float[Array, " njoint"]
    range: Float[Array, "njoint 2"]
    force_range: Float[Array, "njoint 2"]
    limit_stiffness: Float[Array, " njoint"]
    limit_damping: Float[Array, " njoint"]
    limit_cfm: Float[Array, " njoint"]
    limit_baumgarte: Float[Array, " njoint"]


class Geoms(eqx.Module):
    """Pose of each shape in its body and MuJoCo's size numbers; vertices of all meshes, in the frames of their shapes.

    `surface_velocity`, in m/s and rad/s, is how the surface moves where the shape stays, as a conveyor belt or a turntable: the
    velocity at the shape's origin and the angular velocity about it, in the axes of the shape, for those that carry
    (`Topology.carried`)."""

    pos: Float[Array, "ngeom 3"]
    quat: Float[Array, "ngeom 4"]
    size: Float[Array, "ngeom 3"]
    surface_velocity: Float[Array, "ngeom 6"]
    vertices: Float[Array, "nvertex 3"]


class Pairs(eqx.Module):
    """Contact parameters of each pair of shapes.

    Both models: `friction` (Coulomb's coefficient), and `margin` in m, the distance at which the shapes touch. `torsion` and
    `rolling` in m: the largest moments about the normal and across it, over the normal force. Penalty:
    `stiffness` k in N/m^1.5 and `damping` d in s/m of the Hunt-Crossley force k depth^1.5 (1 + d depth'). NCP: `restitution`,
    `cfm` in 1/kg, `baumgarte` as the share of the penetration that is removed in a step; `adhesion` in N, the force of each
    contact that pulls the shapes together where they are nearer than `gap` in m.
    """

    friction: Float[Array, " npair"]
    restitution: Float[Array, " npair"]
    stiffness: Float[Array, " npair"]
    damping: Float[Array, " npair"]
    cfm: Float[Array, " npair"]
    baumgarte: Float[Array, " npair"]
    margin: Float[Array, " npair"]
    torsion: Float[Array, " npair"]
    rolling: Float[Array, " npair"]
    adhesion: Float[Array, " npair"]
    gap: Float[Array, " npair"]


class Actuators(eqx.Module):
    """force = gain u + bias . (1, length, velocity), clipped to `force_range`; u is clipped to `ctrl_range`. Of actuators with an
    activation, u stands for that (see `Activations`). `gain_slope` adds gain_slope . (length, velocity) to the gain.

    Length and velocity are `gear` times the joint's, and the joint feels `gear` times the force (MuJoCo's convention). The same
    holds for the length of a tendon, a site, a slider-crank (`flexor.dynamics.transmission`).
    A motor has gain 1; a position servo gain kp, bias (0, -kp, -kv); a velocity servo gain kv, bias (0, 0, -kv).
    `delay` in seconds: u is the input of that long ago (`flexor.model.delay`); length and velocity are not delayed.
    """

    gear: Float[Array, " nu"]
    gain: Float[Array, " nu"]
    bias: Float[Array, "nu 3"]
    ctrl_range: Float[Array, "nu 2"]
    force_range: Float[Array, "nu 2"]
    delay: Float[Array, " nu"]
    gain_slope: Float[Array, "nu 2"]


class Transmissions(eqx.Module):
    """Of actuators on ball and free joints and sites: the `direction` in which they push, force then moment as MuJoCo's gear has
    it (of a ball joint the first three numbers are the moment); of slider-cranks the length of the connecting rod in m."""

    direction: Float[Array, "n 6"]
    crank_length: Float[Array, " n"]


class Activations(eqx.Module):
    """Activation a of an actuator, which takes the place of the input in its force and stays within `range`:

    integrator   a' = u
    filter       a' = (u - a) / time_constant; `filterexact` is the same, integrated exactly over a step
    muscle       a' = (u - a) / tau(u, a), from `time_constant` and `release_time` in s (Millard et al. 2013), which go over into
                 each other within `smoothing` of u - a
    """

    time_constant: Float[Array, " na"]
    release_time: Float[Array, " na"]
    smoothing: Float[Array, " na"]
    range: Float[Array, "na 2"]


class Muscles(eqx.Module):
    """MuJoCo's muscle: -force (a FL(L) FV(V) + FP(L)). L is the actuator's length, in units in which `length_range` is the
    operating range `range`, and V its rate in units of `max_velocity` lengths L0 per second.

    FL is one at L = 1 and zero outside of `shortest` and `longest`; FV is one at rest and `lengthening_force` at most; FP begins
    at L = 1 and is half of `passive_force` at L = (1 + longest) / 2 (`flexor.dynamics.muscles`). Forces are in units of
    `peak_force`.
    """

    range: Float[Array, "n 2"]
    length_range: Float[Array, "n 2"]
    peak_force: Float[Array, " n"]
    shortest: Float[Array, " n"]
    longest: Float[Array, " n"]
    max_velocity: Float[Array, " n"]
    passive_force: Float[Array, " n"]
    lengthening_force: Float[Array, " n"]


class Sites(eqx.Module):
    """Pose of each site in its body; `size` is that of the zone of a touch sensor there, as MuJoCo sizes shapes."""

    pos: Float[Array, "nsite 3"]
    quat: Float[Array, "nsite 4"]
    size: Float[Array, "nsite 3"]


class Equalities(eqx.Module):
    """Coordinates tied together: q1 - ref1 = c0 + c1 x + c2 x^2 + c3 x^3 + c4 x^4 with x = q2 - ref2, the references those of
    `Model.reference` (MuJoCo's polycoef); or q1 - ref1 = c0 where there is no second joint. The same of the lengths of tendons,
    with `Tendons.reference`.

    `cfm` and `baumgarte` serve the NCP, `stiffness` and `damping` the penalty model, as those of the joint limits do.
    """

    coefficients: Float[Array, "neq 5"]
    stiffness: Float[Array, " neq"]
    damping: Float[Array, " neq"]
    cfm: Float[Array, " neq"]
    baumgarte: Float[Array, " neq"]


class Loops(eqx.Module):
    """Points of two bodies held together: `anchor_a` in the frame of the first, `anchor_b` in that of the second. A weld holds
    the orientations too: that of the second body is that of the first times `quat`; `torquescale` is the length that an angle of
    one radian counts for.

    `cfm` and `baumgarte` serve the NCP, `stiffness` and `damping` the penalty model; `rotation_*` those of the angles.
    """

    anchor_a: Float[Array, "nloop 3"]
    anchor_b: Float[Array, "nloop 3"]
    quat: Float[Array, "nloop 4"]
    torquescale: Float[Array, " nloop"]
    stiffness: Float[Array, " nloop"]
    damping: Float[Array, " nloop"]
    cfm: Float[Array, " nloop"]
    rotation_stiffness: Float[Array, " nloop"]
    rotation_damping: Float[Array, " nloop"]
    rotation_cfm: Float[Array, " nloop"]
    baumgarte: Float[Array, " nloop"]


class Tendons(eqx.Module):
    """Lengths L(q) and the forces along them. A fixed tendon has L = sum of `coefficients` times joint coordinates; of a spatial
    one `coefficients` are the divisors of its pulleys, in the order of its path (rows are filled up with zeros).

    Passive: -`stiffness` times the length beyond `spring_range`, -`damping` L'. `armature` is the inertia against L',
    `frictionloss` the dry friction. Limits act on `range`, with parameters as those of the joints; `force_range` bounds
    the sum of the actuators on the tendon. Equalities count the length from `reference`.
    """

    coefficients: Float[Array, "ntendon most"]
    stiffness: Float[Array, " ntendon"]
    damping: Float[Array, " ntendon"]
    armature: Float[Array, " ntendon"]
    frictionloss: Float[Array, " ntendon"]
    spring_range: Float[Array, "ntendon 2"]
    range: Float[Array, "ntendon 2"]
    force_range: Float[Array, "ntendon 2"]
    reference: Float[Array, " ntendon"]
    limit_stiffness: Float[Array, " ntendon"]
    limit_damping: Float[Array, " ntendon"]
    limit_cfm: Float[Array, " ntendon"]
    limit_baumgarte: Float[Array, " ntendon"]


class Compliances(eqx.Module):
    """Soft constraints, by MuJoCo's law (`flexor.contact.soft`): violated by r with the rate r', a row is pulled back by the
    force f where

        a + `damping` r' + `stiffness` d r + (1 - d) / d `response` f = 0,

    a the acceleration that comes of it, in 1/s^2 and 1/s. d is the impedance, which grows with |r|: `impedance` holds its values
    at zero and from a width on, that width, and midpoint and power of the curve between them (MuJoCo's `solimp`). `response`, in
    1/kg, turns forces into accelerations; rows that hold an orientation have `rotation_response`.
    """

    stiffness: Float[Array, " n"]
    damping: Float[Array, " n"]
    impedance: Float[Array, "n 5"]
    response: Float[Array, " n"]
    rotation_response: Float[Array, " n"]


class Media(eqx.Module):
    """The fluid around the robot, one row where there is one: density in kg/m^3, viscosity in Pa s, and its own velocity."""

    density: Float[Array, " n"]
    viscosity: Float[Array, " n"]
    wind: Float[Array, "n 3"]


class FluidShapes(eqx.Module):
    """What the fluid acts on: pose in the body, edges of a box or semi-axes of an ellipsoid, and the coefficients of an ellipsoid
    (`flexor.dynamics.fluid`). `virtual_mass` and `virtual_inertia` are those of the fluid that moves with it, for a density of
    one. Boxes are made of the body's inertia when a description is read, and are parameters of their own from then on."""

    pos: Float[Array, "n 3"]
    quat: Float[Array, "n 4"]
    size: Float[Array, "n 3"]
    blunt_drag: Float[Array, " n"]
    slender_drag: Float[Array, " n"]
    angular_drag: Float[Array, " n"]
    kutta_lift: Float[Array, " n"]
    magnus_lift: Float[Array, " n"]
    virtual_mass: Float[Array, "n 3"]
    virtual_inertia: Float[Array, "n 3"]


class SensorFrames(eqx.Module):
    """Pose in their bodies of what sensors are fixed to beside bodies and sites: inertial frames and shapes."""

    pos: Float[Array, "n 3"]
    quat: Float[Array, "n 4"]


class Model(Pytree):
    """A robot and what it may touch. Leaves are parameters; `topology` is static.

    `reference` are the coordinates in which the description draws the robot (MuJoCo's `qpos0`), `rest` those in which its
    springs are slack, `keyframes` the named configurations.
    """

    bodies: Bodies
    joints: Joints
    geoms: Geoms
    pairs: Pairs
    actuators: Actuators
    transmissions: Transmissions
    activations: Activations
    muscles: Muscles
    sites: Sites
    equalities: Equalities
    tendons: Tendons
    media: Media
    fluid_shapes: FluidShapes
    sensor_frames: SensorFrames
    loops: Loops
    compliances: Compliances
    gravity: Float[Array, "3"]
    reference: Float[Array, " nq"]
    rest: Float[Array, " nq"]
    keyframes: Float[Array, "nkey nq"]
    topology: Topology = eqx.field(static=True)

    @property
    def nq(self) -> int:
        return self.topology.nq

    @property
    def nv(self) -> int:
        return self.topology.nv

    @property
    def nu(self) -> int:
        return self.topology.nu

    @property
    def dtype(self) -> Any:
        return self.gravity.dtype

    def astype(self, dtype: Any) -> "Model":
        """The same model in another precision; float64 needs `jax.config.update("jax_enable_x64", True)`."""
        return jax.tree.map(lambda x: jnp.asarray(x, dtype), self)

    def body(self, name: str) -> int:
        """Index of a body by name."""
        return _index(self.topology.bodies, name, "body", self.topology.name)

    def joint(self, name: str) -> int:
        """Index of a joint by name."""
        return _index([j.name for j in self.topology.joints], name, "joint", self.topology.name)

    def geom(self, name: str) -> int:
        """Index of a collision shape by name."""
        return _index([g.name for g in self.topology.geoms], name, "geom", self.topology.name)

    def actuator(self, name: str) -> int:
        """Index of an actuator by name."""
        return _index([a.name for a in self.topology.actuators], name, "actuator", self.topology.name)

    def tendon(self, name: str) -> int:
        """Index of a tendon by name."""
        return _index([t.name for t in self.topology.tendons], name, "tendon", self.topology.name)

    def keyframe(self, name: str) -> Float[Array, " nq"]:
        """Coordinates of a named keyframe."""
        return self.keyframes[_index(self.topology.keyframes, name, "keyframe", self.topology.name)]


def _index(names: Any, name: str, what: str, robot: str) -> int:
    names = list(names)
    if name not in names:
        listed = ", ".join(repr(n) for n in names[:20]) + (", …" if len(names) > 20 else "")
        raise KeyError(f"'{robot}' has no {what} named '{name}'; it has {listed or 'none'}.")
    return names.index(name)


class State(Pytree):
    """Coordinates, velocities, time, what the solver must remember (`memory`: a warm start, a window), the past inputs of
    delayed actuators (`history`: row i holds those of i + 1 steps ago; None where no actuator can have a delay), and the
    activations `act` (None where no actuator has any). The last three come from the solver's `init`."""

    q: Float[Array, " nq"]
    qd: Float[Array, " nv"]
    time: Float[Array, ""]
    memory: Any = None
    history: Float[Array, "samples delayed"] | None = None
    act: Float[Array, " na"] | None = None


class Control(Pytree):
    """Actuator inputs `u`, further generalised forces `tau`, and external wrenches on the bodies: moment about the body
    origin and force, in world axes. A bare array stands for `u`; what is left out is zero.

    `mocap_pos` and `mocap_quat` are the poses in the world of the bodies that are moved from outside, in the order of
    `Topology.mocap`; left out, those of the description.
    """

    u: Float[Array, "*time nu"] | None = None
    tau: Float[Array, "*time nv"] | None = None
    wrench: Float[Array, "*time nbody 6"] | None = None
    mocap_pos: Float[Array, "*time nmocap 3"] | None = None
    mocap_quat: Float[Array, "*time nmocap 4"] | None = None


def as_control(model: Model, control: Any) -> Control:
    """`control` as a full `Control` with checked shapes; None stands for zeros, and for the description's mocap poses."""
    t, dtype = model.topology, model.dtype
    whole = isinstance(control, Control)
    given = (control.u, control.tau, control.wrench) if whole else (control, None, None)
    full = []
    for name, value, shape in zip(("u", "tau", "wrench"), given, ((t.nu,), (t.nv,), (len(t.bodies), 6)), strict=True):
        value = _zeros(shape, dtype) if value is None else _checked(t, name, value, shape, dtype)
        full.append(value)
    made = jax.tree.unflatten(_FULL_CONTROL, full)
    if not whole or (control.mocap_pos is None and control.mocap_quat is None):
        return made
    shapes = {"mocap_pos": (len(t.mocap), 3), "mocap_quat": (len(t.mocap), 4)}
    poses = {n: _checked(t, n, getattr(control, n), s, dtype) for n, s in shapes.items() if getattr(control, n) is not None}
    return dataclasses.replace(made, **poses)


def _checked(t: Topology, name: str, value: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    if not isinstance(value, jax.Array) or value.dtype != dtype:
        value = jnp.asarray(value, dtype)
    if value.shape != shape:
        raise ValueError(f"control `{name}` of '{t.name}' must have shape {shape}, got {value.shape}.")
    return value


_FULL_CONTROL = jax.tree.structure(Control(*(np.zeros(s) for s in ((0,), (0,), (0, 6)))))  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """Zeros, made once: a step at a kilohertz should not make them again."""
    with jax.ensure_compile_time_eval():
        return jnp.zeros(shape, dtype)


def check_coordinates(model: Model, q: Array, qd: Array) -> None:
    """Raises when the shapes of q and qd do not fit the model, or when concrete values are not finite."""
    t = model.topology
    for symbol, value, n in (("q", q, t.nq), ("qd", qd, t.nv)):
        if value.shape != (n,):
            hint = "; a ball joint uses 4 coordinates and 3 velocities, a free joint 7 and 6" if t.nq != t.nv else ""
            raise ValueError(f"`{symbol}` of '{t.name}' must have shape ({n},), got {value.shape}{hint}.")
        if not isinstance(value, jax.core.Tracer):
            numbers = np.asarray(value)
            if not np.isfinite(numbers).all():
                bad = np.flatnonzero(~np.isfinite(numbers))
                name = t.q_name(int(bad[0])) if symbol == "q" else t.dof_name(int(bad[0]))
                raise ValueError(f"`{symbol}` of '{t.name}' is {numbers[bad[0]]} at index {bad[0]} ({name}).")
