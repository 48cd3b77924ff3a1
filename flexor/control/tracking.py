"""Following a motion with motors: PD, and computed torque with a model that may change; in rollouts, and in loops over NumPy.

    PD                 tau = kp e + kd e'                                             e = q_d - q
    ComputedTorque     tau = M (qdd_d + kp e + kd e') + C qd + g + friction - springs

A `goal` is a function of time in s that returns q_d, qd_d, qdd_d. `compile()` makes a policy a `Loop`: one call of compiled code
for each sample. What a policy remembers is an array there that may be written to: the z of `ComputedTorque` is where an adapter's
estimate goes.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from flexor import dynamics as dyn
from flexor.adapt.linear import motor_of_dof
from flexor.identify.torque import motors_of
from flexor.identify.torque_problem import blank_passive
from flexor.model.charts import Coordinates
from flexor.model.model import Control, Model, State, as_control
from flexor.simd import Direct
from flexor.solvers import AbstractPolicy
from flexor.spatial import take

Goal = Callable[[Array], tuple[Array, Array, Array]]


class Sines(eqx.Module):
    """A goal: every joint on a sine of its own, around `middle`, with `amplitude` in rad (m), `frequency` in Hz, `phase` in rad.
    It starts at rest in the middle and reaches its size after `rise` seconds."""

    middle: Float[Array, " nv"]
    amplitude: Float[Array, " nv"]
    frequency: Float[Array, " nv"]
    phase: Float[Array, " nv"]
    rise: float = 1.0

    def __call__(self, time: Float[Array, ""]) -> tuple[Array, Array, Array]:
        def q(t: Array) -> Array:
            s = jnp.clip(t / self.rise, 0.0, 1.0)
            grown = s**3 * (10 - 15 * s + 6 * s**2)
            return self.middle + grown * self.amplitude * jnp.sin(2 * np.pi * self.frequency * t + self.phase)

        one = jnp.ones_like(time)

        def qd(t: Array) -> tuple[Array, Array]:
            return jax.jvp(q, (t,), (one,))

        (position, velocity), (_, acceleration) = jax.jvp(qd, (time,), (one,))
        return position, velocity, acceleration


class AbstractTracking(AbstractPolicy):
    """A policy that follows `goal` with motors on hinges and slides; `model` is what it knows of the robot."""

    model: eqx.AbstractVar[Model]
    goal: eqx.AbstractVar[Goal]

    def __check_init__(self) -> None:
        t = self.model.topology
        if isinstance(self.model.actuators.bias, jax.core.Tracer):
            return
        if -1 in motors_of(self.model).of_dof or t.nq != t.nv:
            raise ValueError(
                f"'{t.name}' has degrees of freedom without a motor of their own, so it cannot follow a motion."
            )

    def inputs(self, tau: Float[Array, " nv"]) -> Float[Array, " nu"]:
        """Inputs of the motors that push with tau."""
        motors = np.argsort(motor_of_dof(self.model))  # the degree of freedom of each motor
        a = self.model.actuators
        return take(tau, motors) / (a.gain * a.gear)

    def compile(self) -> "Loop":
        """This policy as a program over NumPy arrays, beside a `Stepper` or a real robot."""
        return Loop(self, self.model)


class PD(AbstractTracking):
    """tau = kp e + kd e': knows nothing of the robot's inertia. `kp` in N m/rad, `kd` in N m s/rad."""

    model: Model
    goal: Goal
    kp: Float[Array, " nv"]
    kd: Float[Array, " nv"]

    def __call__(self, state: State, memory: Any, key: PRNGKeyArray | None) -> tuple[Control, Any]:
        q, qd, _ = self.goal(state.time)
        return Control(u=self.inputs(self.kp * (q - state.q) + self.kd * (qd - state.qd))), memory


class ComputedTorque(AbstractTracking):
    """Computed torque: errors obey e'' + kd e' + kp e = 0 where the model is right. `kp` in 1/s^2, `kd` in 1/s.

    With the `place` of an adapter the memory is z, the model's free parameters in their charts; a loop writes the newest estimate
    there. In a rollout it stays at its start: the frozen model. `creep` is the speed at which dry friction turns round.
    """

    model: Model
    goal: Goal
    kp: Float[Array, ""] | float = 400.0
    kd: Float[Array, ""] | float = 40.0
    place: Coordinates | None = eqx.field(static=True, default=None)
    creep: float = 0.02

    def init(self, key: PRNGKeyArray | None) -> Float[Array, " z"]:
        return jnp.asarray(np.zeros(0) if self.place is None else self.place.start, self.model.dtype)

    def __call__(self, state: State, memory: Array, key: PRNGKeyArray | None) -> tuple[Control, Array]:
        robot = self.model if self.place is None else self.place.apply(self.model, memory)[0]
        q, qd, qdd = self.goal(state.time)
        wanted = qdd + self.kp * (q - state.q) + self.kd * (qd - state.qd)
        return Control(u=self.inputs(inverse(robot, state.q, state.qd, wanted, qd, self.creep))), memory


def inverse(robot: Model, q: Array, qd: Array, qdd: Array, along: Array, creep: float) -> Float[Array, " nv"]:
    """Torques of the motors that accelerate a robot by qdd, with friction along the velocity `along`, which is the wanted one:
    measured velocities are noisy where they change sign."""
    kin, joints, joint = dyn.forward_kinematics(robot, q), robot.joints, robot.topology.dof_joint
    force = dyn.rnea(robot, kin, qd, qdd) - dyn.passive_force(blank_passive(robot), q, qd, kin)
    return force + take(joints.damping, joint) * qd + take(joints.frictionloss, joint) * jnp.tanh(along / creep)


class Loop:
    """A policy as one program: `loop(time, q, qd)` gives the inputs, in an array that the next call overwrites. `memory` is what
    the policy remembers, in NumPy arrays that may be written to."""

    def __init__(self, policy: AbstractPolicy, model: Model):
        reason = Direct.unsupported()
        if reason:
            raise ValueError(f"there is no loop on this machine: {reason}; use the policy in `sim.rollout`.")
        start, tree = jax.tree.flatten(policy.init(None))

        def control(time, q, qd, leaves):  # type: ignore[no-untyped-def]
            made, memory = policy(State(q, qd, time), jax.tree.unflatten(tree, leaves), None)
            return jax.tree.leaves(memory), as_control(model, made).u

        shapes = ((), (model.nq,), (model.nv,))
        examples = [jax.ShapeDtypeStruct(s, model.dtype) for s in shapes]
        leaves = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in start]
        self._program = Direct(control, *examples, leaves, feeds=range(3, 3 + len(start)), threads=1)
        self._run = self._program.run
        self._time, self._q, self._qd = self._program.inputs[:3]
        self._leaves, self._start = self._program.inputs[3:], [np.asarray(x) for x in start]
        self.memory = jax.tree.unflatten(tree, self._leaves)
        self.u: np.ndarray = self._program.outputs[-1]
        self.reset()

    def reset(self) -> None:
        """The memory with which the policy begins."""
        for mine, x in zip(self._leaves, self._start, strict=True):
            mine[...] = x

    def __call__(self, time: float, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
        self._time[...], self._q[...], self._qd[...] = time, q, qd
        self._run()
        return self.u
