"""The ant's tasks: to run, to spin, to spin at a given rate. Rewards are those of NeRD (Xu et al. 2025), at 60 Hz."""

from collections.abc import Mapping
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flexor.envs.action import Torque
from flexor.envs.task import AbstractTask, Step, uniform
from flexor.model.model import State
from flexor.robots import load
from flexor.solvers import Simulator
from flexor.solvers.table import solver
from flexor.spatial import quat_to_matrix, rotate


class AbstractAnt(AbstractTask):
    """A robot on four legs that starts standing, within `noise`, and has failed when its torso comes down to `lowest`.

    Observed are 29 numbers: height, quaternion, linear and angular velocity in world axes, joint angles, joint rates, `up` and
    `heading`: the vertical part of the torso's z axis and the forward part of its x axis.
    """

    noise: float = eqx.field(default=0.1)
    lowest: float = eqx.field(default=0.3)

    @classmethod
    def build(cls, *, length: int = 500, substeps: int = 4, dt: float = 1 / 60) -> Self:
        """The task on the bundled ant."""
        sim = Simulator(load("ant"), solver("ncp", substeps=substeps), dt=dt)
        return cls(sim=sim, action=Torque(), length=length)

    def reset(self, key: PRNGKeyArray) -> tuple[State, None]:
        model = self.sim.model
        stand, (place, speed) = model.keyframe("stand"), jax.random.split(key)
        joints = uniform(place, -self.noise, self.noise, stand[7:])
        qd = uniform(speed, -self.noise, self.noise, jnp.zeros(model.nv, model.dtype))
        return self.sim.reset(jnp.concatenate([stand[:7], stand[7:] + joints]), qd), None

    def observe(self, state: State, goal: None) -> Float[Array, "29"]:
        q, qd, R = state.q, state.qd, _rotation(state)
        parts = [q[2:7], qd[:3], rotate(R, qd[3:6]), q[7:], qd[6:], R[2, 2][None], R[0, 0][None]]
        return jnp.concatenate(parts)

    def ended(self, state: State, goal: None) -> Bool[Array, ""]:
        return state.q[2] < self.lowest


class AntRun(AbstractAnt):
    """Along x, upright, the head first: v_x + heading + 0.1 up."""

    def reward(self, step: Step) -> Mapping[str, Float[Array, ""]]:
        R = _rotation(step.after)
        return {"speed": step.after.qd[0], "heading": R[0, 0], "up": 0.1 * R[2, 2]}


class AntSpin(AbstractAnt):
    """About the vertical, as fast as it can: omega_z + up."""

    def reward(self, step: Step) -> Mapping[str, Float[Array, ""]]:
        R = _rotation(step.after)
        return {"spin": rotate(R, step.after.qd[3:6])[2], "up": R[2, 2]}


class AntSpinTrack(AbstractAnt):
    """About the vertical at `rate`: 5 exp(-(omega_z - rate)^2 - 0.1 (omega_x^2 + omega_y^2)) + 0.1 up."""

    rate: float = eqx.field(default=5.0)

    def reward(self, step: Step) -> Mapping[str, Float[Array, ""]]:
        R = _rotation(step.after)
        x, y, z = rotate(R, step.after.qd[3:6])
        return {"spin": 5 * jnp.exp(-((z - self.rate) ** 2) - 0.1 * (x**2 + y**2)), "up": 0.1 * R[2, 2]}


def _rotation(state: State) -> Float[Array, "3 3"]:
    """From the torso's axes to the world's."""
    return quat_to_matrix(state.q[3:7])
