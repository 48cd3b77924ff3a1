"""The robot-centric view of a step: what the network reads, and what it predicts, encode and decode side by side.

The root frame is that of the body on the first free joint, or, for a robot on a fixed base, the frame in which its first body is
mounted. Everything is expressed in the root frame of its own instant (Xu et al. 2025, section 3.2):

    reads       velocities, joint coordinates (a hinge without limits by sine and cosine, rotations by their matrix), joint
                torques, the direction of gravity, what the free step adds to the velocities, for every stop of a joint how
                far it would be after the free step, and for every contact candidate normal, point, distance, and, after the
                free step, relative velocity, direction of slip v / sqrt(v^2 + SLIP^2), and distance; zero where both
                distances are out of reach
    predicts    what the velocities are beyond the free step's u, R^T (v' - u) for the root; and of the displacement over the
                step, R^T dp for the root's position, the rotation vector of quat^-1 quat' for rotations, q' - q for the rest
                (wrapped for hinges without limits), what it is beyond dt (v + v') / 2: a number of second order in dt, so
                that an error of the network moves the robot little

The free step is the robot's motion if nothing touched it (`free_velocity`), so that the network has to learn of contact, stops
and friction alone; or, with `smooth` off, it leaves the velocities as they are and the network learns all of the dynamics.
Position and heading of the root never enter: predictions do not change when the whole scene is moved and turned about gravity.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.contact import detect
from flexor.contact.detect import candidates
from flexor.dynamics import Kinematics, actuator_force, body_poses, body_velocities, forward_kinematics, integrate
from flexor.model.model import Control, Model
from flexor.model.topology import JOINT_NV, Topology
from flexor.nerd.free import free_velocity
from flexor.spatial import cross, quat_log, quat_mul, quat_to_matrix, rotate

SLIP = 0.05  # m/s, below which a slip's direction fades


class Scene(NamedTuple):
    """One instant: state, joint torques, direction of gravity, root frame, contact candidates; world axes. `room` is how
    far limited joints are from their two stops, `free` the velocity after the free step, and `velocity` then that of the
    candidates' second bodies against their first."""

    q: Float[Array, " nq"]
    qd: Float[Array, " nv"]
    torque: Float[Array, " n"]
    gravity: Float[Array, "3"]
    origin: Float[Array, "3"]
    rotation: Float[Array, "3 3"]
    normal: Float[Array, "ncon 3"]
    point_a: Float[Array, "ncon 3"]
    point_b: Float[Array, "ncon 3"]
    distance: Float[Array, " ncon"]
    velocity: Float[Array, "ncon 3"]
    room: Float[Array, "n_limited 2"]
    free: Float[Array, " nv"]


