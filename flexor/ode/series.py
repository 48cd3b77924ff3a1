"""`Series`: what was measured of a system, with its inputs at times of their own, and its pieces for training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flexor.identify.log import Log


class Pieces(NamedTuple):
    """Stretches of equally many rows: times, values with zeros where `seen` is 0, inputs at both ends of every interval. The
    first `past` rows are for the encoder, the last of them is the start."""

    t: Any  # arrays of NumPy, or of JAX where they are traced
    y: Any
    seen: Any
    u0: Any
    u1: Any


@dataclass(frozen=True, eq=False)
class Series:
    """One recording: `values[k]` at `time[k]`, which need not be regular; NaN: not measured. `inputs[j]` at `input_time[j]`
    (None: at `time`), held until the next one, or interpolated linearly where `held` is False."""

    time: np.ndarray
    values: np.ndarray
    inputs: np.ndarray | None = None
    input_time: np.ndarray | None = None
    held: bool = True
    name: str = "series"

    def __post_init__(self) -> None:
        time, values = np.asarray(self.time, float), np.asarray(self.values, float)
        inputs = np.zeros((len(time), 0)) if self.inputs is None else np.asarray(self.inputs, float)
        clock = time if self.input_time is None else np.asarray(self.input_time, float)
        for field, value in (("time", time), ("values", values), ("inputs", inputs), ("input_time", clock)):
            object.__setattr__(self, field, value)
        for what, t, x in (("time", time, values), ("input_time", clock, inputs)):
            if t.ndim != 1 or x.ndim != 2 or len(t) != len(x):
                raise ValueError(
                    f"'{self.name}': `{what}` needs a row of numbers for each time, got {t.shape} and {x.shape}."
                )
            if not len(t) and (what == "time" or x.shape[1]):
                raise ValueError(f"'{self.name}': `{what}` is empty.")
            if not np.isfinite(t).all() or (np.diff(t) <= 0).any():
                raise ValueError(f"'{self.name}': `{what}` must increase from row to row.")
        if np.isinf(values).any():
            raise ValueError(f"'{self.name}': a value is infinite; NaN means not measured.")
        if not np.isfinite(inputs).all():
            raise ValueError(
                f"'{self.name}': the input of row {int(np.argwhere(~np.isfinite(inputs))[0][0])} is not finite."
            )
        if inputs.shape[1] and clock[0] > time[0]:
            raise ValueError(f"'{self.name}': its inputs begin {clock[0] - time[0]:g} s after its values.")

    @staticmethod
    def of(log: "Log | Series") -> "Series":
        """A `Log`, its controls held."""
        if isinstance(log, Series):
            return log
        u = log.controls
        return Series(log.time, log.values, u, None if u is None else log.time[: len(u)], name=log.name)

    def between(self, first: int, last: int) -> "Series":
        """Rows first to last - 1, with the inputs that act on them."""
        assert self.inputs is not None
        assert self.input_time is not None
        t = self.time[first:last]
        if not len(t):
            raise ValueError(f"'{self.name}' has {len(self.time)} rows, and none between {first} and {last}.")
        begin = max(int(np.searchsorted(self.input_time, t[0], side="right")) - 1, 0)
        end = int(np.searchsorted(self.input_time, t[-1], side="left")) + 1
        name = f"{self.name}[{first}:{last}]"
        return Series(t, self.values[first:last], self.inputs[begin:end], self.input_time[begin:end], self.held, name)

    def grid(self) -> Pieces:
        """All rows, and those between them at which an input changes: within an interval inputs are then constant or linear."""
        assert self.inputs is not None
        assert self.input_time is not None
        clock = self.input_time if self.inputs.shape[1] else self.input_time[:0]
        inside = clock[(clock > self.time[0]) & (clock < self.time[-1])]
        t = np.union1d(self.time, inside)
        y = np.full((len(t), self.values.shape[1]), np.nan)
        y[np.searchsorted(t, self.time)] = self.values
        seen = np.isfinite(y)
        u0, u1 = self._at_ends(t)
        return Pieces(t, np.where(seen, y, 0.0), seen.astype(float), u0, u1)

    def _at_ends(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs at the beginning and the end of every interval."""
        assert self.inputs is not None
        assert self.input_time is not None
        if not self.inputs.shape[1]:
            return np.zeros((len(t) - 1, 0)), np.zeros((len(t) - 1, 0))
        if self.held:
            row = np.searchsorted(self.input_time, t[:-1], side="right") - 1
            return self.inputs[row], self.inputs[row]
        whole = np.stack([np.interp(t, self.input_time, x) for x in self.inputs.T], axis=1)
        return whole[:-1], whole[1:]


def pieces(series: Sequence[Series], past: int, length: int, stride: int) -> Pieces:
    """Stretches of `past` rows and `length` intervals after the last of them, their starts `stride` rows apart; a series that is
    too short raises. `length` 0: one stretch of each series to its end, which must then be equally long."""
    found: list[Pieces] = []
    for one in series:
        grid = one.grid()
        rows = len(grid.t) if length == 0 else past + length
        if len(grid.t) < rows or rows <= past:
            raise ValueError(
                f"'{one.name}' has {len(grid.t)} rows, too few for {past} of the past and {max(length, 1)} more."
            )
        for a in range(0, len(grid.t) - rows + 1, stride):
            b = a + rows
            found.append(Pieces(*(x[a:b] for x in grid[:3]), *(x[a : b - 1] for x in grid[3:])))
    if len({len(p.t) for p in found}) > 1:
        raise ValueError("series of different lengths cannot be simulated together: give a `length`.")
    return Pieces(*(np.stack(x) for x in zip(*found, strict=True)))
