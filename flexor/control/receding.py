"""`Receding`: a planner as a policy: it plans over the next steps again and again, and begins with its last plan."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flexor.control.objective import Objective, as_controls
from flexor.control.planner import AbstractPlanner
from flexor.model.model import State
from flexor.solvers import AbstractPolicy, Simulator
from flexor.solvers.compiled import compiled


class Plans(NamedTuple):
    """What a receding horizon remembers: the planner's memory, the step of the plan that it is at, random keys, its last
    controls, and how often it kept those because there were no finite new ones."""

    plan: Any
    step: Int[Array, ""]
    key: PRNGKeyArray
    u: Float[Array, " nu"]
    refused: Int[Array, ""]


class Imagined:
    """The simulator in which plans are made, compared by identity: its numbers are compiled in, not arguments of the policy."""

    def __init__(self, sim: Simulator):
        self.sim = sim


class Receding(AbstractPolicy):
    """Plans every `every` steps, by `iterations` of the planner from the last plan; the first time by `first` of them. In
    between the plan goes on, with its feedback where the planner has one.

    `sim` is where plans are made: it may be a learned simulator, or a coarser one, but it has the robot and the time step of
    the one that the policy drives. `controls` are those that the first plan begins with.
    """

    compilable = False

    planner: AbstractPlanner
    imagined: Imagined = eqx.field(static=True)
    objective: Objective
    start: Float[Array, "T nu"]
    every: int = eqx.field(static=True)
    iterations: int = eqx.field(static=True)
    first: int = eqx.field(static=True)

    def __init__(
        self, planner: AbstractPlanner, sim: Simulator, objective: Objective, *, controls: Any = None, every: int = 1,
        iterations: int = 1, first: int = 20,
    ) -> None:  # fmt: skip
        planner.check(sim, objective)
        if not 1 <= every <= objective.steps:
            raise ValueError(f"a horizon of {objective.steps} steps cannot be planned again every {every} steps.")
        if iterations < 1 or first < 1:
            raise ValueError(f"plans need an iteration at least, got {iterations} and, the first time, {first}.")
        self.planner, self.imagined, self.objective = planner, Imagined(sim), objective
        self.start = as_controls(sim, objective, controls)
        self.every, self.iterations, self.first = every, iterations, first

    def init(self, key: PRNGKeyArray | None) -> Plans:
        sim = self.imagined.sim
        plan = self.planner.begin(sim, self.objective, self.start)
        key = jax.random.key(0) if key is None else key
        return Plans(
            plan, jnp.full((), -1, jnp.int32), key, jnp.zeros(sim.model.nu, sim.model.dtype), jnp.zeros((), jnp.int32)
        )

    def __call__(self, state: State, memory: Plans, key: PRNGKeyArray | None) -> tuple[Float[Array, " nu"], Plans]:
        return compiled(_decided, self.imagined.sim, (self, state, memory), inner=True)  # type: ignore[no-any-return]


def _decided(sim: Simulator, policy: Receding, given: State, memory: Plans) -> tuple[Float[Array, " nu"], Plans]:
    """The control in a state, and what to remember."""
    planner, objective, state = policy.planner, policy.objective, seen(sim, given)
    new = memory.step < 0

    def planned(memory: Plans) -> tuple[Any, Array, PRNGKeyArray]:
        later = planner.shifted(sim, objective, memory.plan, policy.every)
        plan = jax.tree.map(lambda a, b: jnp.where(new, a, b), memory.plan, later)

        def better(_: Array, carry: tuple[Any, PRNGKeyArray]) -> tuple[Any, PRNGKeyArray]:
            plan, key = carry
            key, own = jax.random.split(key)
            return planner.improve(sim, objective, state, plan, own), key

        times = jnp.where(new, policy.first, policy.iterations)
        plan, key = jax.lax.fori_loop(0, times, better, (plan, memory.key))
        return plan, jnp.zeros_like(memory.step), key

    def kept(memory: Plans) -> tuple[Any, Array, PRNGKeyArray]:
        return memory.plan, memory.step, memory.key

    plan, step, key = jax.lax.cond(new | (memory.step >= policy.every), planned, kept, memory)
    u = planner.control(sim, objective, plan, state, step)
    good = jnp.all(jnp.isfinite(u))
    lost = ~good & (step == 0)  # the plan that was just made, from a state that is not finite, say: the next one begins anew
    plan = jax.lax.cond(lost, lambda p: planner.begin(sim, objective, policy.start), lambda p: p, plan)
    u = jnp.where(good, u, memory.u)
    return u, Plans(plan, jnp.where(lost, -1, step + 1), key, u, memory.refused + (1 - good.astype(jnp.int32)))


def seen(sim: Simulator, state: State) -> State:
    """The state as a simulator has it: with its solver's memory, which starts anew where another one moves the robot."""
    own, given = (jax.tree.flatten(x) for x in (jax.eval_shape(sim.reset), state))
    if bool(own[1] == given[1]) and [x.shape for x in own[0]] == [x.shape for x in given[0]]:  # type: ignore[operator]
        return state
    fresh = sim.solver.init(sim.model, State(state.q, state.qd, state.time))
    return fresh if state.act is None else dataclasses.replace(fresh, act=state.act)
