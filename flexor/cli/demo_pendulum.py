"""The demo's chapter on identification: a recording of a double pendulum in, an identified and augmented simulator out."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flexor.augment import Blueprint
from flexor.augment.networks import MLP
from flexor.identify import Fit, LevenbergMarquardt, Log, Shooting, identify
from flexor.model.model import Model
from flexor.model.parameters import parameters, replace
from flexor.robots.load import load
from flexor.solvers import RigidSolver, Simulator

FILE = "double_pendulum_ibm.h5"
RATE = 400.0  # frames per second
UPPER, LOWER = 0.091, 0.070  # m
NOISE = {"q.shoulder": 0.8e-3, "q.elbow": 1.6e-3}  # rad: a tenth of a pixel or so
SEEN = 40  # frames of an unseen stretch from which its start is estimated; what follows is predicted
WINDOW = 12  # frames on either side of a start, from which its velocity is estimated
DESCRIPTION = f"""
<mujoco model="double_pendulum_bars">
  <compiler angle="radian"/>
  <option timestep="{1 / RATE}"/>
  <default><joint axis="0 -1 0" damping="1e-6"/></default>
  <worldbody>
    <body name="upper">
      <joint name="shoulder"/>
      <inertial pos="0 0 {-UPPER / 2}" mass="{UPPER}" diaginertia="{UPPER**3 / 12} {UPPER**3 / 12} 1e-6"/>
      <body name="lower" pos="0 0 {-UPPER}">
        <joint name="elbow"/>
        <inertial pos="0 0 {-LOWER / 2}" mass="{LOWER}" diaginertia="{LOWER**3 / 12} {LOWER**3 / 12} 1e-6"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
"""Uniform bars of the stated lengths, 1 kg to the metre: all prior knowledge."""
DEFAULTS: dict[str, Any] = {}  # further options of the simulator
FREE = ("body.lower.pos[2]", "body.lower.mass", "body.*.com[0]", "body.*.com[2]", "gyration.*", "joint.*.damping")
GYRATION = {"gyration.upper": UPPER / 12**0.5, "gyration.lower": LOWER / 12**0.5}


@dataclass(frozen=True)
class Chapter:
    """What came out. `stretch` and `errors` hold, by simulator, the elbow's angle along one unseen stretch and the median
    error of the angles over all of them, at `time`; the first `SEEN` frames tell the start, the rest is predicted."""

    source: str
    real: bool
    fit: Fit
    time: np.ndarray
    measured: np.ndarray
    stretch: dict[str, np.ndarray]
    errors: dict[str, np.ndarray]
    stretches: int
    seen: int = SEEN

    @property
    def horizon(self) -> float:
        """Seconds that were predicted."""
        return float(self.time[-1] - self.time[self.seen])


