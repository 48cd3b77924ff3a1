"""What a data set covers: ranges of initial states and controls, and of the ground."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from flexor.contact import detect
from flexor.dynamics import forward_kinematics
from flexor.model.model import Model
from flexor.spatial import quat_exp, quat_mul, quat_to_matrix


@dataclass(frozen=True)
class Planes:
    """Random ground planes: a unit normal within `tilt` of its description's, and along it a distance from `offset`, in m, to
    the point `about`, by default where the plane is described."""

    tilt: float = math.pi
    offset: tuple[float, float] = (-0.5, 0.5)
    about: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Ranges:
    """Uniform ranges by pattern on the names of coordinates (`slider`, `root.z`) and velocities (`hinge`, `root.vx`).

    What is not named: limited joints over their range, other hinges over the circle, slides and positions as described,
    velocities within 1 m/s and 2 pi rad/s. Free and ball joints turn by up to `tilt` about a random axis. `control` is the
    share of each actuator's range that random controls cover, zero for passive motion, and `passive` the share of trajectories
    without controls. Of `draws` random states the first that is free of contact is taken, or the one with the most room.
    """

    q: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    qd: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    tilt: float = math.pi / 2
    control: float = 1.0
    passive: float = 0.0
    draws: int = 16
    planes: Planes | None = None

    @staticmethod
    def of(table: Mapping[str, Any]) -> "Ranges":
        """From the tables of a recipe, a card or a data set."""
        given = dict(table)
        if given.get("planes") is not None:
            planes = {name: _pair(x) for name, x in dict(given["planes"]).items()}
            given["planes"] = made_of(Planes, planes, "ranges.planes")
        for part in ("q", "qd"):
            given[part] = {name: _pair(x) for name, x in dict(given.get(part, {})).items()}
        return made_of(Ranges, given, "ranges")  # type: ignore[no-any-return]

    def check(self, model: Model) -> None:
        """Raises for a pattern that names nothing, and for ranges that are empty."""
        t = model.topology
        names = {"q": [t.q_name(i) for i in range(t.nq)], "qd": [t.dof_name(i) for i in range(t.nv)]}
        for what, patterns in (("q", self.q), ("qd", self.qd)):
            for pattern, (low, high) in patterns.items():
                if not any(fnmatchcase(n, pattern) for n in names[what]):
                    raise KeyError(f"no {what} of '{t.name}' matches '{pattern}'; they are {', '.join(names[what])}.")
                if not low <= high:
                    raise ValueError(f"the range of '{pattern}' is empty: {low} to {high}.")
        if not 0 <= self.passive <= 1:
            raise ValueError(f"the share of passive trajectories lies between 0 and 1, got {self.passive}.")
        if self.draws < 1:
            raise ValueError(f"a state needs one draw at least, got {self.draws}.")
        if self.control and model.nu and not np.all(np.isfinite(np.asarray(model.actuators.ctrl_range))):
            raise ValueError(
                f"'{t.name}' has actuators without a control range; give `control=0`, or ranges in the description."
            )
        if self.planes is not None and "plane" not in {g.shape for g in t.geoms}:
            raise ValueError(f"random ground planes are asked for, but '{t.name}' has no plane.")

    def bounds(self, model: Model) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest q, then qd, as two arrays of nq + nv; quaternions are left at the reference."""
        t = model.topology
        reference, limits = np.asarray(model.reference, float), np.asarray(model.joints.range, float)
        low, high = np.concatenate([reference, np.zeros(t.nv)]), np.concatenate([reference, np.zeros(t.nv)])
        for i, (j, at) in enumerate(zip(t.joints, t.q_start, strict=True)):
            if j.kind in ("hinge", "slide"):
                circle = (-np.pi, np.pi) if j.kind == "hinge" else (reference[at], reference[at])
                low[at], high[at] = limits[i] if j.limited else circle
        for i in range(t.nv):
            fastest = 2 * np.pi if t.dofs.rotational[i] else 1.0
            low[t.nq + i], high[t.nq + i] = -fastest, fastest
        names = [t.q_name(i) for i in range(t.nq)] + [t.dof_name(i) for i in range(t.nv)]
        for start, stop, patterns in ((0, t.nq, self.q), (t.nq, t.nq + t.nv, self.qd)):
            for pattern, (a, b) in patterns.items():
                for i in range(start, stop):
                    if fnmatchcase(names[i], pattern):
                        low[i], high[i] = a, b
        return low, high

    def draw(self, model: Model, key: Array) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
        """A random initial state."""
        if self.draws == 1 or not model.topology.pairs:
            return self._one(model, key)
        q, qd = jax.vmap(lambda k: self._one(model, k))(jax.random.split(key, self.draws))
        room = jax.vmap(lambda q: jnp.min(detect(model, forward_kinematics(model, q)).distance))(q)
        best = jnp.where(jnp.any(room > 0), jnp.argmax(room > 0), jnp.argmax(room))
        return q[best], qd[best]

    def beyond(self, model: Model, key: Array) -> tuple[tuple[Float[Array, " nq"], Float[Array, " nv"]], Bool[Array, ""]]:
        """The random state of `draw` twice as far from the middle of the ranges, and whether it lies outside them then. Angles
        that go round and rotations stay as they are."""
        t = model.topology
        low, high = (jnp.asarray(x, model.dtype) for x in self.bounds(model))
        fixed = np.zeros(t.nq + t.nv, bool)
        for j, at in zip(t.joints, t.q_start, strict=True):
            turn = at + 3 if j.kind == "free" else at
            if j.kind in ("free", "ball"):
                fixed[turn : turn + 4] = True
            fixed[at] |= j.kind == "hinge" and not j.limited
        x = jnp.concatenate(self.draw(model, key))
        far = jnp.where(fixed, x, 2 * x - (low + high) / 2)
        outside = jnp.any(~fixed & ((far < low) | (far > high)))
        return (far[: t.nq], far[t.nq :]), outside

    def _one(self, model: Model, key: Array) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
        t = model.topology
        low, high = (jnp.asarray(x, model.dtype) for x in self.bounds(model))
        where, turn = jax.random.split(key)
        x = jax.random.uniform(where, low.shape, model.dtype, low, high)
        q, qd = x[: t.nq], x[t.nq :]
        rotating = t.joints_of("ball", "free")
        for j, k in zip(rotating, jax.random.split(turn, max(len(rotating), 1)), strict=False):
            at = int(t.q_start[j]) + (3 if t.joints[j].kind == "free" else 0)
            a, b = jax.random.split(k)
            axis = jax.random.normal(a, (3,), model.dtype)
            angle = self.tilt * jax.random.uniform(b, (), model.dtype)
            quat = quat_mul(quat_exp(angle * axis / jnp.linalg.norm(axis)), q[at : at + 4])
            q = q.at[at : at + 4].set(quat)
        return q, qd

    def ground(self, model: Model, key: Array) -> Model:
        """The model with its planes moved at random, where that is asked for."""
        if self.planes is None:
            return model
        planes = [i for i, g in enumerate(model.topology.geoms) if g.shape == "plane"]
        for i, k in zip(planes, jax.random.split(key, len(planes)), strict=True):
            a, b, c = jax.random.split(k, 3)
            axis = jax.random.normal(a, (3,), model.dtype)
            angle = self.planes.tilt * jax.random.uniform(b, (), model.dtype)
            turn = quat_exp(angle * axis / jnp.linalg.norm(axis))
            quat = quat_mul(turn, model.geoms.quat[i])
            low, high = self.planes.offset
            normal = quat_to_matrix(quat)[:, 2]
            about = model.geoms.pos[i] if self.planes.about is None else jnp.asarray(self.planes.about, model.dtype)
            pos = about + normal * jax.random.uniform(c, (), model.dtype, low, high)
            model = eqx.tree_at(
                lambda m: (m.geoms.pos, m.geoms.quat),
                model,
                (model.geoms.pos.at[i].set(pos), model.geoms.quat.at[i].set(quat)),
            )
        return model


def made_of(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    """A dataclass of the entries of a table, refusing those that it does not have."""
    names = [f.name for f in dataclasses.fields(kind)]
    unknown = [key for key in table if key not in names]
    if unknown:
        raise ValueError(f"{where} has the unknown key '{unknown[0]}'; the keys are {', '.join(names)}.")
    return kind(**table)


def _pair(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