@dataclass(frozen=True)
class Frames:
    """The layout of inputs and targets for one robot and steps of `dt`; candidates and stops beyond `reach` are not seen.

    `smooth` chooses the free step, `slip` adds the directions of slip: friction is a matter of direction, and velocities in
    proportion to those of impacts tell little of it. Switched off for ablations: `centric` (root frames; else the world's),
    `contacts` (contact inputs), `relative` (changes are predicted; else the next state itself, for robots of hinges and slides).
    """

    topology: Topology
    dt: float
    reach: float = 0.12
    smooth: bool = True
    slip: bool = True
    centric: bool = True
    contacts: bool = True
    relative: bool = True

    def __post_init__(self) -> None:
        turning = self.topology.joints_of("free", "ball")
        if not self.relative and len(turning):
            name = self.topology.joints[turning[0]].name
            raise ValueError(f"rotations are predicted as changes only, and '{name}' turns in space.")

    @cached_property
    def root(self) -> int | None:
        """The first free joint, or None for a fixed base."""
        free = self.topology.joints_of("free")
        return int(free[0]) if len(free) else None

    @cached_property
    def pushed(self) -> np.ndarray:
        """Degrees of freedom on which joint torques act: all but those of free joints."""
        t = self.topology
        return np.flatnonzero([t.joints[j].kind != "free" for j in t.dof_joint])

    @cached_property
    def stopped(self) -> np.ndarray:
        """Degrees of freedom of limited joints."""
        return self.topology.v_start[self.topology.limited]

    @cached_property
    def linear(self) -> np.ndarray:
        """First degree of freedom of every free joint: three linear ones, in world axes."""
        return self.topology.v_start[self.topology.joints_of("free")]

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        t = self.topology
        names: list[str] = []
        for i, j in enumerate(t.joints):
            turned = [f"{j.name}.R{a}{b}" for a in "xyz" for b in "xyz"]
            if j.kind == "free" and i == self.root:
                names += [] if self.centric else [f"{j.name}.{a}" for a in "xyz"] + turned
            elif j.kind == "free":
                names += [f"{j.name}.{a}" for a in "xyz"] + turned
            elif j.kind == "ball":
                names += turned
            elif j.kind == "hinge" and not j.limited:
                names += [f"sin {j.name}", f"cos {j.name}"]
            else:
                names.append(j.name)
        names += [f"velocity {t.dof_name(i)}" for i in range(t.nv)]
        names += [f"torque {t.dof_name(i)}" for i in self.pushed] + [f"gravity {a}" for a in "xyz"]
        names += [f"free {t.dof_name(i)}" for i in range(t.nv) if self.smooth]
        names += [f"stop {t.joints[i].name} {side}" for i in t.limited for side in ("low", "high")]
        if self.contacts:
            for c, pair in enumerate(candidates(t)):
                parts = ["nx", "ny", "nz", "px", "py", "pz", "vx", "vy", "vz", "distance", "ahead"]
                parts += ["sx", "sy", "sz"] if self.slip else []
                names += [f"contact {t.pairs[pair].name}.{c} {part}" for part in parts]
        return tuple(names)

    @property
    def outputs(self) -> int:
        return 2 * self.topology.nv

    def frame(self, model: Model, q: Float[Array, " nq"]) -> tuple[Float[Array, "3"], Float[Array, "3 3"]]:
        """Origin and rotation matrix of the root frame."""
        if not self.centric:
            return jnp.zeros(3, q.dtype), jnp.eye(3, dtype=q.dtype)
        if self.root is None:
            return model.bodies.pos[1], quat_to_matrix(model.bodies.quat[1])
        at = int(self.topology.q_start[self.root])
        return q[at : at + 3], quat_to_matrix(q[at + 3 : at + 7])

    def encode(
        self, model: Model, q: Float[Array, " nq"], qd: Float[Array, " nv"], control: Control
    ) -> Float[Array, " n_in"]:
        """The network's input for a state and a full control; see `labels`."""
        return self.features(self.observe(model, q, qd, control))

    def observe(self, model: Model, q: Float[Array, " nq"], qd: Float[Array, " nv"], control: Control) -> Scene:
        """Everything the input is made of, in world axes, as data sets keep it."""
        assert control.u is not None
        assert control.tau is not None
        return self.look(model, q, qd, (actuator_force(model, q, qd, control.u) + control.tau)[self.pushed])

    def look(self, model: Model, q: Float[Array, " nq"], qd: Float[Array, " nv"], torque: Float[Array, " n"]) -> Scene:
        """`observe` with the joint torques themselves."""
        g = model.gravity
        strength = jnp.linalg.norm(g)
        origin, rotation = self.frame(model, q)
        kin = forward_kinematics(model, q)
        found = detect(model, kin)
        down = g / jnp.where(strength > 0, strength, 1.0)
        free = self.free(model, q, qd, torque)
        velocity = self.contact_velocity(model, kin, free, found.point)
        contacts = (found.normal, found.point_a, found.point_b, found.distance, velocity)
        return Scene(q, qd, torque, down, origin, rotation, *contacts, self.room(model, q), free)

    def free(
        self, model: Model, q: Float[Array, " nq"], qd: Float[Array, " nv"], torque: Float[Array, " n"]
    ) -> Float[Array, " nv"]:
        """Velocities after the free step."""
        if not self.smooth:
            return qd
        return free_velocity(model, q, qd, jnp.zeros_like(qd).at[self.pushed].set(jnp.asarray(torque, qd.dtype)), self.dt)

    def foresee(self, model: Model, scene: Scene) -> Scene:
        """The scene of a data set, which knows the present velocities only, with the free step's."""
        if not self.smooth:
            return scene
        free = self.free(model, scene.q, scene.qd, scene.torque)
        kin, point = forward_kinematics(model, scene.q), (scene.point_a + scene.point_b) / 2
        return scene._replace(free=free, velocity=self.contact_velocity(model, kin, free, point))

    def contact_velocity(
        self, model: Model, kin: Kinematics, qd: Float[Array, " nv"], point: Float[Array, "ncon 3"]
    ) -> Float[Array, "ncon 3"]:
        """Velocity of the candidates' second bodies against their first, at given points."""
        t = self.topology
        pairs = [t.pairs[i] for i in candidates(t)]
        if not pairs:
            return jnp.zeros((0, 3), qd.dtype)
        twist, place = body_velocities(model, kin, qd), body_poses(model, kin)[0]
        a, b = (np.array([t.geoms[g].body for g in side]) for side in zip(*((p.a, p.b) for p in pairs), strict=True))
        speeds = [twist[i, 3:] + cross(twist[i, :3], point - place[i]) for i in (a, b)]
        return speeds[1] - speeds[0]

    def room(self, model: Model, q: Float[Array, "*batch nq"]) -> Float[Array, "*batch n_limited 2"]:
        """How far limited joints are from their lower and upper stops."""
        t = self.topology
        limits, at = model.joints.range[t.limited], q[..., t.q_start[t.limited]]
        return jnp.stack([at - limits[:, 0], limits[:, 1] - at], axis=-1)

    def features(self, scene: Scene) -> Float[Array, " n_in"]:
        """The network's input for what was observed."""
        into, p = scene.rotation.T, scene.origin
        parts = [*self._coordinates(scene.q, p, into), self._turned(scene.qd, into), scene.torque, into @ scene.gravity]
        parts += [self._turned(scene.free - scene.qd, into)] if self.smooth else []
        moved = self.dt * scene.free[self.stopped]
        parts.append(jnp.clip(scene.room + jnp.stack([moved, -moved], axis=-1), -self.reach, self.reach).ravel())
        if self.contacts and len(scene.distance):
            normal, point = rotate(into, scene.normal), rotate(into, (scene.point_a + scene.point_b) / 2 - p)
            rate = jnp.sum(scene.normal * scene.velocity, axis=1, keepdims=True)
            ahead = scene.distance + self.dt * rate[:, 0]
            numbers = [
                rotate(into, scene.velocity),
                scene.distance[:, None],
                jnp.clip(ahead, -self.reach, self.reach)[:, None],
            ]
            if self.slip:
                along = scene.velocity - rate * scene.normal
                slip = along / jnp.sqrt(jnp.sum(along**2, axis=1, keepdims=True) + SLIP**2)
                numbers.append(rotate(into, slip))
            near = jnp.minimum(scene.distance, ahead) < self.reach
            parts.append(jnp.where(near[:, None], jnp.concatenate([normal, point, *numbers], axis=1), 0.0).ravel())
        return jnp.concatenate(parts)

    def _coordinates(self, q: Array, p: Array, into: Array) -> list[Array]:
        parts = []
        for i, (j, at) in enumerate(zip(self.topology.joints, self.topology.q_start, strict=True)):
            if j.kind == "free" and not (i == self.root and self.centric):
                turned = into @ quat_to_matrix(q[at + 3 : at + 7])
                parts += [into @ (q[at : at + 3] - p), turned.ravel()]
            elif j.kind == "ball":
                parts.append(quat_to_matrix(q[at : at + 4]).ravel())
            elif j.kind == "hinge" and not j.limited:
                parts.append(jnp.stack([jnp.sin(q[at]), jnp.cos(q[at])]))
            elif j.kind != "free":
                parts.append(q[at : at + 1])
        return parts

    def _turned(self, v: Array, rotation: Array) -> Array:
        """Velocity coordinates with the linear part of free joints in other axes."""
        for at in self.linear:
            v = v.at[at : at + 3].set(rotation @ v[at : at + 3])
        return v

    def difference(self, q: Float[Array, " nq"], new: Float[Array, " nq"]) -> Float[Array, " nv"]:
        """The displacement from q to new in velocity coordinates: the inverse of `dynamics.integrate`."""
        parts = []
        for j, at in zip(self.topology.joints, self.topology.q_start, strict=True):
            if j.kind in ("free", "ball"):
                turn = at + 3 if j.kind == "free" else at
                inverse = q[turn : turn + 4] * np.array([1, -1, -1, -1])
                parts += [new[at:turn] - q[at:turn], quat_log(quat_mul(inverse, new[turn : turn + 4]))]
            else:
                change = new[at : at + 1] - q[at : at + 1]
                whole = 2 * np.pi * jnp.round(change / (2 * np.pi))
                parts.append(change - whole if j.kind == "hinge" and not j.limited else change)
        return jnp.concatenate(parts)

    def target(self, scene: Scene, new_q: Float[Array, " nq"], new_qd: Float[Array, " nv"]) -> Float[Array, " n_out"]:
        """What the network should predict for a step: `decode` undoes it."""
        q, qd, into = scene.q, scene.qd, scene.rotation.T
        if not self.relative:
            return jnp.concatenate([self.difference(jnp.zeros_like(q), new_q), new_qd])
        beyond = self.difference(q, new_q) - self.dt * (qd + new_qd) / 2
        return jnp.concatenate([self._turned(beyond, into), self._turned(new_qd - scene.free, into)])

    def decode(
        self, model: Model, scene: Scene, y: Float[Array, " n_out"]
    ) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
        """The state after the step."""
        nv, q, qd, R = self.topology.nv, scene.q, scene.qd, scene.rotation
        if not self.relative:
            return y[:nv], y[nv:]
        new_qd = scene.free + self._turned(y[nv:], R)
        return integrate(model, q, self._turned(y[:nv], R) + self.dt * (qd + new_qd) / 2), new_qd


def dof_kinds(t: Topology) -> np.ndarray:
    """For every degree of freedom: 0 linear of a free joint, 1 rotational of a free or ball joint, 2 a hinge or slide."""
    kinds: list[int] = []
    for j in t.joints:
        kinds += {"free": [0] * 3 + [1] * 3, "ball": [1] * 3}.get(j.kind, [2] * JOINT_NV[j.kind])
    return np.array(kinds, dtype=int)
