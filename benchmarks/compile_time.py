"""How long until the first step? Tracing and XLA compilation of one quadruped step with contact, and of its gradient."""

import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from _form import Result, at_most, equals, run

import flexor as fx
from flexor.model.model import as_control

LIMIT = 20.0  # s, on two cores
CONTACTS = {"NCP": fx.NCP(), "Penalty": fx.Penalty()}


def timed(f: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """The value of a call, waited for, and the seconds that took."""
    start = time.perf_counter()
    value = jax.block_until_ready(f(*args))
    return value, time.perf_counter() - start


def counted(f: Callable[..., Any]) -> tuple[Callable[..., Any], list[int]]:
    """A compiled function, and a list that grows by one with every time it is traced."""
    traces: list[int] = []

    def counting(*args: Any) -> Any:
        traces.append(1)
        return f(*args)

    return eqx.filter_jit(counting), traces


def step_of(contact: Any) -> tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]:
    """A step, the gradient of its result to the state's velocity, and their arguments."""
    model = fx.load("quadruped")
    sim = fx.Simulator(model, fx.RigidSolver(contact=contact))
    state, control = sim.reset("stand"), as_control(model, None)

    def step(state: Any, control: Any) -> Any:
        return sim.solver.step(model, state, control, sim.dt)

    def gradient(state: Any, control: Any) -> Any:
        def height(qd: Any) -> Any:
            return jnp.sum(step(eqx.tree_at(lambda s: s.qd, state, qd), control).q)

        return jax.grad(height)(state.qd)

    return step, gradient, (state, control)


def measure(quick: bool) -> Result:
    rows, checks = [], []
    for name, contact in CONTACTS.items():
        step, gradient, (state, control) = step_of(contact)
        compiled, traces = counted(step)
        after, first = timed(compiled, state, control)
        _, second = timed(compiled, after, control)
        row: dict[str, Any] = {
            "contact": name,
            "step: first call (s)": first,
            "second call (s)": second,
            "traced": len(traces),
        }
        checks.append(at_most(f"{name}: seconds to compile one quadruped step", first, LIMIT, "s", timed=True))
        checks.append(equals(f"{name}: compilations of two steps", len(traces), 1))
        if not quick:
            row["gradient: first call (s)"] = timed(eqx.filter_jit(gradient), state, control)[1]
        rows.append(row)
    return Result(rows, checks)


if __name__ == "__main__":
    run("how long does the first quadruped step with contact take, and is it compiled once?", measure)
