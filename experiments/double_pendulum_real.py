"""A real double pendulum, filmed (Asseman, Kornuta & Ozcan 2018): identify it from the markers, then augment what is left.

Eighteen runs of a pendulum that was thrown by hand: twelve to train on, two to choose by, four to test, by a fixed seed.

1. `fx.identify` fits arms, masses, centres of mass, inertias, damping and the camera (scale, roll, tilt, depth) to the markers,
   the start of every stretch being estimated with them.
2. An extended Kalman filter with the identified pendulum runs along every run. Its estimates are causal: a prediction starts from
   the frames up to its start and from nothing after it. All methods start from the same estimates.
3. The pendulum's parameters are fitted once more, now to predictions over 0.25 s from those estimates: what is compared below is
   identified for the very task, so that a network gains nothing by the change of the task alone.
4. A network is added to the joints' passive forces and trained on such stretches of the training runs.
5. An LSTM of about as many weights learns the whole motion from the same stretches.

Error: root mean square of the distances of elbow and tip from their markers, in mm of a picture in which the upper arm measures
91 mm; medians over starts spread evenly over the test runs.
"""

import os
import sys
from typing import Any, NamedTuple

if "--quick" in sys.argv:  # a third of the compile time, for programs that run once; before JAX starts
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0")

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _data import recording
from _experiment import Result, at_most, run
from _pendulum import (
    COLUMNS,
    FILE,
    FREE,
    LOWER,
    NOISE,
    RATE,
    UPPER,
    Camera,
    build,
    observe,
    pieces,
    read,
    simulator,
    smooth,
    track,
)
from _recurrent import Lstm, train
from matplotlib.figure import Figure

import flexor as fx

jax.config.update("jax_enable_x64", True)

WARM, BEFORE = 400, 20  # frames in which the filter settles; frames that the LSTM reads before a start
HORIZON = 0.25  # s: what the networks train on and where they are judged
SHOWN = (0.05, 0.1, 0.25, 0.3125, 0.5)
CUT = 0.7
EXAMPLE = 1.5  # s of motion in the figure


class Plan(NamedTuple):
    """How much is done. Strides are in frames."""

    runs: int = 18
    parts: tuple[int, int] = (12, 2)
    frames: int = 17250
    shooting: tuple[tuple[int, int, int], ...] = ((40, 900, 30), (100, 450, 30))  # frames, stride, iterations
    tune_stride: int = 100
    train_stride: int = 15
    test_stride: int = 50
    width: int = 16
    steps: int = 1500
    batch: int = 256
    lstm_steps: int = 3000
    lstm_block: int = 200
    horizon: float = HORIZON
    exact: bool = True


QUICK = Plan(
    runs=3, parts=(1, 1), frames=2000, shooting=((30, 200, 8),), tune_stride=200, train_stride=40, test_stride=100, width=4,
    steps=20, batch=16, lstm_steps=20, lstm_block=5, horizon=0.05, exact=False,
)  # fmt: skip


class Stretches(NamedTuple):
    """Estimated states up to a start, and markers from there on."""

    before: np.ndarray
    markers: np.ndarray
    owner: np.ndarray

    @property
    def q(self) -> np.ndarray:
        return self.before[:, -1, :2]

    @property
    def qd(self) -> np.ndarray:
        return self.before[:, -1, 2:]


def identify(runs: list[np.ndarray], plan: Plan) -> tuple[fx.Fit, Camera]:
    """The pendulum and its camera by multiple shooting with free starts, over short stretches first."""
    sim, camera, fit = simulator(exact=plan.exact), Camera(), None
    extra: dict[str, Any] = {**camera.extra(), "gyration.upper": UPPER / 12**0.5, "gyration.lower": LOWER / 12**0.5}
    for frames, stride, iterations in plan.shooting:
        logs = pieces(runs, camera, frames=frames, stride=stride)
        fit = fx.identify(
            sim, logs, FREE, observe=observe, build=build, extra=extra, prior={"*": 1.0}, held_out=0.1,
            shooting=fx.Shooting(free_start=True), search=fx.LevenbergMarquardt(iterations=iterations, tolerance=1e-5),
        )  # fmt: skip
        sim, extra = fit.sim, fit.extra
        camera = Camera(*(np.asarray(x) for x in Camera.of(sim.model, extra)))
    assert fit is not None
    return fit, camera


