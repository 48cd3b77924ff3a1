"""Swimmers in water and air that the simulator knows nothing of (Heiden et al. 2021, section IV-B, Figures 8, 9, Table II).

MuJoCo moves the swimmers through a fluid; flexor's model of them knows none. A network on the force on each link learns the drag
from the first 200 steps of ten trajectories, end to end through the rollouts. It is then asked for 900 steps under controls
that it has not seen, beside the vacuum model and a recurrent network of about the same size that has no physics.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import optax
from _experiment import Result, at_most, run
from _swimmer_lstm import Data, measured, misfit, predict, train
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from matplotlib.figure import Figure
from scipy.optimize import minimize

import flexor as fx
from flexor.viz.colours import SERIES

jax.config.update("jax_enable_x64", True)

DT = 0.005
MEDIA = {"water 5 °C": (1000.0, 0.001518), "water 25 °C": (997.0, 0.00089), "air 25 °C": (1.184, 0.00001849)}  # Table II
ROBOTS = {"swimmer2": 18, "swimmer5": 14}  # and the width of the LSTM
HEADLINE = ("swimmer2", "water 25 °C")
SLOW = 0.1  # of the typical speed: below, drag becomes linear
GEAR = 0.2  # N m: torque of a motor at control 1
FREE = 1.85  # rad: bends stay below, away from the stops at 1.9


@dataclass(frozen=True)
class Size:
    """How much of everything: the experiment, or a small version of it."""

    robots: tuple[str, ...] = tuple(ROBOTS)
    media: tuple[str, ...] = tuple(MEDIA)
    train_runs: int = 10
    train_steps: int = 200
    test_runs: int = 40
    test_steps: int = 900
    width: int = 24
    adam: int = 400
    lbfgs: int = 250
    lstm_width: dict[str, int] | None = None
    horizons: tuple[tuple[int, int], ...] = ((50, 25), (200, 200))
    epochs: int = 500


QUICK = Size(
    ("swimmer2",), ("water 25 °C",), train_steps=40, test_runs=4, test_steps=80, width=4, adam=15, lbfgs=5,
    lstm_width={"swimmer2": 4}, horizons=((20, 20),), epochs=20,
)  # fmt: skip


# the truth


def in_fluid(robot: str, medium: str) -> mujoco.MjModel:
    """MuJoCo's model of a bundled swimmer in a fluid."""
    spec = mujoco.MjSpec.from_string((Path(fx.robots.__file__).parent / "descriptions" / f"{robot}.xml").read_text())
    spec.option.density, spec.option.viscosity = MEDIA[medium]
    spec.option.timestep = DT
    return spec.compile()


def controls(rng: np.random.Generator, steps: int, nu: int) -> np.ndarray:
    """Sums of four random cosines between 1 and 3 Hz for each motor: a joint that starts at rest does not drift away."""
    t = DT * np.arange(steps)[:, None]
    frequency, amplitude = rng.uniform(1.0, 3.0, (4, nu)), 0.075 * rng.normal(size=(4, nu))
    return sum(a * np.cos(2 * np.pi * f * t) for a, f in zip(amplitude, frequency, strict=True))


def swims(robot: str, medium: str, runs: int, steps: int, seed: int) -> Data:
    """Trajectories from rest at random headings and bends. Those that touch a stop are drawn again: the fluid is to be the only
    thing that the simulator does not know."""
    m, rng, kept = in_fluid(robot, medium), np.random.default_rng(seed), []
    d = mujoco.MjData(m)
    while len(kept) < runs:
        mujoco.mj_resetData(m, d)
        d.qpos[2] = rng.uniform(-np.pi, np.pi)
        d.qpos[3:] = rng.uniform(-0.6, 0.6, m.nq - 3)
        u = controls(rng, steps, m.nu)
        q, qd = [d.qpos.copy()], [d.qvel.copy()]
        for now in u:
            d.ctrl[:] = now
            mujoco.mj_step(m, d)
            q.append(d.qpos.copy())
            qd.append(d.qvel.copy())
        if np.abs(np.array(q)[:, 3:]).max() < FREE:
            kept.append((np.array(q), np.array(qd), u))
    q, qd, u = (np.stack(x) for x in zip(*kept, strict=True))
    return q, qd, u


# the hybrid


