"""`TorqueProblem`: least squares on the equation of motion, with the interface of `Problem`, so that searches, posterior and
report are the same.

    r = W (u_predicted(z) - u)        u_predicted = (Y pi(z) + armature qdd + friction - springs) / (gain gear)

in the units of what was measured, torques or currents of the motors: a search that could shrink all torques together with the
gains would otherwise find that best. Of degrees of freedom without a motor the force is known to be zero.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics import inertial_parameters
from flexor.dynamics.friction import AbstractFriction
from flexor.identify.problem import Problem
from flexor.identify.torque_rows import Rows
from flexor.model.charts import Coordinates
from flexor.model.model import Model
from flexor.solvers import Simulator
from flexor.spatial import inertia_matrix, six_of, take


class TorqueSegments(NamedTuple):
    """Pieces of logs, padded to one length; see `Rows`. `load` is the number of the load that was carried, zero for none."""

    Y: Any  # (s, rows, nv, n)
    turn: Any  # (s, rows, nv)
    qd: Any  # (s, rows, k, nv)
    passive: Any  # (s, rows, k, nv)
    measured: Any  # (s, rows, nv)
    weight: Any  # (s, rows, nv)
    at: Any  # (s, rows)
    ahead: Any  # (s, rows)
    load: Any  # (s,)

    def take(self, rows: Any) -> "TorqueSegments":
        return jax.tree.map(lambda x: x[rows], self)

    @property
    def number(self) -> int:
        return len(self.Y)


class Motors(NamedTuple):
    """The motor of each degree of freedom, -1 where there is none, and the load of each log."""

    of_dof: tuple[int, ...]

    def columns(self, model: Model) -> tuple[str, ...]:
        """Names of what is predicted: `u.<actuator>`, or `force.<dof>` where nothing drives."""
        t = model.topology
        return tuple(f"u.{t.actuators[a].name}" if a >= 0 else f"force.{t.dof_name(i)}" for i, a in enumerate(self.of_dof))


class Carried(NamedTuple):
    """A load: on which body (its row in the model), and its name among the numbers beside the model."""

    body: int
    name: str


class Prediction(NamedTuple):
    """What the motors of a robot should read, as a function of its parameters: the right side of the head of this file."""

    motors: Motors
    loads: tuple[Carried, ...]
    friction: AbstractFriction | None
    creep: float

    def __call__(self, model: Model, extra: dict[str, Array], segments: Any) -> Float[Array, "s rows nv"]:
        """Torques or currents of the segments, of which `Y`, `turn`, `qd`, `passive` and `load` are read."""
        inertial = jnp.einsum("srvn,sn->srv", segments.Y, self.inertias(model, extra)[segments.load])
        law = self.law(model, extra)

        def one(inertial: Array, turn: Array, qd: Array, passive: Array) -> Array:
            return self.reading(model, extra, law, inertial, turn, qd, passive)

        return jax.vmap(jax.vmap(one))(inertial, segments.turn, segments.qd, segments.passive)

    def reading(
        self, model: Model, extra: dict[str, Array], law: AbstractFriction | None, inertial: Array, turn: Array, qd: Array,
        passive: Array,
    ) -> Float[Array, " nv"]:  # fmt: skip
        """One row: the means over the instants in `qd` and `passive`, (k, nv)."""
        joints, joint = model.joints, model.topology.dof_joint
        needed = inertial + take(joints.armature, joint) * turn - jnp.mean(passive, axis=0)

        def resistance(qd: Array) -> Array:
            own = take(joints.damping, joint) * qd + take(joints.frictionloss, joint) * jnp.tanh(qd / self.creep)
            return own if law is None else own + law.torque(qd, needed, -needed)

        force = needed + jnp.mean(jax.vmap(resistance)(qd), axis=0)
        if not model.nu:
            return force
        driven, motor = np.array(self.motors.of_dof) >= 0, np.maximum(np.array(self.motors.of_dof), 0)
        gain = jnp.where(driven, take(model.actuators.gain * model.actuators.gear, motor), 1.0)
        offset = jnp.stack([extra[f"offset.{a.name}"] for a in model.topology.actuators])
        return force / gain + jnp.where(driven, take(offset, motor), 0.0)

    def inertias(self, model: Model, extra: dict[str, Array]) -> Float[Array, "l n"]:
        """pi of the bare robot, and of the robot with each load."""
        own = inertial_parameters(model)
        made = [own]
        for load in self.loads:
            mass, com, six = (jnp.asarray(extra[f"load.{load.name}.{field}"]) for field in ("mass", "com", "inertia"))
            about = mass * (jnp.dot(com, com) * jnp.eye(3) - jnp.outer(com, com)) + inertia_matrix(six)
            ten = jnp.concatenate([mass[None], mass * com, six_of(about)])
            made.append(own.at[10 * (load.body - 1) + np.arange(10)].add(ten))
        return jnp.stack(made)

    def law(self, model: Model, extra: dict[str, Array]) -> AbstractFriction | None:
        """The law with the numbers of every degree of freedom."""
        if self.friction is None:
            return None
        fields = self.friction.fitted()
        names = [model.topology.dof_name(i) for i in range(model.nv)]
        values = [jnp.stack([jnp.asarray(extra[f"friction.{name}.{f}"]) for name in names]) for f in fields]
        return eqx.tree_at(lambda law: [getattr(law, f) for f in fields], self.friction, values)


class TorqueProblem(Problem):
    """See the head of this file."""

    def __init__(
        self, sim: Simulator, coordinates: Coordinates, segments: TorqueSegments, prediction: "Prediction", *,
        held_out: np.ndarray, prior: np.ndarray | None,
    ):  # fmt: skip
        self.prediction = prediction
        rows: Any = segments
        super().__init__(
            sim, coordinates, rows, _nothing, None, held_out=held_out, networks=False, free_start=False, prior=prior
        )

    @property
    def chained(self) -> bool:
        return False

    def key(self) -> Hashable:
        return id(self)

    def weighted_anew(self, weight: np.ndarray) -> "TorqueProblem":
        """The same problem with other weights, which shares its programs."""
        segments = self.segments._replace(weight=jax.device_put(weight))
        self.segments = segments
        self.training = segments.take(np.flatnonzero(~self.held_out))
        return self

    def predicted(self, z: Float[Array, " p"], segments: Any) -> Float[Array, "s rows nv"]:
        """What the motors should have read."""
        sim, extra = self.simulator(z)
        return self.prediction(sim.model, extra, segments)

    def errors(self, z: Float[Array, "n p"], d: Any, segments: Any) -> Float[Array, "n s rows m"]:
        """Weighted errors at several points, one after the other."""
        return jax.lax.map(lambda z: self.residuals(z, d, segments), z)

    def residuals(self, z: Array, d: Any, segments: Any) -> Float[Array, "s rows m"]:
        return segments.weight * (self.predicted(z, segments) - segments.measured)

    def linearized(self, z: Array, d: Any, segments: Any) -> tuple[Array, Array]:
        def flat(z: Array) -> Array:
            return self.residuals(z, d, segments).reshape(segments.number, -1)

        return self.residuals(z, d, segments), jax.jacfwd(flat)(z)

    def forget(self) -> None:
        """Lets go of the data: compiled programs, which are kept, hold the problem."""
        nothing: Any = None
        self.segments = self.training = nothing


def _nothing(model: Any, state: Any, extra: Any) -> Any:
    raise AssertionError("torques are not observed along a simulation")


def pieces(
    rows: Sequence[Rows], loads: Sequence[int], motors: Motors, dt: float, seconds: float
) -> tuple[TorqueSegments, np.ndarray]:
    """Pieces of all logs of some seconds each, and the log that each belongs to. Weights are one where something was measured."""
    parts: list[tuple[np.ndarray, ...]] = []
    owner: list[int] = []
    length = max(1, round(seconds / float(np.median(np.concatenate([np.diff(r.time) for r in rows])))))
    for i, r in enumerate(rows):
        driven, motor = np.array(motors.of_dof) >= 0, np.maximum(np.array(motors.of_dof), 0)
        u = r.u.mean(1)
        measured = np.where(driven, u[:, motor], 0.0) if u.shape[1] else np.zeros((len(u), len(driven)))
        for first in range(0, len(r.time), length):
            cut = slice(first, first + length)
            arrays = (r.Y[cut], r.turn[cut], r.qd[cut], r.passive[cut], measured[cut], np.ones_like(measured[cut]))
            time = (r.time[cut] - r.time[first]) / dt
            pad = length - len(time)
            padded = [np.pad(x, ((0, pad), *((0, 0),) * (x.ndim - 1))) for x in (*arrays, np.floor(time), time % 1)]
            parts.append((*padded, np.asarray(loads[i])))
            owner.append(i)
    return TorqueSegments(*(np.stack(x) for x in zip(*parts, strict=True))), np.array(owner)


def blank_passive(model: Model) -> Model:
    """The model without dampers, whose forces are added where their parameters are known."""
    return eqx.tree_at(lambda m: m.joints.damping, model, jnp.zeros_like(model.joints.damping))
