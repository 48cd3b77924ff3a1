"""Delay of actuators: the input that acts is the one of `delay` seconds ago.

    u_d(t) = (1 - a) u[k - n] + a u[k - n - 1]        delay / dt = n + a,  n whole,  0 <= a < 1

u[k] is the input of the step at t = k dt. This is linear interpolation of the past inputs at t - delay, MuJoCo's
`interp="linear"`. Inputs are held over a step, and for these it is also the mean of the delayed input over the step: the impulse
of a step is that of an exact delay, whatever part of a step it is. u_d is continuous and piecewise linear in the delay, with
the slope (u[k - n - 1] - u[k - n]) / dt: minus the rate of the input at that time.

Before the first step all inputs were zero, as in MuJoCo. MuJoCo leaves the present input out, so that its shortest delay is one
step; here any delay down to zero is exact.

A state keeps as many past inputs as the topology's `samples`, so the longest delay is `samples` steps.
"""

import dataclasses
import math
from collections.abc import Mapping
from fnmatch import fnmatchcase

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.model.model import Control, Model, as_control
from flexor.model.parameters import replace
from flexor.spatial import take

History = Float[Array, "samples delayed"]
ROUNDING = 1e-5  # of a step, by which a delay in single precision may miss a whole number of steps


def empty_history(model: Model) -> History | None:
    """The past inputs with which a state starts: zeros; None where no actuator can have a delay."""
    t = model.topology
    return jnp.zeros((t.samples, len(t.delayed)), model.dtype) if t.samples else None


def delayed(model: Model, history: History | None, control: Control, dt: Float[Array, ""]) -> tuple[Control, History | None]:
    """The control that acts in a step of dt, and the history after it. See the head of this file."""
    t = model.topology
    if not t.samples:
        return control, history
    shape = (t.samples, len(t.delayed))
    if history is None or history.shape != shape:
        found = "none" if history is None else f"one of shape {history.shape}"
        raise ValueError(
            f"'{t.name}' has actuators with a delay, so its states carry a history of past inputs of shape {shape}; this state "
            f"has {found}: begin with `sim.reset(...)`, or pass the state through `sim.solver.init`."
        )
    control = as_control(model, control)
    assert control.u is not None
    inputs = jnp.concatenate([take(control.u, t.delayed)[None], history])  # row i: i steps ago
    steps = take(model.actuators.delay, t.delayed) / dt
    whole = jnp.clip(jnp.floor(steps), 0, t.samples - 1)
    share = steps - whole
    share = jnp.where(share > 1, 1, share)  # beyond what is kept; not by `clip`, whose slope at the ends is a half
    row = whole.astype(jnp.int32)[None]
    newer, older = (jnp.take_along_axis(inputs, row + i, axis=0, mode="promise_in_bounds")[0] for i in (0, 1))
    acting = newer + share * (older - newer)
    u = acting if len(t.delayed) == t.nu else control.u.at[t.delayed].set(acting)
    return eqx.tree_at(lambda c: c.u, control, u), inputs[:-1]


def check_delays(model: Model, dt: float | None) -> None:
    """Raises when a concrete delay is longer than the past inputs that are kept, at steps of dt, where that is a number yet."""
    if dt is None or not model.topology.samples or isinstance(model.actuators.delay, jax.core.Tracer):
        return
    for a, delay in zip(model.topology.actuators, np.asarray(model.actuators.delay, float), strict=True):
        if delay > (a.samples + ROUNDING) * dt:
            raise ValueError(
                f"actuator '{a.name}' has a delay of {delay:.6g} s, but {a.samples} past inputs are kept, which at steps of "
                f"{dt:.6g} s are {a.samples * dt:.6g} s: use `fx.with_delay(model, ..., dt={dt:.6g}, longest={delay:.6g})`."
            )


def with_delay(model: Model, delays: Mapping[str, float], *, dt: float, longest: float | None = None) -> Model:
    """The model with a delay in seconds on the actuators that match: `with_delay(model, {"actuator.*.delay": 0.03}, dt=0.002)`.

    `longest` is the longest delay that these actuators may be given later, by `replace` or by an identification; by default the
    longest of `delays`. `dt` is the time step, or that of a substep where the solver takes several: the past inputs of
    `longest / dt` steps are kept in every state.
    """
    t = model.topology
    longest = max(delays.values(), default=0.0) if longest is None else longest
    if not (dt > 0 and math.isfinite(dt)):
        raise ValueError(f"`dt` must be a positive number of seconds, got {dt}.")
    if not (math.isfinite(longest) and longest >= max(delays.values(), default=0.0)):
        raise ValueError(
            f"`longest` is {longest} s, but it must be at least the longest of the delays, {max(delays.values())} s."
        )
    samples = max(1, math.ceil(longest / dt - ROUNDING))
    names = [f"actuator.{a.name}.delay" for a in t.actuators]
    for pattern in delays:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise KeyError(f"no actuator of '{t.name}' matches '{pattern}'; its delays are {', '.join(names) or 'none'}.")
    values = {name: delays[p] for p in delays for name in names if fnmatchcase(name, p)}
    actuators = tuple(
        dataclasses.replace(a, samples=max(samples, a.samples)) if name in values else a
        for a, name in zip(t.actuators, names, strict=True)
    )
    return replace(dataclasses.replace(model, topology=dataclasses.replace(t, actuators=actuators)), values)
