"""Planning by sampling: MPPI, predictive sampling and the cross-entropy method. The population is in the lanes of a kernel.

They need no derivatives: any solver, any cost. A plan is a spline; samples are its knots plus normal noise, held within bounds.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flexor.control.expansion import lanes
from flexor.control.objective import Objective, as_controls, bounds, value
from flexor.control.planner import AbstractPlanner, Planned, Progress, as_trajectory, lost, prepended
from flexor.control.spline import Spline
from flexor.model.model import State
from flexor.solvers import Simulator, Status
from flexor.solvers.compiled import compiled


class Population(NamedTuple):
    """Knots of the plan, the spread of the noise about each, the cost of the best sample last time, and whether any sample's was
    finite."""

    knots: Float[Array, "knots nu"]
    spread: Float[Array, "knots nu"]
    cost: Float[Array, ""]
    alive: Bool[Array, ""]


class AbstractSampling(AbstractPlanner):
    """Noise has the standard deviation `noise`, a share of half an actuator's range. The plan itself is one of the `samples`."""

    samples: eqx.AbstractVar[int]
    noise: eqx.AbstractVar[float]
    spline: eqx.AbstractVar[Spline]
    iterations: eqx.AbstractVar[int]

    @abc.abstractmethod
    def update(
        self, now: Population, samples: Float[Array, "n knots nu"], cost: Float[Array, " n"], first: Float[Array, " nu"]
    ) -> tuple[Float[Array, "knots nu"], Float[Array, "knots nu"]]:
        """The new knots and their spread; `first` is that of the first noise. Costs that are not finite are
        infinite, and at least one is finite."""

    def check(self, sim: Simulator, objective: Objective) -> None:
        objective.check(sim)
        self.spline.check(objective.steps)
        if self.samples < 2 or self.iterations < 1:
            raise ValueError(
                f"sampling needs 2 samples and an iteration at least, got {self.samples} and {self.iterations}."
            )
        bounded = np.isfinite(np.asarray(sim.model.actuators.ctrl_range)).all(axis=1)
        if not bounded.all():
            name = sim.model.topology.actuators[int(np.argmin(bounded))].name
            raise ValueError(f"actuator '{name}' has no bounds (`ctrl_range`), of which the noise of a sample is a share.")

    def begin(self, sim: Simulator, objective: Objective, controls: Float[Array, "T nu"]) -> Any:
        dtype = controls.dtype
        knots = jnp.asarray(self.spline.fitted(objective.steps), dtype) @ controls
        spread = jnp.broadcast_to(self._first(sim), knots.shape)
        return Population(knots, spread, jnp.full((), jnp.inf, dtype), jnp.ones((), bool))

    def _first(self, sim: Simulator) -> Float[Array, " nu"]:
        low, high = bounds(sim)
        return self.noise * (high - low) / 2

    def improve(self, sim: Simulator, objective: Objective, state: State, memory: Any, key: PRNGKeyArray) -> Any:
        low, high = bounds(sim)
        noise = jax.random.normal(key, (self.samples, *memory.knots.shape), memory.knots.dtype)
        noise = noise.at[0].set(0)
        samples = jnp.clip(memory.knots[None] + memory.spread[None] * noise, low[None, None], high[None, None])
        cost = _costs(sim, objective, self.spline, state, samples)
        cost = jnp.where(jnp.isfinite(cost), cost, jnp.inf)
        alive = jnp.any(jnp.isfinite(cost))
        knots, spread = self.update(memory, samples, cost, self._first(sim))
        return Population(
            jnp.where(alive, knots, memory.knots), jnp.where(alive, spread, memory.spread), jnp.min(cost), alive
        )

    def control(self, sim: Simulator, objective: Objective, memory: Any, state: State, step: Array) -> Float[Array, " nu"]:
        low, high = bounds(sim)
        weights = jnp.asarray(self.spline.values(objective.steps), memory.knots.dtype)
        return jnp.clip(weights[step] @ memory.knots, low, high)

    def shifted(self, sim: Simulator, objective: Objective, memory: Any, steps: int) -> Any:
        weights = jnp.asarray(self.spline.later(objective.steps, steps), memory.knots.dtype)
        return memory._replace(knots=weights @ memory.knots, spread=weights @ memory.spread)

    def plan(
        self, sim: Simulator, objective: Objective, state: State, controls: Any = None, *, key: PRNGKeyArray | None = None,
        progress: Progress | None = None,
    ) -> Planned:  # fmt: skip
        self.check(sim, objective)
        u = as_controls(sim, objective, controls)
        keys = jax.random.split(jax.random.key(0) if key is None else key, self.iterations)
        memory = compiled(_begin, sim, (self, objective, u), inner=True)
        states, best, least = compiled(_motion, sim, (self, objective, state, memory.knots), inner=True)
        history, message = [float(least)], None
        for iteration in range(self.iterations):
            memory = compiled(_improved, sim, (self, objective, state, memory, keys[iteration]), inner=True)
            made, u, cost = compiled(_motion, sim, (self, objective, state, memory.knots), inner=True)
            if float(cost) < history[-1] or not np.isfinite(history[-1]):
                states, best, least = made, u, cost
            history.append(float(least))
            if progress is not None:
                progress(iteration + 1, self.iterations, history[-1])
            if not memory.alive:
                message = f"none of {self.samples} samples has a finite cost"
                break
        why = lost(states, history[-1])
        message = f"{message}: {why}" if message and why else message or why
        status = Status(message is None, message or f"made {self.iterations} iterations of {self.samples} samples")
        return Planned(as_trajectory(sim, states, best), history[-1], tuple(history), None, status)


