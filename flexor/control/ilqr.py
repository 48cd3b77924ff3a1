"""`ILQR`: shooting by iterated linear-quadratic regulators with bounds on the controls (box-DDP), many trials in the lanes.

Tassa, Mansard, Todorov 2014. In place of raising the regularisation until a backward pass succeeds, and halving the step until a
forward pass does, every iteration makes backward passes with several regularisations at once, a lane each, forward passes with
each of their gains and several step sizes, a lane each, and takes the motion that costs least. The dynamics enter by
first derivatives; contact included.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flexor import simd
from flexor.control.box_qp import box_qp, solved
from flexor.control.expansion import Expansion, expand, lanes
from flexor.control.objective import Objective, as_controls, bounds, value
from flexor.control.planner import AbstractPlanner, Planned, Progress, as_trajectory, lost, prepended
from flexor.control.tangent import displacement, tangent_size
from flexor.model.model import State
from flexor.solvers import Simulator, Status
from flexor.solvers.compiled import compiled
from flexor.solvers.solver import class_name


class Trial(NamedTuple):
    """States along a motion, T + 1 of them, its controls, and its cost."""

    states: State
    controls: Float[Array, "T nu"]
    cost: Float[Array, ""]


class Memory(NamedTuple):
    """The best motion so far, gains along it, the middle one of the regularisations, the share by which the cost fell last, and
    whether the derivatives along it were finite."""

    motion: Trial
    gains: Float[Array, "T nu nx"]
    middle: Float[Array, ""]
    gained: Float[Array, ""]
    finite: Bool[Array, ""]


class ILQR(AbstractPlanner):
    """Stops when in `patience` iterations the cost has fallen by less than `tolerance`, as a share, each, or after `iterations`.

    `regularisations` are added to the diagonal of Q_uu: zero, and powers of ten around one that moves with what worked last, from
    `first` on, at most `largest`. `halvings` is how many step sizes are tried: 1, 1/2, 1/4, ...
    """

    iterations: int = eqx.field(static=True, default=200)
    tolerance: float = eqx.field(static=True, default=1e-4)
    patience: int = eqx.field(static=True, default=3)
    first: float = eqx.field(static=True, default=1e-2)
    largest: float = eqx.field(static=True, default=1e8)
    regularisations: int = eqx.field(static=True, default=8)
    halvings: int = eqx.field(static=True, default=8)

    def check(self, sim: Simulator, objective: Objective) -> None:
        if not sim.solver.differentiable:
            raise ValueError(
                f"{class_name(sim.solver)} cannot be differentiated; plan by sampling (`MPPI`), or use RigidSolver."
            )
        objective.check(sim)
        if objective.record and objective.shapes(sim)[0].ndim == 0:
            raise ValueError(
                "a cost of recorded quantities must be a vector of residuals for ILQR, of which it needs first derivatives only."
            )

    def plan(
        self, sim: Simulator, objective: Objective, state: State, controls: Any = None, *, key: PRNGKeyArray | None = None,
        progress: Progress | None = None,
    ) -> Planned:  # fmt: skip
        self.check(sim, objective)
        u = as_controls(sim, objective, controls)
        memory = compiled(_begin, sim, (self, objective, state, u), inner=True)
        history = [float(memory.motion.cost)]
        message, ok, idle = lost(memory.motion.states, history[0]), True, 0
        if message is not None:
            message = f"{message} under the controls that the plan begins with; begin with others"
            return self._planned(sim, memory, history, Status(False, message), gains=False)
        for iteration in range(self.iterations):
            memory = compiled(_improve, sim, (self, objective, state, memory), inner=True)
            history.append(float(memory.motion.cost))
            idle = 0 if float(memory.gained) > self.tolerance else idle + 1
            if progress is not None:
                progress(iteration + 1, self.iterations, history[-1])
            if not memory.finite:
                ok, message = False, "the derivatives along it are not finite; this is the best plan so far"
                break
            if float(memory.middle) >= self.largest:
                message = "no step makes the cost smaller, however small"
                break
            if idle >= self.patience:
                message = "converged"
                break
        if message is None:
            message = (
                f"stopped after {self.iterations} iterations, the cost still falling by {float(memory.gained):.2g} each"
            )
        return self._planned(sim, memory, history, Status(ok, message), gains=ok)

    def _planned(self, sim: Simulator, memory: Memory, history: list[float], status: Status, *, gains: bool) -> Planned:
        made = as_trajectory(sim, memory.motion.states, memory.motion.controls)
        return Planned(made, history[-1], tuple(history), memory.gains if gains else None, status)

    def begin(self, sim: Simulator, objective: Objective, controls: Float[Array, "T nu"]) -> Any:
        states = jax.tree.map(lambda x: jnp.repeat(x[None], objective.steps + 1, axis=0), sim.reset())
        return self._fresh(sim, Trial(states, controls, jnp.full((), jnp.inf, controls.dtype)))

    def _fresh(self, sim: Simulator, motion: Trial) -> Memory:
        dtype, (T, nu) = motion.controls.dtype, motion.controls.shape
        gains = jnp.zeros((T, nu, tangent_size(sim.model)), dtype)
        return Memory(motion, gains, jnp.full((), self.first, dtype), jnp.ones((), dtype), jnp.ones((), bool))

    def improve(self, sim: Simulator, objective: Objective, state: State, memory: Any, key: PRNGKeyArray) -> Any:
        motion, still = memory.motion, jnp.zeros_like(memory.motion.controls)
        again = _trials(sim, objective, state, motion, still[None], memory.gains[None], jnp.ones(1, still.dtype))
        return _improve(sim, self, objective, state, memory._replace(motion=jax.tree.map(lambda x: x[0], again)))

    def control(self, sim: Simulator, objective: Objective, memory: Any, state: State, step: Array) -> Float[Array, " nu"]:
        at = jax.tree.map(lambda x: x[step], memory.motion.states)
        low, high = bounds(sim)
        x = displacement(sim.model, at, state)
        return jnp.clip(memory.motion.controls[step] + memory.gains[step] @ x, low, high)

    def shifted(self, sim: Simulator, objective: Objective, memory: Any, steps: int) -> Any:
        def later(x: Array) -> Array:
            return jnp.concatenate([x[steps:], jnp.repeat(x[-1:], steps, axis=0)])

        states, controls = jax.tree.map(later, memory.motion[:2])
        motion = Trial(states, controls, memory.motion.cost)
        return memory._replace(motion=motion, gains=later(memory.gains))


def _begin(sim: Simulator, planner: ILQR, objective: Objective, state: State, u: Float[Array, "T nu"]) -> Memory:
    """The motion under the first controls."""
    fresh = planner.begin(sim, objective, u)
    still = jnp.zeros_like(u)
    made = _trials(sim, objective, state, fresh.motion, still[None], fresh.gains[None], jnp.ones(1, u.dtype))
    return fresh._replace(motion=jax.tree.map(lambda x: x[0], made))


def _improve(sim: Simulator, planner: ILQR, objective: Objective, state: State, memory: Memory) -> Memory:
    """One iteration."""
    old, dtype = memory.motion, memory.motion.cost.dtype
    about = expand(sim, objective, old.states, old.controls)
    low, high = bounds(sim)
    m = planner.regularisations
    powers = np.concatenate([[0.0], 10.0 ** (np.arange(m - 1) - (m - 1) // 2)])
    added = memory.middle * jnp.asarray(powers, dtype)
    sizes = jnp.asarray(0.5 ** np.arange(planner.halvings), dtype)
    vmap = simd.vmap if sim.simd else jax.vmap
    k, K = vmap(_backward, (None, None, None, None, 0))(about, old.controls, low, high, added)
    # a trial for each regularisation and size
    trials = (jnp.repeat(k, len(sizes), axis=0), jnp.repeat(K, len(sizes), axis=0), jnp.tile(sizes, m))
    made = _trials(sim, objective, state, old, *trials)
    cost = jnp.where(jnp.isfinite(made.cost), made.cost, jnp.inf)
    best = jnp.argmin(cost)
    better = cost[best] < old.cost
    motion = jax.tree.map(lambda new, x: jnp.where(better, new[best], x), made, old)
    at = best // len(sizes)
    usable = jnp.argmax(jnp.all(jnp.isfinite(K), axis=(1, 2, 3)))
    worked = jnp.where(at == 0, memory.middle / 10, jnp.where(cost[best] < jnp.inf, added[at], memory.middle))
    middle = jnp.where(better, jnp.clip(worked, 1e-8, planner.largest), jnp.minimum(memory.middle * 1e3, planner.largest))
    gained = jnp.where(better, (old.cost - cost[best]) / jnp.maximum(jnp.abs(old.cost), 1e-30), 0)
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in about]))
    return Memory(motion, K[jnp.where(better, at, usable)], middle, gained, finite)


def _trials(
    sim: Simulator, objective: Objective, state: State, about: Trial, k: Float[Array, "n T nu"],
    K: Float[Array, "n T nu nx"], size: Float[Array, " n"],
) -> Trial:  # fmt: skip
    """Motions with the controls u + size k + K (x - x_t) within their bounds, a lane each."""
    low, high = bounds(sim)

    def one(start: State, states: State, controls: Array, k: Array, K: Array, size: Array) -> Trial:
        def advance(carry: tuple[State, Array], row: Any) -> Any:
            (state, total), (at, u, k, K) = carry, row
            u = jnp.clip(u + size * k + K @ displacement(sim.model, at, state), low, high)
            new, cost = objective.step(sim, state, u)
            return (new, total + value(cost)), (new, u)

        before = jax.tree.map(lambda x: x[:-1], states)
        (last, total), (rest, u) = jax.lax.scan(advance, (start, jnp.zeros_like(size)), (before, controls, k, K))
        return Trial(prepended(start, rest), u, total + value(objective.at_end(last)))

    return lanes(sim)(one, (None, None, None, 0, 0, 0))(state, about.states, about.controls, k, K, size)  # type: ignore[no-any-return]


def _backward(
    about: Expansion, controls: Float[Array, "T nu"], low: Array, high: Array, added: Float[Array, ""]
) -> tuple[Float[Array, "T nu"], Float[Array, "T nu nx"]]:
    """Steps and gains by a backward pass with this regularisation; nan where Q_uu is not positive definite."""

    def back(carry: tuple[Array, Array], row: Any) -> Any:
        (Vx, Vxx), (A, B, lx, lu, lxx, lux, luu, u) = carry, row
        VA, VB = Vxx @ A, Vxx @ B
        Qx, Qu = lx + A.T @ Vx, lu + B.T @ Vx
        Qxx, Qux, Quu = lxx + A.T @ VA, lux + B.T @ VA, luu + B.T @ VB
        least = box_qp(Quu + added * jnp.eye(len(u), dtype=u.dtype), Qu, low - u, high - u)
        k, free = least.x, least.free[:, None]
        K = jnp.where(free, -solved(least.factor, jnp.where(free, Qux, 0)), 0)
        Vx = Qx + K.T @ (Quu @ k + Qu) + Qux.T @ k
        mixed = K.T @ Qux
        Vxx = Qxx + K.T @ (Quu @ K) + mixed + mixed.T
        return (Vx, (Vxx + Vxx.T) / 2), (k, K)

    rows = (about.A, about.B, about.lx, about.lu, about.lxx, about.lux, about.luu, controls)
    _, (k, K) = jax.lax.scan(back, (about.Vx, about.Vxx), rows, reverse=True)
    return k, K
