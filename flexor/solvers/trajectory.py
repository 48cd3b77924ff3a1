"""`Trajectory`: what a rollout returns and what a log is; to and from HDF5, CSV and NumPy files."""

import csv
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.files import write_with
from flexor.model.model import Model, State
from flexor.model.topology import Topology
from flexor.solvers.energy import EnergyBudget
from flexor.solvers.solver import AbstractMemory


@dataclass(frozen=True)
class Status:
    """Whether a trajectory can be trusted; if not, the first bad step, the body, and a sentence. `doubtful` where nothing is
    wrong with the numbers, but the solver itself says that it should not be believed."""

    ok: bool
    message: str
    step: int | None = None
    body: str | None = None
    doubtful: bool = False


class Trajectory(eqx.Module):
    """States at steps 0 … T, controls of steps 1 … T, and the recorded quantities.

    `final` is the last state with the solver's memory, from which another rollout can continue (None when read from a file),
    and `policy_memory` the memory of the policy.
    """

    time: Float[Array, "*batch instants"]
    q: Float[Array, "*batch instants nq"]
    qd: Float[Array, "*batch instants nv"]
    u: Float[Array, "*batch steps nu"]
    taps: dict[str, Array]
    final: State | None
    topology: Topology = eqx.field(static=True)
    policy_memory: Any = None
    budget: EnergyBudget = eqx.field(static=True, default=EnergyBudget())

    def __len__(self) -> int:
        return self.u.shape[0]

    @property
    def status(self) -> Status:
        """Names the first step at which a number is not finite, and the body whose joint it belongs to; or the first by which the
        robot has more energy than its start, its fall and its actuators explain (see `flexor.solvers.energy`); or the first that
        the solver itself doubts (`AbstractMemory`).

        The energy is judged after a rollout of one robot by rigid-body physics under inputs `u` or none. It is not where other
        sources of energy are possible: forces and wrenches of `Control`, policies, networks, learned solvers; nor in batches, in
        compiled functions, and in what was read from a file.
        """
        q, qd = np.asarray(self.q), np.asarray(self.qd)
        bad = ~np.isfinite(q).all(-1) | ~np.isfinite(qd).all(-1)
        if bad.ndim > 1:
            raise ValueError(f"`status` is that of one trajectory; index the batch of {bad.shape[:-1]} first.")
        if not bad.any():
            return self._energy_status(q, qd)
        step = int(np.argmax(bad))
        t = self.topology
        in_v, in_q = np.flatnonzero(~np.isfinite(qd[step])), np.flatnonzero(~np.isfinite(q[step]))
        joint = int(t.dof_joint[in_v[0]]) if in_v.size else int(np.searchsorted(t.q_start, in_q[0], side="right") - 1)
        body, name = t.bodies[t.joints[joint].body], t.joints[joint].name
        return Status(False, f"step {step} is not finite, first at body '{body}' (joint '{name}')", step, body)

    def _energy_status(self, q: np.ndarray, qd: np.ndarray) -> Status:
        step = self.budget.first_excess(np.asarray(self.time), q, qd, np.asarray(self.u))
        if step is None:
            return self._doubt_status()
        change = np.abs(np.diff(qd[max(step - 1, 0) : step + 1], axis=0)).sum(0)
        t = self.topology
        body = t.bodies[t.joints[int(t.dof_joint[int(np.argmax(change))])].body]
        text = f"by step {step} the robot has gained unexplained energy, most at body '{body}'; use a shorter time step"
        return Status(False, text, step, body)

    def _doubt_status(self) -> Status:
        memory = None if self.final is None else self.final.memory
        if isinstance(memory, AbstractMemory):
            bad = np.asarray(self.time) >= float(memory.doubted_since)
            if bad.any():
                step = int(np.argmax(bad))
                text = f"from step {step} on the state is unlike anything that the solver has learned: do not believe it"
                return Status(False, text, step, doubtful=True)
        return Status(True, "all steps are finite")

    def raise_if_bad(self) -> "Trajectory":
        """The trajectory itself; raises FloatingPointError with the message of the status if it diverged or gained energy. A
        doubtful one does not raise."""
        status = self.status
        if not status.ok and not status.doubtful:
            raise FloatingPointError(f"the trajectory of '{self.topology.name}' diverged: {status.message}.")
        return self

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the trajectory to .h5, .csv or .npz by its extension, atomically; returns the path."""
        path = Path(path)
        write = _choose(path, {".h5": _write_hdf5, ".hdf5": _write_hdf5, ".csv": _write_csv, ".npz": _write_numpy})
        write_with({path: lambda part: write(self, part)})
        return path

    @staticmethod
    def load(path: str | os.PathLike[str], model: Model) -> "Trajectory":
        """Reads what `save` wrote, for the robot it was written for."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"there is no trajectory file '{path}'.")
        read = _choose(path, {".h5": _read_hdf5, ".hdf5": _read_hdf5, ".csv": _read_csv, ".npz": _read_numpy})
        try:
            arrays, taps = read(path, model.topology)
        except (OSError, KeyError, EOFError, BadZipFile, json.JSONDecodeError, ValueError) as error:
            raise ValueError(
                f"'{path}' is not a trajectory of '{model.topology.name}', or it is corrupt: {error}"
            ) from error
        _check_shapes(path, arrays, model)
        time, q, qd, u = (jnp.asarray(arrays[name], model.dtype) for name in _FIELDS)
        recorded = {name: jnp.asarray(x, model.dtype) for name, x in taps.items()}
        return Trajectory(time, q, qd, u, recorded, None, model.topology)


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
    """One row for each state. Beside it stand the controls that led to it and the taps of that step, in columns such as
    `tap.contact.friction_force.0.1`; both are empty in the first row."""
    columns, taps = _columns(trajectory.topology), {k: np.asarray(x) for k, x in trajectory.taps.items()}
    of_steps = [np.asarray(trajectory.u), *(x.reshape(len(x), -1) for x in taps.values())]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = [c for group in columns.values() for c in group]
        writer.writerow([*names, *(c for name, x in taps.items() for c in _tap_columns(name, x.shape[1:]))])
        states = (np.asarray(x) for x in (trajectory.time[:, None], trajectory.q, trajectory.qd))
        table, further = np.concatenate(list(states), axis=1).tolist(), np.concatenate(of_steps, axis=1).tolist()
        empty = [""] * sum(x.shape[1] for x in of_steps)
        for row, beside in zip(table, [empty, *further], strict=True):
            writer.writerow([*map(repr, row), *beside])


