"""The robot-centric view of a step: what the network reads, and what it predicts, encode and decode side by side.

The root frame is that of the body on the first free joint, or, for a robot on a fixed base, the frame in which its first body is
mounted. Everything is expressed in the root frame of its own instant (Xu et al. 2025, section 3.2):

    reads       velocities, joint coordinates (a hinge without limits by sine and cosine, rotations by their matrix), joint
                torques, the direction of gravity, what the base step makes of the velocities, how far every joint is from
                its stops after it, and for every contact candidate normal, point, distance, and relative velocity and
                distance after the step; zero where all distances are out of reach
    predicts    what the velocities are beyond the base step's, R^T (v' - v_base) for the root; and what the position after
                the step is beyond the base step's and half a step of that velocity: R^T dp for the root's position, the
                rotation vector for rotations, the difference for the rest (wrapped for hinges without limits)

The base step (`flexor.nerd.base`) is the part of the step that is computed, and the network learns the rest. With every base step
but `NoBase` the network is bypassed where no contact and no stop is near: flight is exact whatever its weights.
Position and heading of the root are no inputs: predictions do not change when the whole scene is moved and turned about gravity.
"""

from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.contact import detect
from flexor.contact.contacts import tangents
from flexor.contact.detect import candidates
from flexor.dynamics import actuator_force, forward_kinematics, integrate, point_jacobian
from flexor.model.model import Control, Model
from flexor.model.topology import INDEX, JOINT_NV, Topology
from flexor.nerd.base import AbstractBase, CoarseContact, Flown, candidate_bodies, moved_contacts, moved_points, stop_rooms
from flexor.nerd.scene import Ahead, Scene
from flexor.spatial import quat_log, quat_mul, quat_to_matrix, rotate

SLIP = 0.05  # m/s, below which a slip's direction fades


