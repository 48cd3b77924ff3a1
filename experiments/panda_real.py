"""A real Panda's joint torques (Gaz, Cognetti, Oliva, Robuffo Giordano & De Luca 2019): base parameters from 14 s of motion.

All signals at 1 ms through a zero-phase Butterworth filter of order 4 at 20 Hz, as the published figures have them. Torques are
linear in the arm's base parameters (`fx.identify.base_parameters`) and in each joint's friction: an offset, viscous friction, dry
friction rounded at two speeds, and the rotor. They are fitted by weighted least squares, the weights from the residuals. What is
compared is the error on motion that the fit has not seen, over the published model's error on the whole run (the published
parameters are not in the recording, so its error on a part of it is not known).

`--evaluate FILE` scores the saved model (`--model`, by default that of the last full run, fitted to all of the recording) on any
file of the same layout.
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from _arm_logs import panda_signals
from _data import recording
from _experiment import Missing, Result, at_most, run
from matplotlib.figure import Figure

import flexor as fx
from flexor.identify import Butterworth, base_parameters
from flexor.identify.torque_rows import Signals, signals_of, torque_rows

jax.config.update("jax_enable_x64", True)

FILE = "panda_torque.h5"
PUBLISHED = np.array([0.414, 0.656, 0.390, 0.376, 0.126, 0.088, 0.060])  # N m, RMS on the whole recording
RATIO = 0.9
CORNERS = (0.05, 0.3)  # rad/s at which dry friction turns round
RIDGE = 1e-5  # of columns of unit length: settles what the motion does not determine
EVERY = 5  # ms between the rows that are fitted
PARTS = 3  # of the run; each is left out once
PASSES = 3  # of reweighting
LATE = 9.5  # s: what comes after it is unseen in the main split


class Linear(NamedTuple):
    """Coefficients of the base parameters, then of each joint's friction."""

    base: np.ndarray
    coefficients: np.ndarray

    def torque(self, W: np.ndarray) -> np.ndarray:
        return W @ self.coefficients


def regressor(model: fx.Model, signals: Signals, columns: np.ndarray) -> np.ndarray:
    """Columns of the base parameters and of friction, (rows, joints, numbers)."""
    Y, _ = torque_rows(model, signals.q, signals.qd, signals.qdd)
    n = model.nv
    one = np.ones_like(signals.qd)
    each = [one, signals.qd, signals.qdd, *(np.tanh(signals.qd / corner) for corner in CORNERS)]
    friction = np.stack([x[:, :, None] * np.eye(n) for x in each], axis=-1).reshape(len(Y), n, -1)
    return np.concatenate([Y[:, :, columns], friction], axis=2)


