"""Quadrupeds that walk, forwards or sideways: NeRD's tasks (Xu et al. 2025), on any quadruped, at 60 Hz."""

from collections.abc import Mapping
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flexor.dynamics import actuator_forces, forward_kinematics
from flexor.envs.legged import Legs, on_its_feet, servos, standing, turned
from flexor.envs.task import AbstractTask, Step, uniform
from flexor.model.model import Model, State
from flexor.robots import load
from flexor.solvers import Simulator
from flexor.solvers.table import solver
from flexor.spatial import quat_mul, quat_to_matrix, rotate

ANYMAL = {"*_HAA": 0.0, "?F_HFE": 0.4, "?F_KFE": -0.8, "?H_HFE": -0.4, "?H_KFE": 0.8}
"""Joint angles in rad of a standing ANYmal."""


class Walk(AbstractTask):
    """At the velocity `wanted` (m/s, forwards and to the left of where the robot looked when it started), without turning:

        exp(-|v - wanted|^2) + 0.5 exp(-omega_z^2) - 2.5e-5 sum of squared torques,  not below zero.

    Observed are 37 numbers: height, quaternion, linear and angular velocity, joint angles, joint rates, `up` and `heading`. Their
    axes look where the robot looked when it started (the goal), so that no direction is special. An episode ends where the
    trunk is lower than `lowest` of its height in standing, a hip lower than `hip` of it, or a knee lower than `knee`.
    """

    stand: Float[Array, " nq"]
    legs: Legs
    wanted: tuple[float, float] = eqx.field(static=True, default=(1.0, 0.0))
    noise: float = 0.1
    lowest: float = 2 / 3
    hip: float = 1 / 3
    knee: float = 0.12

    @classmethod
    def build(
        cls,
        *,
        model: Model,
        stand: Float[Array, " nq"],
        wanted: tuple[float, float] = (1.0, 0.0),
        length: int = 1000,
        substeps: int = 4,
        dt: float = 1 / 60,
    ) -> Self:
        """The task on a robot, with the servos of NeRD's ANYmal: 85 N m/rad, 2 N m s/rad, half a radian about `stand`."""
        model = on_its_feet(model)
        sim = Simulator(model, solver("ncp", substeps=substeps), dt=dt)
        action = servos(model, stand, scale=0.5, stiffness=85.0, damping=2.0)
        return cls(sim=sim, action=action, length=length, stand=stand, legs=Legs.of(model), wanted=wanted)

    def reset(self, key: PRNGKeyArray) -> tuple[State, Float[Array, "2"]]:
        model = self.sim.model
        turn_key, place, speed = jax.random.split(key, 3)
        turn = uniform(turn_key, -np.pi, np.pi, jnp.zeros((), model.dtype))
        zero = jnp.zeros_like(turn)
        quat = jnp.stack([jnp.cos(turn / 2), zero, zero, jnp.sin(turn / 2)])
        joints = self.stand[7:] + uniform(place, -self.noise, self.noise, self.stand[7:])
        height = self.stand[2:3] + self.legs.level(model)
        q = jnp.concatenate([jnp.zeros(2, model.dtype), height, quat, joints])
        qd = uniform(speed, -self.noise, self.noise, jnp.zeros(model.nv, model.dtype))
        return self.sim.reset(q, qd), jnp.stack([jnp.cos(turn), jnp.sin(turn)])

    def observe(self, state: State, goal: Float[Array, "2"]) -> Float[Array, " n"]:
        q, qd = state.q, state.qd
        quat = quat_mul(_unturning(goal), q[3:7])
        R = quat_to_matrix(quat)
        level = self.legs.level(self.sim.model)
        motion = [turned(goal, qd[:3]), rotate(R, qd[3:6])]
        return jnp.concatenate([q[2:3] - level, quat, *motion, q[7:], qd[6:], R[2, 2][None], R[0, 0][None]])

    def reward(self, step: Step) -> Mapping[str, Float[Array, ""]]:
        q, qd = step.after.q, step.after.qd
        forwards, sideways, _ = turned(step.goal, qd[:3])
        turning = rotate(quat_to_matrix(q[3:7]), qd[3:6])[2]
        speed = jnp.exp(-((forwards - self.wanted[0]) ** 2) - (sideways - self.wanted[1]) ** 2)
        straight = 0.5 * jnp.exp(-(turning**2))
        u = step.control.u
        assert u is not None
        torques = actuator_forces(self.simulator(step.goal).model, q, qd, u)
        effort = jnp.minimum(2.5e-5 * jnp.sum(torques**2), speed + straight)
        return {"speed": speed, "straight": straight, "effort": -effort}

    def ended(self, state: State, goal: Float[Array, "2"]) -> Bool[Array, ""]:
        model, legs = self.sim.model, self.legs
        kin, tall = forward_kinematics(model, state.q), self.stand[2]
        low = state.q[2] - legs.level(model) < self.lowest * tall
        hips = jnp.any(legs.heights(model, kin, legs.hips) < self.hip * tall)
        return low | hips | jnp.any(legs.heights(model, kin, legs.knees) < self.knee * tall)


def _unturning(direction: Float[Array, "2"]) -> Float[Array, "4"]:
    """The quaternion of the rotation about the vertical that brings a direction (cos, sin) to the x axis."""
    c, s = direction
    half = jnp.sqrt(jnp.maximum((1 + c) / 2, 0))
    other = jnp.where(s < 0, 1.0, -1.0).astype(c.dtype) * jnp.sqrt(jnp.maximum((1 - c) / 2, 0))
    zero = jnp.zeros_like(c)
    return jnp.stack([half, zero, zero, other])


def quadruped_forward(**options: int | float) -> Walk:
    """The bundled quadruped, at 1 m/s forwards."""
    model = load("quadruped")
    return Walk.build(model=model, stand=model.keyframe("stand"), **options)  # type: ignore[arg-type]


def quadruped_side(**options: int | float) -> Walk:
    """The bundled quadruped, at 1 m/s to its left."""
    model = load("quadruped")
    return Walk.build(model=model, stand=model.keyframe("stand"), wanted=(0.0, 1.0), **options)  # type: ignore[arg-type]


def anymal_forward(**options: int | float) -> Walk:
    """The ANYmal C of example-robot-data, at 1 m/s forwards."""
    model = load("anymal_c", floating=True, ground=True)
    return Walk.build(model=model, stand=standing(model, ANYMAL), **options)  # type: ignore[arg-type]


def anymal_side(**options: int | float) -> Walk:
    """The ANYmal C of example-robot-data, at 1 m/s to its left."""
    model = load("anymal_c", floating=True, ground=True)
    return Walk.build(model=model, stand=standing(model, ANYMAL), wanted=(0.0, 1.0), **options)  # type: ignore[arg-type]
