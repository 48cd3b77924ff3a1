"""Legged robots that follow commands (v_x, v_y, yaw rate) of a joystick, after the tasks of MuJoCo Playground (Zakka et al. 2025,
`locomotion/go1/joystick.py` and `locomotion/g1/joystick.py`): their terms and roughly their weights, on robots with spheres
as feet.

Whether a foot touches is told from its height, not from forces, so that any solver will do.
"""

from collections.abc import Mapping
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flexor.dynamics import actuator_forces, forward_kinematics, total_mass
from flexor.envs.legged import Legs, on_its_feet, servos
from flexor.envs.task import AbstractTask, Step, uniform
from flexor.model.model import Model, State
from flexor.solvers import Simulator
from flexor.solvers.table import solver
from flexor.spatial import quat_to_matrix, rotate


class Commands(eqx.Module):
    """Which commands a joystick gives: v_x and v_y in m/s and a yaw rate in rad/s, up to `most` to either side, each with its
    chance `given` of not being zero. They change after pauses that are exponentially distributed with the mean `pause` in
    seconds."""

    most: tuple[float, float, float] = eqx.field(static=True, default=(1.5, 0.8, 1.2))
    given: tuple[float, float, float] = eqx.field(static=True, default=(0.9, 0.25, 0.5))
    pause: float = eqx.field(static=True, default=5.0)

    def draw(self, key: PRNGKeyArray, dtype: Any) -> tuple[Float[Array, "3"], Float[Array, ""]]:
        """A command, and how long it stands."""
        size, chance, wait = jax.random.split(key, 3)
        most, given = jnp.array(self.most, dtype), jnp.array(self.given, dtype)
        command = uniform(size, -most, most, most)
        there = jax.random.uniform(chance, (3,), dtype) < given
        return jnp.where(there, command, 0), -self.pause * jnp.log1p(-jax.random.uniform(wait, (), dtype))


class Ride(eqx.Module):
    """What an episode carries along: the command and the seconds until the next, the last action, and for every foot how long it
    has been in the air (s), whether it touched the ground, and how high it came (m). `phase` is the gait's, in rad."""

    command: Float[Array, "3"]
    wait: Float[Array, ""]
    action: Float[Array, " nu"]
    air: Float[Array, " nfoot"]
    touched: Bool[Array, " nfoot"]
    peak: Float[Array, " nfoot"]
    phase: Float[Array, ""]
    frequency: Float[Array, ""]


