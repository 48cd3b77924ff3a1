"""`MovingHorizon`: Gauss-Newton over the last samples, the motion through them simulated in one kernel.

Every `hop` samples the state x at the start of the last `horizon` samples and the parameters z minimise

    sum over samples  share |(reading - simulated(x, z)) / noise|^2  +  (z - z0)^T L (z - z0)          share = hop / horizon

so that every sample counts once, however many windows it is in. What windows say about z is what is left of it when x is free
(Schur's complement); L takes it in and forgets with exp(-hop time / memory). The kernel has a direction of (x, z) in each SIMD
lane, and the rollout over the whole horizon in each.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flexor.adapt.estimator import AbstractEstimator, AbstractRunning, Columns, Innovation, Program
from flexor.adapt.stream import Sample
from flexor.model.charts import Coordinates
from flexor.model.model import Control, Model, as_control
from flexor.solvers import Simulator
from flexor.solvers.solver import class_name

VAGUE = 10.0  # deviation of the state at the start of a window, rad, m, per second


class MovingHorizon(AbstractEstimator):
    """Gauss-Newton over a moving horizon: any parameter and any solver with derivatives, of robots with hinges and slides.

    Attributes:
        horizon: samples of a window.
        hop: samples after which it moves on.
        iterations: of Gauss-Newton in a window.
        memory: time in s after which what was learnt counts e times less.
        spread: deviation of z at the start and after a change; one unit of z is about 100 %.
        substeps: steps of the simulation between two samples.
    """

    horizon: int = 50
    hop: int = 25
    iterations: int = 3
    memory: float = 20.0
    spread: float = 1.0
    substeps: int = 1

    def estimable(self, model: Model, name: str) -> bool:
        return True

    def start(
        self, sim: Simulator, place: Coordinates, columns: Sequence[str], noise: np.ndarray, prior: np.ndarray | None
    ) -> "RunningHorizon":
        return RunningHorizon(self, sim, place, columns, noise, prior)


def rollout_program(sim: Simulator, place: Coordinates, count: int, substeps: int) -> Program:
    """Coordinates and velocities at the `count` samples after a start, (count, 2 nv), and their derivatives by (q, qd, z), a
    direction in each lane: `program(q, qd, u, steps, z, directions)`."""
    sim = sim.simplified()
    model, nv = sim.model, sim.model.nv
    blank = sim.reset()

    def column(q: Any, qd: Any, u: Any, steps: Any, z: Any, direction: Any) -> Any:
        def after(x: Any) -> Any:
            robot, _ = place.apply(model, z + x[2 * nv :])

            def advance(state: Any, given: Any) -> Any:
                for _ in range(substeps):
                    control = as_control(robot, Control(u=given[0]))
                    state = sim.solver.step(robot, state, control, given[1] / substeps)
                return state, jnp.concatenate([state.q, state.qd])

            begin = replace(blank, q=q + x[:nv], qd=qd + x[nv : 2 * nv])
            return jax.lax.scan(advance, begin, (u, steps))[1]

        return jax.jvp(after, (jnp.zeros_like(direction),), (direction,))

    n = 2 * nv + place.size
    arrays = (np.zeros(nv), np.zeros(nv), np.zeros((count, model.nu)), np.zeros(count), place.start, np.zeros(n))
    return Program(column, *arrays, size=n, lanes=(5,))


class RunningHorizon(AbstractRunning):
    """See the head of this file."""

    def __init__(
        self, options: MovingHorizon, sim: Simulator, place: Coordinates, columns: Sequence[str], noise: np.ndarray,
        prior: np.ndarray | None,
    ):  # fmt: skip
        t, nv = sim.model.topology, sim.model.nv
        _check(options, sim)
        self.options, self.nv, self.z, self._first_z = options, nv, place.start.copy(), place.start.copy()
        found = Columns.of(sim.model, columns)
        self._columns = np.concatenate([found.q, found.qd])
        seen = self._columns >= 0
        self._noise = np.where(seen, noise[self._columns], np.inf)
        names = [*(f"q.{t.q_name(i)}" for i in range(nv)), *(f"qd.{t.dof_name(i)}" for i in range(nv))]
        self._rows = np.flatnonzero(seen)
        self.predicted = tuple(names[i] for i in self._rows)
        self._program = rollout_program(sim, place, options.horizon, options.substeps)
        self._directions = np.eye(2 * nv + place.size)
        self._prior = np.full(place.size, options.spread) if prior is None else options.spread * prior
        size = options.horizon
        self._y, self._u, self._steps = np.zeros((size + 1, 2 * nv)), np.zeros((size, sim.model.nu)), np.zeros(size)
        self._rest = np.asarray(sim.reset().q)
        self.delay = 0.5 * options.hop * float(sim.dt)  # until steps are known
        self._filled = 0
        self.forget()

    def forget(self) -> None:
        self.covariance = np.diag(self._prior**2)
        self._information = np.diag(self._prior**-2.0)

    def take(self, sample: Sample) -> Innovation | None:
        readings = np.where(self._columns >= 0, sample.y[self._columns], np.nan)
        if sample.new or not self._filled:
            self._y[0], self._filled = readings, 1
            self._start: np.ndarray | None = None
            return None
        k = self._filled - 1
        self._y[k + 1], self._u[k], self._steps[k] = readings, sample.before, sample.step
        self._filled += 1
        if k + 1 < self.options.horizon:
            return None
        try:
            found = self._solved()
            if np.isfinite(self.z).all() and np.isfinite(self.covariance).all():
                return found
        except np.linalg.LinAlgError:
            pass
        self.restarts += 1  # the numbers broke down: everything begins anew
        self.z, self._filled = self._first_z.copy(), 0
        self.forget()
        return None

    def _solved(self) -> Innovation | None:
        """Gauss-Newton over the full window, which then moves on."""
        nv, o = self.nv, self.options
        x = self._guess() if self._start is None else self._start
        z0, z, L = self.z, self.z.copy(), self._information * np.exp(-float(np.sum(self._steps[: o.hop])) / o.memory)
        share = o.hop / o.horizon
        weak = np.diag(np.full(2 * nv, VAGUE**-2))
        for k in range(o.iterations + 1):
            path, J = self._rolled(x, z)
            e = np.where(np.isfinite(self._y), self._y - path, 0.0) / self._noise
            A = (J * (np.isfinite(self._y) / self._noise)[..., None]).reshape(-1, len(self._directions))
            if k == o.iterations:
                break
            H = share * A.T @ A
            H[: 2 * nv, : 2 * nv] += weak
            H[2 * nv :, 2 * nv :] += L
            g = share * A.T @ e.ravel()
            g[2 * nv :] -= L @ (z - z0)
            step = np.linalg.solve(H, g)
            x, z = x + step[: 2 * nv], z + np.clip(step[2 * nv :], -1.0, 1.0)
        H = share * A.T @ A
        s, c = slice(0, 2 * nv), slice(2 * nv, None)
        self._information = L + H[c, c] - H[c, s] @ np.linalg.solve(H[s, s] + weak, H[s, c])
        self.covariance, self.z = np.linalg.inv(self._information), z
        seen, self.delay = np.isfinite(self._y), 0.5 * float(np.sum(self._steps[-o.hop :]))
        self._move_on(path)
        return self._innovation(e, seen)

    def _rolled(self, x: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Simulated readings (horizon + 1, 2 nv) and their derivatives."""
        nv, n = self.nv, len(self._directions)
        path, J = self._program(x[:nv], x[nv:], self._u, self._steps, z, self._directions)
        first = np.eye(2 * nv, n)
        return np.concatenate([x[None], path[0]]), np.concatenate([first[None], np.moveaxis(J, 0, -1)])

    def _guess(self) -> np.ndarray:
        """A start from the readings: slopes where velocities are not measured, the description's coordinates where q is not."""
        nv, y = self.nv, self._y
        q = np.where(np.isfinite(y[0, :nv]), y[0, :nv], self._rest)
        few = min(5, self.options.horizon)
        slope = (y[few, :nv] - y[0, :nv]) / np.sum(self._steps[:few])
        qd = np.where(np.isfinite(y[0, nv:]), y[0, nv:], np.where(np.isfinite(slope), slope, 0.0))
        return np.concatenate([q, qd])

    def _move_on(self, path: np.ndarray) -> None:
        hop, kept = self.options.hop, self.options.horizon - self.options.hop
        self._start = path[hop].copy() if np.isfinite(path[hop]).all() else None
        self._y[: kept + 1] = self._y[hop:].copy()
        self._u[:kept], self._steps[:kept] = self._u[hop:].copy(), self._steps[hop:].copy()
        self._filled = kept + 1

    def _innovation(self, e: np.ndarray, seen: np.ndarray) -> Innovation | None:
        """Of the newest samples, column by column: root mean squares of what the fit leaves, and how unlikely they are: a sum of
        n squares of standard normal numbers has the mean n and the deviation sqrt(2 n). nan where nothing was measured."""
        rows, hop = self._rows, self.options.hop
        count = seen[-hop:, rows].sum(0)
        if not count.any():
            return None
        n = np.maximum(count, 1)
        square = np.where(count > 0, np.sum(e[-hop:, rows] ** 2, axis=0) / n, np.nan)
        return Innovation(np.sqrt(square) * self._noise[rows], self._noise[rows], (square - 1) * np.sqrt(n / 2))


def _check(options: MovingHorizon, sim: Simulator) -> None:
    t = sim.model.topology
    if not 0 < options.hop <= options.horizon:
        raise ValueError(f"`hop` must be between 1 and `horizon` ({options.horizon}), got {options.hop}.")
    if not sim.solver.differentiable:
        raise ValueError(f"{class_name(sim.solver)} cannot be differentiated, so fx.adapt.MovingHorizon cannot use it.")
    if t.nq != t.nv:
        raise ValueError(f"'{t.name}' has ball or free joints, which fx.adapt.MovingHorizon does not support; use Kalman.")
