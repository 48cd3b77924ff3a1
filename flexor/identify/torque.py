"""`Torque`: identification by inverse dynamics, from logs of motion and of the motors' torques or currents.

Nothing is simulated: every instant of a log is one equation, linear in the inertial parameters, so that a fit of a whole arm
takes seconds, and logs of closed-loop control, which cannot be simulated far ahead, are as good as any. Parameters move in the
same charts as in shooting: every estimate is a robot that can exist (Wensing, Kim & Slotine 2018).

The noise of each motor is estimated from the residuals, and the fit repeated with it (iteratively reweighted least squares over
joints, Gautier 1997). Residuals of filtered signals are correlated in time: weights count n / (1 + 2 sum of autocorrelations)
independent ones, so that intervals are not too narrow.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flexor.dynamics.friction import AbstractFriction
from flexor.dynamics.transmission import kind_of
from flexor.identify.filters import AbstractFilter, Butterworth
from flexor.identify.log import Log
from flexor.identify.search import AbstractSearch, LevenbergMarquardt
from flexor.identify.torque_problem import Carried, Motors, Prediction, TorqueProblem, TorqueSegments, blank_passive, pieces
from flexor.identify.torque_rows import AbstractEquations, InverseDynamics, Momentum, Signals, signals_of
from flexor.model.charts import Coordinates, coordinates
from flexor.model.model import Model
from flexor.solvers import Simulator

if TYPE_CHECKING:
    from flexor.identify.fit import Fit

FREE = ("body.*.mass", "body.*.com", "body.*.inertia", "joint.*.armature", "joint.*.damping", "joint.*.frictionloss",
        "actuator.*.gain", "friction.*", "offset.*", "load.*")  # fmt: skip
Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Load:
    """Something that a log's robot carries on a body: `load.<name>.mass`, `.com`, `.inertia` are parameters, which start here.
    `com` in m in the body's frame, `inertia` about it in kg m^2 (xx yy zz xy xz yz)."""

    name: str
    body: str
    mass: float
    com: tuple[float, float, float] = (0.0, 0.0, 0.0)
    inertia: tuple[float, float, float, float, float, float] = (1e-3, 1e-3, 1e-3, 0.0, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class Torque:
    """Identification from torques: `fx.identify(sim, logs, free, method=fx.Torque())`.

    `controls[k]` of a log is the torque, or the current, of every motor measured at `time[k]`; gains of motors turn currents into
    torques and may be free. `filter` takes out noise without delay, the same for all signals; `rate` in 1/s of the grid on which
    that is done (None: the log's own). `friction` is a law beside the joints' own damping and frictionloss; its numbers are
    `friction.<dof>.<field>`. `creep` is the speed in rad/s (m/s) at which the joints' own dry friction turns round. Where a joint
    is slower than `slow`, friction is whatever keeps it at rest, and the instant does not count for it. `loads` maps patterns of
    logs' names to what the robot carries there. `piece` is the length in s of the pieces that may be held out.
    """

    filter: AbstractFilter = field(default_factory=Butterworth)
    equations: AbstractEquations = field(default_factory=InverseDynamics)
    friction: AbstractFriction | None = None
    loads: Mapping[str, Load] = field(default_factory=dict)
    rate: float | None = None
    piece: float = 2.0
    creep: float = 0.02
    slow: float = 0.0
    reweighted: int = 2
    """How often the noise of each motor is estimated anew."""
    tolerance: float = 1e-8
    """Of Levenberg-Marquardt, unless another search is given."""
    first_noise: float = 1e-3
    """What it is at first, as a share of each reading's spread: so small that a prior only settles what the logs leave open."""

    def identify(
        self, sim: Simulator, runs: Sequence[Log], further: Sequence[Log], free: Sequence[str], *, bounds: Any, prior: Any,
        extra: Mapping[str, Any] | None, search: AbstractSearch | None, share: float | None, seed: int, checkpoint: Any,
        progress: Progress | None, dtype: Any,
    ) -> "Fit":  # fmt: skip
        """The fit; `flexor.identify` calls this with everything in double precision."""
        from flexor.identify.identify import check_count, hold_out, prior_precision, result_of, run_search

        begun = time.perf_counter()
        search = search or LevenbergMarquardt(tolerance=self.tolerance)
        model, logs = sim.model, [*runs, *further]
        motors = motors_of(model)
        numbers = {**self._extra(model), **{k: np.asarray(v, float) for k, v in (extra or {}).items()}}
        place = coordinates(
            model, [free] if isinstance(free, str) else free, bounds=bounds, extra=numbers, positive=("friction.*",)
        )
        _check_free(place, model)
        sim = eqx.tree_at(lambda s: s.model, sim, place.at_start(model))
        rows = [self.equations.rows(blank_passive(model), signals_of(log, model, self.filter, self.rate)) for log in logs]
        carried = [self._carried(log.name) for log in logs]
        segments, owner = pieces(rows, carried, motors, float(sim.dt), self.piece)
        segments = _only_moving(segments, self.slow)
        segments = _weighted(segments, self.first_noise * np.maximum(np.std(segments.measured, axis=(0, 1)), 1e-12))
        apart = hold_out(owner, len(runs), share, seed)
        problem = TorqueProblem(
            sim, place, segments, self.prediction(model), held_out=apart, prior=prior_precision(place, prior, True)
        )
        if prior is None:
            check_count(problem)
        history: list[float] = []
        for k in range(self.reweighted + 1):
            last = k == self.reweighted
            found = run_search(problem, search, seed, checkpoint if last else None, progress)
            history += found[1]
            if not last:
                sigma, times = self._noise(problem, search.best(problem, found[0])[0])
                problem = problem.weighted_anew(np.asarray(_weighted(segments, sigma * np.sqrt(times)).weight))
        names = tuple(logs[i].name for i in owner)
        fit = result_of(problem, search, *found, motors.columns(model), names, dtype)
        problem.forget()
        remarks = [*self._remarks(motors.columns(model), sigma, times), *fit.remarks] if self.reweighted else fit.remarks
        return dataclasses.replace(fit, remarks=remarks, history=history, seconds=time.perf_counter() - begun)

    def prediction(self, model: Model) -> Prediction:
        """What the motors of a robot should read, as a function of its parameters and of those beside it."""
        return Prediction(motors_of(model), tuple(self._loads(model)), self.friction, self.creep)

    def predict(self, fit: "Fit", signals: Signals, *, log: str = "") -> np.ndarray:
        """What the motors should read along signals, row by row of the equations; `loads` are found by the name of the log."""
        model = fit.model.astype(np.float64)
        rows = self.equations.rows(blank_passive(model), signals)
        segments, _ = pieces([rows], [self._carried(log)], motors_of(model), 1.0, float(np.ptp(rows.time)) + 1.0)
        extra = {**self._extra(model), **fit.extra}
        with jax.enable_x64(True):
            made = np.asarray(self.prediction(model)(model, jax.tree.map(jnp.asarray, extra), segments))
        return np.asarray(made[0, : len(rows.time)])

    def _loads(self, model: Model) -> list[Carried]:
        """Each load once, with its body."""
        made = {}
        for load in self.loads.values():
            if load.body not in model.topology.bodies:
                raise KeyError(f"load '{load.name}' is on '{load.body}', which '{model.topology.name}' does not have.")
            made[load.name] = Carried(model.topology.bodies.index(load.body), load.name)
        return list(made.values())

    def _carried(self, log: str) -> int:
        """Which load a log carries: 0 for none."""
        names = list(dict.fromkeys(load.name for load in self.loads.values()))
        hits = [load.name for pattern, load in self.loads.items() if fnmatchcase(log, pattern)]
        return 1 + names.index(hits[0]) if hits else 0

    def _extra(self, model: Model) -> dict[str, np.ndarray]:
        """Numbers beside the model: of loads, of the friction law, and an offset of each motor's reading."""
        t, made = model.topology, {}
        for load in self.loads.values():
            for name in ("mass", "com", "inertia"):
                made[f"load.{load.name}.{name}"] = np.asarray(getattr(load, name), float)
        law = self.friction
        if law is not None:
            for name in law.fitted():
                values = np.broadcast_to(np.asarray(getattr(law, name), float), (model.nv,))
                made.update({f"friction.{t.dof_name(i)}.{name}": np.array(values[i]) for i in range(model.nv)})
        made.update({f"offset.{a.name}": np.zeros(()) for a in t.actuators})
        return made

    def _noise(self, problem: TorqueProblem, z: Any) -> tuple[np.ndarray, np.ndarray]:
        """Standard deviation of each column on the training pieces, and how many residuals count as one."""
        s = problem.training
        r = np.asarray(problem.predicted(jnp.asarray(z), s) - s.measured)
        seen = np.asarray(s.weight) > 0
        sigma = np.sqrt(np.sum(np.where(seen, r**2, 0.0), (0, 1)) / np.maximum(seen.sum((0, 1)), 1))
        times = np.array([correlation_time(r[..., j]) for j in range(r.shape[-1])])
        return np.maximum(sigma, 1e-12), times

    def _remarks(self, columns: Sequence[str], sigma: np.ndarray, times: np.ndarray) -> list[str]:
        noise = ", ".join(f"{c} {s:.3g}" for c, s in zip(columns, sigma, strict=True))
        return [
            f"noise estimated from the residuals: {noise}; of {times.mean():.0f} successive rows one counts as independent"
        ]


def motors_of(model: Model) -> Motors:
    """The motor of each degree of freedom; raises for actuators whose force is not their input times a gain."""
    t = model.topology
    found = [-1] * model.nv
    for i, a in enumerate(t.actuators):
        plain = a.dynamics == "none" and not a.muscle and not a.varying and not np.any(np.asarray(model.actuators.bias[i]))
        if kind_of(t, a) != "straight" or not plain:
            raise ValueError(
                f"actuator '{a.name}' is no motor on a hinge or slide, so torques cannot be read from its inputs."
            )
        dof = int(t.v_start[a.joint])
        if found[dof] >= 0:
            raise ValueError(
                f"'{a.name}' and '{t.actuators[found[dof]].name}' push on the same joint: which torque is whose?"
            )
        found[dof] = i
    if len(t.compensated):
        raise ValueError(
            f"'{t.name}' has bodies with gravity compensation, which identification from torques does not support."
        )
    return Motors(tuple(found))


def correlation_time(r: np.ndarray) -> float:
    """1 + 2 sum of the autocorrelations of residuals, (pieces, rows), up to the first that is not positive; at least one."""
    x = r - r.mean()
    n = x.shape[1]
    spectrum = np.abs(np.fft.rfft(x, 2 * n, axis=1)) ** 2
    cov = np.fft.irfft(spectrum.mean(0))[:n] / np.arange(n, 0, -1)
    rho = cov / max(cov[0], 1e-300)
    stop = int(np.argmax(rho <= 0)) if np.any(rho <= 0) else n
    return float(max(1.0, 1 + 2 * rho[1:stop].sum()))


def _weighted(segments: TorqueSegments, sigma: np.ndarray) -> TorqueSegments:
    return segments._replace(weight=np.where(np.asarray(segments.weight) > 0, 1 / sigma, 0.0))


def _only_moving(segments: TorqueSegments, slow: float) -> TorqueSegments:
    """Weights of zero where a joint stands still or creeps."""
    fast = np.mean(np.abs(segments.qd), axis=2) >= slow
    return segments._replace(weight=np.where(fast, segments.weight, 0.0))


def _check_free(place: Coordinates, model: Model) -> None:
    for chart in place.charts:
        if not any(fnmatchcase(chart.name.split("[")[0], pattern) for pattern in FREE):
            raise ValueError(
                f"'{chart.name}' of '{model.topology.name}' cannot be identified from torques; these can: {', '.join(FREE)}."
            )


__all__ = ["Load", "Momentum", "Torque", "correlation_time", "motors_of"]