def estimate(sim: fx.Simulator, camera: Camera, runs: np.ndarray) -> np.ndarray:
    """q and qd at every frame of every run, by the filter."""
    first = [np.concatenate([x[0] for x in smooth(camera.angles(r[:WARM]))]) for r in runs]
    found = track(sim, camera, jnp.asarray(runs), jnp.asarray(first))
    return np.concatenate([found.q, found.qd], axis=-1)


def stretches(runs: np.ndarray, states: np.ndarray, which: Any, stride: int, frames: int) -> Stretches:
    """Stretches of the given runs, their starts a stride apart; angles within a turn of zero."""
    first = np.arange(WARM, runs.shape[1] - frames - 1, stride)
    rows = [(r, i) for r in which for i in first]
    before = np.stack([states[r, i - BEFORE : i + 1] for r, i in rows])
    turns = np.round(before[:, -1:, :2] / (2 * np.pi)) * 2 * np.pi
    before = np.concatenate([before[..., :2] - turns, before[..., 2:]], axis=-1)
    return Stretches(before, np.stack([runs[r, i : i + frames + 1] for r, i in rows]), np.array([r for r, _ in rows]))


def logs(data: Stretches) -> list[fx.Log]:
    """Stretches as logs of markers that start from the filter's estimates."""
    time, noise = np.arange(data.markers.shape[1]) / RATE, dict.fromkeys(COLUMNS, NOISE)
    return [
        fx.Log(time, m, COLUMNS, noise=noise, start=(q, qd)) for m, q, qd in zip(data.markers, data.q, data.qd, strict=True)
    ]


def tuned(fit: fx.Fit, data: Stretches, plan: Plan) -> fx.Fit:
    """The pendulum fitted to predictions from the filter's estimates; the camera stays."""
    free = [pattern for pattern in FREE if pattern not in ("camera.*", "lower.length")]
    search = fx.LevenbergMarquardt(iterations=plan.shooting[-1][2], tolerance=1e-4)
    return fx.identify(
        fit.sim,
        logs(data),
        free,
        observe=observe,
        build=build,
        extra=fit.extra,
        prior={"*": 1.0},
        search=search,
        held_out=0.1,
    )


def augmented(fit: fx.Fit, data: Stretches, judged: Stretches, plan: Plan) -> fx.Fit:
    """The identified pendulum with a network for what its joints still lack."""
    blueprint = fx.Blueprint().add(
        "joint.passive_force", inputs=["joint.q", "joint.qd"], net=fx.nets.MLP(width=plan.width, depth=2),
        scales={"joint.qd": 15.0, "joint.passive_force": 2e-4},
    )  # fmt: skip
    hybrid = fit.sim.augment(blueprint, key=jax.random.key(0))
    search = fx.Adam(steps=plan.steps, rate=1e-2, batch=plan.batch, block=min(100, plan.steps))
    return fx.identify(
        hybrid, logs(data), ["augment"], observe=observe, extra=fit.extra, search=search, held_out=logs(judged)
    )


@eqx.filter_jit
def simulated(sim: fx.Simulator, camera: Camera, q: Any, qd: Any, steps: int) -> Any:
    """Markers along rollouts from many starts."""
    return jax.vmap(lambda q, qd: jax.vmap(camera.project)(sim.rollout(sim.reset(q, qd), steps=steps).q))(q, qd)


@eqx.filter_jit
def recurrent(lstm: Lstm, camera: Camera, before: Any, steps: int) -> Any:
    """Markers along the LSTM's predictions."""
    return jax.vmap(lambda x: jax.vmap(camera.project)(lstm(x, steps)))(before)


