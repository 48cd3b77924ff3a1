"""Gymnasium's MuJoCo tasks, version 5, on Gymnasium's own descriptions (extra `gym`).

Rewards, ends, noise of resets, lengths and time steps are Gymnasium's; an action between -1 and 1 spans what Gymnasium's spans.
Observations are functions of the state, and so without the forces that MuJoCo's solver reports, as Gymnasium's have them with
`include_cfrc_ext_in_observation=False` and the like; contact costs are left out with them. `gymnasium_full` has both. A step
without contact is MuJoCo's.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flexor.dynamics import centre_of_mass, forward_kinematics, frame_pose
from flexor.envs.action import Torque
from flexor.envs.task import AbstractTask, Step, uniform
from flexor.model.load import load
from flexor.model.model import Model, State
from flexor.solvers import Simulator
from flexor.solvers.table import solver

PREFIX = "gymnasium/"


def description(file: str) -> Path:
    """The path of a description in the installed Gymnasium."""
    found = find_spec("gymnasium")
    if found is None or found.origin is None:
        raise ImportError(f"'{file}' is a description of Gymnasium, which is not installed: `pip install \"flexor[gym]\"`.")
    path = Path(found.origin).parent / "envs" / "mujoco" / "assets" / file
    if not path.is_file():
        raise FileNotFoundError(f"the installed Gymnasium has no description '{file}'; the tasks need 1.1 or later.")
    return path


class AbstractGymnasium(AbstractTask):
    """A task of Gymnasium. An episode starts at the description's reference, coordinates and speeds within `noise`, or of that
    deviation where they are `normal`."""

    title: str = eqx.field(static=True)
    noise: float = eqx.field(kw_only=True, default=0.1)
    normal: bool = eqx.field(static=True, kw_only=True, default=False)

    @classmethod
    def build(
        cls,
        title: str,
        file: str,
        *,
        skip: int,
        timestep: float,
        integrator: str = "split-rk4",
        length: int = 1000,
        **fields: Any,
    ) -> Self:
        """The task whose step is `skip` of the description's time steps, each by its integrator."""
        physics = solver("ncp", integrator=integrator, substeps=skip)
        sim = Simulator(load(description(file)), physics, dt=skip * timestep)
        return cls(PREFIX + title, sim=sim, action=Torque(), length=length, **fields)

    @property
    def name(self) -> str:
        return self.title

    def reset(self, key: PRNGKeyArray) -> tuple[State, Any]:
        model, (place, speed) = self.sim.model, jax.random.split(key)
        still = jnp.zeros(model.nv, model.dtype)
        q = model.reference + uniform(place, -self.noise, self.noise, model.reference)
        qd = uniform(speed, -self.noise, self.noise, still)
        if self.normal:
            qd = self.noise * jax.random.normal(speed, still.shape, still.dtype)
        return self.sim.reset(_unit(model, q), qd), None