def fitted(W: np.ndarray, u: np.ndarray, columns: np.ndarray) -> Linear:
    """Weighted least squares; each joint's weight is the inverse of its residuals' root mean square."""
    weight = 1 / u.std(0)
    for _ in range(PASSES):
        A, b = (W * weight[:, None]).reshape(-1, W.shape[2]), (u * weight).ravel()
        scale = np.linalg.norm(A, axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        A = A / scale
        x = np.linalg.solve(A.T @ A + RIDGE * np.eye(A.shape[1]), A.T @ b) / scale
        weight = 1 / np.sqrt(np.mean((u - W @ x) ** 2, axis=0))
    return Linear(columns, x)


def rms(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(x**2, axis=0))


def prepared(path: Path, seconds: float | None = None) -> tuple[fx.Model, Signals]:
    """The arm, and its signals at 1 ms, filtered; all of them, or the first seconds."""
    time, q, qd, torque, model = panda_signals(path)
    last = None if seconds is None else int(np.searchsorted(time, time[0] + seconds))
    names = [j.name for j in model.topology.joints]
    columns = (*(f"q.{n}" for n in names), *(f"qd.{n}" for n in names))
    log = fx.Log(time[:last], np.concatenate([q, qd], axis=1)[:last], columns, torque[:last], name=path.stem)
    return model, signals_of(log, model, Butterworth(cutoff=20.0, order=4), 1000.0)


def measure(options: Any) -> Result:
    if options.evaluate is not None:
        return evaluate(options)
    model, signals = prepared(recording(FILE))
    if options.quick:
        signals = Signals(*(x[::EVERY] for x in signals))
    step = 1 if options.quick else EVERY
    base = base_parameters(model, instants=64 if options.quick else 256)
    columns = base.independent[base.independent < 10 * 7]  # rotors have a column of their own among the joints'
    W = regressor(model, signals, columns)
    time = signals.time - signals.time[0]
    late = time >= LATE
    rows, errors = [], {}
    part = np.minimum((time / time[-1] * PARTS).astype(int), PARTS - 1)
    splits = {f"unseen: from {LATE:g} s on": late, **{f"unseen: part {k + 1} of {PARTS}": part == k for k in range(PARTS)}}
    for name, unseen in splits.items():
        seen = np.flatnonzero(~unseen)[::step]
        model_here = fitted(W[seen], signals.u[seen], columns)
        errors[name] = model_here.torque(W) - signals.u
        rows.append(_row(name, rms(errors[name][unseen])))
    whole = fitted(W[::step], signals.u[::step], columns)
    rows.append(_row("fitted to all of it", rms(whole.torque(W) - signals.u)))
    rows.append({"torque error, N m RMS": "published model, whole run", **_joints(PUBLISHED), "mean ratio": 1.0})
    np.savez(options.out / "model.npz", base=columns, coefficients=whole.coefficients)
    figure(time, signals, errors[next(iter(splits))], late).savefig(options.out / "panda_real.png", dpi=150)
    ratios = [row["mean ratio"] for row in rows]
    remarks = (
        f"{len(columns)} base parameters of the links, {W.shape[2] - len(columns)} numbers of friction, rotors and offsets.",
        "The whole run is one motion of 14 s that does not repeat; parts that are left out are motion the fit has not seen.",
        "The published model was identified on runs of which this is one; its errors are those on the whole run.",
        "Base parameters are not constrained to bodies that can exist; `fx.identify` with `fx.Torque` is.",
    )
    return Result(rows, [at_most("mean over joints of error / published, from 9.5 s on", ratios[0], RATIO)], remarks)


def evaluate(options: Any) -> Result:
    """The saved model on another recording."""
    if not options.model.is_file():
        raise Missing(
            f"there is no model '{options.model}': run the experiment without --evaluate first, or name it by --model."
        )
    if not options.evaluate.is_file():
        raise Missing(f"there is no file '{options.evaluate}'.")
    with np.load(options.model) as file:
        kept = Linear(file["base"], file["coefficients"])
    model, signals = prepared(options.evaluate)
    error = kept.torque(regressor(model, signals, kept.base)) - signals.u
    row = _row(options.evaluate.name, rms(error))
    return Result([row], [at_most("mean over joints of error / published", row["mean ratio"], RATIO)], ())


def _joints(values: np.ndarray) -> dict[str, float]:
    return {f"joint {k + 1}": float(x) for k, x in enumerate(values)}


def _row(name: str, error: np.ndarray) -> dict[str, Any]:
    return {"torque error, N m RMS": name, **_joints(error), "mean ratio": float(np.mean(error / PUBLISHED))}


def figure(time: np.ndarray, signals: Signals, error: np.ndarray, late: np.ndarray) -> Figure:
    """Measured torques and the errors of the prediction, where it was fitted and where not."""
    page = Figure(figsize=(10, 9), layout="constrained")
    axes = page.subplots(7, 2, sharex=True, width_ratios=(1.2, 1))
    for k in range(7):
        left, right = axes[k]
        left.plot(time, signals.u[:, k], color="0.35", lw=1.4, label="measured")
        left.plot(time, signals.u[:, k] + error[:, k], color="C0", lw=0.9, label="predicted")
        right.plot(time, np.where(late, np.nan, error[:, k]), color="0.6", lw=0.6, label="fitted")
        right.plot(time, np.where(late, error[:, k], np.nan), color="C3", lw=0.6, label="unseen")
        right.axhspan(-PUBLISHED[k], PUBLISHED[k], color="0.9", zorder=0, label="published, RMS")
        left.set_ylabel(f"joint {k + 1}\n(N m)", fontsize=9)
    axes[0, 0].set_title("torque", fontsize=10)
    axes[0, 1].set_title("error of the prediction", fontsize=10)
    for column in (0, 1):
        axes[0, column].legend(fontsize=7, ncols=3, loc="upper right")
        axes[-1, column].set_xlabel("time (s)")
    return page


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evaluate", type=Path, metavar="FILE", help="score the saved model on this recording")
    parser.add_argument("--model", type=Path, default=Path("out/panda_real/model.npz"), metavar="FILE", help="a saved model")


if __name__ == "__main__":
    run("How well are a real Panda's torques predicted on motion that the fit has not seen?", measure, options)
