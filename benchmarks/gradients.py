"""The paper's Figure 5 anew: time of a gradient by finite differences, JAX forward and reverse under XLA, and SIMD kernels.

Three problems of Heiden et al. 2021: a network of 175 parameters, 500 steps of a double pendulum, and 5,000 steps of a five-link
pendulum that falls on the ground with NCP contact, for one second: over five its motion is chaotic, and no two ways agree on a
derivative. The gradient is with respect to the weights, and to the links' masses.
Compile times are apart. All ways give the same gradient; how far they are from reverse mode under XLA is printed.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("FLEXOR_CACHE", tempfile.mkdtemp(prefix="flexor-gradients-"))

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _form import Check, Result, at_most, run

import flexor as fx

jax.config.update("jax_enable_x64", True)
FIGURE = Path("gradients.png")
ORACLE = "reverse, XLA"


class Problem(NamedTuple):
    """A scalar function of a vector, and where its gradient is taken."""

    name: str
    loss: Callable[[Any], Any]
    x: Any
    tolerance: float


def network() -> Problem:
    """Mean square of a 10-10-5 network over fixed inputs: 10 * 10 + 10 + 10 * 5 + 5 + 10 scalings = 175 parameters."""
    rng = np.random.default_rng(0)
    inputs = jnp.asarray(rng.normal(size=(20, 10)))

    def loss(x: Any) -> Any:
        scale, w, b, v, c = jnp.split(x, [10, 110, 120, 170])
        hidden = jnp.tanh((inputs * scale) @ w.reshape(10, 10) + b)
        return jnp.mean((hidden @ v.reshape(10, 5) + c) ** 2)

    return Problem("network, 175 parameters", loss, jnp.asarray(rng.normal(size=175) * 0.3), 1e-6)


def pendulum(name: str, steps: int, contact: Any, start: str | None, dt: float) -> Problem:
    """Mean position of a chain over a rollout, as a function of the masses of its links."""
    model = fx.load(name)
    q = model.reference if start is None else model.keyframe(start)
    moving = np.flatnonzero(np.asarray(model.bodies.mass) > 0)

    def loss(masses: Any) -> Any:
        robot = eqx.tree_at(lambda m: m.bodies.mass, model, model.bodies.mass.at[moving].set(masses))
        sim = fx.Simulator(robot, fx.RigidSolver(contact=contact), dt=dt, simd=False)
        state = sim.solver.init(robot, fx.State(q + 0.3, jnp.zeros(model.nv), jnp.zeros(())))
        return jnp.sum(jnp.mean(sim.rollout(state, steps=steps).q, axis=0))

    return Problem(f"{name}, {steps} steps", loss, model.bodies.mass[moving], 1e-4)


def ways(loss: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    """Ways to the gradient, each compiled as a whole."""

    def forward(x: Any) -> Any:
        return jax.vmap(lambda t: jax.jvp(loss, (x,), (t,))[1])(jnp.eye(len(x)))

    def lanes(x: Any) -> Any:
        return fx.simd.vmap(lambda x, t: jax.jvp(loss, (x,), (t,))[1], (None, 0))(x, jnp.eye(len(x)))

    def differences(x: Any) -> Any:
        h = 1e-7 * (1 + jnp.abs(x))  # a longer step meets kinks, where an impact moves from one step to the next
        points = jnp.concatenate([x + jnp.diag(h), x - jnp.diag(h)])
        values = jax.lax.map(loss, points)
        return (values[: len(x)] - values[len(x) :]) / (2 * h)

    return {
        "finite differences, XLA": jax.jit(differences),
        "forward, XLA": jax.jit(forward),
        "reverse, XLA": jax.jit(jax.grad(loss)),
        "forward, SIMD": jax.jit(lanes),
        "reverse, SIMD": fx.simd.jit(jax.grad(loss)),
    }


def measure(quick: bool) -> Result:
    scale = 10 if quick else 1
    problems = [network(), pendulum("double_pendulum", 500 // scale, None, None, 0.002)]
    if not quick:
        problems.append(pendulum("pendulum5", 5000, fx.NCP(), None, 0.0002))
    rows: list[dict[str, Any]] = []
    checks: list[Check] = []
    for problem in problems:
        values: dict[str, np.ndarray] = {}
        mine: list[dict[str, Any]] = []
        for way, f in ways(problem.loss).items():
            start = time.perf_counter()
            values[way] = np.asarray(jax.block_until_ready(f(problem.x)))
            first = time.perf_counter() - start
            seconds = _best(f, problem.x)
            mine.append({"problem": problem.name, "way": way, "compile s": max(first - seconds, 0.0), "gradient s": seconds})
        exact = values[ORACLE]
        for row in mine:
            error = float(np.abs(values[row["way"]] - exact).max() / np.abs(exact).max())
            rows.append({**row, f"distance to {ORACLE}": error})
            if row["way"] != ORACLE:
                what = f"{problem.name}: {row['way']} gives the gradient of {ORACLE}"
                checks.append(at_most(what, error, problem.tolerance))
    _draw(rows)
    return Result(rows, checks, [f"figure: {FIGURE}"])


def _best(f: Callable[..., Any], x: Any) -> float:
    times: list[float] = []
    while len(times) < 3 and sum(times) < 20:
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        times.append(time.perf_counter() - start)
    return min(times)


def _draw(rows: list[dict[str, Any]]) -> None:
    """Bars on a logarithmic axis, as in the paper."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(r["problem"] for r in rows))
    figure, axes = plt.subplots(1, len(names), figsize=(4.2 * len(names), 3.4), squeeze=False, layout="constrained")
    for axis, name in zip(axes[0], names, strict=True):
        mine = [r for r in rows if r["problem"] == name]
        axis.barh([r["way"] for r in mine], [1e3 * r["gradient s"] for r in mine], color="#3b6ea5")
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter("")
        axis.set_xlabel("ms for a gradient, compiled")
        axis.set_title(name, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURE, dpi=120)


if __name__ == "__main__":
    run("How long does a gradient take, and by which way?", measure)
