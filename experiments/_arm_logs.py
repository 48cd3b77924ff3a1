"""Recordings of arms with torques or currents: the UR10e's runs and the Panda's, as signals and logs, and the Panda's model."""

from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from scipy.signal import butter, filtfilt

import flexor as fx
from flexor.identify.torque_rows import Signals

ROTORS = (5.9, 5.8, 1.85, 0.60, 0.60, 0.60)  # kg m^2 at the UR10e's joints, as its controller has them
PANDA_MASSES = (4.97, 0.65, 3.23, 3.59, 1.23, 1.67, 0.735)  # kg, links 1 to 7: where a search starts


class Run(NamedTuple):
    """One run of the UR10e: rows that the authors used (all where they did not say), and the payload in kg."""

    name: str
    time: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    current: np.ndarray
    payload: float

    def log(self, model: fx.Model) -> fx.Log:
        """As a log whose controls are the motors' currents."""
        values = np.concatenate([self.q, self.qd], axis=1)
        return fx.Log(self.time, values, columns(model), self.current, name=self.name)

    def published(self) -> Signals:
        """Signals as the published figures have them: speed and its central difference through a zero-phase Butterworth filter of
        order 5 at 0.15 of the Nyquist rate, positions and currents as they are."""
        b, a = butter(5, 0.15)
        qd = filtfilt(b, a, self.qd, axis=0)
        qdd = np.zeros_like(qd)
        qdd[1:-1] = (qd[2:] - qd[:-2]) / (self.time[2:] - self.time[:-2])[:, None]
        return Signals(self.time, self.q, qd, filtfilt(b, a, qdd, axis=0), self.current)

    def part(self, first: int, last: int) -> "Run":
        """Some of its rows."""
        return self._replace(**{x: getattr(self, x)[first:last] for x in ("time", "q", "qd", "current")})


def columns(model: fx.Model) -> tuple[str, ...]:
    names = [j.name for j in model.topology.joints]
    return (*(f"q.{n}" for n in names), *(f"qd.{n}" for n in names))


def ur_runs(path: Path, kinds: tuple[str, ...] = ("excitation",)) -> dict[str, Run]:
    """Runs of these kinds, by name."""
    found = {}
    with h5py.File(path, "r") as file:
        for name, table in file["runs"].items():
            first, last = table.attrs["published_rows"]
            x = table[:].astype(float)
            x = x[first - 1 : last] if last else x
            if table.attrs["kind"] in kinds:
                found[name] = Run(name, x[:, 0], x[:, 1:7], x[:, 7:13], x[:, 13:19], float(table.attrs["payload_kg"]))
    return found


def panda_signals(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, fx.Model]:
    """Time on a grid of 1 ms, coordinates, velocities, torques, and the arm by its table of Denavit-Hartenberg parameters. Rows
    that repeat the one before are dropped; the stamps are right, so gaps are bridged."""
    with h5py.File(path, "r") as file:
        x = file["trajectory"][:].astype(float)
        a, alpha, d = (np.asarray(file.attrs[f"dh_{name}"], float) for name in ("a", "alpha", "d"))
    x = x[np.concatenate([[True], np.any(np.diff(x[:, 1:], axis=0) != 0, axis=1)])]
    x = x[np.searchsorted(x[:, 0], x[0, 0] + 0.05) :]  # the recorder's start has a gap of 15 ms
    time = np.arange(x[0, 0], x[-1, 0], 1e-3)
    table = np.stack([np.interp(time, x[:, 0], column) for column in x[:, 1:].T], axis=1)
    return time, table[:, :7], table[:, 7:14], table[:, 14:], fx.load(_panda(a, alpha, d))


def _panda(a: Any, alpha: Any, d: Any) -> str:
    """MJCF of an arm in modified Denavit-Hartenberg frames (Craig), with links of plausible size to start from."""
    bodies = "".join(
        f'<body name="link{k + 1}" pos="{a[k]} {-np.sin(alpha[k]) * d[k]} {np.cos(alpha[k]) * d[k]}"'
        f' quat="{np.cos(alpha[k] / 2)} {np.sin(alpha[k] / 2)} 0 0"><joint name="joint{k + 1}" axis="0 0 1"/>'
        f'<inertial pos="0.01 0.01 0.01" mass="{PANDA_MASSES[k]}" diaginertia="0.02 0.02 0.02"/>'
        for k in range(7)
    )
    motors = "".join(f'<motor name="motor{k + 1}" joint="joint{k + 1}"/>' for k in range(7))
    return f'<mujoco model="panda"><worldbody>{bodies}{"</body>" * 7}</worldbody><actuator>{motors}</actuator></mujoco>'
