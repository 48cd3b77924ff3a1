"""A real UR10e from its motor currents (recordings of Mamedov & Mikhel, 2019-20): links, drive gains, friction, payload.

1. `fx.identify` with `fx.Torque` fits inertias that bodies can have, rotor inertias, the torque per ampere of every drive,
   damping and dry friction to the currents of excitation runs, one of them with a weighed payload, which sets the scale.
2. Two excitation runs whose paths were not fitted are predicted. Error: 100 |i_predicted - i| / |i| for each joint, which is
   the authors' relative torque residual (their gains cancel), with their rows and filters.
3. Stretches of 2 s of two other loaded runs: the payload's mass and centre by weighted least squares of what the bare arm leaves,
   each joint's friction uncertain by a tenth, since it depends on temperature and load. How uncertain, was chosen on the loaded
   run of the fit.

`--evaluate FILE` scores the saved fit (`--model`) on the excitation runs of any file of the same layout.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _arm_logs import ROTORS, Run, ur_runs
from _data import recording
from _experiment import Missing, Result, at_least, at_most, run
from matplotlib.figure import Figure

import flexor as fx
from flexor.dynamics import inertial_names
from flexor.identify import Butterworth, Fit, InverseDynamics
from flexor.identify.torque_rows import torque_rows

jax.config.update("jax_enable_x64", True)

FILE, ROBOT = "ur10e.h5", "ur10e.urdf"
GAINS = (11.98, 11.98, 9.84, 10.76, 10.76, 11.33)  # N m/A at rest by the controller: where the search starts
TRAINING = (
    "ur-20_02_12-50sec_12harm",
    "ur-20_02_05-20sec_8harm",
    "ur-20_01_31-unload",
    "ur-20_01_31-load",
    "ur-19_12_23_free",
)
QUICK = ("ur-20_02_05-20sec_8harm", "ur-20_01_31-load")
PUBLISHED = {
    "ur-20_02_19_14harm50sec": (11.3, 4.6, 6.0, 13.7, 15.6, 13.7),
    "ur-20_02_10-30sec_12harm": (11.6, 5.4, 6.7, 17.9, 18.0, 12.0),
}
"""The authors' parameters on the same rows, per cent."""
LINKS = ("shoulder_link", "upper_arm_link", "forearm_link", "wrist_?_link")
BOX = "box"
STRETCH = 2.0  # s
SLOW = 0.02  # rad/s
HAND = 0.3  # kg m: spread of the payload's first moments before anything is known, with a mass of up to a few kg
GUESS, SPREAD = 2.0, 3.0  # kg
FRICTION = 0.1  # of its identified value: how uncertain friction is in a stretch
TOGETHER = 20  # successive rows whose residuals count as one
WITHIN = 0.05  # of the weighed mass


def simulator(path: Path) -> fx.Simulator:
    """The arm with the controller's rotors and gains, and some friction to start from."""
    model = fx.load(path)
    joints = [j.name for j in model.topology.joints]
    start = {f"joint.{j}.armature": r for j, r in zip(joints, ROTORS, strict=True)}
    start |= {f"actuator.{j}.gain": g for j, g in zip(joints, GAINS, strict=True)}
    model = fx.replace(model, {**start, "joint.*.damping": 5.0, "joint.*.frictionloss": 5.0})
    return fx.Simulator(model, fx.RigidSolver(contact=None), dt=0.01)


def method(mass: float, *, every: int = 1) -> fx.Torque:
    """Currents through a low-pass; `-load` runs carry the box of this mass."""
    return fx.Torque(
        filter=Butterworth(cutoff=5.0), equations=InverseDynamics(every=every), slow=SLOW,
        loads={"*-load": fx.Load(BOX, "tool0", mass)},
    )  # fmt: skip


def fitted(sim: fx.Simulator, runs: list[Run], quick: bool) -> Fit:
    """Everything but the mass of the box, which was weighed."""
    free = [f"body.{link}.{x}" for link in LINKS for x in ("mass", "com", "inertia")]
    free += ["joint.*.armature", "joint.*.damping", "joint.*.frictionloss", "actuator.*.gain", "offset.*", f"load.{BOX}.com"]
    mass = max(r.payload for r in runs)
    search = fx.LevenbergMarquardt(iterations=3 if quick else 40, tolerance=1e-5)
    logs = [r.log(sim.model) for r in runs]
    return fx.identify(sim, logs, free, method=method(mass, every=5), prior={"*": 1.0}, search=search, held_out=0.0)


