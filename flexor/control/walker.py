"""`Walker`: a quadruped walks where it is told to, by convex MPC. A policy of a rollout.

Feet on the ground push with the forces of a `ForceProblem` over the horizon, J^T f (Di Carlo et al. 2018; Kim et al. 2019). Feet
in the air swing to where Raibert's rule puts them: the joints' errors by inverse kinematics, driven to zero with the
legs' own inertia. The state is the simulator's.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flexor.control.force_problem import ForceProblem
from flexor.control.forces import AbstractForces
from flexor.control.gait import GAITS, Gait
from flexor.control.interior_point import InteriorPoint
from flexor.control.pilot import Pilot
from flexor.control.quadruped import Quadruped
from flexor.dynamics import centre_of_mass, forward_kinematics, gravity_force, point_jacobian
from flexor.model.model import Control, State
from flexor.solvers import AbstractPolicy
from flexor.spatial import cross, matvec, quat_to_matrix, rotate


class Memory(NamedTuple):
    """What a walker remembers: the time in its gait, steps until it plans again, forces of the last plan (axes of the heading),
    where feet were when they last stood (from the centre of mass, axes of the heading), its last torques, and how often it kept
    the last plan or torques because there were no new ones."""

    time: Float[Array, ""]
    wait: Int[Array, ""]
    forces: Float[Array, "horizon foot 3"]
    lift: Float[Array, "foot 3"]
    u: Float[Array, " nu"]
    refused: Int[Array, ""]


class Trunk(NamedTuple):
    """The robot as the plan sees it, in axes that look where it looks: `turn` from those to the world's, roll and pitch, height
    and velocity of the centre of mass, angular velocity, feet from there, their velocities relative to it, clearances and
    Jacobians, and torques that hold the legs up."""

    turn: Float[Array, "3 3"]
    tilt: Float[Array, "2"]
    height: Float[Array, ""]
    velocity: Float[Array, "3"]
    angular: Float[Array, "3"]
    feet: Float[Array, "4 3"]
    foot_velocities: Float[Array, "4 3"]
    clearance: Float[Array, "4"]
    jacobians: Float[Array, "4 3 3"]
    weight: Float[Array, "4 3"]


class Swing(eqx.Module):
    """How feet swing. They rise to `apex` and come down a little into the ground (`press`), in lengths of a leg; joints follow
    with the natural `frequency` in rad/s, critically damped. `feedback` in s is Raibert's gain on errors of the velocity."""

    apex: float = 0.16
    press: float = 0.01
    frequency: float = 60.0
    feedback: float = 0.03
    damping: float = 1e-3


class Plan(eqx.Module):
    """What the forces are for: weights on (roll, pitch, yaw, position, angular velocity, velocity), and on forces in units of the
    robot's weight; the horizon and its step in s; seconds between two plans; bounds on the normal force, as shares of the
    weight, and the share of the feet's friction that is relied on."""

    weights: tuple[float, ...] = (5.0, 5.0, 0.2, 0.0, 0.0, 10.0, 0.0, 0.0, 1.0, 3.0, 3.0, 0.0)
    effort: float = 0.5
    horizon: int = eqx.field(static=True, default=10)
    dt: float = eqx.field(static=True, default=0.025)
    every: float = eqx.field(static=True, default=0.02)
    low: float = 0.02
    high: float = 2.0
    friction: float = 0.6


