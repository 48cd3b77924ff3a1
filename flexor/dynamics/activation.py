"""Activations of actuators: states between the input and the force. See `Activations` for their laws.

The force of a step is that of the activation at its start, or at its end for actuators that are `early` (MuJoCo's `actearly`).
Within a step of several stages activations move on with them (`stage_activations`). Their rates depend on inputs and activations
alone, so that they can be advanced before the robot is.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.muscles import SMALLEST, muscle_rate
from flexor.model.model import Control, Model, as_control
from flexor.spatial import take


def no_activation(model: Model) -> Float[Array, " na"] | None:
    """The initial activations, zero; None if no actuator has one."""
    return jnp.zeros(model.topology.na, model.dtype) if model.topology.na else None


def activation_rate(model: Model, u: Float[Array, " nu"], act: Float[Array, " na"]) -> Float[Array, " na"]:
    """da/dt under the inputs u."""
    t, table = model.topology, model.activations
    bounds = take(model.actuators.ctrl_range, t.activated)
    u = jnp.clip(take(u, t.activated), bounds[:, 0], bounds[:, 1])
    kinds = np.array([a.dynamics for a in t.activations])
    rate = jnp.where(kinds == "integrator", u, (u - act) / jnp.maximum(table.time_constant, SMALLEST))
    if np.any(kinds == "muscle"):
        by_muscle = muscle_rate(u, act, table.time_constant, table.release_time, table.smoothing)
        rate = jnp.where(kinds == "muscle", by_muscle, rate)
    return rate


def next_activation(
    model: Model, u: Float[Array, " nu"], act: Float[Array, " na"], dt: Float[Array, ""]
) -> Float[Array, " na"]:
    """Activations a time dt later: a + dt a', or the exact solution for `filterexact`, within their ranges."""
    return _moved_on(model, act, activation_rate(model, u, act), dt)


def _moved_on(model: Model, act: Array, rate: Array, dt: Array) -> Float[Array, " na"]:
    """act + dt rate within the ranges; of a `filterexact` the solution that begins with this rate."""
    table, lags = model.activations, _exact_filters(model)
    lag = jnp.where(lags, jnp.maximum(table.time_constant, SMALLEST), 1.0)
    span = jnp.where(lags, -lag * jnp.expm1(-dt / lag), dt) if lags.any() else dt
    return jnp.clip(act + span * rate, table.range[:, 0], table.range[:, 1])


def _exact_filters(model: Model) -> np.ndarray:
    return np.array([a.dynamics == "filterexact" for a in model.topology.activations])


def activated(
    model: Model, act: Float[Array, " na"] | None, control: Control, dt: Float[Array, ""]
) -> tuple[Control, Float[Array, " na"] | None]:
    """The control of a step of dt in which activations stand in the place of the inputs, and the activations after it."""
    if not model.topology.na:
        return control, act
    control, act = as_control(model, control), _checked(model, act)
    assert control.u is not None
    new = next_activation(model, control.u, act, dt)
    return _acting(model, control, act, new), new


def stage_activations(
    model: Model, act: Float[Array, " na"] | None, control: Control, dt: Float[Array, ""], *, mean_rates: bool = False
) -> tuple[tuple[Control, ...], Float[Array, " na"] | None]:
    """The controls of the four stages of the classical Runge-Kutta method, as of `activated`, and the activations after it.

    An exact filter follows its solution through the stages. With `mean_rates`, as in MuJoCo's `RK4`, it is a filter like the
    others within the step, and after it starts with the mean of the stages' rates; ranges hold after the step alone.
    """
    if not model.topology.na:
        return (control,) * 4, act
    control, start = as_control(model, control), _checked(model, act)
    assert control.u is not None
    lags, rates, controls, now = _exact_filters(model), list[Array](), list[Control](), start

    def ahead(rate: Array, h: Array) -> Array:
        if mean_rates:
            return start + h * rate
        return _moved_on(model, start, jnp.where(lags, rates[0], rate) if lags.any() else rate, h)

    for share in (0.5, 0.5, 1.0, None):
        rates.append(activation_rate(model, control.u, now))
        controls.append(_acting(model, control, now, _moved_on(model, now, rates[-1], dt)))
        now = now if share is None else ahead(rates[-1], share * dt)
    r1, r2, r3, r4 = rates
    mean = (r1 + 2 * r2 + 2 * r3 + r4) / 6
    return tuple(controls), _moved_on(model, start, mean, dt) if mean_rates else ahead(mean, dt)


def _acting(model: Model, control: Control, act: Float[Array, " na"], later: Float[Array, " na"]) -> Control:
    """The control with activations in the place of the inputs: those at the end of the step for actuators that are early."""
    t = model.topology
    assert control.u is not None
    early = np.array([a.early for a in t.activations])
    acting = jnp.where(early, later, act) if early.any() else act
    u: Array = acting if t.na == t.nu else control.u.at[t.activated].set(acting)
    return eqx.tree_at(lambda c: c.u, control, u)


def _checked(model: Model, act: Float[Array, " na"] | None) -> Float[Array, " na"]:
    t = model.topology
    if act is None or act.shape != (t.na,):
        found = "none" if act is None else f"{act.shape}"
        raise ValueError(
            f"'{t.name}' has actuators with activations, so its states carry {t.na} of them; this state has {found}: begin with "
            "`sim.reset(...)`, or pass the state through `sim.solver.init`."
        )
    return act