def errors(seen: Any, data: Stretches) -> np.ndarray:
    """Root mean square distance of the two markers, mm, for every start and frame."""
    return np.sqrt(np.sum((np.asarray(seen) - data.markers) ** 2, axis=-1) / 2)


def count(module: Any) -> int:
    return sum(x.size for x in jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array)))


def measure(options: Any) -> Result:
    plan = QUICK if options.quick else Plan()
    runs = np.stack([r[: plan.frames] for r in read(recording(FILE))[: plan.runs]])
    order = np.random.default_rng(0).permutation(plan.runs)
    a, b = plan.parts[0], sum(plan.parts)
    training, validation, testing = np.sort(order[:a]), np.sort(order[a:b]), np.sort(order[b:])

    first, camera = identify([runs[r] for r in training], plan)
    states = estimate(first.sim, camera, runs)
    frames = round(plan.horizon * RATE)
    fit = tuned(first, stretches(runs, states, training, plan.tune_stride, frames), plan)
    data = stretches(runs, states, training, plan.train_stride, frames)
    judged = stretches(runs, states, validation, 4 * plan.train_stride, frames)
    hybrid = augmented(fit, data, judged, plan)
    lstm, history = train(
        Lstm(8, 1 / RATE, jax.random.key(0)), camera.project, (jnp.asarray(data.before), jnp.asarray(data.markers)),
        (jnp.asarray(judged.before), jnp.asarray(judged.markers)), steps=plan.lstm_steps, rate=1e-2, patience=5,
        block=plan.lstm_block, batch=plan.batch,
    )  # fmt: skip

    def by(sim: fx.Simulator) -> Any:
        return lambda x, steps: simulated(sim, camera, x[:, -1, :2], x[:, -1, 2:], steps)

    methods = {
        "datasheet": by(simulator(exact=plan.exact)),
        "identified": by(fit.sim),
        "identified, augmented": by(hybrid.sim),
        "LSTM": lambda x, steps: recurrent(lstm, camera, x, steps),
    }
    numbers = len(first.rows())
    numbers_of = (0, numbers, numbers + count(hybrid.sim.solver.augmentation), count(lstm))
    test = stretches(runs, states, testing, plan.test_stride, round(max(SHOWN) * RATE))
    error = {name: errors(f(test.before, test.markers.shape[1] - 1), test) for name, f in methods.items()}
    early = errors(by(first.sim)(test.before, test.markers.shape[1] - 1), test)
    shown = stretches(runs, states, testing, plan.test_stride, round(EXAMPLE * RATE))
    figure(methods, error, test, shown).savefig(options.out / "double_pendulum_real.png", dpi=150)
    return report(error, early, test, dict(zip(methods, numbers_of, strict=True)), first, history)


def report(
    error: dict[str, np.ndarray], early: np.ndarray, test: Stretches, numbers: dict[str, int], first: fx.Fit,
    history: list[float],
) -> Result:  # fmt: skip
    """The table and what there is to say."""
    at = {f"{t:g} s": round(t * RATE) for t in SHOWN}
    rows = [
        {"method": name, "fitted numbers": numbers[name], **{k: float(np.median(e[:, i])) for k, i in at.items()}}
        for name, e in error.items()
    ]
    judged = round(HORIZON * RATE)
    plain, better = error["identified"][:, judged], error["identified, augmented"][:, judged]
    ratio = np.median(better) / np.median(plain)
    by_run = [np.median(better[test.owner == r]) / np.median(plain[test.owner == r]) for r in np.unique(test.owner)]
    length = float(-first.model.bodies.pos[-1, 2])
    remarks = (
        "Columns are median errors in mm at that time after the start, over "
        f"{len(test.q)} starts in runs {', '.join(str(r) for r in np.unique(test.owner))}, none of which was trained on.",
        "Augmented over identified at 0.25 s, run by run: " + ", ".join(f"{x:.2f}" for x in by_run) + ".",
        f"The motion tells arm / (gravity x frame time^2) alone. At the stated {RATE:g} frames/s the upper arm measures "
        f"{1e3 * length:.1f} mm; the stated {1e3 * UPPER:g} mm would mean {RATE * np.sqrt(length / UPPER):.1f} frames/s. "
        "If that is so, 0.3125 s above is 0.25 s by the clock.",
        "Masses have no scale in free motion, and of masses, centres of mass along the arms and inertias only three"
        " combinations act: "
        f"{_combinations(first.model)}.",
        f"Damping {', '.join(f'{float(x):.3g}' for x in first.model.joints.damping)} N m s/rad for an upper arm of "
        f"{1e3 * UPPER:g} g. {first.message.capitalize()}; {' '.join(first.remarks)}",
        f"Identified with free starts, before it was fitted to predictions: {np.median(early[:, judged]):.3f} mm at 0.25 s.",
        f"The LSTM's validation loss along its training: {', '.join(f'{x:.2f}' for x in history)} mm.",
    )  # fmt: skip
    return Result(rows, [at_most("augmented / identified, median error at 0.25 s", float(ratio), CUT)], remarks)