class Walker(AbstractPolicy):
    """Walks at `command`: velocities forwards and to the left in m/s, and the rate of turning in rad/s. `dt` is the simulator's
    step, `forces` what solves the plan. `start` is where in the gait it begins, in s."""

    robot: Quadruped = eqx.field(static=True)
    command: Float[Array, "3"]
    dt: float = eqx.field(static=True)
    gait: Gait = GAITS["trot"]
    forces: AbstractForces = InteriorPoint()
    plan: Plan = Plan()
    swing: Swing = Swing()
    start: Float[Array, ""] | float = 0.0

    def __check_init__(self) -> None:
        if not isinstance(self.command, jax.core.Tracer):
            self.check(np.asarray(self.command))

    def check(self, command: np.ndarray) -> None:
        """Raises, with a sentence, for a command that the legs cannot follow: a step would be longer than they reach."""
        if not np.isfinite(command).all():
            raise ValueError(f"the command must be three finite numbers, got {command}.")
        robot, stance = self.robot, self.gait.stance
        below = robot.bend * robot.leg_length
        reach = 0.9 * np.sqrt(robot.leg_length**2 - below**2)
        arm = float(np.max(np.linalg.norm(robot.feet[:, :2], axis=1)))
        speed = float(np.hypot(command[0], command[1]) + abs(command[2]) * arm)
        if speed * stance / 2 > reach:
            name = robot.model.topology.name
            raise ValueError(
                f"'{name}' cannot follow the command {np.round(command, 3).tolist()}: at {speed:.2f} m/s a foot that stands for "
                f"{stance:g} s must reach {speed * stance / 2:.2f} m to each side, and its legs reach {reach:.2f} m: "
                f"{2 * reach / stance:.2f} m/s at most in this gait."
            )

    def compile(self, *, batch: int | None = None, threads: int | None = None) -> Pilot:
        """This walker as a program over NumPy arrays, for one robot or a batch: beside a `Stepper`, or a real robot."""
        return Pilot(self, batch=batch, threads=threads)

    def init(self, key: PRNGKeyArray | None) -> Memory:
        robot, dtype = self.robot, self.robot.model.dtype
        zero = jnp.zeros((), dtype)
        share = jnp.full((self.plan.horizon, 4), robot.mass * robot.gravity / 4, dtype)
        forces = jnp.stack([0 * share, 0 * share, share], axis=-1)
        return Memory(zero + self.start, jnp.zeros((), int), forces, jnp.asarray(robot.feet, dtype),
                      jnp.zeros(robot.model.nu, dtype), jnp.zeros((), int))  # fmt: skip

    def __call__(self, state: State, memory: Memory, key: PRNGKeyArray | None) -> tuple[Control, Memory]:
        trunk = self.look(state)
        phases = self.gait.phases(memory.time)
        stands = self.gait.stands(phases)

        def planned(memory: Memory) -> tuple[Array, Array, Array]:
            found = self.forces(self.problem(trunk, memory.time, stands), memory.forces)
            good = found.converged & jnp.all(jnp.isfinite(found.forces))
            forces = jnp.where(good, found.forces, memory.forces)
            return forces, memory.refused + (1 - good.astype(int)), jnp.full_like(memory.wait, self._every() - 1)

        def kept(memory: Memory) -> tuple[Array, Array, Array]:
            return memory.forces, memory.refused, memory.wait - 1

        forces, refused, wait = jax.lax.cond(memory.wait <= 0, planned, kept, memory)
        lift = jnp.where(stands[:, None], trunk.feet, memory.lift)
        torques = jnp.where(stands[:, None], self._push(trunk, forces[0]), self._swing(trunk, phases, lift))
        u = self._inputs(torques + trunk.weight)
        good = jnp.all(jnp.isfinite(u))
        u = jnp.where(good, u, memory.u)
        return Control(u=u), Memory(self._clock(memory.time), wait, forces, lift, u, refused + (1 - good.astype(int)))

    def _every(self) -> int:
        return max(1, round(self.plan.every / self.dt))

    def _clock(self, time: Array) -> Array:
        """The next time, within a period of the gait: the clock keeps its digits."""
        later = time + self.dt
        return jnp.where(later >= self.gait.period, later - self.gait.period, later)

    def look(self, state: State) -> Trunk:
        """The robot as the plan sees it."""
        robot, model, q, qd = self.robot, self.robot.model, state.q, state.qd
        kin = forward_kinematics(model, q)
        R, com = quat_to_matrix(q[3:7]), centre_of_mass(model, kin)
        across = jnp.sqrt(R[0, 0] ** 2 + R[1, 0] ** 2 + 1e-12)
        c, s, zero = R[0, 0] / across, R[1, 0] / across, jnp.zeros_like(across)
        turn = jnp.stack([jnp.stack([c, -s, zero]), jnp.stack([s, c, zero]), jnp.stack([zero, zero, zero + 1])])
        tilt = jnp.stack([jnp.arctan2(R[2, 1], R[2, 2]), jnp.arctan2(-R[2, 0], across)])
        angular = rotate(turn.T, rotate(R, qd[3:6]))
        velocity = rotate(turn.T, qd[:3]) + cross(angular, rotate(turn.T, com - q[:3]))
        feet = robot.legs.foot_positions(model, kin)
        bodies = np.array([model.topology.geoms[k].body for k in robot.legs.feet])
        J = point_jacobian(model, kin, bodies, feet)
        moving = rotate(turn.T, matvec(J, qd)) - velocity[None]
        own = jnp.stack([turn.T @ J[k][:, d] for k, d in enumerate(robot.dofs)])
        level = robot.legs.level(model)
        return Trunk(turn, tilt, com[2] - level, velocity, angular, rotate(turn.T, feet - com[None]), moving,
                     robot.legs.clearances(model, kin), own, gravity_force(model, kin)[robot.dofs])  # fmt: skip

    def problem(self, trunk: Trunk, time: Float[Array, ""], stands: Bool[Array, "4"]) -> ForceProblem:
        """The plan: the trunk is to move as told, with feet on the ground as the gait has it over the whole horizon."""
        robot, plan, dtype = self.robot, self.plan, trunk.tilt.dtype
        zero, ahead = jnp.zeros((), dtype), plan.dt * jnp.arange(1, plan.horizon + 1, dtype=dtype)
        start = jnp.concatenate(
            [trunk.tilt, zero[None], zero[None], zero[None], trunk.height[None], trunk.angular, trunk.velocity]
        )
        vx, vy, rate = self.command
        none, one = jnp.zeros_like(ahead), jnp.ones_like(ahead)
        c, s = jnp.cos(rate * ahead), jnp.sin(rate * ahead)  # the command is in axes that turn
        target = jnp.stack([none, none, rate * ahead, vx * ahead, vy * ahead, robot.height * one,
                            none, none, rate * one, c * vx - s * vy, s * vx + c * vy, none], axis=1)  # fmt: skip
        contact = self.gait.stands(self.gait.phases(time + ahead - plan.dt / 2))
        contact = jnp.concatenate([stands[None], contact[1:]])
        drift = jnp.stack([vx * (ahead - plan.dt / 2), vy * (ahead - plan.dt / 2), none], axis=1)
        standing = trunk.feet[None] - drift[:, None]
        landing = jnp.asarray(robot.feet, dtype)[None] + 0 * standing
        since = jnp.cumprod(contact.astype(dtype), axis=0)[
            ..., None
        ]  # feet that have stood without a break are where they are
        arms = since * standing + (1 - since) * landing
        weight = robot.mass * robot.gravity

        def number(x: Any) -> Array:
            return jnp.asarray(x, dtype)

        return ForceProblem(
            start=start, target=target, arms=arms, contact=contact.astype(dtype), mass=number(robot.mass),
            inertia=number(robot.inertia), friction=number(plan.friction * robot.friction), low=number(plan.low * weight),
            high=number(plan.high * weight), weights=number(plan.weights), effort=number(plan.effort / weight**2),
            gravity=number(robot.gravity), dt=number(plan.dt),
        )  # fmt: skip

    def _push(self, trunk: Trunk, forces: Float[Array, "4 3"]) -> Float[Array, "4 3"]:
        """Torques with which the legs push the ground away."""
        return -jnp.sum(trunk.jacobians * forces[:, :, None], axis=1)

    def _swing(self, trunk: Trunk, phases: Float[Array, "4"], lift: Float[Array, "4 3"]) -> Float[Array, "4 3"]:
        """Torques of legs in the air: M (w^2 dq + 2 w dqd), the errors of the joints those of the foot by J^-1, damped."""
        robot, swing, dtype = self.robot, self.swing, trunk.tilt.dtype
        goal, rate = self._path(trunk, phases, lift)
        off = jnp.concatenate([(goal - trunk.feet)[:, :2], (goal[:, 2] - trunk.clearance)[:, None]], axis=1)
        # feet move with the trunk's turning; heights are the ground's
        own = rate + jnp.stack([-trunk.angular[2] * trunk.feet[:, 1], trunk.angular[2] * trunk.feet[:, 0],
                                -jnp.broadcast_to(trunk.velocity[2], (4,))], axis=1)  # fmt: skip
        off_rate = own - trunk.foot_velocities
        w = swing.frequency
        wanted = w * w * off + 2 * w * off_rate
        damping = swing.damping * robot.leg_length**2
        joints = jnp.stack([J.T @ _solved3(J @ J.T + damping * jnp.eye(3, dtype=dtype), x)
                            for J, x in zip(trunk.jacobians, wanted, strict=True)])  # fmt: skip
        return matvec(jnp.asarray(robot.leg_inertia, dtype), joints)

    def _path(self, trunk: Trunk, phases: Array, lift: Array) -> tuple[Float[Array, "4 3"], Float[Array, "4 3"]]:
        """Where swinging feet are to be, from the centre of mass, heights above the ground; and their rates.

        They land half a stance ahead of their hips' places, and `feedback` times the error of the velocity beyond (Raibert 1986).
        """
        robot, gait, swing, dtype = self.robot, self.gait, self.swing, trunk.tilt.dtype
        neutral, zero = jnp.asarray(robot.feet, dtype), jnp.zeros(4, dtype)
        vx, vy, rate = self.command

        def at_hip(x: Array, y: Array, turning: Array) -> Array:
            return jnp.stack([x - turning * neutral[:, 1], y + turning * neutral[:, 0], zero], axis=1)

        now, wanted = at_hip(trunk.velocity[0], trunk.velocity[1], trunk.angular[2]), at_hip(vx, vy, rate)
        landing = neutral + gait.stance / 2 * now + swing.feedback * (now - wanted)
        s = gait.progress(phases)
        turn = 2 * np.pi * s
        blend, slope = s - jnp.sin(turn) / (2 * np.pi), 1 - jnp.cos(turn)
        apex, press = swing.apex * robot.leg_length, swing.press * robot.leg_length
        flat = lift + blend[:, None] * (landing - lift)
        height = apex * (1 - jnp.cos(turn)) / 2 - press * blend
        rates = slope[:, None] * (landing - lift)
        climb = apex * np.pi * jnp.sin(turn) - press * slope
        duration = max(gait.swing, 1e-6)
        return (jnp.concatenate([flat[:, :2], height[:, None]], axis=1),
                jnp.concatenate([rates[:, :2], climb[:, None]], axis=1) / duration)  # fmt: skip

    def _inputs(self, torques: Float[Array, "4 3"]) -> Float[Array, " nu"]:
        """Inputs of the actuators within their bounds."""
        act, dtype = self.robot.model.actuators, torques.dtype
        order = np.argsort(self.robot.motors.ravel())
        force = torques.ravel()[order] / act.gear
        force = jnp.clip(force, act.force_range[:, 0], act.force_range[:, 1]).astype(dtype)
        return jnp.clip(force / act.gain, act.ctrl_range[:, 0], act.ctrl_range[:, 1])


def _solved3(A: Float[Array, "3 3"], b: Float[Array, "3"]) -> Float[Array, "3"]:
    """A^-1 b of a regular matrix, by cofactors."""
    rows = jnp.stack([cross(A[1], A[2]), cross(A[2], A[0]), cross(A[0], A[1])], axis=1)
    return matvec(rows, b) / jnp.sum(A[0] * rows[:, 0])
