"""A thrown cube: from parameters with which it falls through the ground to a matched trajectory (Heiden et al. 2020, Figure 1).

The contact is Hunt-Crossley's. Its stiffness, damping and friction are free, over several orders of magnitude, and start so soft
that the cube sinks through the floor. The target was thrown under other parameters and measured with noise.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _experiment import Result, at_most, run
from matplotlib.figure import Figure

import flexor as fx

jax.config.update("jax_enable_x64", True)

DT, SECONDS = 0.002, 0.8
NOISE = {"position": 1e-3, "rotation": 1e-2}
TRUTH = {"log10 stiffness": 4.0, "log10 damping": -0.7, "friction": 0.3}
START = {"log10 stiffness": 0.5, "log10 damping": 0.0, "friction": 0.8}
BOUNDS = {"log10 stiffness": (0.0, 5.0), "log10 damping": (-2.0, 1.0), "friction": (0.02, 1.5)}


def build(model: fx.Model, extra: dict[str, Any]) -> fx.Model:
    """The cube with its contact parameters; stiffness and damping by their logarithms."""
    values = {
        "stiffness": 10 ** extra["log10 stiffness"],
        "damping": 10 ** extra["log10 damping"],
        "friction": extra["friction"],
    }
    return fx.replace(model, {f"pair.*.{name}": x for name, x in values.items()})


def simulator() -> fx.Simulator:
    return fx.Simulator(fx.load("cube").astype(jnp.float64), fx.RigidSolver(fx.Penalty()), dt=DT)


def throws(count: int, seconds: float) -> list[fx.Log]:
    """Throws to the right under the true parameters, as a camera at 100 Hz would see them."""
    rng = np.random.default_rng(0)
    sim = simulator()
    true = fx.Simulator(build(sim.model, {k: jnp.asarray(v) for k, v in TRUTH.items()}), sim.solver, dt=DT)
    names = [f"q.root.{axis}" for axis in ("x", "y", "z", "qw", "qx", "qy", "qz")]
    noise = {n: NOISE["position"] if i < 3 else NOISE["rotation"] / 2 for i, n in enumerate(names)}
    logs = []
    for i in range(count):
        turn = rng.normal(size=4) * 0.2 + np.array([1, 0, 0, 0])
        q = np.concatenate([[0, 0, 0.25], turn / np.linalg.norm(turn)])
        qd = np.array([1.2 + 0.3 * rng.normal(), 0.1 * rng.normal(), 0.0, *(3 * rng.normal(size=3))])
        seen = true.rollout(true.reset(q, qd), steps=round(seconds / DT))
        rows = slice(0, None, 5)
        values = np.asarray(seen.q)[rows]
        values = values + rng.normal(size=values.shape) * np.array(list(noise.values()))
        logs.append(fx.Log(np.asarray(seen.time)[rows], values, tuple(names), None, noise, (q, qd), name=f"throw {i}"))
    return logs


def measure(options: Any) -> Result:
    logs = throws(2, 0.3) if options.quick else throws(4, SECONDS)
    unseen = logs[-1:]
    search = fx.LevenbergMarquardt(10) if options.quick else fx.BasinHopping(starts=32, rounds=6, local=12)
    free = list(TRUTH)
    fit = fx.identify(simulator(), logs[:-1], free, extra=START, bounds=BOUNDS, build=build, search=search, held_out=unseen)
    rows = fit.rows()
    for row in rows:
        row["truth"] = TRUTH[row["parameter"]]
    paths = []
    for values in (START, fit.extra):
        model = build(simulator().model, {k: jnp.asarray(v) for k, v in values.items()})
        paths.append(path(fx.Simulator(model, simulator().solver, dt=DT), unseen[0]))
    draw(unseen[0], *paths).savefig(options.out / "cube_throw.png", dpi=150)
    assert fit.held_out is not None
    assert fit.held_out_before is not None
    error = float(np.sqrt(np.mean([fit.held_out.columns[f"q.root.{a}"] ** 2 for a in "xyz"])))
    before = float(np.sqrt(np.mean([fit.held_out_before.columns[f"q.root.{a}"] ** 2 for a in "xyz"])))
    lowest = float(paths[0][:, 2].min())
    checks = [
        at_most(
            "height of the cube's centre at the start parameters, lowest: it falls through the ground", lowest, 0.0, "m"
        ),
        at_most("root mean square error of the position on an unseen throw", error, 2 * NOISE["position"], "m"),
    ]
    change = f"error of the position on the unseen throw: {before:.3g} m before, {error:.3g} m after"
    return Result(rows, checks, [fit.message, change])


def path(sim: fx.Simulator, log: fx.Log) -> np.ndarray:
    """Positions of the cube along a throw."""
    assert log.start is not None
    seconds = float(log.time[-1] - log.time[0])
    return np.asarray(sim.rollout(sim.reset(*log.start), steps=round(seconds / DT)).q)[:, :3]


def draw(log: fx.Log, before: np.ndarray, after: np.ndarray) -> Figure:
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    ax = figure.subplots()
    ax.axhspan(-1, 0, color="0.9")
    ax.plot(before[:, 0], before[:, 2], color="tab:blue", label="start: falls through the ground")
    ax.plot(after[:, 0], after[:, 2], color="tab:orange", label="identified")
    ax.plot(log.values[:, 0], log.values[:, 2], ".", color="tab:green", label="measured (unseen throw)", markersize=5)
    ax.set(xlabel="x, m", ylabel="height of the centre, m", ylim=(-0.35, 0.32))
    ax.legend()
    return figure


if __name__ == "__main__":
    run("Does identification lift a cube that falls through the ground?", measure)