def chapter(quick: bool, tell: Callable[[str], None]) -> Chapter:
    """Identifies the pendulum from the recording if it is on this machine, else from a synthetic one; then augments it."""
    path = _recording()
    tell("double pendulum: reading the recording" if path else "double pendulum: making a synthetic recording")
    runs = _read(path, 3 if quick else 6) if path else _synthetic(3 if quick else 6)
    *train, test = [run[: 3000 if quick else 8000] for run in runs]
    logs = [log for run in train for log in _stretches(run, 60, 400 if quick else 250)]
    judges = _stretches(test, SEEN + 120, 200)
    sim = Simulator(load(DESCRIPTION), RigidSolver(contact=None), dt=1 / RATE, **DEFAULTS)
    tell(f"double pendulum: identifying it from {len(logs)} stretches")
    fit = _identified(sim, logs, 12 if quick else 30)
    tell("double pendulum: training a network for what is left")
    hybrid = _augmented(fit.sim, logs, 4 if quick else 20)
    tell("double pendulum: predicting what was held out")
    labels = {"as described": sim, "identified": fit.sim, "identified and augmented": hybrid}
    measured = np.stack([log.values for log in judges])
    predicted = {label: _predict(s, judges) for label, s in labels.items()}
    off = {label: np.sqrt(np.mean((q - measured) ** 2, axis=-1)) for label, q in predicted.items()}
    shown = int(np.argsort(off["identified"][:, -1])[len(judges) // 2])
    return Chapter(
        "a filmed double pendulum (Asseman, Kornuta & Ozcan 2018)" if path else "a synthetic recording (FLEXOR_DATA "
        "names no folder with the real one): MuJoCo with dry friction that the model lacks, and noise",
        path is not None, fit, judges[0].time, measured[shown, :, 1], {n: q[shown, :, 1] for n, q in predicted.items()},
        {n: np.median(e, axis=0) for n, e in off.items()}, len(judges),
    )  # fmt: skip


def _recording() -> Path | None:
    """The real recording, where the environment variable FLEXOR_DATA names a folder that holds it."""
    folder = os.environ.get("FLEXOR_DATA")
    path = Path(folder) / FILE if folder else None
    return path if path is not None and path.is_file() else None


def _read(path: Path, count: int) -> list[np.ndarray]:
    """Joint angles of some runs, (frames, 2). The picture's first axis points down, and angles count from there."""
    import h5py

    with h5py.File(path, "r") as file:
        tables = [np.asarray(file[f"runs/{name}"], float) for name in sorted(file["runs"])[:count]]
    angles = []
    for table in tables:
        arms = np.diff(table.reshape(-1, 3, 2), axis=1)
        absolute = np.unwrap(np.arctan2(arms[..., 1], arms[..., 0]), axis=0)
        angles.append(np.stack([absolute[:, 0], absolute[:, 1] - absolute[:, 0]], axis=1))
    return angles


def _synthetic(count: int) -> list[np.ndarray]:
    """Joint angles as MuJoCo computes them for another pendulum, with dry friction in its joints and the recording's noise."""
    import mujoco

    model = mujoco.MjModel.from_xml_string(DESCRIPTION)
    model.body("lower").mass, model.body("upper").ipos = 0.05, (0.001, 0, -0.052)
    model.dof_damping[:], model.dof_frictionloss[:] = 5e-6, 6e-5
    rng = np.random.default_rng(0)
    runs = []
    for start in np.array([2.5, 0.0]) + rng.uniform(-0.6, 0.6, size=(count, 2)):
        data = mujoco.MjData(model)
        data.qpos = start
        q = np.zeros((8001, 2))
        for row in q:
            row[:] = data.qpos
            mujoco.mj_step(model, data)
        runs.append(q + rng.normal(size=q.shape) * list(NOISE.values()))
    return runs


def _stretches(run: np.ndarray, frames: int, stride: int) -> list[Log]:
    """Logs of the angles, each from a start that is estimated by a polynomial over the frames around it."""
    t = np.arange(-WINDOW, WINDOW + 1) / RATE
    logs = []
    for first in range(WINDOW, len(run) - frames - 1, stride):
        fit = np.polynomial.polynomial.polyfit(t, run[first - WINDOW : first + WINDOW + 1], 5)
        turns = 2 * np.pi * np.round(fit[0] / (2 * np.pi))
        values = run[first : first + frames + 1] - turns
        start = (fit[0] - turns, fit[1])
        logs.append(Log(np.arange(frames + 1) / RATE, values, tuple(NOISE), noise=NOISE, start=start, name=f"frame {first}"))
    return logs


def _gyrated(model: Model, extra: dict[str, jax.Array]) -> Model:
    """Inertias from radii of gyration: of their six numbers a hinge feels one."""
    mass = parameters(model, "body.*.mass")
    shape = jnp.array([1.0, 1.0, 0.1, 0.0, 0.0, 0.0])
    return replace(
        model,
        {f"body.{b}.inertia": mass[f"body.{b}.mass"] * extra[f"gyration.{b}"] ** 2 * shape for b in ("upper", "lower")},
    )


def _identified(sim: Simulator, logs: Sequence[Log], iterations: int) -> Fit:
    return identify(
        sim, logs, FREE, build=_gyrated, extra=GYRATION, prior={"*": 1.0}, held_out=0.0,
        shooting=Shooting(free_start=True), search=LevenbergMarquardt(iterations=iterations, tolerance=1e-4),
    )  # fmt: skip


def _augmented(sim: Simulator, logs: Sequence[Log], iterations: int) -> Simulator:
    blueprint = Blueprint().add(
        "joint.passive_force", inputs=["joint.q", "joint.qd"], net=MLP(width=6, depth=1),
        scales={"joint.qd": 10.0, "joint.passive_force": 1e-3},
    )  # fmt: skip
    search = LevenbergMarquardt(iterations=iterations, tolerance=1e-3)
    shooting = Shooting(free_start=True)
    return identify(sim.augment(blueprint), logs, ["augment"], held_out=0.0, shooting=shooting, search=search).sim


def _predict(sim: Simulator, logs: Sequence[Log]) -> np.ndarray:
    """Angles along every log, (logs, frames, 2), from the start that fits its first `SEEN` frames best (Gauss-Newton)."""
    q, qd = (jnp.asarray(np.stack(x)) for x in zip(*(log.start for log in logs if log.start), strict=True))
    noise, guess = (
        jnp.array(list(NOISE.values())),
        jnp.array([0.01, 0.01, 1.0, 1.0]),
    )  # deviations of frames and of the start

    def one(q: jax.Array, qd: jax.Array, values: jax.Array) -> jax.Array:
        def ahead(d: jax.Array) -> jax.Array:
            return sim.rollout(sim.reset(q + d[:2], qd + d[2:]), steps=len(values) - 1).q

        def errors(d: jax.Array) -> jax.Array:
            return jnp.concatenate([((ahead(d) - values)[:SEEN] / noise[None]).ravel(), d / guess])

        def better(_: int, d: jax.Array) -> jax.Array:
            r, J = errors(d), jax.jacfwd(errors)(d)
            return d - jnp.linalg.solve(J.T @ J, J.T @ r)

        return ahead(jax.lax.fori_loop(0, 4, better, jnp.zeros(4)))

    return np.asarray(jax.jit(jax.vmap(one))(q, qd, jnp.asarray(np.stack([log.values for log in logs]))))
