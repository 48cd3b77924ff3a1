"""A real double pendulum, filmed (Asseman, Kornuta & Ozcan 2018): identify it from the markers, then augment what is left.

Eighteen runs of a pendulum that was thrown by hand: twelve to train on, two to choose by, four to test, by a fixed seed.

1. `fx.identify` fits arms, masses, centres of mass, inertias, damping and the camera (scale, roll, tilt, depth) to the markers.
2. An extended Kalman filter with the identified pendulum runs along every run. Its estimates are causal: a prediction starts from
   the frames up to its start and from nothing after it. All methods start from the same estimates.
3. A network is added to the joints' passive forces and trained on stretches of 0.25 s of the training runs.
4. An LSTM of about as many weights learns the whole motion from the same stretches.

Error: root mean square of the distances of elbow and tip from their markers, in mm of a picture in which the upper arm measures
91 mm; medians over starts spread evenly over the test runs.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _data import recording
from _form import Result, at_most, run
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


class Plan(NamedTuple):
    """How much is done. Strides are in frames."""

    runs: int = 18
    parts: tuple[int, int] = (12, 2)
    frames: int = 17250
    shooting: tuple[tuple[int, int, int], ...] = ((40, 900, 30), (100, 450, 30))  # frames, stride, iterations
    train_stride: int = 20
    test_stride: int = 50
    width: int = 16
    steps: int = 800
    batch: int = 256
    lstm_steps: int = 6000
    lstm_block: int = 200
    horizon: float = HORIZON
    ahead: float = max(SHOWN)


QUICK = Plan(
    runs=3, parts=(1, 1), frames=2000, shooting=((40, 200, 8),), train_stride=40, test_stride=100, width=4, steps=20, batch=16,
    lstm_steps=20, lstm_block=5, horizon=0.05, ahead=0.5,
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
    sim, camera, fit = simulator(), Camera(), None
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

    fit, camera = identify([runs[r] for r in training], plan)
    states = estimate(fit.sim, camera, runs)
    frames, ahead = round(plan.horizon * RATE), round(plan.ahead * RATE)
    data = stretches(runs, states, training, plan.train_stride, frames)
    judged = stretches(runs, states, validation, 3 * plan.train_stride, frames)
    hybrid = augmented(fit, data, judged, plan)
    lstm, history = train(
        Lstm(8, 1 / RATE, jax.random.key(0)), camera.project, (jnp.asarray(data.before), jnp.asarray(data.markers)),
        (jnp.asarray(judged.before), jnp.asarray(judged.markers)), steps=plan.lstm_steps, rate=1e-2, patience=8,
        block=plan.lstm_block, batch=plan.batch,
    )  # fmt: skip

    test = stretches(runs, states, testing, plan.test_stride, ahead)
    predicted = {
        "datasheet": simulated(simulator(), camera, test.q, test.qd, ahead),
        "identified": simulated(fit.sim, camera, test.q, test.qd, ahead),
        "identified, augmented": simulated(hybrid.sim, camera, test.q, test.qd, ahead),
        "LSTM": recurrent(lstm, camera, test.before, ahead),
    }
    weights = {"datasheet": 0, "identified": len(fit.rows()), "identified, augmented": 0, "LSTM": count(lstm)}
    weights["identified, augmented"] = weights["identified"] + count(hybrid.sim.solver.augmentation)
    return report(predicted, test, weights, fit, len(history) * plan.lstm_block, options)


def report(
    predicted: dict[str, Any], test: Stretches, weights: dict[str, int], fit: fx.Fit, lstm_steps: int, options: Any
) -> Result:
    """The table, the figure and what there is to say."""
    error = {name: errors(seen, test) for name, seen in predicted.items()}
    at = {f"{t:g} s": round(t * RATE) for t in SHOWN}
    rows = [
        {"method": name, "fitted numbers": weights[name], **{k: float(np.median(e[:, i])) for k, i in at.items()}}
        for name, e in error.items()
    ]
    judged = round(HORIZON * RATE)
    plain, better = error["identified"], error["identified, augmented"]
    ratio = np.median(better[:, judged]) / np.median(plain[:, judged])
    by_run = [
        float(np.median(better[test.owner == r, judged]) / np.median(plain[test.owner == r, judged]))
        for r in np.unique(test.owner)
    ]
    figure(predicted, error, test).savefig(options.out / "double_pendulum_real.png", dpi=150)
    length = float(-fit.model.bodies.pos[-1, 2])
    remarks = (
        "Columns are median errors in mm at that time after the start, over "
        f"{len(test.q)} starts in runs {', '.join(str(r) for r in np.unique(test.owner))}, none of which was trained on.",
        "Augmented over identified at 0.25 s, run by run: " + ", ".join(f"{x:.2f}" for x in by_run) + ".",
        f"The motion tells arm / (gravity x frame time^2) alone. At the stated {RATE:g} frames/s the upper arm measures "
        f"{1e3 * length:.1f} mm; the stated {1e3 * UPPER:g} mm would mean {RATE * np.sqrt(length / UPPER):.1f} frames/s. "
        "If that is so, 0.3125 s above is 0.25 s by the clock.",
        "Masses have no scale in free motion, and of masses, centres of mass and inertias only three combinations act: "
        f"{_combinations(fit.model)}.",
        f"Damping {', '.join(f'{float(x):.3g}' for x in fit.model.joints.damping)} N m s/rad for an upper arm of "
        f"{1e3 * UPPER:g} g. {fit.message.capitalize()}; {' '.join(fit.remarks)}",
        f"The LSTM stopped improving on the validation runs within {lstm_steps} steps.",
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


def figure(predicted: dict[str, Any], error: dict[str, np.ndarray], test: Stretches) -> Figure:
    """Error against horizon, and the tip's path from the start at which the identified model's error is the median one."""
    page = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = page.subplots(1, 2)
    time = np.arange(test.markers.shape[1]) / RATE
    for name, e in error.items():
        left.plot(time, np.median(e, axis=0), color=COLOURS[name], label=name)
        left.fill_between(time, *np.quantile(e, (0.25, 0.75), axis=0), color=COLOURS[name], alpha=0.12, lw=0)
    left.axvline(HORIZON, color="0.8", lw=0.8, zorder=0)
    left.set(yscale="log", xlabel="time after the start (s)", ylabel="error of elbow and tip (mm)", xlim=(0, time[-1]))
    left.set_title("unseen runs: median and quartiles", fontsize=10)
    left.legend(fontsize=8)
    late = error["identified"][:, -1]
    shown = int(np.argsort(late)[len(late) // 2])
    right.plot(test.markers[shown, ::4, 3], -test.markers[shown, ::4, 2], "k.", ms=4, label="recorded")
    for name, seen in predicted.items():
        tip = np.asarray(seen[shown])
        right.plot(tip[:, 3], -tip[:, 2], color=COLOURS[name], label=name, lw=1.2)
    right.set(aspect="equal", xlabel="right (mm)", ylabel="up (mm)", xlim=(-175, 175), ylim=(-175, 175))
    right.set_title(f"path of the tip over {time[-1]:g} s", fontsize=10)
    right.legend(fontsize=8)
    return page


if __name__ == "__main__":
    run("How well is a real double pendulum predicted: by its datasheet, identified, augmented, and by an LSTM?", measure)