class Locomotion(AbstractGymnasium):
    """Along x as fast as it can, with little effort, and upright: forward v_x - effort u^2 + alive while healthy.

    v_x is the mean over a step of the speed of the first coordinate, or of the centre of mass where `whole`. Healthy are
    coordinates 2 and on, and speeds, within `states` (of the hopper), coordinates `height` and `angle` within `heights` and
    `angles`. Observed are the coordinates without the first `hidden` ones and the speeds within +-`fastest`.
    """

    forward: float = eqx.field(kw_only=True, default=1.0)
    effort: float = eqx.field(kw_only=True, default=1e-3)
    alive: float = eqx.field(kw_only=True, default=0.0)
    hidden: int = eqx.field(static=True, kw_only=True, default=1)
    fastest: float = eqx.field(kw_only=True, default=np.inf)
    whole: bool = eqx.field(static=True, kw_only=True, default=False)
    height: int = eqx.field(static=True, kw_only=True, default=1)
    heights: tuple[float, float] = eqx.field(static=True, kw_only=True, default=(-np.inf, np.inf))
    angles: tuple[float, float] | None = eqx.field(static=True, kw_only=True, default=None)
    states: float | None = eqx.field(static=True, kw_only=True, default=None)

    def observe(self, state: State, goal: Any) -> Float[Array, " n"]:
        return jnp.concatenate([state.q[self.hidden :], jnp.clip(state.qd, -self.fastest, self.fastest)])

    def reward(self, step: Step) -> Mapping[str, Float[Array, ""]]:
        assert step.control.u is not None
        speed = (self._place(step.after) - self._place(step.before)) / self.sim.dt
        terms = {"forward": self.forward * speed, "ctrl": -self.effort * jnp.sum(step.control.u**2)}
        return {**terms, "survive": jnp.where(self._healthy(step.after), self.alive, 0.0)} if self.alive else terms

    def ended(self, state: State, goal: Any) -> Bool[Array, ""]:
        return ~self._healthy(state)

    def _place(self, state: State) -> Float[Array, ""]:
        model = self.sim.model
        return centre_of_mass(model, forward_kinematics(model, state.q))[0] if self.whole else state.q[0]

    def _healthy(self, state: State) -> Bool[Array, ""]:
        within = _within(state.q[self.height], *self.heights)
        if self.angles is not None:
            within &= _within(state.q[2], *self.angles)
        if self.states is not None:
            within &= jnp.all(_within(jnp.concatenate([state.q[2:], state.qd]), -self.states, self.states))
        return within


class InvertedPendulum(AbstractGymnasium):
    """A pole upright on a cart, within 0.2 rad: 1 for every step."""

    def observe(self, state: State, goal: Any) -> Float[Array, "4"]:
        return jnp.concatenate([state.q, state.qd])

    def reward(self, step: Step) -> Mapping[str, Float[Array, ""]]:
        return {"survive": jnp.where(self.ended(step.after, None), 0.0, jnp.ones((), step.after.q.dtype))}

    def ended(self, state: State, goal: Any) -> Bool[Array, ""]:
        return jnp.abs(state.q[1]) > 0.2


class InvertedDoublePendulum(AbstractGymnasium):
    """Two poles upright on a cart, their tip (x, z) above 1 m: 10 - 0.01 x^2 - (z - 2)^2 - 0.001 w_1^2 - 0.005 w_2^2.

    Observed are the cart's place, sines and cosines of the angles, and speeds within +-10.
    """

    def observe(self, state: State, goal: Any) -> Float[Array, "8"]:
        q, qd = state.q, state.qd
        return jnp.concatenate([q[:1], jnp.sin(q[1:]), jnp.cos(q[1:]), jnp.clip(qd, -10, 10)])

    def reward(self, step: Step) -> Mapping[str, Float[Array, ""]]:
        (x, _, z), (_, w1, w2) = self._tip(step.after), step.after.qd
        return {
            "survive": jnp.where(z > 1, 10.0, jnp.zeros((), x.dtype)),
            "distance": -0.01 * x**2 - (z - 2) ** 2,
            "velocity": -1e-3 * w1**2 - 5e-3 * w2**2,
        }

    def ended(self, state: State, goal: Any) -> Bool[Array, ""]:
        return self._tip(state)[2] <= 1

    def _tip(self, state: State) -> Float[Array, "3"]:
        return frame_pose(self.sim.model, state.q, "tip")[0]


def _within(x: Float[Array, "*n"], low: float, high: float) -> Bool[Array, "*n"]:
    return (x > low) & (x < high)


def _unit(model: Model, q: Float[Array, " nq"]) -> Float[Array, " nq"]:
    """The coordinates, the quaternion of a free base at unit length."""
    if not model.topology.joints or model.topology.joints[0].kind != "free":
        return q
    quat = q[3:7] / jnp.linalg.norm(q[3:7])
    return jnp.concatenate([q[:3], quat, q[7:]])
