"""Units of a log: conversion to flexor's (radians, metres, seconds), and checks that notice wrong ones."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from flexor.model.model import Model
from flexor.model.topology import Joint, Topology

if TYPE_CHECKING:
    from flexor.identify.log import Log

SCALES = {
    "rad": 1.0,
    "deg": np.pi / 180,
    "rad/s": 1.0,
    "deg/s": np.pi / 180,
    "rpm": np.pi / 30,
    "m": 1.0,
    "cm": 1e-2,
    "mm": 1e-3,
    "m/s": 1.0,
    "cm/s": 1e-2,
    "mm/s": 1e-3,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "ns": 1e-9,
}
"""Units that `Log.read` converts, in SI units."""
SLOPES = {
    "hinge": ((180 / np.pi, "q", "deg", "degrees"), (np.pi / 180, "qd", "deg/s", "degrees per second"),
              (np.pi / 30, "qd", "rpm", "revolutions per minute"), (1e-3, "time", "ms", "milliseconds")),
    "slide": ((1e3, "q", "mm", "millimetres"), (1e-3, "qd", "mm/s", "millimetres per second"),
              (1e2, "q", "cm", "centimetres"), (1e-2, "qd", "cm/s", "centimetres per second")),
}  # fmt: skip
"""For each kind of joint: slope of the coordinate over the velocity, and which of the two is in what unit then."""
COORDINATES = {"hinge": (("deg", "degrees"),), "slide": (("mm", "millimetres"), ("cm", "centimetres"))}
"""Units in which coordinates are often recorded."""
SLACK = {"hinge": 0.5, "slide": 0.05}
"""How far beyond its limits a joint may be measured, in rad or m, or by as much as its whole range if that is more."""
BETTER = 0.5  # times the error, below which another unit explains a log that the given one does not


def converted(table: Mapping[str, np.ndarray], units: Mapping[str, str], name: str) -> dict[str, np.ndarray]:
    """Columns in SI units, where `units` gives theirs by name or pattern: {"q.*": "deg", "time": "ms"}."""
    for pattern, unit in units.items():
        if unit not in SCALES:
            raise ValueError(f"'{name}': the unit '{unit}' of '{pattern}' is unknown; there are {', '.join(SCALES)}.")
        if not any(fnmatchcase(c, pattern) for c in table):
            raise ValueError(f"'{name}': `units` names '{pattern}', but the columns are {', '.join(table)}.")
    made = dict(table)
    for pattern, unit in units.items():
        made.update({c: SCALES[unit] * table[c] for c in table if fnmatchcase(c, pattern)})
    return made


def check_units(log: "Log", model: Model) -> None:
    """Raises when coordinates lie far beyond the joints' limits, or when their slopes are well-known factors away from the
    measured velocities."""
    for i, joint, columns in _joints(model.topology):
        if columns["q"] in log.columns:
            if joint.limited:
                _check_limits(log, joint, columns["q"], *np.asarray(model.joints.range, float)[i])
            if columns["qd"] in log.columns:
                _check_slope(log, joint.kind, columns)


def _joints(t: Topology) -> Iterator[tuple[int, Joint, dict[str, str]]]:
    """Hinges and slides, each with the names of its columns."""
    for i, (joint, at_q, at_v) in enumerate(zip(t.joints, t.q_start, t.v_start, strict=True)):
        if joint.kind in SLOPES:
            yield i, joint, {"q": f"q.{t.q_name(int(at_q))}", "qd": f"qd.{t.dof_name(int(at_v))}", "time": "time"}


def _check_limits(log: "Log", joint: Joint, column: str, low: float, high: float) -> None:
    x = log.values[:, log.columns.index(column)]
    beyond = np.nan_to_num(np.maximum(low - x, x - high), nan=-np.inf)
    row, slack = int(np.argmax(beyond)), max(SLACK[joint.kind], high - low)
    if not beyond[row] > slack:
        return
    unit = "rad" if joint.kind == "hinge" else "m"
    fits = [
        (short, words) for short, words in COORDINATES[joint.kind] if _within(SCALES[short] * x, low - slack, high + slack)
    ]
    advice = _advice(column, *fits[0]) if fits else "Is it in another unit, or of another joint?"
    raise ValueError(
        f"'{log.name}': '{column}' is {x[row]:.4g} in row {row}, far beyond the joint's limits, {low:.4g} to {high:.4g} {unit}. "
        f"{advice} If it is right, pass check_units=False."
    )


def _within(x: np.ndarray, low: float, high: float) -> bool:
    return bool(np.all((x >= low) & (x <= high) | np.isnan(x)))


def _advice(column: str, unit: str, words: str) -> str:
    example = f'`Log.read(..., units={{"{column}": "{unit}"}})`'
    return f"Is '{column}' in {words}? flexor uses radians, metres and seconds: {example}."


def _check_slope(log: "Log", kind: str, columns: Mapping[str, str]) -> None:
    x, v = (log.values[:, log.columns.index(columns[c])] for c in ("q", "qd"))
    slope, middle = np.diff(x) / np.diff(log.time), (v[1:] + v[:-1]) / 2
    use = np.isfinite(slope) & np.isfinite(middle)
    if use.sum() < 10 or not np.any(middle[use]) or not np.any(slope[use]):
        return
    if np.corrcoef(slope[use], middle[use])[0, 1] < 0.95:
        return
    factor = float(slope[use] @ middle[use] / (middle[use] @ middle[use]))
    for exact, column, unit, words in SLOPES[kind]:
        if abs(factor / exact - 1) < 0.05:
            raise ValueError(
                f"'{log.name}': the slope of '{columns['q']}' is {factor:.4g} times '{columns['qd']}'. "
                f"{_advice(columns[column], unit, words)}"
            )


def suspected_units(logs: Sequence["Log"], model: Model, error: Callable[[list["Log"]], float]) -> str | None:
    """A sentence where the logs would be explained much better if their coordinates and velocities were in another unit.

    `error` is that of the simulation from the given parameters, relative to the motion.
    """
    given, found = error(list(logs)), []
    for kind, choices in COORDINATES.items():
        own = [c for _, j, columns in _joints(model.topology) if j.kind == kind for c in (columns["q"], columns["qd"])]
        measured = [c for c in own if c in logs[0].columns]
        for unit, words in choices if measured else ():
            scaled = [_scaled(log, measured, SCALES[unit]) for log in logs]
            found.append((error(scaled), measured, unit, words))
    best = min(found, default=None)
    if best is None or not best[0] < BETTER * given:
        return None
    less, measured, unit, words = best
    table = ", ".join(f'"{c}": "{unit if c.startswith("q.") else f"{unit}/s"}"' for c in measured)
    return (
        f"are {', '.join(measured)} in {words}? Then the simulation at the start of the search would be off by {less:.2g} times "
        f"the motion, not by {given:.2g}: `Log.read(..., units={{{table}}})`"
    )


def _scaled(log: "Log", columns: Sequence[str], scale: float) -> "Log":
    factors: Any = [scale if c in columns else 1.0 for c in log.columns]
    noise = log.noise and {c: s * (scale if c in columns else 1.0) for c, s in log.noise.items()}
    return replace(log, values=log.values * factors, noise=noise)
