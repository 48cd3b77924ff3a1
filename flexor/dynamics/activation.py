"""Activations of actuators: states between the input and the force. See `Activations` for their laws.

The force of a step is that of the activation at its start, or at its end for actuators that are `early` (MuJoCo's `actearly`).
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
    t, table = model.topology, model.activations
    exact = np.array([a.dynamics == "filterexact" for a in t.activations])
    lag = jnp.where(exact, jnp.maximum(table.time_constant, SMALLEST), 1.0)
    span = jnp.where(exact, -lag * jnp.expm1(-dt / lag), dt) if exact.any() else dt
    new = act + span * activation_rate(model, u, act)
    return jnp.clip(new, table.range[:, 0], table.range[:, 1])


def activated(
    model: Model, act: Float[Array, " na"] | None, control: Control, dt: Float[Array, ""]
) -> tuple[Control, Float[Array, " na"] | None]:
    """The control of a step of dt in which activations stand in the place of the inputs, and the activations after it."""
    t = model.topology
    if not t.na:
        return control, act
    if act is None or act.shape != (t.na,):
        found = "none" if act is None else f"{act.shape}"
        raise ValueError(
            f"'{t.name}' has actuators with activations, so its states carry {t.na} of them; this state has {found}: begin with "
            "`sim.reset(...)`, or pass the state through `sim.solver.init`."
        )
    control = as_control(model, control)
    assert control.u is not None
    new = next_activation(model, control.u, act, dt)
    early = np.array([a.early for a in t.activations])
    acting = jnp.where(early, new, act) if early.any() else act
    u: Array = acting if t.na == t.nu else control.u.at[t.activated].set(acting)
    return eqx.tree_at(lambda c: c.u, control, u), new