class InLinkAxes(eqx.Module):
    """Drag in the axes of the link, so that it is the same law whatever the heading: -|v| D(v / |v|) v.

    The network gives the coefficients by the direction of the flow, as tables of drag do. Beyond the speeds of the training the
    force goes on with the square of the speed, where a network of v itself would be lost. |v| is rounded off near zero.
    """

    damper: Any
    power: Float[Array, ""]
    speed: tuple[float, float] = eqx.field(static=True)

    @property
    def inner(self) -> Any:
        return self.damper.inner

    def is_zero(self) -> bool:
        return self.damper.is_zero()

    def __call__(self, x: Float[Array, " 9"], v: Float[Array, " 6"]) -> Float[Array, " 6"]:
        R = x.reshape(3, 3)
        scale = jnp.asarray(np.repeat(self.speed, 3), v.dtype)
        local = jnp.concatenate([R.T @ v[:3], R.T @ v[3:]]) / scale
        fast = jnp.sqrt(local @ local + SLOW**2)
        force = self.power * fast * self.damper(local / fast, local) / scale
        return jnp.concatenate([R @ force[:3], R @ force[3:]])


@dataclass(frozen=True, kw_only=True)
class Drag(fx.nets.Dissipative):
    """Dissipative in the axes of a link: see `InLinkAxes`. Reads link.rotation. `speed` are typical angular and linear
    velocities of a link; what the medium typically takes from it, `power`, is set from the data and not trained."""

    speed: tuple[float, float]

    def build(self, count: int, n_in: int, n_out: int, draw: Any, fresh: bool) -> Any:
        damper = super().build(count, 6, n_out, draw, fresh)
        return InLinkAxes(damper, jnp.ones_like(damper.gain[:, 0]), self.speed)


def vacuum(robot: str) -> fx.Simulator:
    """flexor's swimmer: no fluid, and no stops, which no trajectory touches. `ImplicitDamping` is what MuJoCo does."""
    model = fx.load(robot, ignore=["limit"]).astype(jnp.float64)
    return fx.Simulator(model, fx.RigidSolver(contact=None, integrator=fx.ImplicitDamping()), dt=DT)


def rolled(sim: fx.Simulator, q: Any, qd: Any, u: Any) -> tuple[Array, Array]:
    """q and qd of all runs from their first states."""

    def one(q: Array, qd: Array, u: Array) -> tuple[Array, Array]:
        t = sim.rollout(sim.reset(q, qd), u)
        return t.q, t.qd

    return jax.vmap(one)(q, qd, u)


def typical(data: Data) -> tuple[tuple[float, float], float]:
    """Angular velocity of the links and linear velocity of the first (rms), and the power of the motors per link."""
    _, qd, u = data
    turning, moving = np.cumsum(qd[..., 2:], axis=-1), qd[..., :2]
    power = np.abs(GEAR * u * qd[:, :-1, 3:]).sum(-1).mean() / turning.shape[-1]
    return (float(np.sqrt(np.mean(turning**2))), float(np.sqrt(np.mean(moving**2)))), float(power)