def _tap_columns(name: str, shape: tuple[int, ...]) -> list[str]:
    return [".".join(["tap", name, *map(str, index)]) for index in np.ndindex(*shape)]


def _read_csv(path: Path, topology: Topology) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    columns = _columns(topology)
    with path.open(newline="", encoding="utf-8") as file:
        head, *rows = list(csv.reader(file))
    own = [c for c in head if not c.startswith("tap.")]
    _check_columns(own, [c for group in columns.values() for c in group])
    table = np.array([[float(x) if x else np.nan for x in row] for row in rows])
    edges = np.cumsum([len(group) for group in columns.values()])
    time, q, qd, u, taps = np.split(table, edges, axis=1)
    return {"time": time[:, 0], "q": q, "qd": qd, "u": u[1:]}, _taps_of(head[len(own) :], taps[1:])


def _taps_of(names: list[str], values: np.ndarray) -> dict[str, np.ndarray]:
    """Taps from their columns; the last index of a tap gives its shape."""
    places: dict[str, list[tuple[int, ...]]] = {}
    for column in names:
        name, indices = re.fullmatch(r"tap\.(.+?)((?:\.\d+)*)", column).groups()  # type: ignore[union-attr]
        places.setdefault(name, []).append(tuple(int(i) for i in indices.split(".")[1:]))
    parts = np.split(values, np.cumsum([len(p) for p in places.values()])[:-1], axis=1) if places else []
    return {
        name: part.reshape(len(values), *(i + 1 for i in at[-1]))
        for (name, at), part in zip(places.items(), parts, strict=True)
    }
