"""Controls of a simulation from a file: a table with a column for each actuator, and times of its own if it has any."""

import csv
from enum import StrEnum
from pathlib import Path

import numpy as np
from jaxtyping import Float

from flexor.model.model import Model

Between = StrEnum("Between", ["hold", "linear"])
"""What acts between two rows: the earlier one, or a straight line from one to the next."""


def read_controls(
    path: Path, model: Model, dt: float, seconds: float | None, between: Between = Between.hold
) -> Float[np.ndarray, "steps nu"]:
    """The control of every step.

    A CSV file names its columns: the actuators, with or without `u.` in front, and perhaps `time` in s from the start of the
    simulation. Columns `q.*`, `qd.*` and `tap.*`, as trajectories have them, are skipped. Without `time` a row is a step, as in
    a .npy file, whose columns are the actuators in their order. In a file that `--output` wrote, a row's control led to it.
    Without `seconds` the simulation is as long as the table; a longer one is refused.
    """
    if not model.nu:
        raise ValueError(f"--controls: '{model.topology.name}' has no actuators.")
    if not path.is_file():
        raise FileNotFoundError(f"--controls: there is no file '{path}'.")
    readers = {".csv": _read_csv, ".npy": _read_numpy}
    if path.suffix not in readers:
        raise ValueError(f"--controls: '{path.name}' must end in {' or '.join(readers)}.")
    time, u = readers[path.suffix](path, model)
    if not len(u):
        raise ValueError(f"--controls: '{path.name}' has no rows.")
    if not np.isfinite(u).all():
        row = int(np.argwhere(~np.isfinite(u))[0][0])
        raise ValueError(f"--controls: row {row} of '{path.name}' holds something that is not a finite number.")
    return _per_step(path, time, u, dt, seconds, between)


def _per_step(
    path: Path, time: np.ndarray | None, u: np.ndarray, dt: float, seconds: float | None, between: Between
) -> np.ndarray:
    """Rows of the table as controls of steps."""
    if time is None:
        time, end = dt * np.arange(len(u)), dt * len(u)
    else:
        if not np.isfinite(time).all() or (np.diff(time) <= 0).any():
            raise ValueError(f"--controls: the times of '{path.name}' must increase from row to row.")
        if time[0] > 1e-6 * dt:
            raise ValueError(f"--controls: '{path.name}' starts at {time[0]:g} s; its first row must be at 0 s.")
        # the last row acts as long as the one before it
        end = float(time[-1] + (time[-1] - time[-2] if len(time) > 1 else dt))
    steps = round((end if seconds is None else seconds) / dt)
    if seconds is not None and seconds > end + 1e-6 * dt:
        raise ValueError(f"--controls: '{path.name}' ends after {end:.4g} s, but --seconds asks for {seconds:g} s.")
    at = dt * np.arange(max(1, steps))
    if between is Between.linear:
        return np.stack([np.interp(at, time, column) for column in u.T], axis=1)
    return u[np.clip(np.searchsorted(time, at + 1e-6 * dt, side="right") - 1, 0, len(u) - 1)]


def _read_numpy(path: Path, model: Model) -> tuple[None, np.ndarray]:
    try:
        u = np.asarray(np.load(path, allow_pickle=False), float)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"--controls: '{path.name}' is not a table of numbers in NumPy's format: {error}") from error
    if u.ndim != 2 or u.shape[1] != model.nu:
        raise ValueError(
            f"--controls: '{path.name}' has shape {u.shape}; '{model.topology.name}' needs a row for each step and "
            f"{model.nu} columns, its actuators: {', '.join(a.name for a in model.topology.actuators)}."
        )
    return None, u


def _read_csv(path: Path, model: Model) -> tuple[np.ndarray | None, np.ndarray]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        head, *rows = [row for row in csv.reader(file, skipinitialspace=True) if row] or [[]]
    columns = [c.strip() for c in head]
    for i, row in enumerate(rows):
        if len(row) != len(columns):
            raise ValueError(f"--controls: '{path.name}' names {len(columns)} columns, but row {i} has {len(row)} cells.")
    actuators = [a.name for a in model.topology.actuators]
    names = [c.removeprefix("u.") if c.removeprefix("u.") in actuators else c for c in columns]
    _check_columns(path, model, names, actuators)
    try:
        table = np.array([[float(x) if x.strip() else np.nan for x in row] for row in rows]).reshape(len(rows), len(columns))
    except ValueError as error:
        raise ValueError(f"--controls: '{path.name}' holds something that is not a number: {error}.") from error
    u = table[:, [names.index(a) for a in actuators]]
    time = table[:, names.index("time")] if "time" in names else None
    if len(u) > 1 and np.isnan(u[0]).all():  # a trajectory: no control led to its first row
        u, time = u[1:], None if time is None else time[:-1]
    return time, u


def _check_columns(path: Path, model: Model, names: list[str], actuators: list[str]) -> None:
    robot, listed = model.topology.name, ", ".join(actuators)
    missing = [a for a in actuators if a not in names]
    if missing:
        raise ValueError(f"--controls: '{path.name}' lacks the actuator '{missing[0]}'; '{robot}' has {listed}.")
    odd = [n for n in names if n not in ("time", *actuators) and not n.startswith(("q.", "qd.", "tap."))]
    if odd:
        raise ValueError(
            f"--controls: '{path.name}' has the column '{odd[0]}', which is not an actuator; '{robot}' has {listed}."
        )
    twice = [n for n in names if names.count(n) > 1]
    if twice:
        raise ValueError(f"--controls: '{path.name}' has the column '{twice[0]}' twice.")