class Joystick(AbstractTask):
    """At the velocities of a command that changes on the way. The reward is a weighted sum of terms, times the time step:

        track     exp(-4 |v_xy - command|^2)              turn      exp(-4 (omega_z - command)^2), v and omega in the trunk's axes
        pose      exp(-sum of `stiff` (q - stand)^2)      bounce    v_z^2        roll  omega_x^2 + omega_y^2
        tilt      up_x^2 + up_y^2                         limits    sum of what joints are beyond 95 % of their ranges
        still     sum |q - stand| without a command       bend      sum of `loose` |q - stand|
        torque    (|tau|_1 + |tau|_2) / mass              power     sum |tau qd| / mass
        rate      sum of squared changes of actions       fall      an end
        slip      squared speeds of feet on the ground    clear     sum |height - `swing`| sqrt(speed) of feet
        lift      sum (peak / swing - 1)^2 of feet that land
        air       sum of (time in the air - `hover`) of feet that land
        clock     exp(-100 sum (height - swing (1 + cos phase_i) / 2)^2), phases of the feet spread evenly

    With `forgiving`, what is taken away is at most what was earned. Observed are velocity, angular velocity and the vertical, in
    the trunk's axes, joint angles from `stand`, rates, the last action, the command, and with a clock its cosine and sine.

    An episode ends where the trunk is lower than `lowest` of its height in standing, leans by more than arccos `upright`, a knee
    is lower than `knee` of that height, or two feet are nearer than `apart` (m).
    """

    stand: Float[Array, " nq"]
    legs: Legs
    weights: dict[str, float]
    stiff: Float[Array, " nu"]
    loose: Float[Array, " nu"]
    commands: Commands = Commands()
    forgiving: bool = eqx.field(static=True, default=True)
    frequencies: tuple[float, float] | None = eqx.field(static=True, default=None)
    swing: float = 0.1
    hover: float = 0.1
    noise: float = 0.1
    push: float = 0.5
    lowest: float = 0.5
    upright: float = 0.5
    knee: float = 0.12
    apart: float = 0.0
    touching: float = 0.005

    @classmethod
    def build(
        cls,
        *,
        model: Model,
        stand: Float[Array, " nq"],
        weights: Mapping[str, float],
        stiff: Float[Array, " nu"],
        loose: Float[Array, " nu"],
        length: int = 1000,
        substeps: int = 4,
        dt: float = 0.02,
        scale: float = 0.5,
        stiffness: float | None = None,
        damping: float,
        **fields: Any,
    ) -> Self:
        """The task on a robot, with `servos` of `scale` rad about `stand`."""
        model = on_its_feet(model)
        if model.nu != model.nq - 7:
            raise ValueError(
                f"'{model.topology.name}' has {model.nq - 7} joints and {model.nu} actuators: each joint needs one."
            )
        sim = Simulator(model, solver("ncp", substeps=substeps), dt=dt)
        action = servos(model, stand, scale=scale, stiffness=stiffness, damping=damping)
        given = {"weights": dict(weights), "stiff": stiff, "loose": loose, **fields}
        return cls(sim=sim, action=action, length=length, stand=stand, legs=Legs.of(model), **given)

    def reset(self, key: PRNGKeyArray) -> tuple[State, Ride]:
        model, keys = self.sim.model, jax.random.split(key, 5)
        zero = jnp.zeros((), model.dtype)
        q = (
            self.stand.at[2]
            .add(self.legs.level(model))
            .at[7:]
            .add(uniform(keys[0], -self.noise, self.noise, self.stand[7:]))
        )
        qd = jnp.zeros(model.nv, model.dtype).at[:6].set(uniform(keys[1], -self.push, self.push, jnp.zeros(6, model.dtype)))
        command, wait = self.commands.draw(keys[2], model.dtype)
        phase = uniform(keys[3], -np.pi, np.pi, zero)
        frequency = uniform(keys[4], *(self.frequencies or (0.0, 0.0)), zero)
        feet = jnp.zeros(len(self.legs.soles(model)), model.dtype)
        ride = Ride(command, wait, jnp.zeros(model.nu, model.dtype), feet, feet == 0, feet, phase, frequency)
        return self.sim.reset(q, qd), ride

    def observe(self, state: State, goal: Ride) -> Float[Array, " n"]:
        q, qd, R = state.q, state.qd, quat_to_matrix(state.q[3:7])
        parts = [rotate(R.T, qd[:3]), qd[3:6], -R[2], q[7:] - self.stand[7:], qd[6:], goal.action, goal.command]
        if self.frequencies is not None:
            parts.append(jnp.stack([jnp.cos(goal.phase), jnp.sin(goal.phase)]))
        return jnp.concatenate(parts)

    def follow(self, step: Step, key: PRNGKeyArray) -> Ride:
        ride, dt = self._landed(step)[0], self.sim.dt
        command, wait = self.commands.draw(key, ride.command.dtype)
        over, left = ride.wait <= dt, ride.wait - dt
        phase = ride.phase + 2 * np.pi * dt * ride.frequency
        air, peak = (jnp.where(ride.touched, 0, x) for x in (ride.air, ride.peak))
        phase = jnp.where(phase > np.pi, phase - 2 * np.pi, phase)
        command, wait = jnp.where(over, command, ride.command), jnp.where(over, wait, left)
        return Ride(command, wait, step.action, air, ride.touched, peak, phase, ride.frequency)

    def reward(self, step: Step) -> Mapping[str, Float[Array, ""]]:
        found = {**self._body(step), **self._joints(step), **self._feet(step)}
        terms = {name: w * self.sim.dt * found[name] for name, w in self.weights.items()}
        if not self.forgiving:
            return terms
        earned, lost = (sum(jnp.maximum(s * x, 0) for x in terms.values()) for s in (1, -1))
        share = jnp.minimum(1, earned / jnp.maximum(lost, 1e-12))
        return {name: jnp.where(x < 0, share * x, x) for name, x in terms.items()}

    def ended(self, state: State, goal: Ride) -> Bool[Array, ""]:
        model, legs = self.sim.model, self.legs
        kin, tall, up = forward_kinematics(model, state.q), self.stand[2], quat_to_matrix(state.q[3:7])[2, 2]
        fallen = (state.q[2] - legs.level(model) < self.lowest * tall) | (up < self.upright)
        fallen |= jnp.any(legs.heights(model, kin, legs.knees) < self.knee * tall)
        centres = legs.per_sole(model, legs.foot_positions(model, kin), jnp.mean)
        n = len(centres)
        gaps = [jnp.sum((centres[i] - centres[j]) ** 2) for i in range(n) for j in range(i)] if self.apart else []
        return fallen | jnp.any(jnp.stack(gaps) < self.apart**2) if gaps else fallen

    def _body(self, step: Step) -> dict[str, Float[Array, ""]]:
        q, qd, command = step.after.q, step.after.qd, step.goal.command
        R = quat_to_matrix(q[3:7])
        v, w, up = rotate(R.T, qd[:3]), qd[3:6], R[:, 2]
        rolling = rotate(R, w)[:2]
        return {
            "track": jnp.exp(-4 * jnp.sum((v[:2] - command[:2]) ** 2)),
            "turn": jnp.exp(-4 * (w[2] - command[2]) ** 2),
            "bounce": qd[2] ** 2,
            "roll": jnp.sum(rolling**2),
            "tilt": up[0] ** 2 + up[1] ** 2,
            "fall": self.ended(step.after, step.goal).astype(q.dtype),
        }

    def _joints(self, step: Step) -> dict[str, Float[Array, ""]]:
        model, u = self.simulator(step.goal).model, step.control.u
        assert u is not None
        q, qd = step.after.q, step.after.qd
        away, rates = q[7:] - self.stand[7:], qd[6:]
        torques = actuator_forces(model, q, qd, u)
        low, high = model.joints.range[1:, 0], model.joints.range[1:, 1]
        room = 0.025 * (high - low)
        beyond = jnp.maximum(low + room - q[7:], 0) + jnp.maximum(q[7:] - high + room, 0)
        mass = total_mass(model)
        return {
            "pose": jnp.exp(-jnp.sum(self.stiff * away**2)),
            "bend": jnp.sum(self.loose * jnp.abs(away)),
            "still": jnp.where(self._moving(step.goal), 0, jnp.sum(jnp.abs(away))),
            "limits": jnp.sum(jnp.where(jnp.isfinite(beyond), beyond, 0)),
            "torque": (jnp.sum(jnp.abs(torques)) + jnp.sqrt(jnp.sum(torques**2) + 1e-12)) / mass,
            "power": jnp.sum(jnp.abs(torques * rates)) / mass,
            "rate": jnp.sum((step.action - step.goal.action) ** 2),
        }

    def _feet(self, step: Step) -> dict[str, Float[Array, ""]]:
        model, legs = self.sim.model, self.legs
        ride, landed, height = self._landed(step)
        kin, moving = forward_kinematics(model, step.after.q), self._moving(step.goal)
        speed = legs.per_sole(model, legs.foot_velocities(model, kin, step.after.qd), jnp.mean)[:, :2]
        square = jnp.sum(speed**2, axis=1)
        spread = 2 * np.pi * np.arange(len(landed)) / len(landed)
        wanted = self.swing * (1 + jnp.cos(ride.phase + jnp.asarray(spread, height.dtype))) / 2
        return {
            "slip": jnp.where(moving, jnp.sum(jnp.where(ride.touched, square, 0)), 0),
            "clear": jnp.sum(jnp.abs(height - self.swing) * jnp.sqrt(jnp.sqrt(square + 1e-12))),
            "lift": jnp.where(moving, jnp.sum(jnp.where(landed, (ride.peak / self.swing - 1) ** 2, 0)), 0),
            "air": jnp.where(moving, jnp.sum(jnp.where(landed, ride.air - self.hover, 0)), 0),
            "clock": jnp.where(moving, jnp.exp(-100 * jnp.sum((height - wanted) ** 2)), 0),
        }

    def _landed(self, step: Step) -> tuple[Ride, Bool[Array, " nfoot"], Float[Array, " nfoot"]]:
        """The ride with times and heights of the feet at the end of a step, which feet came down in it, and their heights."""
        model, legs, ride = self.sim.model, self.legs, step.goal
        height = legs.per_sole(model, legs.clearances(model, forward_kinematics(model, step.after.q)), jnp.min)
        touched = height < self.touching
        air, peak = ride.air + self.sim.dt, jnp.maximum(ride.peak, height)
        new = eqx.tree_at(lambda r: (r.air, r.touched, r.peak), ride, (air, touched, peak))
        return new, touched & ~ride.touched, height

    def _moving(self, ride: Ride) -> Bool[Array, ""]:
        return jnp.sum(ride.command**2) > 1e-4
