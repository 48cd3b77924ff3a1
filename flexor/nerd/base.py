"""The base step: the part of a step that is computed, so that the network learns only the rest.

    NoBase          velocities stay as they are: the network learns all of the dynamics, as in the original
    FreeFlight      the motion of the robot if nothing touched it, with the substeps of the true physics: the network learns
                    contact, stops and friction
    CoarseContact   the same, and then contacts and stops are resolved once for the whole step: the network learns what many
                    substeps, or reality, change about that
    FineContact     the true physics with all its substeps, on the model's own ground: the network learns what reality changes

`moved_contacts` says where a step leaves the contact candidates that were seen before it.
"""

import abc
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.contact import NCP, FreeStep, Instant, Loads, detect, no_impulses
from flexor.contact.contacts import relative_velocity
from flexor.contact.detect import candidates
from flexor.dynamics import Kinematics, aba, body_poses, crba, forward_kinematics, integrate, passive_force
from flexor.model.model import Control, Model, State, as_control
from flexor.model.topology import Topology
from flexor.nerd.scene import Scene
from flexor.spatial import rotate

ROUND = ("sphere", "capsule")  # shapes that are a radius around a core
Coordinates = tuple[Float[Array, " nq"], Float[Array, " nv"]]


class Flown(NamedTuple):
    """The state after a step without contact, and the distances of the contact candidates then."""

    q: Float[Array, " nq"]
    qd: Float[Array, " nv"]
    distance: Float[Array, " ncon"]


class AbstractBase(abc.ABC):
    """A base step in two stages: `fly`, without contact, and `resolve`, with it. `control` holds joint torques `tau` and wrenches
    on the bodies, constant over the step."""

    name: ClassVar[str]
    """Its name in recipes and files."""
    integrates_forces: ClassVar[bool]
    """Whether torques, gravity and wrenches act in it."""
    velocity_inputs: ClassVar[tuple[str, ...]]
    """What the network reads of it for every degree of freedom: the change of velocity in flight, `free`, and by contact,
    `push`."""
    contact_inputs: ClassVar[tuple[str, ...]]
    """What the network reads of it for every contact candidate: the components of the relative velocity after `resolve`."""

    @abc.abstractmethod
    def fly(self, model: Model, scene: Scene, control: Control, dt: float) -> Coordinates:
        """Coordinates and velocities after the step if nothing touched the robot."""

    @abc.abstractmethod
    def resolve(self, model: Model, scene: Scene, control: Control, flown: Flown, dt: float) -> Coordinates:
        """Coordinates and velocities after the step with contact."""


@final
@dataclass(frozen=True)
class NoBase(AbstractBase):
    """Velocities stay as they are."""

    name: ClassVar[str] = "none"
    integrates_forces: ClassVar[bool] = False
    velocity_inputs: ClassVar[tuple[str, ...]] = ()
    contact_inputs: ClassVar[tuple[str, ...]] = ()

    def fly(self, model: Model, scene: Scene, control: Control, dt: float) -> Coordinates:
        return integrate(model, scene.q, dt * scene.qd), scene.qd

    def resolve(self, model: Model, scene: Scene, control: Control, flown: Flown, dt: float) -> Coordinates:
        return flown.q, flown.qd


@dataclass(frozen=True)
class AbstractFlight(AbstractBase):
    """Flight in `substeps` of semi-implicit Euler; as many as the true physics takes make it exact, where joint torques are
    constant over a step (motors, not servos)."""

    substeps: int = 1
    integrates_forces: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.substeps < 1:
            raise ValueError(f"the number of substeps must be positive, got {self.substeps}.")

    def fly(self, model: Model, scene: Scene, control: Control, dt: float) -> Coordinates:
        return free_step(model, scene.q, scene.qd, control, dt, self.substeps)


@final
@dataclass(frozen=True)
class FreeFlight(AbstractFlight):
    """The motion without contact."""

    name: ClassVar[str] = "free"
    velocity_inputs: ClassVar[tuple[str, ...]] = ("free",)
    contact_inputs: ClassVar[tuple[str, ...]] = ()

    def resolve(self, model: Model, scene: Scene, control: Control, flown: Flown, dt: float) -> Coordinates:
        return flown.q, flown.qd


