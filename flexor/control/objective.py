"""`Objective`: what a motion is to achieve, as a cost of its states and controls over a horizon."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.model.model import State, as_control
from flexor.solvers import Simulator
from flexor.solvers.recording import check_record, recorded_step

INSIDE = 1e-5  # share of an actuator's range by which plans stay inside of it


class Objective(eqx.Module):
    """The least of sum_t running(state_t, u_t) + final(state_T), T = `steps`, with u within the actuators' bounds.

    A cost is a number, or a vector of residuals r that stands for r.r / 2; residuals need first derivatives only (Gauss-Newton).
    With `record`, quantities of the step (`fx.taps`, `sensor.<name>`) are a third argument of `running`, a dictionary.
    """

    running: Callable[..., Array]
    final: Callable[[State], Array] | None = None
    steps: int = eqx.field(static=True, kw_only=True)
    record: tuple[str, ...] = eqx.field(static=True, kw_only=True, default=())

    def __check_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"the horizon must be a positive number of steps, got {self.steps}.")

    def check(self, sim: Simulator) -> None:
        """Raises, with a sentence, where the cost and the robot do not fit."""
        if sim.model.nu == 0:
            raise ValueError(f"'{sim.model.topology.name}' has no actuators, so that nothing can be planned for it.")
        check_record(sim.model, self.record)
        running, final = self.shapes(sim)
        for name, x in (("running", running), ("final", final)):
            if x.ndim > 1:
                raise ValueError(f"the {name} cost must be a number or a vector of residuals, got shape {x.shape}.")

    def shapes(self, sim: Simulator) -> tuple[Any, Any]:
        """Shapes of what `running` and `final` return; that of a missing final cost is an empty vector's."""

        def both(sim: Simulator) -> tuple[Array, Array]:
            state, u = sim.reset(), jnp.zeros(sim.model.nu, sim.model.dtype)
            running = self.step(sim, state, u)[1] if self.record else jnp.asarray(self.running(state, u))
            return running, self.at_end(state)

        return eqx.filter_eval_shape(both, sim)  # type: ignore[no-any-return]

    def step(self, sim: Simulator, state: State, u: Float[Array, " nu"]) -> tuple[State, Array]:
        """The next state, and what `running` says of this one."""
        control = as_control(sim.model, u)
        new, recorded = recorded_step(sim.solver, sim.model, state, control, sim.dt, self.record)
        return new, jnp.asarray(self.running(state, u, recorded) if self.record else self.running(state, u))

    def at_end(self, state: State) -> Array:
        """What `final` says; no residuals without it."""
        return jnp.zeros(0, state.q.dtype) if self.final is None else jnp.asarray(self.final(state))


def value(cost: Array) -> Float[Array, ""]:
    """A cost as a number: r.r / 2 of residuals."""
    return cost if cost.ndim == 0 else jnp.sum(cost**2) / 2


def bounds(sim: Simulator) -> tuple[Float[Array, " nu"], Float[Array, " nu"]]:
    """Bounds of the controls, a hair inside of the actuators' own: at a bound itself the derivative by the input is not that of
    the motion inside, and a plan could not leave it."""
    low, high = sim.model.actuators.ctrl_range[:, 0], sim.model.actuators.ctrl_range[:, 1]
    limited = jnp.isfinite(low) & jnp.isfinite(high)
    hair = jnp.where(limited, INSIDE * (jnp.where(limited, high, 0) - jnp.where(limited, low, 0)), 0)
    return low + hair, high - hair


def as_controls(sim: Simulator, objective: Objective, controls: Any) -> Float[Array, "steps nu"]:
    """Controls to begin with, checked: zeros where there are none, one row for all steps, or a row for each."""
    nu, dtype, steps = sim.model.nu, sim.model.dtype, objective.steps
    given = np.zeros(nu) if controls is None else np.asarray(controls)
    if given.shape not in ((nu,), (steps, nu)):
        name = sim.model.topology.name
        raise ValueError(
            f"controls of '{name}' for {steps} steps must have shape ({steps}, {nu}) or ({nu},), got {given.shape}."
        )
    if not np.isfinite(given).all():
        step = int(np.argmax(~np.isfinite(np.broadcast_to(given, (steps, nu))).all(axis=1)))
        raise ValueError(f"the controls to begin with are not finite at step {step}.")
    return jnp.asarray(np.broadcast_to(given, (steps, nu)), dtype)
