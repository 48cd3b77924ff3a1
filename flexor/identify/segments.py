"""Logs cut into segments of equal shape, each of which is simulated from its own start: single and multiple shooting."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from flexor.identify.log import Log
from flexor.model.model import Model
from flexor.solvers import Simulator

WINDOW = 7  # rows from which a velocity is estimated where none was measured


@dataclass(frozen=True)
class Shooting:
    """How a log is simulated. `horizon`: seconds of a segment (multiple shooting); None: the whole log at once.

    A segment starts from the measured state; with `free_start` that state is estimated together with the parameters, which
    makes intervals honest where the sensors are noisy. The starts are `stride` seconds apart; None: one segment begins where
    the last ended.
    """

    horizon: float | None = None
    free_start: bool = False
    stride: float | None = None


class Segments(NamedTuple):
    """Arrays with a leading axis over segments, padded to one length. Rows with weight zero were not measured."""

    q: Float[Array, "s nq"]
    qd: Float[Array, "s nv"]
    u: Float[Array, "s steps nu"]
    at: Int[Array, "s rows"]
    ahead: Float[Array, "s rows"]
    measured: Float[Array, "s rows m"]
    weight: Float[Array, "s rows m"]
    past: Float[Array, "s samples delayed"] | None = None
    """Inputs of delayed actuators before the start, as `State.history` keeps them; None where the model has none."""

    def take(self, rows: Any) -> "Segments":
        return jax.tree.map(lambda x: x[rows], self)

    @property
    def number(self) -> int:
        return len(self.q)


def cut(sim: Simulator, logs: Sequence[Log], shooting: Shooting, noise: np.ndarray) -> tuple[Segments, np.ndarray]:
    """Segments of all logs, and the log each belongs to. `noise` has a number for each column, the same for all logs or not."""
    if shooting.horizon is not None and sim.model.topology.na:
        raise ValueError(
            f"'{sim.model.topology.name}' has actuators with activations, which no log holds: a segment cannot start within a "
            "log. Use `Shooting()`, from the start of each log, where they are zero."
        )
    parts, past, owner = [], [], []
    noise = np.broadcast_to(noise, (len(logs), np.shape(noise)[-1]))
    for i, log in enumerate(logs):
        spans = _spans(log, shooting)
        parts += [log.between(first, last, start_state(log, sim.model, first)) for first, last in spans]
        past += [_past(log, sim, first) for first, _ in spans]
        owner += [i] * len(spans)
    dt = float(sim.dt)
    steps = max(_steps(p, dt) for p in parts)
    rows = max(len(p.time) for p in parts)
    made = [_segment(p, sim.model, dt, steps, rows, noise[i]) for p, i in zip(parts, owner, strict=True)]
    together: Any = [np.stack(x) for x in zip(*made, strict=True)]  # of numpy, which compiles nothing
    history: Any = np.stack(past) if sim.model.topology.samples else None
    return Segments(*together)._replace(past=history), np.array(owner)


def _steps(log: Log, dt: float) -> int:
    return max(1, int(np.ceil((log.time[-1] - log.time[0]) / dt - 1e-6)))


def _spans(log: Log, shooting: Shooting) -> list[tuple[int, int]]:
    """First and last rows of the segments of a log."""
    if shooting.horizon is None:
        return [(0, len(log.time) - 1)]
    span = log.time[-1] - log.time[0]
    if not 0 < shooting.horizon <= span * (1 + 1e-9):
        raise ValueError(f"a horizon of {shooting.horizon} s does not fit into '{log.name}', which lasts {span:.4g} s.")
    stride = shooting.horizon if shooting.stride is None else shooting.stride
    if not stride > 0:
        raise ValueError(f"`stride` must be a positive number of seconds, got {stride}.")
    spans = []
    for begin in np.arange(log.time[0], log.time[-1] - shooting.horizon * (1 - 1e-6), stride):
        first = int(np.searchsorted(log.time, begin - 1e-9))
        last = int(np.searchsorted(log.time, log.time[first] + shooting.horizon * (1 + 1e-9), side="right")) - 1
        if last > first:
            spans.append((first, last))
    if not spans:
        raise ValueError(f"a horizon of {shooting.horizon} s is shorter than the time between the rows of '{log.name}'.")
    return spans


def _past(log: Log, sim: Simulator, row: int) -> np.ndarray:
    """Inputs of delayed actuators in the steps before a row, the latest first (`State.history`), as the log held them."""
    t, h = sim.model.topology, sim.solver.shortest_step(float(sim.dt))
    if not t.samples or log.controls is None:
        return np.zeros((t.samples, len(t.delayed)))
    before = log.controls[0] if log.before is None else log.before
    when = log.time[row] - h * np.arange(1, t.samples + 1)
    held = np.searchsorted(log.time, when + 1e-6 * h, side="right") - 1
    rows = log.controls[np.clip(held, 0, len(log.controls) - 1)]
    return np.where(held[:, None] < 0, before, rows)[:, t.delayed]


def start_state(log: Log, model: Model, row: int) -> tuple[np.ndarray, np.ndarray]:
    """q and qd in a row of the log: given, measured, or by a local polynomial of the third order in the coordinates."""
    t = model.topology
    if row == 0 and log.start is not None:
        shapes = tuple(x.shape for x in log.start)
        if shapes != ((t.nq,), (t.nv,)):
            raise ValueError(
                f"the start of '{log.name}' must be (q, qd) of {t.nq} and {t.nv} numbers for '{t.name}', got {shapes}."
            )
        return log.start
    q_columns, v_columns = [f"q.{t.q_name(i)}" for i in range(t.nq)], [f"qd.{t.dof_name(i)}" for i in range(t.nv)]
    lacking = [c for c in q_columns if c not in log.columns]
    if lacking:
        raise ValueError(f"'{log.name}' does not measure '{lacking[0]}', so its first state is unknown: give `Log.start`.")
    q = log.values[:, [log.columns.index(c) for c in q_columns]]
    if all(c in log.columns for c in v_columns):
        here = q[row], log.values[row, [log.columns.index(c) for c in v_columns]]
        if np.isfinite(here[0]).all() and np.isfinite(here[1]).all():
            return here
    if t.nq != t.nv:
        raise ValueError(
            f"'{log.name}' does not measure all velocities, and '{t.name}' has ball or free joints: give `Log.start`."
        )
    first = max(0, min(row - WINDOW // 2, len(q) - WINDOW))
    use = slice(first, first + WINDOW)
    x = log.time[use] - log.time[row]
    good = np.isfinite(q[use]).all(1)
    if not good.any():
        raise ValueError(
            f"'{log.name}': no row near {log.time[row]:.4g} s measures all coordinates, so a segment cannot start there; give "
            "`Log.start`, or a longer horizon."
        )
    fit = np.polynomial.polynomial.polyfit(x[good], q[use][good], min(3, int(good.sum()) - 1))
    return fit[0], fit[1] if len(fit) > 1 else np.zeros(t.nv)


def _segment(log: Log, model: Model, dt: float, steps: int, rows: int, noise: np.ndarray) -> tuple[np.ndarray, ...]:
    assert log.start is not None
    since = log.time - log.time[0]
    at = np.minimum(np.floor(since / dt + 1e-6).astype(int), steps)
    ahead = since / dt - at
    ahead = np.where(np.abs(ahead) < 1e-6, 0.0, ahead)
    u = np.zeros((steps, model.nu))
    if model.nu:
        if log.controls is None:
            raise ValueError(f"'{log.name}' has no controls, but '{model.topology.name}' has {model.nu} actuators.")
        if log.controls.shape[1] != model.nu:
            raise ValueError(
                f"'{log.name}' has {log.controls.shape[1]} controls; '{model.topology.name}' has {model.nu} actuators."
            )
        hold = np.searchsorted(since, np.arange(steps) * dt + 1e-6 * dt, side="right") - 1
        u = log.controls[np.minimum(hold, len(log.controls) - 1)]
    pad = rows - len(since)
    measured = np.nan_to_num(log.values)
    weight = np.where(np.isfinite(log.values), 1 / noise, 0.0)
    grow = ((0, pad), (0, 0))
    return (*log.start, u, np.pad(at, (0, pad)), np.pad(ahead, (0, pad)), np.pad(measured, grow), np.pad(weight, grow))
