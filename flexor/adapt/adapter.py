"""`Adapter`: a robot's parameters while it moves, from every sample as it comes.

    adapter = fx.adapt.Adapter(sim, free=["body.hand.*"])
    estimate = adapter.update(time, measured, control)        # plain NumPy arrays

Samples go through `Stream`, which leaves out what is damaged; the estimator uses the rest; a `Detector` watches its innovations.
When it raises an alarm, the estimator forgets what it knew, and once it knows again, an `Event` says what changed.
"""

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flexor.adapt.change import Alarm, Conformal, Detector
from flexor.adapt.estimator import AbstractEstimator, Innovation, Named, all_columns
from flexor.adapt.event import Event, event_of
from flexor.adapt.linear import FIELDS
from flexor.adapt.rls import MomentumRLS
from flexor.adapt.stream import Stream
from flexor.model.charts import Coordinates, coordinates
from flexor.model.model import Model
from flexor.model.parameters import parameters
from flexor.solvers import Simulator

KEPT = 100  # alarms and events that are remembered
APART = 0.02  # s between estimates that are remembered, so that a change of late is behind the oldest one


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What is known at `time` (in s since the first sample). `values` and `deviations` by name of the parameter; `innovation` is
    the newest one, or None before there is any; `interval` the half width that has lately held 90 % of prediction errors
    (`Conformal`); `alarm` and `event` are those of this very sample."""

    time: float
    z: np.ndarray
    covariance: np.ndarray
    innovation: Innovation | None
    interval: np.ndarray
    alarm: Alarm | None
    event: Event | None
    named: Named

    @property
    def values(self) -> dict[str, np.ndarray]:
        return self.named(self.z, self.covariance)[0]

    @property
    def deviations(self) -> dict[str, np.ndarray]:
        return self.named(self.z, self.covariance)[1]

    @property
    def surprise(self) -> float:
        """Mean square of the whitened innovations: about one while the model is right."""
        return float(np.nanmean(self.innovation.whitened**2)) if self.innovation is not None else float("nan")


class Adapter:
    """Estimates the parameters that match the patterns in `free`. A pattern whose last part is a wildcard (`body.hand.*`) means
    mass, centre of mass, inertia, or of joints armature, damping and dry friction; others are named in full.

    `columns` name what `measured` holds, as in a `Log`; by default all coordinates, then all velocities. `noise` are the
    standard deviations of columns, by name or pattern. `prior` are deviations of parameters at the start, in shares of their
    size, by pattern. `limits` are the ranges of sensors. `drift` and `limit` set how easily an alarm is raised (`Detector`);
    `settle` is the time in s after an alarm at which its event is told.

    All programs are compiled here. `update` compiles nothing, and memory does not grow.
    """

    def __init__(
        self,
        sim: Simulator,
        free: Sequence[str],
        *,
        estimator: AbstractEstimator | None = None,
        columns: Sequence[str] | None = None,
        noise: Mapping[str, float] | None = None,
        prior: Mapping[str, float] | None = None,
        limits: Mapping[str, tuple[float, float]] | None = None,
        gap: float = 0.1,
        drift: float = 1.0,
        limit: float = 10.0,
        settle: float = 0.5,
    ):
        self.sim = sim
        self.estimator = MomentumRLS() if estimator is None else estimator
        self.columns = tuple(all_columns(sim.model) if columns is None else columns)
        with jax.enable_x64(True):
            model: Model = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), np.float64), sim.model)
            names = _expanded(model, [free] if isinstance(free, str) else free, self.estimator)
            self.place: Coordinates = coordinates(model, names)
            model = self.place.at_start(model)
            double = _in_double(sim, model)
            sigma = _by_pattern(noise or {}, self.columns, 1e-3, "noise")
            self.running = self.estimator.start(double, self.place, self.columns, sigma, _prior(prior, self.place))
            self._named = Named(self.place)
        self.model = model
        self.stream = Stream(self.columns, sim.model.nu, limits or {}, gap)
        count = len(self.running.predicted)
        self.detector = Detector(count, drift=drift, limit=limit)
        self.conformal = Conformal(count)
        self.settle = settle
        self._slides = {f"joint.{j.name}" for j in sim.model.topology.joints if j.kind == "slide"}
        self.alarms: deque[Alarm] = deque(maxlen=KEPT)
        self.events: deque[Event] = deque(maxlen=KEPT)
        self._innovation: Innovation | None = None
        self._pending: tuple[Alarm, np.ndarray, np.ndarray] | None = None
        self._lately: deque[tuple[float, np.ndarray, np.ndarray]] = deque(maxlen=64)
        self._due = 0.0
        self.time = 0.0

    @property
    def z(self) -> np.ndarray:
        """The estimate in the charts, as `place.apply(model, z)` takes it."""
        return self.running.z

    def update(self, time: float, measured: Any, control: Any = ()) -> Estimate:
        """Uses a sample, whatever its state; what is known afterwards. `control` acts from this time on."""
        sample = self.stream.take(time, measured, control)
        alarm = event = None
        if sample is not None:
            self.time = sample.time
            found = self.running.take(sample)
            self.stream.counts["restart"] = self.running.restarts
            if found is not None:
                self._innovation = found
                alarm = self._watched(found)
            event = self._told()
        r = self.running
        return Estimate(
            self.time, r.z.copy(), r.covariance.copy(), self._innovation, self.conformal.width, alarm, event, self._named
        )

    def _watched(self, found: Innovation) -> Alarm | None:
        """Lets the detector see an innovation; after an alarm, the estimator forgets."""
        self.conformal.update(found.error)
        alarm = self.detector.update(self.time, found.whitened)
        if alarm is not None:
            alarm = dataclasses.replace(alarm, since=alarm.since - self.running.delay)
        else:
            if self._pending is None and not (self._lately and self.time - self._lately[-1][0] < APART):
                self._lately.append((self.time, self.running.z.copy(), self.running.covariance.copy()))
            return None
        self.alarms.append(alarm)
        if self._pending is None:
            self._pending = (alarm, *self._before(alarm.since))
        self._due = self.time + self.settle  # alarms that follow put off the event of the first one
        self.running.forget()
        return alarm

    def _before(self, since: float) -> tuple[np.ndarray, np.ndarray]:
        """The last estimate from before a time, or else the oldest that is remembered."""
        if not self._lately:
            return self.running.z.copy(), self.running.covariance.copy()
        _, z, P = next((x for x in reversed(self._lately) if x[0] <= since), self._lately[0])
        return z, P

    def _told(self) -> Event | None:
        """The event of an alarm, `settle` after it."""
        if self._pending is None or self.time < self._due:
            return None
        alarm, z, P = self._pending
        self._pending = None
        self._lately.clear()
        now = self._named(self.running.z, self.running.covariance)
        event = event_of(alarm, self._named(z, P), now, self._slides)
        self.events.append(event)
        return event

    def robot(self) -> Model:
        """The model with the estimated parameters, in the simulator's precision."""
        from flexor.model.parameters import replace

        values, _ = self._named(self.running.z, self.running.covariance)
        whole: dict[str, Any] = {}
        now = parameters(jax.device_get(self.sim.model))
        for name, x in values.items():
            base, _, part = name.partition("[")
            if part:
                whole[base] = np.where(np.arange(now[base].size) == int(part[:-1]), x, whole.get(base, now[base]))
            else:
                whole[base] = x
        return replace(self.sim.model, whole)


