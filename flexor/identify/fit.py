"""`Fit`: the result of an identification."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flexor.identify.posterior import Posterior
from flexor.model.model import Model
from flexor.solvers import Simulator


@dataclass(frozen=True, eq=False)
class Errors:
    """Root mean square errors on some segments: `weighted` in units of the noise (or of the motion, see `Fit.unit`), and of each
    column in its own unit."""

    weighted: float
    columns: dict[str, float]
    segments: int


@dataclass(frozen=True, eq=False)
class Curves:
    """Every segment: what was measured, and what the simulator predicted before and after the fit. NaN where nothing was
    measured."""

    columns: tuple[str, ...]
    logs: tuple[str, ...]
    """Name of the log that each segment comes from."""
    held_out: np.ndarray
    time: np.ndarray
    """Seconds since the segment's start, (segments, rows)."""
    measured: np.ndarray
    before: np.ndarray
    after: np.ndarray


@dataclass(frozen=True, eq=False)
class Fit:
    """Estimate and what the data say about it. `ok` and `message` tell how the search ended."""

    sim: Simulator
    values: dict[str, np.ndarray]
    start: dict[str, np.ndarray]
    extra: dict[str, np.ndarray]
    ok: bool
    message: str
    history: list[float]
    before: Errors
    training: Errors
    held_out: Errors | None
    held_out_before: Errors | None
    posterior: Posterior | None
    curves: Curves
    remarks: list[str] = field(default_factory=list)
    seconds: float = 0.0
    noise_known: bool = True
    """Whether the noise was given with the logs: weighted errors are in its units then, and in those of the motion's spread
    otherwise."""

    @property
    def unit(self) -> str:
        """What weighted errors are measured in."""
        return "noise" if self.noise_known else "motion"

    @property
    def model(self) -> Model:
        """The identified robot."""
        return self.sim.model

    def raise_if_bad(self) -> "Fit":
        """The fit itself; raises RuntimeError with the message if the fit is not ok."""
        if not self.ok:
            raise RuntimeError(f"the identification of '{self.model.topology.name}' failed: {self.message}.")
        return self

    @property
    def unexplained(self) -> float:
        """Error of the predictions on the training segments over the spread of the motion, root mean square over the columns: 0
        where they are exact, 1 where they are no better than the mean."""
        c, trains = self.curves, ~self.curves.held_out
        return relative_error((c.after - c.measured)[trains], c.measured[trains])

    def rows(self, level: float = 0.9) -> list[dict[str, Any]]:
        """One row for each number of each parameter: name, start, estimate, and the interval's `low` and `high`, None where
        there is none (`remarks` says why)."""
        intervals = self.posterior.intervals(level) if self.posterior is not None else {}
        made = []
        for name, value in self.values.items():
            low, high = intervals.get(name, (np.full(value.shape, np.nan),) * 2)
            numbers = zip(*(np.ravel(x) for x in (self.start[name], value, low, high)), strict=True)
            for i, (a, b, lo, hi) in enumerate(numbers):
                label = name if value.size == 1 else f"{name}.{i}"
                between = (
                    {"low": float(lo), "high": float(hi)} if np.isfinite([lo, hi]).all() else {"low": None, "high": None}
                )
                made.append({"parameter": label, "start": float(a), "estimate": float(b), **between})
        return made

    def summary(self) -> dict[str, Any]:
        """Everything but the arrays of the simulator and the curves, for JSON; numbers that are not finite become None."""
        posterior = self.posterior
        return _for_json({
            "robot": self.model.topology.name,
            "ok": self.ok,
            "message": self.message,
            "seconds": self.seconds,
            "parameters": self.rows(),
            "errors": {name: None if e is None else {"weighted": e.weighted, "columns": e.columns, "segments": e.segments}
                       for name, e in (("before", self.before), ("training", self.training), ("held_out", self.held_out),
                                       ("held_out_before", self.held_out_before))},
            "unidentifiable": [] if posterior is None else posterior.sentences(),
            "noise_scale": None if posterior is None else posterior.scale,
            "remarks": self.remarks,
            "history": self.history,
        })  # fmt: skip

    def save(
        self, folder: str | os.PathLike[str], *, formats: Sequence[str] = ("xml",), classes: Iterable[type] = ()
    ) -> list[Path]:
        """Writes into a folder: `simulator/`, which `fx.open` opens; `fit.json` and `fit.safetensors`, which `Fit.load` reads;
        and the identified description (`xml` for MJCF, `urdf`). `classes` as for `Simulator.save`. Returns the paths."""
        from flexor.identify.fit_files import save

        return save(self, folder, formats=formats, classes=classes)

    @staticmethod
    def load(folder: str | os.PathLike[str], *, classes: Iterable[type] = ()) -> "Fit":
        """Reads what `save` wrote: simulator, values, posterior, errors, curves, messages."""
        from flexor.identify.fit_files import load

        return load(folder, classes=classes)

    def __str__(self) -> str:
        lines = [f"{self.model.topology.name}: {self.message} in {self.seconds:.1f} s"]
        lines += [
            f"  {r['parameter']}: {r['start']:.5g} -> {r['estimate']:.5g}  {_interval(r['low'], r['high'])}"
            for r in self.rows()
        ]
        if self.held_out is not None and self.held_out_before is not None:
            before, after = self.held_out_before.weighted, self.held_out.weighted
            lines.append(f"  held-out error: {before:.4g} -> {after:.4g} (units of the {self.unit})")
        if self.posterior is not None:
            lines += [f"  {sentence}" for sentence in self.posterior.sentences()]
        return "\n".join(lines + [f"  {r}" for r in self.remarks])


def relative_error(difference: np.ndarray, measured: np.ndarray) -> float:
    """Root mean square of differences over the spread of what was measured, each column in its own; NaN: not measured."""
    seen = np.isfinite(measured)
    square, middle = np.nan_to_num(difference**2, nan=np.inf), np.nan_to_num(measured)
    count = np.maximum(seen.sum((0, 1)), 1)
    spread = (np.where(seen, middle - np.where(seen, middle, 0.0).sum((0, 1)) / count, 0.0) ** 2).sum((0, 1))
    moves = spread > 0
    return float(np.sqrt(np.mean(np.where(seen, square, 0.0).sum((0, 1))[moves] / spread[moves]))) if moves.any() else 0.0


def _interval(low: float | None, high: float | None) -> str:
    return "(no interval)" if low is None or high is None else f"[{low:.5g}, {high:.5g}]"


def _for_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _for_json(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_for_json(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
