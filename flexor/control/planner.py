"""`AbstractPlanner`: what finds controls for an `Objective`; `Planned`: what it found."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from flexor.control.feedback import Feedback
from flexor.control.objective import Objective
from flexor.model.model import State
from flexor.solvers import Simulator, Status, Trajectory

Progress = Callable[[int, int, float], None]
"""Called after every iteration with its number, the most there may be, and the cost."""


@dataclasses.dataclass(frozen=True)
class Planned:
    """The best plan that was found. `history` has the cost at the start and after each iteration; `gains` are those of
    u = u_t + K_t (x - x_t), None where a planner has none; `status` says whether the plan can be used, and why
    the planner stopped."""

    trajectory: Trajectory
    cost: float
    history: tuple[float, ...]
    gains: Float[Array, "T nu nx"] | None
    status: Status

    @property
    def controls(self) -> Float[Array, "T nu"]:
        """The plan's controls, which `sim.rollout` takes."""
        return self.trajectory.u

    def policy(self, sim: Simulator) -> Feedback:
        """The plan as a policy of a rollout, that holds the robot to its trajectory."""
        nu, nx = self.controls.shape[1], 2 * sim.model.nv + sim.model.topology.na
        if self.gains is None or sim.model.topology.na:
            what = "planner has no gains" if self.gains is None else "robot has activations, which trajectories do not keep"
            raise ValueError(f"there is no feedback along this plan ({nu} controls, {nx} states): its {what}.")
        made = self.trajectory
        return Feedback(sim.model, made.q[:-1], made.qd[:-1], made.u, self.gains)

    def raise_if_bad(self) -> "Planned":
        """The plan itself; raises FloatingPointError with the message of its status if it is not ok."""
        if not self.status.ok:
            raise FloatingPointError(f"the plan for '{self.trajectory.topology.name}' is not usable: {self.status.message}.")
        return self


class AbstractPlanner(eqx.Module):
    """Finds controls of little cost. `plan` is for one state; the other methods are pure and are what a `Receding` horizon
    calls, with a memory of the planner's own that holds the plan."""

    @abc.abstractmethod
    def check(self, sim: Simulator, objective: Objective) -> None:
        """Raises, with a sentence, for what this planner cannot do."""

    @abc.abstractmethod
    def begin(self, sim: Simulator, objective: Objective, controls: Float[Array, "T nu"]) -> Any:
        """The memory whose plan is near these controls."""

    @abc.abstractmethod
    def improve(self, sim: Simulator, objective: Objective, state: State, memory: Any, key: PRNGKeyArray) -> Any:
        """The memory after one iteration from a state."""

    @abc.abstractmethod
    def control(self, sim: Simulator, objective: Objective, memory: Any, state: State, step: Array) -> Float[Array, " nu"]:
        """What the plan does in a state at one of its steps."""

    @abc.abstractmethod
    def shifted(self, sim: Simulator, objective: Objective, memory: Any, steps: int) -> Any:
        """The plan from a later step on: where to begin next time."""

    @abc.abstractmethod
    def plan(
        self, sim: Simulator, objective: Objective, state: State, controls: Any = None, *, key: PRNGKeyArray | None = None,
        progress: Progress | None = None,
    ) -> Planned:  # fmt: skip
        """The plan from a state, beginning with `controls`: zeros where there are none, one row for all steps, or a row each."""


def as_trajectory(sim: Simulator, states: State, controls: Array) -> Trajectory:
    """States along a plan, T + 1 of them, as a trajectory."""
    final = jax.tree.map(lambda x: x[-1], states)
    return Trajectory(states.time, states.q, states.qd, controls, {}, final, sim.model.topology)


def lost(states: State, cost: float) -> str | None:
    """Why a plan has no finite cost; None where it has."""
    if np.isfinite(cost):
        return None
    bad = ~(np.isfinite(np.asarray(states.q)).all(1) & np.isfinite(np.asarray(states.qd)).all(1))
    if bad.any():
        return f"the motion diverges at step {int(np.argmax(bad))} of {len(bad) - 1}"
    return "its cost is not finite, although its states are: look into the cost function"


def prepended(first: Any, rest: Any) -> Any:
    """Pytrees of arrays with one more row at the front."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)