def _combinations(model: fx.Model) -> str:
    """Moments about the shoulder and the elbow over the lower arm's first moment, which is all that a free swing shows."""
    m, c = np.asarray(model.bodies.mass)[-2:], np.asarray(model.bodies.com)[-2:, 2]
    I, arm = np.asarray(model.bodies.inertia)[-2:, 1], float(model.bodies.pos[-1, 2])
    first = m[1] * c[1]
    numbers = (
        (m[0] * c[0] + m[1] * arm) / first,
        (I[0] + m[0] * c[0] ** 2 + m[1] * arm**2) / -first,
        (I[1] + m[1] * c[1] ** 2) / -first,
    )
    return "first moment of all at the shoulder {:.3f}, second {:.4f} m, of the lower arm {:.4f} m (per its first)".format(
        *numbers
    )


COLOURS = {"datasheet": "0.6", "identified": "C0", "identified, augmented": "C3", "LSTM": "C2"}


def figure(methods: dict[str, Any], error: dict[str, np.ndarray], test: Stretches, shown: Stretches) -> Figure:
    """Error against horizon, and the tip from the start at which the identified model's error at 0.5 s is the median one."""
    page = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = page.subplots(1, 2, width_ratios=(1, 1.3))
    time = np.arange(test.markers.shape[1]) / RATE
    for name, e in error.items():
        left.plot(time, np.median(e, axis=0), color=COLOURS[name], label=name)
        left.fill_between(time, *np.quantile(e, (0.25, 0.75), axis=0), color=COLOURS[name], alpha=0.12, lw=0)
    left.axvline(HORIZON, color="0.8", lw=0.8, zorder=0)
    left.set(yscale="log", xlabel="time after the start (s)", ylabel="error of elbow and tip (mm)", xlim=(0, time[-1]))
    left.set_title("unseen runs: median and quartiles", fontsize=10)
    left.legend(fontsize=8)
    late = error["identified"][:, -1][[np.flatnonzero(np.all(test.before == b, (1, 2)))[0] for b in shown.before]]
    k = int(np.argsort(late)[len(late) // 2])
    time = np.arange(shown.markers.shape[1]) / RATE
    right.plot(time[::4], -shown.markers[k, ::4, 2], "k.", ms=4, label="recorded")
    for name, f in methods.items():
        tip = np.asarray(f(shown.before[k : k + 1], len(time) - 1))[0]
        right.plot(time, -tip[:, 2], color=COLOURS[name], label=name, lw=1.2)
    right.set(xlabel="time after the start (s)", ylabel="height of the tip above the pivot (mm)", xlim=(0, time[-1]))
    right.set_title("an unseen stretch", fontsize=10)
    return page


if __name__ == "__main__":
    run("How well is a real double pendulum predicted: by its datasheet, identified, augmented, and by an LSTM?", measure)