def relative_error(fit: Fit, own: Run) -> np.ndarray:
    """Per cent of each joint's current, on the rows and with the filters of the published figures."""
    found = method(1.0).predict(fit, own.published())
    return 100 * np.linalg.norm(found - own.current, axis=0) / np.linalg.norm(own.current, axis=0)


def physical(model: fx.Model) -> float:
    """The smallest eigenvalue of the second moments of all bodies with mass, kg m^2: positive where bodies can exist."""
    I = np.asarray(fx.spatial.inertia_matrix(model.bodies.inertia))[np.asarray(model.bodies.mass) > 0]
    return float(min(np.linalg.eigvalsh(np.trace(x) / 2 * np.eye(3) - x).min() for x in I))


def payloads(fit: Fit, own: Run, noise: np.ndarray, seconds: float) -> np.ndarray:
    """Masses from stretches of the run, each by itself, half of a stretch apart."""
    signals, model = own.published(), fit.model.astype(np.float64)
    left = own.current - method(1.0).predict(fit, signals)
    first = inertial_names(model).index("tool0.m")
    Y = torque_rows(model, signals.q, signals.qd, signals.qdd)[0][:, :, first : first + 4]
    joints = model.joints
    dry = np.tanh(signals.qd / SLOW) * np.asarray(joints.frictionloss)
    viscous = signals.qd * np.asarray(joints.damping)
    columns = [Y, *(x[:, :, None] * np.eye(model.nv) for x in (dry, viscous))]
    A = np.concatenate(columns, axis=2) / np.asarray(model.actuators.gain)[:, None]
    weight = np.where(np.abs(signals.qd) > SLOW, 1 / noise, 0.0)
    spread = np.array([SPREAD, HAND, HAND, HAND, *[FRICTION] * (2 * model.nv)])
    prior, expected = np.diag(1 / spread**2), np.array([GUESS, *[0.0] * (len(spread) - 1)])
    length, found = round(seconds / float(np.median(np.diff(own.time)))), []
    for begin in range(0, len(own.time) - length, length // 2):
        part = slice(begin, begin + length)
        W, r = (A[part] * weight[part, :, None]).reshape(-1, len(spread)), (left[part] * weight[part]).ravel()
        found.append(np.linalg.solve(W.T @ W / TOGETHER + prior, W.T @ r / TOGETHER + prior @ expected)[0])
    return np.array(found)


def residual_noise(fit: Fit, runs: list[Run]) -> np.ndarray:
    """Root mean square of what the bare arm does not explain, A."""
    squares = [np.mean((method(1.0).predict(fit, r.published()) - r.current) ** 2, axis=0) for r in runs if not r.payload]
    return np.sqrt(np.mean(squares, axis=0))


def measure(options: Any) -> Result:
    if options.evaluate is not None:
        return evaluate(options)
    path = recording(FILE)
    runs = ur_runs(path)
    names = QUICK if options.quick else TRAINING
    training = [runs[n] for n in names]
    fit = fitted(simulator(path.with_name(ROBOT)), training, options.quick)
    fit.save(options.out / "fit")
    rows, checks, errors = [], [], {}
    for name, published in PUBLISHED.items():
        errors[name] = relative_error(fit, runs[name])
        rows += [_row(name, "this fit", errors[name]), _row(name, "published", np.array(published))]
        checks.append(at_most(f"mean error over published, {name}", float(np.mean(errors[name]) / np.mean(published)), 1.0))
    checks.append(at_least("smallest second moment, kg m^2", physical(fit.model), 0.0))
    noise = residual_noise(fit, training)
    loaded = [r for r in runs.values() if r.payload and r.name not in names]
    masses = {r.name: payloads(fit, r, noise, STRETCH) / r.payload - 1 for r in loaded}
    checks += [
        at_most(f"median error of the mass from {STRETCH:g} s, {n}", float(np.median(np.abs(e))), 0.05)
        for n, e in masses.items()
    ]
    remarks = [
        *mass_remarks(masses),
        f"Fitted to {', '.join(names)}; {fit.message}, {fit.seconds:.0f} s.",
        *fit.remarks,
    ]  # fmt: skip
    figure(fit, runs[next(iter(PUBLISHED))], masses).savefig(options.out / "ur10e_real.png", dpi=150)
    return Result(rows, checks, remarks)


def evaluate(options: Any) -> Result:
    """The saved fit on the bare excitation runs of another file, and the payloads of its loaded ones."""
    if not options.model.is_dir():
        raise Missing(
            f"there is no fit '{options.model}': run the experiment without --evaluate first, or name it by --model."
        )
    if not options.evaluate.is_file():
        raise Missing(f"there is no file '{options.evaluate}'.")
    fit, runs = Fit.load(options.model), ur_runs(options.evaluate)
    bare, loaded = [r for r in runs.values() if not r.payload], [r for r in runs.values() if r.payload]
    rows = [_row(r.name, "this fit", relative_error(fit, r)) for r in bare]
    noise = residual_noise(fit, bare) if bare else np.ones(fit.model.nu)
    masses = {r.name: payloads(fit, r, noise, STRETCH) / r.payload - 1 for r in loaded}
    return Result(rows, mass_checks(masses), mass_remarks(masses))


def mass_checks(masses: dict[str, np.ndarray]) -> list[Any]:
    """Half of the stretches of a run give the weighed mass within `WITHIN`."""
    return [
        at_most(f"median error of the mass from {STRETCH:g} s, {name}", float(np.median(np.abs(error))), WITHIN)
        for name, error in masses.items()
    ]


def mass_remarks(masses: dict[str, np.ndarray]) -> list[str]:
    return [
        f"{name}: {len(error)} stretches of {STRETCH:g} s, mean error {100 * error.mean():+.1f} %, within {100 * WITHIN:g} % "
        f"in {100 * np.mean(np.abs(error) < WITHIN):.0f} %, 90 % of them within {100 * np.quantile(np.abs(error), 0.9):.0f} %."
        for name, error in masses.items()
    ]


def _row(name: str, of: str, error: np.ndarray) -> dict[str, Any]:
    joints = {f"joint {k + 1}": float(x) for k, x in enumerate(error)}
    return {"unseen run": name, "error, %": of, **joints, "mean": float(np.mean(error))}


def figure(fit: Fit, own: Run, masses: dict[str, np.ndarray]) -> Figure:
    """Currents of an unseen run, measured and predicted, and the payload's errors."""
    page = Figure(figsize=(11, 8), layout="constrained")
    grid = page.add_gridspec(6, 2, width_ratios=(2, 1))
    found, time = method(1.0).predict(fit, own.published()), own.time - own.time[0]
    for k in range(6):
        axes = page.add_subplot(grid[k, 0])
        axes.plot(time, own.current[:, k], color="0.35", lw=1.3, label="measured")
        axes.plot(time, found[:, k], color="C0", lw=0.8, label="predicted")
        axes.set(ylabel=f"joint {k + 1} (A)", xlim=(0, time[-1] / 2))
        if k == 0:
            axes.set_title(f"unseen: {own.name}", fontsize=10)
            axes.legend(fontsize=7, ncols=2)
        if k < 5:
            axes.tick_params(labelbottom=False)
    axes.set_xlabel("time (s)")
    side = page.add_subplot(grid[:, 1])
    for name, error in masses.items():
        side.plot(STRETCH / 2 * np.arange(len(error)), 100 * error, "o-", ms=3, lw=0.7, label=name)
    side.axhspan(-5, 5, color="0.9", zorder=0)
    side.set(xlabel="start of the stretch (s)", ylabel=f"error of the mass from {STRETCH:g} s (%)")
    side.legend(fontsize=7)
    return page


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evaluate", type=Path, metavar="FILE", help="score the saved fit on this recording")
    parser.add_argument("--model", type=Path, default=Path("out/ur10e_real/fit"), metavar="FOLDER", help="a saved fit")


if __name__ == "__main__":
    run("How well are a real UR10e's currents predicted on unseen motion, and what does it carry?", measure, options)
