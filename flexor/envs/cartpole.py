"""A cart that swings its pole up and holds it there."""

from collections.abc import Mapping
from typing import Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flexor.envs.action import Torque
from flexor.envs.task import AbstractTask, Step, uniform
from flexor.model.model import State
from flexor.robots import load
from flexor.solvers import Simulator
from flexor.solvers.table import solver


class CartpoleSwingUp(AbstractTask):
    """From hanging to upright, after NeRD (Xu et al. 2025): reward 5 - (theta^2 + 0.05 x^2 + 0.1 thetad^2 + 0.1 xd^2) at 60 Hz,
    with theta between -pi and pi. An episode ends where speeds exceed `fastest`; the stops at the ends of the rail end none."""

    noise: float = eqx.field(default=0.1)
    fastest: float = eqx.field(default=10.0)

    @classmethod
    def build(cls, *, length: int = 300, substeps: int = 5, dt: float = 1 / 60) -> Self:
        """The task on the bundled cart."""
        sim = Simulator(load("cartpole"), solver("ncp", substeps=substeps), dt=dt)
        return cls(sim=sim, action=Torque(), length=length)

    def reset(self, key: PRNGKeyArray) -> tuple[State, None]:
        x = uniform(key, -self.noise, self.noise, jnp.zeros(4, self.sim.model.dtype))
        return self.sim.reset(x[:2] + jnp.array([0.0, np.pi], x.dtype), x[2:]), None

    def observe(self, state: State, goal: None) -> Float[Array, "4"]:
        return jnp.concatenate([state.q[:1], wrapped(state.q[1:]), state.qd])

    def reward(self, step: Step) -> Mapping[str, Float[Array, ""]]:
        (x, theta), (xd, thetad) = step.after.q, step.after.qd
        return {
            "alive": jnp.full((), 5.0, x.dtype),
            "angle": -(wrapped(theta) ** 2),
            "place": -0.05 * x**2,
            "speed": -0.1 * (thetad**2 + xd**2),
        }

    def ended(self, state: State, goal: None) -> Bool[Array, ""]:
        return jnp.any(jnp.abs(state.qd) > self.fastest)


def wrapped(angle: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The same angle between -pi and pi."""
    turn = 2 * np.pi
    return angle - turn * jnp.round(angle / turn)