def _expanded(model: Model, free: Sequence[str], estimator: AbstractEstimator) -> list[str]:
    """Names of the parameters that the patterns mean."""
    made: list[str] = []
    everything = parameters(jax.device_get(model))
    for pattern in free:
        whole = pattern.split("[")[0]
        field = whole.rsplit(".", 1)[-1]
        hits = [n for n in everything if fnmatchcase(n, whole) and not n.startswith("body.world.")]
        if any(c in field for c in "*?"):
            hits = [n for n in hits if n.rsplit(".", 1)[-1] in FIELDS and not n.endswith(".gain")]
            hits = [n for n in hits if not n.startswith(("equality.", "loop.", "tendon."))]
        if not hits:
            raise KeyError(f"no parameter of '{model.topology.name}' that can be adapted matches '{pattern}'.")
        for name in hits:
            if not estimator.estimable(model, name):
                raise ValueError(
                    f"{type(estimator).__name__} cannot estimate '{name}', which is not among what its equation of motion is "
                    "linear in; fx.adapt.Kalman can."
                )
            made.append(name + pattern[len(whole) :])
    return list(dict.fromkeys(made))


def _in_double(sim: Simulator, model: Model) -> Simulator:
    """The simulator in double precision."""
    made = jax.tree.map(
        lambda x: jnp.asarray(np.asarray(x), np.float64) if eqx.is_inexact_array(x) else x, sim
    )  # solvers may hold arrays too
    return eqx.tree_at(lambda s: s.model, made, model)


def _by_pattern(given: Mapping[str, float], columns: Sequence[str], default: float, what: str) -> np.ndarray:
    """A positive number for each column."""
    made = np.full(len(columns), default)
    for pattern, x in given.items():
        hits = [i for i, c in enumerate(columns) if fnmatchcase(c, pattern)]
        if not hits:
            raise KeyError(f"`{what}` names '{pattern}', but the columns are {', '.join(columns)}.")
        if not x > 0:
            raise ValueError(f"`{what}` of '{pattern}' must be positive, got {x}.")
        made[hits] = x
    return made


def _prior(prior: Mapping[str, float] | None, place: Coordinates) -> np.ndarray | None:
    """Deviations of z, one unit of which is about 100 %."""
    if prior is None:
        return None
    made = np.ones(place.size)
    names = [c.name for c in place.charts for _ in range(c.size)]
    for pattern, x in prior.items():
        hits = [i for i, n in enumerate(names) if fnmatchcase(n, pattern)]
        if not hits:
            raise KeyError(f"`prior` names '{pattern}', but what is free is {', '.join(dict.fromkeys(names))}.")
        if not x > 0:
            raise ValueError(f"`prior` of '{pattern}' must be positive, got {x}.")
        made[hits] = x
    return made