class MPPI(AbstractSampling):
    """The mean of the samples, weighted by exp(-cost / temperature) (Williams et al. 2017, without the term that couples the
    cost to the noise)."""

    temperature: float = 1.0
    samples: int = eqx.field(static=True, default=256)
    noise: float = 0.3
    spline: Spline = Spline()
    iterations: int = eqx.field(static=True, default=20)

    def update(self, now: Population, samples: Array, cost: Array, first: Array) -> tuple[Array, Array]:
        weight = jax.nn.softmax(-(cost - jnp.min(cost)) / self.temperature)
        return jnp.einsum("n,nij->ij", weight, samples), now.spread


class PredictiveSampling(AbstractSampling):
    """The best sample (Howell et al. 2022)."""

    samples: int = eqx.field(static=True, default=256)
    noise: float = 0.3
    spline: Spline = Spline()
    iterations: int = eqx.field(static=True, default=20)

    def update(self, now: Population, samples: Array, cost: Array, first: Array) -> tuple[Array, Array]:
        return samples[jnp.argmin(cost)], now.spread


class CrossEntropy(AbstractSampling):
    """The mean of the best `elites`, a share of the samples, whose standard deviation, never below `least` of the first, is that
    of the next noise (Kobilarov 2012)."""

    elites: float = eqx.field(static=True, default=0.1)
    least: float = 0.1
    samples: int = eqx.field(static=True, default=256)
    noise: float = 0.5
    spline: Spline = Spline()
    iterations: int = eqx.field(static=True, default=20)

    def update(self, now: Population, samples: Array, cost: Array, first: Array) -> tuple[Array, Array]:
        count = max(2, round(self.elites * self.samples))
        least, best = jax.lax.top_k(-cost, count)
        weight = jnp.isfinite(least).astype(cost.dtype)
        weight = (weight / jnp.sum(weight))[:, None, None]
        chosen = samples[best]
        mean = jnp.sum(weight * chosen, axis=0)
        spread = jnp.sqrt(jnp.sum(weight * (chosen - mean[None]) ** 2, axis=0))
        return mean, jnp.maximum(spread, self.least * first[None])


def _begin(sim: Simulator, planner: AbstractSampling, objective: Objective, u: Float[Array, "T nu"]) -> Population:
    return planner.begin(sim, objective, u)  # type: ignore[no-any-return]


def _improved(
    sim: Simulator, planner: AbstractSampling, objective: Objective, state: State, memory: Population, key: PRNGKeyArray
) -> Population:
    return planner.improve(sim, objective, state, memory, key)  # type: ignore[no-any-return]


def _costs(
    sim: Simulator, objective: Objective, spline: Spline, state: State, samples: Float[Array, "n knots nu"]
) -> Float[Array, " n"]:
    """Costs of the samples, a lane each."""

    def one(state: State, knots: Array) -> Array:
        return _rolled(sim, objective, spline, state, knots)[0]

    return lanes(sim)(one, (None, 0))(state, samples)  # type: ignore[no-any-return]


def _motion(
    sim: Simulator, planner: AbstractSampling, objective: Objective, state: State, knots: Float[Array, "knots nu"]
) -> tuple[State, Array, Array]:
    """States and controls of a plan, and its cost."""

    def one(state: State, knots: Array) -> Any:
        return _rolled(sim, objective, planner.spline, state, knots, keep=True)

    cost, (rest, u) = lanes(sim)(one, (None, 0))(state, knots[None])
    return prepended(state, jax.tree.map(lambda x: x[0], rest)), u[0], cost[0]


def _rolled(
    sim: Simulator, objective: Objective, spline: Spline, state: State, knots: Array, *, keep: bool = False
) -> tuple[Array, Any]:
    """Cost of the motion under a spline, and, where they are kept, its states and controls."""
    weights = jnp.asarray(spline.values(objective.steps), knots.dtype)
    low, high = bounds(sim)

    def advance(carry: tuple[State, Array], row: Array) -> Any:
        state, total = carry
        u = jnp.clip(row @ knots, low, high)  # cubic splines overshoot their knots
        new, cost = objective.step(sim, state, u)
        return (new, total + value(cost)), (new, u) if keep else None

    (last, total), kept = jax.lax.scan(advance, (state, jnp.zeros((), knots.dtype)), weights)
    return total + value(objective.at_end(last)), kept