@dataclass(frozen=True)
class Frames:
    """The layout of inputs and targets for one robot and steps of `dt`; candidates and stops beyond `reach` are not seen.

    `base` is the base step. With `proportional` the network predicts in units of the closing speed: light and hard impacts
    look alike, so that what it learns from one applies to the other, and its predictions vanish with the speed. With `jacobians`
    the inputs of a contact end with its Jacobian; they need `NoBase()`.

    Switched off for ablations: `centric` (root frames; else the world's), `contacts` (contact inputs), `relative` (changes are
    predicted; else the next state itself, for robots of hinges and slides).
    """

    topology: Topology
    dt: float
    reach: float = 0.12
    base: AbstractBase = CoarseContact()  # noqa: RUF009
    centric: bool = True
    contacts: bool = True
    relative: bool = True
    proportional: bool = False
    jacobians: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.base, AbstractBase):
            raise TypeError(f"`base` must be a base step, for instance `CoarseContact(substeps=8)`, got {self.base!r}.")
        if self.topology.samples:
            name = self.topology.actuators[self.topology.delayed[0]].name
            raise ValueError(
                f"learned solvers do not support delays, and actuator '{name}' of '{self.topology.name}' may have one: "
                "train for a model without, and delay the inputs before they reach the simulator."
            )
        if self.topology.na:
            raise ValueError(
                f"learned solvers do not support activations, and actuator '{self.topology.activations[0].name}' of "
                f"'{self.topology.name}' has one: train for a model without."
            )
        if self.topology.mocap:
            name = self.topology.bodies[self.topology.mocap[0]]
            raise ValueError(
                f"learned solvers do not support mocap bodies, and '{name}' of '{self.topology.name}' is one: load the model "
                'with ignore=["mocap"], which leaves it where the description has it.'
            )
        turning = self.topology.joints_of("free", "ball")
        if not self.relative and len(turning):
            name = self.topology.joints[turning[0]].name
            raise ValueError(f"rotations can only be predicted as changes, and '{name}' turns in space.")
        if self.jacobians and (self.base.integrates_forces or not (self.contacts and self.relative and self.centric)):
            raise ValueError(
                'Jacobians among the inputs are for networks without a base step, `base = "none"`, with contact inputs, root '
                "frames and relative prediction."
            )
        if self.proportional and not self.gated:
            raise ValueError(
                "predictions in units of the closing speed need a base step, contact inputs and relative prediction."
            )

    @cached_property
    def root(self) -> int | None:
        """The first free joint, or None for a fixed base."""
        free = self.topology.joints_of("free")
        return int(free[0]) if len(free) else None

    @cached_property
    def pushed(self) -> np.ndarray:
        """Degrees of freedom on which joint torques act: all but those of free joints."""
        t = self.topology
        return np.flatnonzero([t.joints[j].kind != "free" for j in t.dof_joint]).astype(INDEX)

    @property
    def gated(self) -> bool:
        """Whether the network acts only where something is near."""
        return self.base.integrates_forces and self.contacts and self.relative

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
        names += [f"{change} {t.dof_name(i)}" for change in self.base.velocity_inputs for i in range(t.nv)]
        names += [*(f"scaled {t.dof_name(i)}" for i in range(t.nv)), "1 / closing"] if self.gated else []
        names += [f"stop {t.joints[i].name} {side}" for i in t.limited for side in ("low", "high")]
        if self.contacts:
            for c, pair in enumerate(candidates(t)):
                parts = ["nx", "ny", "nz", "px", "py", "pz", "vx", "vy", "vz", "distance", "ahead"]
                parts += ["sx", "sy", "sz", "steps"] if self.gated else []
                parts += self.base.contact_inputs
                parts += [f"J{a}{i}" for a in "nst" for i in range(t.nv)] if self.jacobians else []
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
        scene = self.observe(model, q, qd, control)
        return self.features(scene, self.foresee(model, scene))

    def observe(self, model: Model, q: Float[Array, " nq"], qd: Float[Array, " nv"], control: Control) -> Scene:
        """The scene in world axes, as data sets store it."""
        assert control.u is not None
        assert control.tau is not None
        return self.look(model, q, qd, (actuator_force(model, q, qd, control.u) + control.tau)[self.pushed])

    def look(self, model: Model, q: Float[Array, " nq"], qd: Float[Array, " nv"], torque: Float[Array, " n"]) -> Scene:
        """`observe` with the joint torques themselves."""
        g = model.gravity
        strength = jnp.linalg.norm(g)
        found = detect(model, forward_kinematics(model, q))
        down = g / jnp.where(strength > 0, strength, 1.0)
        contacts = (found.normal, found.point_a, found.point_b, found.distance)
        return Scene(q, qd, torque, down, *self.frame(model, q), *contacts)

    def foresee(self, model: Model, scene: Scene, wrench: Float[Array, "nbody 6"] | None = None) -> Ahead:
        """The state after the base step; this is the only place where wrenches on the bodies enter."""
        q, qd = scene.q, scene.qd
        torque = jnp.zeros_like(qd).at[self.pushed].set(jnp.asarray(scene.torque, qd.dtype))
        control = Control(tau=torque, wrench=wrench)
        flown_q, free = self.base.fly(model, scene, control, self.dt)
        room = stop_rooms(model, flown_q)
        velocity, distance = moved_contacts(model, q, flown_q, free, scene)
        new_q, new_qd = self.base.resolve(model, scene, control, Flown(flown_q, free, distance), self.dt)
        after, _ = moved_contacts(model, q, new_q, new_qd, scene)
        rate = free[self.topology.v_start[self.topology.limited]]
        near = [jnp.minimum(scene.distance, distance), jnp.minimum(stop_rooms(model, q), room).ravel()]
        opening = [jnp.sum(scene.normal * velocity, axis=1), jnp.stack([rate, -rate], axis=-1).ravel()]
        closing = self._closing(model, jnp.concatenate(near), jnp.concatenate(opening))
        jacobian = self._jacobian(model, scene, flown_q) if self.jacobians else None
        return Ahead(new_q, new_qd, free, velocity, distance, after, room, closing, jacobian)

    def _jacobian(self, model: Model, scene: Scene, flown_q: Float[Array, " nq"]) -> Float[Array, "ncon 3 nv"]:
        """See `Ahead`."""
        kin = forward_kinematics(model, integrate(model, scene.q, self.difference(scene.q, flown_q) / 2))
        normal, into = scene.normal, scene.rotation.T
        moving = [
            point_jacobian(model, kin, body, point)
            for body, point in zip(candidate_bodies(self.topology), moved_points(model, scene.q, kin, scene), strict=True)
        ]
        linear = jnp.einsum("ab,kbv->kav", into, moving[1] - moving[0])
        for at in self.linear:
            linear = linear.at[:, :, at : at + 3].set(linear[:, :, at : at + 3] @ scene.rotation)
        normal = rotate(into, normal)
        frame = jnp.stack([normal, *tangents(normal)], axis=1)
        return jnp.einsum("kab,kbv->kav", frame, linear)

    def _closing(self, model: Model, distance: Float[Array, " n"], opening: Float[Array, " n"]) -> Float[Array, ""]:
        """The largest speed sqrt(v^2 + (g dt)^2) at which something within a quarter of the reach closes."""
        fall = self.dt * jnp.linalg.norm(model.gravity) + 1e-6
        speed = jnp.where(distance < self.reach / 4, jnp.sqrt(jnp.minimum(opening, 0.0) ** 2 + fall**2), 0.0)
        if not self.gated or any(j.dry_friction for j in self.topology.joints):  # which acts everywhere
            speed = jnp.append(speed, fall)
        return jnp.max(speed, initial=0.0)

    def features(self, scene: Scene, ahead: Ahead) -> Float[Array, " n_in"]:
        """The network's input for what was observed."""
        into, p = scene.rotation.T, scene.origin
        parts = [*self._coordinates(scene.q, p, into), self._turned(scene.qd, into), scene.torque, into @ scene.gravity]
        changes = {"free": ahead.free - scene.qd, "push": ahead.qd - ahead.free}
        parts += [self._turned(changes[change], into) for change in self.base.velocity_inputs]
        unit = jnp.where(ahead.closing > 0, 1 / jnp.where(ahead.closing > 0, ahead.closing, 1.0), 0.0)
        parts += [unit * self._turned(ahead.free, into), unit[None]] if self.gated else []
        parts.append(jnp.clip(ahead.room, -self.reach, self.reach).ravel())
        if self.contacts and len(scene.distance):
            parts.append(self._contacts(scene, ahead, into, unit).ravel())
        return jnp.concatenate(parts)

    def _contacts(self, scene: Scene, ahead: Ahead, into: Array, unit: Array) -> Float[Array, "ncon n"]:
        point = (scene.point_a + scene.point_b) / 2 - scene.origin[None]
        gap = jnp.clip(ahead.distance, -self.reach, self.reach)[:, None]
        velocity = unit * ahead.velocity if self.gated else ahead.velocity
        parts = [rotate(into, z) for z in (scene.normal, point, velocity)] + [scene.distance[:, None], gap]
        if self.gated:
            along = ahead.velocity - jnp.sum(scene.normal * ahead.velocity, axis=1, keepdims=True) * scene.normal
            slip = along / jnp.sqrt(jnp.sum(along**2, axis=1, keepdims=True) + SLIP**2)
            parts += [rotate(into, slip), jnp.clip(unit / self.dt * gap, -2.0, 2.0)]
        parts.append(rotate(into, ahead.after)[:, : len(self.base.contact_inputs)])
        parts += [] if ahead.jacobian is None else [ahead.jacobian.reshape(len(scene.distance), -1)]
        near = jnp.minimum(scene.distance, ahead.distance) < self.reach
        return jnp.where(near[:, None], jnp.concatenate(parts, axis=1), 0.0)

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
                inverse = q[turn : turn + 4] * np.array([1, -1, -1, -1], q.dtype)
                parts += [new[at:turn] - q[at:turn], quat_log(quat_mul(inverse, new[turn : turn + 4]))]
            else:
                change = new[at : at + 1] - q[at : at + 1]
                whole = 2 * np.pi * jnp.round(change / (2 * np.pi))
                parts.append(change - whole if j.kind == "hinge" and not j.limited else change)
        return jnp.concatenate(parts)

    def target(
        self, scene: Scene, ahead: Ahead, new_q: Float[Array, " nq"], new_qd: Float[Array, " nv"]
    ) -> Float[Array, " n_out"]:
        """What the network should predict for a step: `decode` undoes it. NaN where the network does not act."""
        into = scene.rotation.T
        if not self.relative:
            return jnp.concatenate([self.difference(jnp.zeros_like(scene.q), new_q), new_qd])
        jump = new_qd - ahead.qd
        beyond = self.difference(ahead.q, new_q) - self.dt / 2 * jump
        y = jnp.concatenate([self._turned(beyond, into), self._turned(jump, into)])
        return jnp.where(ahead.closing > 0, y / self._unit(ahead), jnp.nan)

    def _unit(self, ahead: Ahead) -> Array | float:
        return jnp.where(ahead.closing > 0, ahead.closing, 1.0) if self.proportional else 1.0

    def decode(
        self, model: Model, scene: Scene, ahead: Ahead, y: Float[Array, " n_out"]
    ) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
        """The state after the step."""
        nv, R = self.topology.nv, scene.rotation
        if not self.relative:
            return y[:nv], y[nv:]
        y = jnp.where(ahead.closing > 0, self._unit(ahead) * y, 0.0)
        beyond, jump = (self._turned(z, R) for z in (y[:nv], y[nv:]))
        return integrate(model, ahead.q, beyond + self.dt / 2 * jump), ahead.qd + jump


def dof_kinds(t: Topology) -> np.ndarray:
    """For every degree of freedom: 0 linear of a free joint, 1 rotational of a free or ball joint, 2 a hinge or slide."""
    kinds: list[int] = []
    for j in t.joints:
        kinds += {"free": [0] * 3 + [1] * 3, "ball": [1] * 3}.get(j.kind, [2] * JOINT_NV[j.kind])
    return np.array(kinds, dtype=int)
