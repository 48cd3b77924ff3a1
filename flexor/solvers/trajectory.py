"""`Trajectory`: what a rollout returns and what a log is; to and from HDF5, CSV and NumPy files."""

import csv
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.model.model import Model, State
from flexor.model.topology import Topology


@dataclass(frozen=True)
class Status:
    """Whether a trajectory can be trusted; if not, the first bad step, the body, and a sentence."""

    ok: bool
    message: str
    step: int | None = None
    body: str | None = None


class Trajectory(eqx.Module):
    """States at steps 0 … T, controls of steps 1 … T, and the tapped quantities that were asked for.

    `final` is the last state with the solver's memory, from which a further rollout goes on (None when read from a file).
    """

    time: Float[Array, " T+1"]
    q: Float[Array, "T+1 nq"]
    qd: Float[Array, "T+1 nv"]
    u: Float[Array, "T nu"]
    taps: dict[str, Array]
    final: State | None
    topology: Topology = eqx.field(static=True)

    def __len__(self) -> int:
        return self.u.shape[0]

    @property
    def status(self) -> Status:
        """Names the first step at which a number is not finite, and the body whose joint it belongs to."""
        q, qd = np.asarray(self.q), np.asarray(self.qd)
        bad = ~np.isfinite(q).all(-1) | ~np.isfinite(qd).all(-1)
        if bad.ndim > 1:
            raise ValueError(f"`status` is that of one trajectory; index the batch of {bad.shape[:-1]} first.")
        if not bad.any():
            return Status(True, "all steps are finite")
        step = int(np.argmax(bad))
        t = self.topology
        in_v, in_q = np.flatnonzero(~np.isfinite(qd[step])), np.flatnonzero(~np.isfinite(q[step]))
        joint = int(t.dof_joint[in_v[0]]) if in_v.size else int(np.searchsorted(t.q_start, in_q[0], side="right") - 1)
        body, name = t.bodies[t.joints[joint].body], t.joints[joint].name
        return Status(False, f"step {step} is not finite, first at body '{body}' (joint '{name}')", step, body)

    def raise_if_bad(self) -> "Trajectory":
        """Itself, or a FloatingPointError with the status' sentence."""
        status = self.status
        if not status.ok:
            raise FloatingPointError(f"the trajectory of '{self.topology.name}' left the finite numbers: {status.message}.")
        return self

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the trajectory to .h5, .csv or .npz by the file's ending, whole or not at all; returns the path."""
        path = Path(path)
        write = _choose(path, {".h5": _write_hdf5, ".hdf5": _write_hdf5, ".csv": _write_csv, ".npz": _write_numpy})
        if not path.parent.is_dir():
            raise FileNotFoundError(f"cannot write '{path}': the folder '{path.parent}' does not exist.")
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
        os.close(handle)
        try:
            write(self, Path(name))
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return path

    @staticmethod
    def load(path: str | os.PathLike[str], model: Model) -> "Trajectory":
        """Reads what `save` wrote, for the robot it was written for. CSV files hold time, q, qd and u, not the taps."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"there is no trajectory file '{path}'.")
        read = _choose(path, {".h5": _read_hdf5, ".hdf5": _read_hdf5, ".csv": _read_csv, ".npz": _read_numpy})
        try:
            arrays, taps = read(path, model.topology)
        except (OSError, KeyError, EOFError, BadZipFile, json.JSONDecodeError, ValueError) as error:
            raise ValueError(f"'{path}' is not a whole trajectory of '{model.topology.name}': {error}") from error
        _check_shapes(path, arrays, model)
        as_array = {name: jnp.asarray(x, model.dtype) for name, x in arrays.items()}
        return Trajectory(
            **as_array, taps={n: jnp.asarray(x, model.dtype) for n, x in taps.items()}, final=None, topology=model.topology
        )


_FIELDS = ("time", "q", "qd", "u")


def _choose(path: Path, by_ending: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    if path.suffix not in by_ending:
        raise ValueError(f"'{path.name}' must end in {', '.join(by_ending)}.")
    return by_ending[path.suffix]


def _check_shapes(path: Path, arrays: dict[str, np.ndarray], model: Model) -> None:
    steps = len(arrays["time"])
    wanted = {"time": (steps,), "q": (steps, model.nq), "qd": (steps, model.nv), "u": (steps - 1, model.nu)}
    for name, shape in wanted.items():
        if arrays[name].shape != shape:
            robot = model.topology.name
            raise ValueError(f"'{path}' holds `{name}` of shape {arrays[name].shape}; '{robot}' needs {shape}.")


def _columns(t: Topology) -> dict[str, list[str]]:
    return {
        "time": ["time"],
        "q": [f"q.{t.q_name(i)}" for i in range(t.nq)],
        "qd": [f"qd.{t.dof_name(i)}" for i in range(t.nv)],
        "u": [f"u.{a.name}" for a in t.actuators],
    }


def _write_hdf5(trajectory: Trajectory, path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for name in _FIELDS:
            file[name] = np.asarray(getattr(trajectory, name))
            file[name].attrs["columns"] = json.dumps(_columns(trajectory.topology)[name])
        for name, value in trajectory.taps.items():
            file[f"taps/{name}"] = np.asarray(value)
        file.attrs["robot"] = trajectory.topology.name


def _read_hdf5(path: Path, topology: Topology) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    import h5py

    with h5py.File(path, "r") as file:
        for name, columns in _columns(topology).items():
            _check_columns(json.loads(file[name].attrs["columns"]), columns)
        taps = {name: np.array(value) for name, value in file.get("taps", {}).items()}
        return {name: np.array(file[name]) for name in _FIELDS}, taps


def _write_numpy(trajectory: Trajectory, path: Path) -> None:
    arrays = {name: np.asarray(getattr(trajectory, name)) for name in _FIELDS}
    taps = {f"taps/{name}": np.asarray(value) for name, value in trajectory.taps.items()}
    columns = np.array(json.dumps(_columns(trajectory.topology)))
    everything: dict[str, Any] = {"columns": columns, **arrays, **taps}
    np.savez(path, **everything)


def _read_numpy(path: Path, topology: Topology) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    with np.load(path) as file:
        stored = json.loads(str(file["columns"]))
        for name, columns in _columns(topology).items():
            _check_columns(stored[name], columns)
        taps = {name.removeprefix("taps/"): file[name] for name in file.files if name.startswith("taps/")}
        return {name: file[name] for name in _FIELDS}, taps


def _check_columns(found: list[str], wanted: list[str]) -> None:
    if found != wanted:
        missing = [c for c in wanted if c not in found]
        extra = [c for c in found if c not in wanted]
        what = f"it lacks {missing[:3]}" if missing else f"it has {extra[:3]}" if extra else "their order differs"
        raise ValueError(f"its columns are not those of the robot: {what}.")


def _write_csv(trajectory: Trajectory, path: Path) -> None:
    """One row for each state; the controls that led to it stand beside it, and are empty in the first row."""
    columns = _columns(trajectory.topology)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([c for group in columns.values() for c in group])
        u = [[""] * len(columns["u"]), *np.asarray(trajectory.u).tolist()]
        rows = zip(np.asarray(trajectory.time), np.asarray(trajectory.q), np.asarray(trajectory.qd), u, strict=True)
        for time, q, qd, control in rows:
            writer.writerow([repr(float(time)), *map(repr, q.tolist()), *map(repr, qd.tolist()), *control])


def _read_csv(path: Path, topology: Topology) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    columns = _columns(topology)
    with path.open(newline="") as file:
        head, *rows = list(csv.reader(file))
    _check_columns(head, [c for group in columns.values() for c in group])
    table = np.array([[float(x) if x else np.nan for x in row] for row in rows])
    edges = np.cumsum([len(group) for group in columns.values()])[:-1]
    time, q, qd, u = np.split(table, edges, axis=1)
    return {"time": time[:, 0], "q": q, "qd": qd, "u": u[1:]}, {}