class Hybrid:
    """The swimmer with one network, shared by all links, on the force that acts on each; compiled once for all media."""

    def __init__(self, sim: fx.Simulator, speed: tuple[float, float], width: int):
        blueprint = fx.Blueprint()
        net = Drag(width=width, speed=speed)
        blueprint.add("link.external_force", inputs=["link.rotation"], net=net, over=fx.Shared())
        hybrid = sim.augment(blueprint, key=jax.random.key(0))
        self.start, restore = ravel_pytree(hybrid.solver.augmentation.networks[0][0].damper)

        def rollouts(x: Array, power: Any, q: Array, qd: Array, u: Array) -> tuple[Array, Array]:
            def parts(h: fx.Simulator) -> Any:
                network = h.solver.augmentation.networks[0][0]
                return network.damper, network.power

            return rolled(eqx.tree_at(parts, hybrid, (restore(x), jnp.full(1, power))), q, qd, u)

        def cost(x: Array, power: Any, scales: Any, q: Array, qd: Array, u: Array) -> Array:
            return misfit(rollouts(x, power, q[:, 0], qd[:, 0], u), (q, qd), scales)

        self.predict, self.cost = jax.jit(rollouts), jax.jit(jax.value_and_grad(cost))

    def fit(self, data: Data, size: Size) -> tuple[Array, float, list[float]]:
        """Weights trained through the rollouts, by Adam and then by L-BFGS; the power by which they count; the cost after
        each gradient.

        The cost is that of the LSTM: squared errors of q and qd along the whole trajectory, each measured by its spread.
        """
        given = (measured(data), *(jnp.asarray(x) for x in data))
        # the fluid's power is to the motors' about as the error of the vacuum model, which a fresh network is, is to the motion
        power = typical(data)[1] * float(np.sqrt(self.cost(self.start, 1.0, *given)[0]))
        adam = optax.adam(optax.cosine_decay_schedule(1e-2, size.adam, 0.02))
        x, memory, history = self.start, adam.init(self.start), []
        step = jax.jit(adam.update)
        for _ in range(size.adam):
            value, gradient = self.cost(x, power, *given)
            update, memory = step(gradient, memory)
            x = optax.apply_updates(x, update)
            history.append(float(value))

        def evaluated(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self.cost(jnp.asarray(x), power, *given)
            history.append(min(float(value), history[-1]))  # the line search's trials are no steps
            return float(value), np.asarray(gradient)

        options = {"maxiter": size.lbfgs, "maxcor": 30, "ftol": 1e-14, "gtol": 1e-14}
        best = minimize(evaluated, np.asarray(x), jac=True, method="L-BFGS-B", options=options)
        return jnp.asarray(best.x), power, history


# the comparison


@dataclass(frozen=True)
class Outcome:
    """What the models predict for the test runs of one robot in one medium, by name, beside the truth."""

    robot: str
    medium: str
    truth: Data
    predicted: dict[str, tuple[np.ndarray, np.ndarray]]
    weights: dict[str, int]
    history: list[float]

    def error(self, model: str, step: int) -> float:
        """Root mean square over runs and joints of the error of q at a step."""
        return float(np.sqrt(np.mean((self.predicted[model][0][:, step] - self.truth[0][:, step]) ** 2)))

    def state_error(self, model: str, step: int) -> float:
        """The same of q and qd, each number measured by its spread in the truth."""
        parts = [
            (a[:, step] - b[:, step]) / (b - b[:, :1]).std((0, 1))
            for a, b in zip(self.predicted[model], self.truth, strict=False)
        ]
        return float(np.sqrt(np.mean(np.concatenate(parts, axis=-1) ** 2)))


def compare(robot: str, size: Size) -> list[Outcome]:
    """All media of a robot; the recurrent networks of all media are trained side by side."""
    sim = vacuum(robot)
    seen = {m: swims(robot, m, size.train_runs, size.test_steps, seed=1) for m in size.media}
    seen = {m: (q[:, : size.train_steps + 1], qd[:, : size.train_steps + 1], u[:, : size.train_steps])
            for m, (q, qd, u) in seen.items()}  # fmt: skip
    lstms, scales = train(list(seen.values()), (size.lstm_width or ROBOTS)[robot], size.horizons, size.epochs)
    count = sum(x.size for x in jax.tree.leaves(eqx.filter(lstms[0], eqx.is_inexact_array)))
    speed, _ = typical(seen[size.media[0]])
    hybrid, bare = Hybrid(sim, speed, size.width), jax.jit(partial(rolled, sim))
    outcomes = []
    for medium, lstm, scale in zip(size.media, lstms, scales, strict=True):
        weights, power, history = hybrid.fit(seen[medium], size)
        truth = swims(robot, medium, size.test_runs, size.test_steps, seed=4)
        start = (truth[0][:, 0], truth[1][:, 0], truth[2])
        predicted = {
            "vacuum": bare(*start),
            "LSTM": eqx.filter_jit(predict)(lstm, scale, *start),
            "hybrid": hybrid.predict(weights, power, *start),
        }
        arrays = {name: (np.asarray(q), np.asarray(qd)) for name, (q, qd) in predicted.items()}
        counts = {"vacuum": 0, "LSTM": count, "hybrid": weights.size}
        outcomes.append(Outcome(robot, medium, truth, arrays, counts, history))
    return outcomes


def measure(options: Any) -> Result:
    size = QUICK if options.quick else Size()
    outcomes = [o for robot in size.robots for o in compare(robot, size)]
    early, late = size.train_steps, size.test_steps
    rows = [
        {
            "robot": o.robot, "medium": o.medium, "model": model, "weights": o.weights[model],
            f"q, step {early}": o.error(model, early), f"q, step {late}": o.error(model, late),
            "q, of the LSTM's": o.error(model, late) / o.error("LSTM", late),
            f"state, step {early}": o.state_error(model, early), f"state, step {late}": o.state_error(model, late),
            "state, of the LSTM's": o.state_error(model, late) / o.state_error("LSTM", late),
        }
        for o in outcomes for model in o.predicted
    ]  # fmt: skip
    outcomes_first = sorted(outcomes, key=lambda o: (o.robot, o.medium) != HEADLINE)
    checks = [
        at_most(f"{o.robot}, {o.medium}: error of the hybrid at step {late}, of the LSTM's",
                o.error("hybrid", late) / o.error("LSTM", late), 0.2)
        for o in outcomes_first
    ]  # fmt: skip
    draw_costs(outcomes, size).savefig(options.out / "costs.png", dpi=150)
    for o in outcomes:
        name = f"{o.robot}_{o.medium.replace(' °C', '').replace(' ', '_')}.png"
        draw_swim(o, early).savefig(options.out / name, dpi=130)
    remarks = [
        f"q: rms error over {size.test_runs} unseen runs and all joints (rad, m); state: q and qd, each measured by its spread",
        f"trained on the first {early} of {late} steps of {size.train_runs} trajectories; truth from MuJoCo",
    ]
    return Result(rows, checks, remarks)


# the figures


def draw_costs(outcomes: list[Outcome], size: Size) -> Figure:
    """Cost of the hybrid during training, by medium, a panel for each robot (Figure 8)."""
    figure = Figure(figsize=(4.2 * len(size.robots) + 0.4, 3.4), layout="constrained")
    all_axes = figure.subplots(1, len(size.robots), sharey=True, squeeze=False)[0]
    for axes, robot in zip(all_axes, size.robots, strict=True):
        for i, o in enumerate(o for o in outcomes if o.robot == robot):
            axes.semilogy(o.history, label=o.medium, color=SERIES[i], linestyle=("-", "--", "-")[i % 3])
        axes.axvline(size.adam, color="0.6", linewidth=0.8)
        axes.set(xlabel="gradients (Adam, then L-BFGS)", title=robot)
        axes.grid(alpha=0.4)
    all_axes[0].set_ylabel("cost")
    all_axes[0].legend(fontsize=8)
    return figure


def draw_swim(o: Outcome, cutoff: int) -> Figure:
    """The first test run: q on the left, qd on the right, a row for each joint (Figure 9)."""
    q, qd, u = o.truth
    names = ["x (m)", "y (m)", "heading (rad)"] + [f"bend {i + 1} (rad)" for i in range(u.shape[-1])]
    time = DT * np.arange(q.shape[1])
    figure = Figure(figsize=(10, 1.5 * len(names) + 0.8), layout="constrained")
    axes = figure.subplots(len(names), 2, sharex=True)
    styles = {"vacuum": ("0.6", ":"), "LSTM": (SERIES[2], "-"), "hybrid": (SERIES[1], "--")}
    for row, name in enumerate(names):
        for column, truth in enumerate((q, qd)):
            ax = axes[row, column]
            ax.plot(time, truth[0, :, row], color="k", linewidth=1.6, label="MuJoCo")
            low, high = truth[0, :, row].min(), truth[0, :, row].max()
            for model, (colour, style) in styles.items():
                ax.plot(
                    time, o.predicted[model][column][0, :, row], color=colour, linestyle=style, linewidth=1.4, label=model
                )
            ax.set_ylim(low - 0.8 * (high - low) - 1e-3, high + 0.8 * (high - low) + 1e-3)
            ax.axvline(DT * cutoff, color="k", linewidth=0.8)
            ax.margins(x=0)
            ax.set_ylabel(name if column == 0 else "rate, per s", fontsize=8)
    axes[-1, 0].set_xlabel("time (s)")
    axes[-1, 1].set_xlabel("time (s)")
    figure.suptitle(f"{o.robot} in {o.medium}: an unseen run; training ended at the vertical line", fontsize=10)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


if __name__ == "__main__":
    run("How well do vacuum, LSTM and hybrid predict a swimmer in a fluid, far beyond what they were trained on?", measure)
