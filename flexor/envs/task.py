"""`AbstractTask`: what a robot is to do, as pure functions of one robot.

A task stands over a `Simulator`, whatever its solver: nothing here or in a task asks which physics moves the robot. One step of
a task is one step of its simulator; physics that needs shorter steps has them inside (`Substeps`).
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, PRNGKeyArray

from flexor.envs.action import AbstractAction
from flexor.model.model import Control, State
from flexor.solvers import AbstractSolver, Simulator
from flexor.solvers.solver import class_name
from flexor.solvers.table import solver as solver_named


class Step(eqx.Module):
    """One step of a robot, as its reward sees it.

    `action` is what the policy said and `previous` what it said a step earlier, zeros at the start of an episode; `control` is
    what became of the action. `goal` is what the episode is about, as it was during the step. `recorded` holds the quantities
    that the task names in `record`.
    """

    before: State
    after: State
    action: Float[Array, " n"]
    previous: Float[Array, " n"]
    control: Control
    goal: Any
    recorded: dict[str, Array]


class AbstractTask(eqx.Module):
    """What a robot is to do. A subclass says how an episode starts, what the policy sees, what is rewarded, and what ends it.

    `goal` is a pytree of arrays that an episode carries along: a target, a command, a gait's clock; None where there is none.
    `action` says what a policy's numbers do to the robot. An episode is cut off after `length` steps, which is no failure: its
    last state has a value. What `ended` says is one: nothing comes after.
    """

    record: ClassVar[tuple[str, ...]] = ()
    """Quantities of a step to hand to `reward` and `follow`, by the names of their taps (`fx.taps`) or `sensor.<name>`."""

    sim: Simulator = eqx.field(kw_only=True)
    action: AbstractAction = eqx.field(kw_only=True)
    length: int = eqx.field(static=True, kw_only=True)

    def __check_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"an episode of '{self.name}' must have a positive number of steps, got {self.length}.")
        self.action.check(self.sim.model)

    @abc.abstractmethod
    def reset(self, key: PRNGKeyArray) -> tuple[State, Any]:
        """A state with which an episode starts, and its goal: `self.sim.reset(q, qd)` makes states. What a solver remembers
        starts anew with the episode."""

    @abc.abstractmethod
    def observe(self, state: State, goal: Any) -> Float[Array, " n"]:
        """What the policy sees."""

    @abc.abstractmethod
    def reward(self, step: Step) -> Mapping[str, Float[Array, ""]]:
        """Terms of the reward by name; the reward is their sum."""

    @abc.abstractmethod
    def ended(self, state: State, goal: Any) -> Bool[Array, ""]:
        """Whether the episode has failed, or reached its end, in this state."""

    def follow(self, step: Step, key: PRNGKeyArray) -> Any:
        """The goal of the next step; by default that of this one. Tasks with a memory (last actions, a clock) keep it there."""
        return step.goal

    def disturbed(self, state: State, goal: Any) -> State:
        """The state in which a step begins: by default the one in which the last ended. Pushes act here."""
        return state

    def simulator(self, goal: Any) -> Simulator:
        """The simulator of an episode: the task's own, with actuators as its action needs them."""
        with jax.ensure_compile_time_eval():  # what is known stays known: kernels have the robot compiled in
            return self.action.equip(self.sim)

    def on(self, physics: AbstractSolver | str | Mapping[str, Any]) -> Self:
        """The same task under other physics: a solver, or its name (`fx.solver`), with the substeps that the task's own has."""
        if isinstance(physics, str | Mapping):
            dt = float(self.sim.dt)
            substeps = round(dt / self.sim.solver.shortest_step(dt))
            options: dict[str, Any] = {"name": physics} if isinstance(physics, str) else dict(physics)
            physics = solver_named({"substeps": substeps, **options})
        return dataclasses.replace(self, sim=self.sim.with_solver(physics))

    def simplified(self) -> Self:
        """The same task, its solver without idle parts."""
        return eqx.tree_at(lambda t: t.sim, self, self.sim.simplified())

    @property
    def name(self) -> str:
        """What the task is called: by default by its class."""
        return class_name(self)

    @property
    def actions(self) -> int:
        """How many numbers an action has."""
        return self.action.size(self.sim.model)

    @property
    def observations(self) -> int:
        """How many numbers an observation has."""
        return int(jax.eval_shape(lambda k: self.observe(*self.reset(k)), jax.random.key(0)).shape[0])


def uniform(key: PRNGKeyArray, low: ArrayLike, high: ArrayLike, like: Array) -> Array:
    """Random numbers between two bounds, of the shape and type of an array: what most resets draw."""
    low, high = jnp.asarray(low, like.dtype), jnp.asarray(high, like.dtype)
    return low + (high - low) * jax.random.uniform(key, like.shape, like.dtype)
