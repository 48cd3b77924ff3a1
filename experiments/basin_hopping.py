"""Link lengths of a double pendulum from a grid of starts: local search against basin hopping (Heiden et al. 2021, Figure 4).

The reference swings with links of 3 m and 4 m. From every start in [1, 6]^2 a Levenberg-Marquardt search goes downhill, and
beside it parallel basin hopping with the same local search. All searches of the grid run in the lanes of one kernel.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _experiment import Result, at_least, at_most, run
from matplotlib.figure import Figure

import flexor as fx
from flexor.identify.levenberg import begin, iterate
from flexor.identify.problem import Problem, observe_columns
from flexor.identify.segments import cut
from flexor.model.charts import coordinates

jax.config.update("jax_enable_x64", True)

TRUTH = np.array([3.0, 4.0])
BOUNDS = (0.5, 8.0)
NEAR = 0.01  # m: what counts as found
DT, SECONDS, NOISE = 0.01, 6.0, 1e-3


def build(model: fx.Model, extra: dict[str, Any]) -> fx.Model:
    """Uniform rods of the given lengths: frames, centres of mass, and inertias m l^2 / 12 across."""
    values: dict[str, Any] = {}
    for name in ("upper", "lower"):
        length, mass = extra[f"length.{name}"], model.bodies.mass[model.body(name)]
        across = mass * length**2 / 12
        values[f"body.{name}.com"] = jnp.stack([0 * length, 0 * length, -length / 2])
        values[f"body.{name}.inertia"] = jnp.stack([across, across, 1e-3 * across, *[0 * length] * 3])
    above = extra["length.upper"]
    values["body.lower.pos"] = jnp.stack([0 * above, 0 * above, -above])
    return fx.replace(model, values)


def problem() -> Problem:
    """Joint angles of one swing from level, with noise."""
    model = fx.replace(fx.load("double_pendulum").astype(jnp.float64), {"*.damping": 0.0})
    sim = fx.Simulator(model, fx.RigidSolver(contact=None), dt=DT)
    names = ("length.upper", "length.lower")
    true = build(model, {n: jnp.asarray(x) for n, x in zip(names, TRUTH, strict=True)})
    start = (np.array([np.pi / 2, 0.0]), np.zeros(2))
    trajectory = fx.Simulator(true, sim.solver, dt=DT).rollout(sim.reset(*start), steps=round(SECONDS / DT))
    q = np.asarray(trajectory.q) + NOISE * np.random.default_rng(0).normal(size=trajectory.q.shape)
    columns = ("q.shoulder", "q.elbow")
    log = fx.Log(trajectory.time, q, columns, np.zeros((len(q) - 1, 2)), dict.fromkeys(columns, NOISE), start)
    place = coordinates(model, ["length.*"], bounds={"length.*": BOUNDS}, extra=dict.fromkeys(names, 2.0))
    segments, _ = cut(sim, [log], fx.Shooting(), np.full(2, NOISE))
    observe = observe_columns(model, columns)
    return Problem(sim, place, segments, observe, build, held_out=np.zeros(1, bool), networks=False, free_start=False)


def lengths(z: Any) -> np.ndarray:
    """What a point in the chart stands for, in metres."""
    return BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) / (1 + np.exp(-np.asarray(z)))


def measure(options: Any) -> Result:
    side = 5 if options.quick else 20
    task = problem()
    axis = np.linspace(1, 6, side)
    starts = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    share = (starts - BOUNDS[0]) / (BOUNDS[1] - BOUNDS[0])
    z = jnp.asarray(np.log(share / (1 - share)))
    began = time.perf_counter()
    descend = jax.jit(jax.vmap(lambda z: jax.lax.fori_loop(0, 60, lambda _, p: iterate(task, p), begin(task, z)).z))
    local = lengths(descend(z))
    local_seconds = time.perf_counter() - began
    search = fx.BasinHopping(starts=16, rounds=8, local=10, spread=0.15)
    keys = jax.vmap(jax.random.key_data)(jax.random.split(jax.random.key(1), len(starts)))
    began = time.perf_counter()
    state = jax.vmap(lambda z, key: search.init(task, z, key))(z, keys)
    step = jax.jit(jax.vmap(lambda s: search.step(task, s)))
    rounds, solved = 0, False
    while rounds < search.rounds and not solved:
        state, rounds = step(state), rounds + 1
        solved = np.all(2 * np.asarray(state.cost) / task.count < search.enough)  # every start met the noise
    hopping = lengths(state.z)
    hopping_seconds = time.perf_counter() - began
    rows = []
    for name, found, seconds in (
        ("local (Levenberg-Marquardt)", local, local_seconds),
        ("basin hopping", hopping, hopping_seconds),
    ):
        error = np.linalg.norm(found - TRUTH, axis=1)
        rows.append({
            "search": name, "starts": len(starts), "found, %": 100 * float(np.mean(error < NEAR)),
            "median error, m": float(np.median(error)), "worst error, m": float(error.max()), "seconds": seconds,
        })  # fmt: skip
    draw(axis, local, hopping).savefig(options.out / "basin_hopping.png", dpi=150)
    checks = [
        at_least("basin hopping: share of starts that end within 0.01 m of the truth", rows[1]["found, %"], 99.0, "%"),
        at_most("whole grid, compilation included", hopping_seconds, 60.0, "s", timed=True),
    ]
    return Result(rows, checks, [f"basin hopping ended after {rounds} rounds of {search.starts} members for each start"])


def draw(axis: np.ndarray, local: np.ndarray, hopping: np.ndarray) -> Figure:
    """Distance between the truth and what was found, over the grid of starts."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots(1, 2)
    step = axis[1] - axis[0]
    edges = (axis[0] - step / 2, axis[-1] + step / 2) * 2
    for ax, title, found in zip(axes, ("local search", "parallel basin hopping"), (local, hopping), strict=True):
        error = np.linalg.norm(found - TRUTH, axis=1).reshape(len(axis), len(axis)).T
        image = ax.imshow(np.log10(error + 1e-6), origin="lower", extent=edges, vmin=-4, vmax=0.7, cmap="viridis")
        ax.plot(*TRUTH, marker="*", markersize=14, color="white", markeredgecolor="black")
        ax.set(title=title, xlabel="start: upper link, m", ylabel="start: lower link, m")
    figure.colorbar(image, ax=axes, label="log10 of the distance to the truth, m")
    return figure


if __name__ == "__main__":
    run("Do searches find the link lengths of a double pendulum from anywhere?", measure)
