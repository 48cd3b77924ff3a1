"""What arrives from sensors, made fit for estimators: nothing is trusted, and everything that is left out is counted by name.

A sample is a time, readings and inputs. Samples arrive in the order of the network, not of the clock.

    duplicate      the time of the sample before                                          ignored
    late           a time before that of the last sample                                  ignored
    lost           a hole of a few periods: inputs within are taken from both ends        bridged
    gap            a hole longer than `gap`: what was between is unknown                  estimators begin a new stretch
    clock jump     the clock went back by more than `gap`, for `patience` samples         estimators begin a new stretch
    not measured   a reading that is not a number                                         left out
    saturated      a reading at or beyond the end of its sensor's range                   left out
    bad input      an input that is not a number                                          the last one is held
    bad time       a time that is not a number                                            ignored
    restart        the estimator's numbers broke down                                     it begins anew

Memory is constant: the last sample and the counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

KINDS = ("accepted", "duplicate", "late", "lost", "gap", "clock jump", "not measured", "saturated", "bad input", "bad time",
         "restart")  # fmt: skip


class Sample(NamedTuple):
    """A sample that may be used. `time` counts from the first one, in s; `u` are the inputs that act from it on, and `before`
    those that acted since the previous one; nan among the readings `y` means "not measured". `new` says that a new stretch
    begins here, so that nothing is known about what was before."""

    time: float
    step: float
    y: np.ndarray
    u: np.ndarray
    before: np.ndarray
    new: bool


@dataclass
class Stream:
    """Takes samples as they come, gives those that may be used, and counts. `limits` are the ranges of sensors, by column or
    pattern; `gap` in s."""

    columns: Sequence[str]
    inputs: int
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    gap: float = 0.1
    patience: int = 3

    def __post_init__(self) -> None:
        low, high = np.full(len(self.columns), -np.inf), np.full(len(self.columns), np.inf)
        for pattern, (a, b) in self.limits.items():
            hits = [i for i, c in enumerate(self.columns) if fnmatchcase(c, pattern)]
            if not hits:
                raise KeyError(f"`limits` names '{pattern}', but the columns are {', '.join(self.columns)}.")
            if not a < b:
                raise ValueError(f"the limits of '{pattern}' are empty: {a} to {b}.")
            low[hits], high[hits] = a, b
        if not self.gap > 0:
            raise ValueError(f"`gap` must be a positive time in s, got {self.gap}.")
        self._low, self._high = low, high
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._clock = 0.0  # what the sensors' clock shows at our time zero
        self._time: float | None = None
        self._u = np.zeros(self.inputs)
        self._backward = 0
        self._earlier = -np.inf
        self.period: float | None = None

    def take(self, time: float, measured: np.ndarray, control: np.ndarray) -> Sample | None:
        """The sample, or None where it may not be used."""
        if not np.isfinite(time):
            self.counts["bad time"] += 1
            return None
        now = float(time) - self._clock
        if self._time is None:
            self._clock, now = float(time), 0.0
        elif now <= self._time:
            if not self._jumped(now):
                self.counts["duplicate" if now == self._time else "late"] += 1
                return None
            self.counts["clock jump"] += 1
            self._clock, now = float(time) - self._time, self._time  # our own time goes on
            return self._accept(now, measured, control, new=True)
        self._backward, self._earlier = 0, -np.inf
        new = self._time is None or self._hole(now - self._time)
        return self._accept(now, measured, control, new=new)

    def _jumped(self, now: float) -> bool:
        """Whether the clock went back for good: several samples in a row are long ago, in their own order."""
        assert self._time is not None
        if self._time - now <= self.gap:
            return False
        self._backward = self._backward + 1 if now > self._earlier else 1
        self._earlier = now
        return self._backward >= self.patience

    def _hole(self, step: float) -> bool:
        """Counts what a hole of `step` seconds means; whether a new stretch begins."""
        if step > self.gap:
            self.counts["gap"] += 1
            return True
        if self.period is None:
            self.period = step
        missed = round(step / self.period) - 1
        if missed > 0:
            self.counts["lost"] += missed
        self.period += 0.02 * (min(step, 2 * self.period) / max(1, missed + 1) - self.period)
        return False

    def _accept(self, now: float, measured: np.ndarray, control: np.ndarray, *, new: bool) -> Sample:
        y = np.array(measured, float)
        if y.shape != (len(self.columns),):
            raise ValueError(
                f"`measured` needs a number for each of the {len(self.columns)} columns {', '.join(self.columns)}; "
                f"got shape {y.shape}."
            )
        u = np.asarray(control, float)
        if u.shape != (self.inputs,):
            raise ValueError(f"`control` needs a number for each of the {self.inputs} actuators, got shape {u.shape}.")
        absent = ~np.isfinite(y)
        saturated = ~absent & ((y <= self._low) | (y >= self._high))
        self.counts["not measured"] += int(absent.sum())
        self.counts["saturated"] += int(saturated.sum())
        y[absent | saturated] = np.nan
        if not np.isfinite(u).all():
            self.counts["bad input"] += 1
            u = np.where(np.isfinite(u), u, self._u)
        step = 0.0 if new or self._time is None else now - self._time
        bridged = self.period is not None and step > 1.5 * self.period
        before = (self._u + u) / 2 if bridged else self._u
        self.counts["accepted"] += 1
        self._time, self._u, self._backward = now, u.copy(), 0
        return Sample(now, step, y, self._u, before, new)

    @property
    def clock(self) -> float:
        """What the sensors' clock shows at time zero of the samples."""
        return self._clock

    def told(self) -> str:
        """What was left out or bridged, in words; empty where nothing was."""
        return ", ".join(f"{n} {kind}" for kind, n in self.counts.items() if n and kind != "accepted")
