"""`Log`: what was measured on a robot: times, some of the coordinates or other quantities, noise, controls."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from flexor.identify.tables import chosen, frame_columns, read_columns, read_csv, read_parquet
from flexor.identify.units import check_units, converted
from flexor.model.model import Model
from flexor.model.topology import Topology
from flexor.solvers.trajectory import Trajectory

GAP = 5.0  # times the usual time between rows
NOISY = 1.5  # times its noise: a column that varies less carries no information


@dataclass(frozen=True, eq=False)
class Log:
    """One run. `values[k]` was measured at `time[k]`; `columns` names what: `q.elbow`, `qd.elbow` (as `Trajectory` does), or the
    numbers that `observe` of `identify` returns. `noise` is the standard deviation of each column, by name or pattern
    (`{"q.*": 1e-3}`); None: unknown, then it is estimated from the residuals. `controls[k]` acts from `time[k]` to
    `time[k + 1]`. `start` is (q, qd) at `time[0]`, if it is known. `before` are the inputs that acted before `time[0]`, which
    matter where actuators have a delay; None: those of the first row. NaN among the values means "not measured", and is allowed
    only where `missing` says so. `origin` says which clock and units a file was read with.
    """

    time: np.ndarray
    values: np.ndarray
    columns: tuple[str, ...]
    controls: np.ndarray | None = None
    noise: Mapping[str, float] | None = None
    start: tuple[np.ndarray, np.ndarray] | None = None
    missing: bool = False
    name: str = "log"
    before: np.ndarray | None = None
    origin: str = ""

    def __post_init__(self) -> None:
        for field, value in (("time", self.time), ("values", self.values), ("controls", self.controls),
                             ("before", self.before)):  # fmt: skip
            if value is not None:
                object.__setattr__(self, field, np.asarray(value, float))
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.start is not None:
            object.__setattr__(self, "start", tuple(np.asarray(x, float) for x in self.start))
        self._check_shapes()
        self._check_numbers()
        if self.noise is not None:
            own = {c: float(s) for pattern, s in self.noise.items() for c in self.columns if fnmatchcase(c, pattern)}
            object.__setattr__(self, "noise", own)

    def _check_shapes(self) -> None:
        rows, width = self.time.size, len(self.columns)
        if self.time.ndim != 1 or rows < 2:
            raise ValueError(f"'{self.name}': `time` must be a list of at least two numbers, got shape {self.time.shape}.")
        if self.values.shape != (rows, width):
            raise ValueError(
                f"'{self.name}': {rows} times and {width} columns need values of that shape, got {self.values.shape}."
            )
        if self.controls is not None and (self.controls.ndim != 2 or len(self.controls) not in (rows, rows - 1)):
            raise ValueError(
                f"'{self.name}': controls need a row for each of the {rows} times (or {rows - 1}), got {self.controls.shape}."
            )
        width_u = None if self.controls is None else self.controls.shape[1]
        if self.before is not None and self.before.shape != (width_u,):
            raise ValueError(
                f"'{self.name}': `before` needs a number for each of the {width_u or 0} controls, got {self.before.shape}."
            )
        if len(set(self.columns)) < width:
            raise ValueError(
                f"'{self.name}' has a column twice: {next(c for c in self.columns if self.columns.count(c) > 1)}."
            )
        for pattern, sigma in (self.noise or {}).items():
            if not any(fnmatchcase(c, pattern) for c in self.columns):
                raise ValueError(
                    f"'{self.name}': noise is given for '{pattern}', but the columns are {', '.join(self.columns)}."
                )
            if not sigma > 0:
                raise ValueError(f"'{self.name}': the noise of '{pattern}' must be positive, got {sigma}.")

    def _check_numbers(self) -> None:
        if not np.isfinite(self.time).all() or (np.diff(self.time) <= 0).any():
            row = int(np.argmax(~np.isfinite(self.time) | np.concatenate([[False], ~(np.diff(self.time) > 0)])))
            raise ValueError(f"'{self.name}': times must increase from row to row; row {row} does not.")
        bad = ~np.isfinite(self.values) if not self.missing else np.isinf(self.values)
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            raise ValueError(
                f"'{self.name}': '{self.columns[column]}' is {self.values[row, column]} in row {row} "
                f"(and {int(bad.sum()) - 1} more numbers); repair the "
                "log, or pass missing=True if NaN means that nothing was measured there."
            )
        if self.start is not None and not all(np.isfinite(x).all() for x in self.start):
            raise ValueError(f"'{self.name}': its start is not finite.")
        if self.controls is not None and not np.isfinite(self.controls).all():
            row = int(np.argwhere(~np.isfinite(self.controls))[0][0])
            raise ValueError(f"'{self.name}': the controls of row {row} are not finite.")
        steps = np.diff(self.time)
        if len(steps) > 2 and steps.max() > GAP * np.median(steps):
            at = int(np.argmax(steps))
            raise ValueError(
                f"'{self.name}' has a gap of {steps[at]:.3g} s after {self.time[at]:.3g} s, "
                f"where rows are {np.median(steps):.3g} s apart: the motion in "
                "between is unknown. Split the log there (`Log.split`)."
            )

    @staticmethod
    def split(time: Any, values: Any, columns: Sequence[str], controls: Any = None, **others: Any) -> list["Log"]:
        """Logs of the parts between gaps; parts of fewer than three rows are dropped."""
        time, values = np.asarray(time, float), np.asarray(values, float)
        steps = np.diff(time)
        cuts = [0, *(np.flatnonzero(steps > GAP * np.median(steps)) + 1), len(time)]
        made: list[Log] = []
        name = others.pop("name", "log")
        for a, b in pairwise(cuts):
            if b - a >= 3:
                u = None if controls is None else np.asarray(controls)[a : b - 1]
                made.append(Log(time[a:b], values[a:b], tuple(columns), u, name=f"{name}[{len(made)}]", **others))
        return made

    @staticmethod
    def of(trajectory: Trajectory, *, noise: Mapping[str, float] | None = None, name: str = "log", **others: Any) -> "Log":
        """A simulated or loaded trajectory as a log of all coordinates and velocities, from its own first state; before it, all
        inputs were zero, as after `reset`, unless `before` says otherwise."""
        t = trajectory.topology
        columns = (*(f"q.{t.q_name(i)}" for i in range(t.nq)), *(f"qd.{t.dof_name(i)}" for i in range(t.nv)))
        q, qd = np.asarray(trajectory.q), np.asarray(trajectory.qd)
        values = np.concatenate([q, qd], axis=1)
        u = np.asarray(trajectory.u) if t.nu else None
        others = {"before": np.zeros(t.nu) if t.nu else None, **others}
        return Log(np.asarray(trajectory.time), values, columns, u, noise, (q[0], qd[0]), name=name, **others)

    @staticmethod
    def read(
        source: Any,
        model: Model,
        *,
        noise: Mapping[str, float] | None = None,
        units: Mapping[str, str] | None = None,
        columns: Mapping[str, str] | None = None,
        clock: str | None = None,
        **others: Any,
    ) -> "Log":
        """Reads a file (CSV, HDF5, NPZ, Parquet, MCAP), the folder of a ROS 2 bag, or a data frame, with the columns `time`,
        `u.<actuator>` and whatever was measured.

        HDF5 and NPZ hold one array for each column, or are files that `Trajectory.save` wrote; recorded taps are ignored.
        `noise` may name columns of the robot that this file lacks. `units` converts columns that are not in SI units, by name
        or pattern: {"q.*": "deg", "time": "ms"}; `noise` is in SI units in any case. `columns` chooses and renames:
        {"q.elbow": "joint_2_pos"}, or for messages {"q.elbow": "/joint_states:position[elbow]"}; without it messages give the
        joints of their joint states. `clock` is that of messages: "header", "publish" or "log". The log's `origin` says what
        was assumed.
        """
        table, name, origin, missing = _table_of(source, model, columns, clock)
        table = converted(table, units or {}, name)
        others = {"missing": missing, "origin": origin + _converted_units(units), **others}
        return Log._of_table(table, model, noise, name, others)

    @staticmethod
    def _of_table(
        table: dict[str, np.ndarray], model: Model, noise: Mapping[str, float] | None, name: str, others: dict[str, Any]
    ) -> "Log":
        own_columns = _columns_of(model.topology)
        unknown = [c for c in table if c not in own_columns]
        if unknown:
            raise ValueError(f"'{name}' has the column '{unknown[0]}', which '{model.topology.name}' does not; "
                             f"it has time, {', '.join(sorted(own_columns - {'time'}))}.")  # fmt: skip
        if "time" not in table:
            raise ValueError(f"'{name}' has no column 'time'.")
        actuators = [f"u.{a.name}" for a in model.topology.actuators]
        given = [c for c in actuators if c in table]
        if given and given != actuators:
            raise ValueError(f"'{name}' lacks the controls '{next(c for c in actuators if c not in table)}'.")
        columns = tuple(c for c in table if c not in ("time", *actuators))
        controls = np.stack([table[c] for c in actuators], axis=1) if given else None
        if controls is not None:  # the first row of a trajectory has no control; the control in row k led to that row
            controls = controls[1:] if np.isnan(controls[0]).all() else controls
        values = np.stack([table[c] for c in columns], axis=1) if columns else np.zeros((len(table["time"]), 0))
        own = _noise_here(noise or {}, columns, own_columns - {"time", *actuators}, name)
        return Log(table["time"], values, columns, controls, own, name=Path(name).stem, **others)

    def between(self, first: int, last: int, start: tuple[Any, Any] | None = None) -> "Log":
        """Rows first to last, both included."""
        whole = first == 0 and last == len(self.time) - 1
        u = None if self.controls is None else self.controls[first:last]
        before = self.before if first == 0 or self.controls is None else self.controls[first - 1]
        begin = start if start is not None else self.start if first == 0 else None
        return replace(
            self, time=self.time[first : last + 1], values=self.values[first : last + 1], controls=u, start=begin,
            before=before,
            name=self.name if whole else f"{self.name}[{first}:{last}]",
        )  # fmt: skip


def _table_of(
    source: Any, model: Model, columns: Mapping[str, str] | None, clock: str | None
) -> tuple[dict[str, np.ndarray], str, str, bool]:
    """The columns of a source, its name, a sentence about clock and units, and whether nan means "not measured"."""
    if not isinstance(source, str | os.PathLike):
        table, name = chosen(frame_columns(source), columns, "the frame"), "frame"
    else:
        path = Path(source)
        if not path.exists():
            raise FileNotFoundError(f"there is no log file '{path}'.")
        if path.is_dir() or path.suffix == ".mcap":
            from flexor.identify.messages import read_messages

            table, origin = read_messages(path, model.topology, columns, clock)
            return table, path.name, origin, True
        table, name = chosen(_read_table(path, model, columns), columns, f"'{path.name}'"), path.name
    if clock is not None:
        raise ValueError(f"`clock` chooses one of the clocks of messages, and '{name}' has the column 'time'.")
    return table, name, "clock: the column 'time'; units: SI (s, rad, m, N, N m)", False


def _converted_units(units: Mapping[str, str] | None) -> str:
    """What `units` said, for the sentence about them."""
    return "".join(f", {pattern} in {unit}" for pattern, unit in (units or {}).items())


def _noise_here(
    noise: Mapping[str, float], columns: Sequence[str], of_robot: set[str], name: str
) -> dict[str, float] | None:
    """The entries of `noise` that match one of the columns; raises for those that no column of the robot matches."""
    for pattern in noise:
        if not any(fnmatchcase(c, pattern) for c in of_robot):
            raise ValueError(f"'{name}': noise is given for '{pattern}', but the columns are {', '.join(columns)}.")
    return {p: s for p, s in noise.items() if any(fnmatchcase(c, p) for c in columns)} or None


def _columns_of(t: Topology) -> set[str]:
    return {"time", *(f"q.{t.q_name(i)}" for i in range(t.nq)), *(f"qd.{t.dof_name(i)}" for i in range(t.nv)),
            *(f"u.{a.name}" for a in t.actuators)}  # fmt: skip


def _read_table(path: Path, model: Model, columns: Mapping[str, str] | None) -> dict[str, np.ndarray]:
    """The columns of a file by name: those of a trajectory of the robot, or as they are in the file."""
    if path.suffix == ".csv":
        return read_csv(path)
    if path.suffix == ".parquet":
        return read_parquet(path)
    if path.suffix not in (".h5", ".hdf5", ".npz"):
        raise ValueError(
            f"'{path.name}' must end in .csv, .h5, .hdf5, .npz, .parquet or .mcap, or be the folder of a ROS 2 bag."
        )
    if columns is not None:
        return read_columns(path)
    try:
        trajectory = Trajectory.load(path, model)
    except ValueError:
        return read_columns(path)
    log = Log.of(trajectory)
    t = model.topology
    u = np.concatenate([np.full((1, t.nu), np.nan), np.asarray(trajectory.u)])
    controls = {f"u.{a.name}": u[:, i] for i, a in enumerate(t.actuators)}
    return {"time": log.time, **{c: log.values[:, i] for i, c in enumerate(log.columns)}, **controls}


def check_against(log: Log, model: Model, *, units: bool = True) -> None:
    """Raises when a log of coordinates does not fit the robot: unknown columns or, with `units`, units that cannot be right."""
    t = model.topology
    own_columns = _columns_of(t)
    for column in log.columns:
        if column not in own_columns:
            raise ValueError(
                f"'{log.name}' has the column '{column}', which '{t.name}' does not; give `observe`, or use "
                f"{', '.join(sorted(c for c in own_columns if c[0] == 'q'))}."
            )
    if units:
        check_units(log, model)


def check_excitation(logs: Sequence[Log], model: Model) -> None:
    """Raises when nothing moves in any of the logs by more than their noise."""
    if not any(map(_moves, logs)):
        names = f"'{logs[0].name}'" + (f" and {len(logs) - 1} more" if len(logs) > 1 else "")
        raise ValueError(
            f"{names}: nothing moves, so nothing can be learnt about '{model.topology.name}'; "
            "record a motion with more excitation."
        )


def _moves(log: Log) -> bool:
    varies = [np.std(x[np.isfinite(x)]) if np.isfinite(x).any() else 0.0 for x in log.values.T]
    return any(v > NOISY * (log.noise or {}).get(c, 0.0) for c, v in zip(log.columns, varies, strict=True))
