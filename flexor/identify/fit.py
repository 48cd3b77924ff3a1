"""`Fit`: the result of an identification."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flexor.identify.posterior import Posterior
from flexor.model.model import Model
from flexor.model.save import save
from flexor.solvers import HybridSolver, Simulator


@dataclass(frozen=True, eq=False)
class Errors:
    """Root mean square errors on some segments: `weighted` in units of the noise, and of each column in its own unit."""

    weighted: float
    columns: dict[str, float]
    segments: int


@dataclass(frozen=True, eq=False)
class Curves:
    """Every segment: what was measured, and what the simulator said before and after. Not a number where nothing was measured."""

    columns: tuple[str, ...]
    logs: tuple[str, ...]
    """Name of the log that a segment is from."""
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

    @property
    def model(self) -> Model:
        """The identified robot."""
        return self.sim.model

    def raise_if_bad(self) -> "Fit":
        """Itself, or a RuntimeError with the message."""
        if not self.ok:
            raise RuntimeError(f"the identification of '{self.model.topology.name}' failed: {self.message}.")
        return self

    def rows(self, level: float = 0.9) -> list[dict[str, Any]]:
        """One row for each number of each parameter: name, start, estimate, interval."""
        intervals = self.posterior.intervals(level) if self.posterior is not None else {}
        made = []
        for name, value in self.values.items():
            low, high = intervals.get(name, (np.full(value.shape, np.nan),) * 2)
            numbers = zip(np.ravel(self.start[name]), np.ravel(value), np.ravel(low), np.ravel(high), strict=True)
            for i, (a, b, lo, hi) in enumerate(numbers):
                label = name if value.size == 1 else f"{name}.{i}"
                made.append(
                    {"parameter": label, "start": float(a), "estimate": float(b), "low": float(lo), "high": float(hi)}
                )
        return made

    def summary(self) -> dict[str, Any]:
        """Everything but the arrays of the simulator and the curves, for JSON; what is not a finite number is None there."""
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

    def save(self, folder: str | os.PathLike[str], *, formats: tuple[str, ...] = ("xml",)) -> list[Path]:
        """Writes `fit.json`, the identified description (`xml` for MJCF, `urdf`), and the networks, into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / "fit.json"]
        written[0].write_text(json.dumps(self.summary(), indent=1) + "\n", encoding="utf-8")
        for ending in formats:
            path = folder / f"{self.model.topology.name}.{ending}"
            save(self.model, path)
            written.append(path)
        if isinstance(self.sim.solver, HybridSolver):
            path = folder / "augmentation.safetensors"
            self.sim.solver.augmentation.save(path)
            written.append(path)
        return written

    def __str__(self) -> str:
        lines = [f"{self.model.topology.name}: {self.message} in {self.seconds:.1f} s"]
        lines += [
            f"  {r['parameter']}: {r['start']:.5g} -> {r['estimate']:.5g}  [{r['low']:.5g}, {r['high']:.5g}]"
            for r in self.rows()
        ]
        if self.held_out is not None and self.held_out_before is not None:
            before, after = self.held_out_before.weighted, self.held_out.weighted
            lines.append(f"  held-out error: {before:.4g} -> {after:.4g} (units of the noise)")
        if self.posterior is not None:
            lines += [f"  {sentence}" for sentence in self.posterior.sentences()]
        return "\n".join(lines + [f"  {r}" for r in self.remarks])


def _for_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _for_json(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_for_json(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