@final
@dataclass(frozen=True)
class CoarseContact(AbstractFlight):
    """Flight, and then contacts, stops and dry friction resolved once for the whole step."""

    name: ClassVar[str] = "coarse"
    velocity_inputs: ClassVar[tuple[str, ...]] = ("free", "push")
    contact_inputs: ClassVar[tuple[str, ...]] = ("ax", "ay", "az")

    def resolve(self, model: Model, scene: Scene, control: Control, flown: Flown, dt: float) -> Coordinates:
        return coarse_step(model, scene, flown, dt)


@final
@dataclass(frozen=True)
class FineContact(AbstractFlight):
    """`substeps` of `RigidSolver`, contact with the model's own ground included."""

    name: ClassVar[str] = "fine"
    velocity_inputs: ClassVar[tuple[str, ...]] = ("free", "push")
    contact_inputs: ClassVar[tuple[str, ...]] = ("ax", "ay", "az")

    def resolve(self, model: Model, scene: Scene, control: Control, flown: Flown, dt: float) -> Coordinates:
        return fine_step(model, scene.q, scene.qd, control, dt, self.substeps)


BASES: dict[str, type[AbstractBase]] = {kind.name: kind for kind in (NoBase, FreeFlight, CoarseContact, FineContact)}


def base_named(name: str, substeps: int) -> AbstractBase:
    """The base step that recipes and files call `name`; `substeps` are those of the true physics."""
    if name not in BASES:
        raise ValueError(f"there is no base step '{name}'; use one of {', '.join(BASES)}.")
    kind = BASES[name]
    return kind(**{field.name: substeps for field in fields(kind)})  # type: ignore[arg-type]


def free_step(
    model: Model,
    q: Float[Array, " nq"],
    qd: Float[Array, " nv"],
    control: Control,
    dt: float,
    substeps: int,
) -> Coordinates:
    """The state after `substeps` of semi-implicit Euler under constant joint torques and wrenches on the bodies, as
    `RigidSolver` steps without contact."""
    torque, wrench, h = control.tau, control.wrench, dt / substeps
    assert torque is not None

    def once(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        q, qd = state
        qd = qd + h * aba(model, forward_kinematics(model, q), qd, torque + passive_force(model, q, qd), wrench)
        return (integrate(model, q, h * qd), qd), None

    return jax.lax.scan(once, (q, qd), length=substeps)[0]


def coarse_step(model: Model, scene: Scene, flown: Flown, dt: float) -> Coordinates:
    """The state after a free step with contacts, stops and dry friction resolved once for the whole of it (`NCP`).

    A contact is active if it would overlap after the free step, at a distance d', so the distance before the step is taken as
    d' - dt n v. Inertia, directions and velocities v are those of the instant at which the strongest contact acts.
    """
    q, qd, free, contact, h = scene.q, scene.qd, flown.qd, NCP(), jnp.asarray(dt, flown.qd.dtype)
    share = acting_share(scene.distance, flown.distance, h, jnp.linalg.norm(model.gravity))
    kin = forward_kinematics(model, integrate(model, q, share * h * (qd + share / 2 * (free - qd))))
    contacts = detect(model, kin)
    _, point = moved_points(model, q, kin, scene)
    velocity = relative_velocity(model, kin, free, contacts.bodies, (point, point))
    before = flown.distance - h * jnp.sum(scene.normal * velocity, axis=1)
    geometry = (point, point, scene.normal, before)  # of the scene's ground, not of the model's own
    contacts = eqx.tree_at(lambda c: (c.point_a, c.point_b, c.normal, c.distance), contacts, geometry)
    step = FreeStep(Instant(model, kin, q, qd), free, crba(model, kin), h)
    u, displacement, _ = contact.resolve(step, Loads(contacts=contacts), no_impulses(model, len(contacts)))
    return integrate(model, flown.q, displacement - h * free), u


def fine_step(
    model: Model,
    q: Float[Array, " nq"],
    qd: Float[Array, " nv"],
    control: Control,
    dt: float,
    substeps: int,
) -> Coordinates:
    """The state after `substeps` of `RigidSolver` under constant joint torques and wrenches, contact with the model's own ground
    included. The first substep has no warm start, for the state does not keep impulses."""
    from flexor.solvers import RigidSolver, Substeps

    solver = Substeps(RigidSolver(), substeps)
    start = solver.init(model, State(q, qd, jnp.zeros((), q.dtype), None))
    after = solver.step(model, start, as_control(model, control), jnp.asarray(dt, q.dtype))
    return after.q, after.qd


def acting_share(now: Float[Array, " ncon"], later: Float[Array, " ncon"], dt: Array, gravity: Array) -> Float[Array, ""]:
    """The share of the step after which contact acts: an impact at speed c acts when the gap closes, a lasting contact halfway
    through the rest of the step; the mean of both, weighted by their impulses c and g dt. Of several contacts the fastest count
    most, by c^4."""
    closing = jnp.maximum(now - later, 0.0) / dt
    impact = jnp.clip(now / jnp.maximum(now - later, 1e-9), 0.0, 1.0)
    fall = gravity * dt + 1e-9
    share = (closing * impact + fall * (1 + impact) / 2) / (closing + fall)
    weight = jnp.where(later < 0, (closing + fall) ** 4, 0.0)
    total = jnp.sum(weight)
    return jnp.where(total > 0, jnp.sum(weight * share) / jnp.where(total > 0, total, 1.0), 0.5)


def stop_rooms(model: Model, q: Float[Array, " nq"]) -> Float[Array, "n_limited 2"]:
    """How far limited joints are from their lower and upper stops."""
    t = model.topology
    limits, at = model.joints.range[t.limited], q[t.q_start[t.limited]]
    return jnp.stack([at - limits[:, 0], limits[:, 1] - at], axis=-1)


def moved_points(
    model: Model, q: Float[Array, " nq"], kin: Kinematics, seen: Scene
) -> tuple[Float[Array, "ncon 3"], Float[Array, "ncon 3"]]:
    """The points of the contact candidates of the scene `seen` at q, after the bodies have moved to the poses of `kin`: exact
    for corners and balls over planes, and nearly so elsewhere, for steps are short.

    The core c of a shape (a ball's centre, a corner itself) moves with its body, c' = p' + R' R^T (c - p), and its surface
    lies a radius r from it along the normal still.
    """
    t = model.topology
    (p, R), (new_p, new_R) = body_poses(model, forward_kinematics(model, q)), body_poses(model, kin)
    points = []
    for sign, point, geom, body in zip((-1.0, 1.0), (seen.point_a, seen.point_b), *_owners(t), strict=True):
        is_round = np.array([t.geoms[g].shape in ROUND for g in geom], bool)
        arm = sign * jnp.where(is_round, model.geoms.size[geom, 0], 0.0)[:, None] * seen.normal
        inside = rotate(jnp.swapaxes(R[body], -1, -2), point + arm - p[body])
        points.append(new_p[body] + rotate(new_R[body], inside) - arm)
    return points[0], points[1]


def moved_contacts(
    model: Model, q: Float[Array, " nq"], new_q: Float[Array, " nq"], new_qd: Float[Array, " nv"], seen: Scene
) -> tuple[Float[Array, "ncon 3"], Float[Array, " ncon"]]:
    """Relative velocities and distances of the candidates of the scene `seen` in a later state; see `moved_points`."""
    kin = forward_kinematics(model, new_q)
    points = moved_points(model, q, kin, seen)
    away = (points[1] - seen.point_b) - (points[0] - seen.point_a)
    velocity = relative_velocity(model, kin, new_qd, np.stack(_owners(model.topology)[1], axis=1), points)
    return velocity, seen.distance + jnp.sum(seen.normal * away, axis=1)


def candidate_bodies(t: Topology) -> tuple[np.ndarray, np.ndarray]:
    """Bodies of the two sides of every contact candidate."""
    return _owners(t)[1]


def _owners(t: Topology) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Shapes of the candidates' two sides, and their bodies."""
    pairs = [t.pairs[i] for i in candidates(t)]
    a, b = (np.array([getattr(pair, side) for pair in pairs], int) for side in "ab")
    body = np.array([g.body for g in t.geoms], int)
    return (a, b), (body[a], body[b])
