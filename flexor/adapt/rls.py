"""`MomentumRLS`: recursive least squares on windows of momentum, with directional forgetting; robots stay physical.

Windows W theta = y (`flexor.adapt.linear`) of some 0.1 s come twice in that time. In numbers x with theta = theta_0 + D B x,
whose prior is standard normal, the information matrix L and the mean x go on as

    L <- L - (1 - k) L Q (Q^T L Q)^-1 Q^T L        Q: directions of which this window says more than the prior
    L <- L + A^T A,   x <- x + L^-1 A^T (b - A x)   A, b: the window, divided by the deviation of its errors

with k = exp(-hop / memory): what is not excited is not forgotten (Cao & Schwartz 2000; Lai & Bernstein 2024). The estimate is the
robot that can exist nearest to x in the norm of L: Gauss-Newton in the charts, one step a window. Deviations of the errors come
from the windows themselves: E[innovation times residual] is their variance.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flexor.adapt.estimator import AbstractEstimator, AbstractRunning, Columns, Innovation
from flexor.adapt.linear import FIELDS, Free, chart_program, window_program
from flexor.adapt.stream import Sample
from flexor.model.charts import Coordinates
from flexor.model.model import Model
from flexor.solvers import Simulator

ENOUGH = 1e-3  # of chi^2: a step that gains less is the last one
LEAST = 1e-9  # of the largest singular value: directions in which theta cannot move


class MomentumRLS(AbstractEstimator):
    """Recursive least squares on momentum. Actuators must be motors on hinges and slides, readings must hold all coordinates;
    velocities are slopes of them where they are not measured.

    Attributes:
        window: length of a window in s; a new one begins every half of it.
        memory: time in s after which an excited direction is forgotten by a factor e.
        mass: deviation in kg of the guess of a body's mass; None: 0.3 times the mass of the robot.
        reach: deviation in m of the guess of where it is.
        creep: speed in rad/s (m/s) at which dry friction turns round.
        relative: error of forces as a share of their size of late, below which no deviation is believed: steps of time and
            links that bend are not in the model.
        settling: windows from which the deviation of errors is learnt before innovations count.
        averaged: windows over which it is averaged afterwards.
    """

    window: float = 0.1
    memory: float = 20.0
    mass: float | None = None
    reach: float = 0.2
    creep: float = 0.02
    relative: float = 0.001
    settling: int = 10
    averaged: int = 100

    def estimable(self, model: Model, name: str) -> bool:
        return name.split("[")[0].rsplit(".", 1)[-1] in FIELDS

    def start(
        self, sim: Simulator, place: Coordinates, columns: Sequence[str], noise: np.ndarray, prior: np.ndarray | None
    ) -> "RunningRLS":
        return RunningRLS(self, sim.model, place, columns, prior)


class RunningRLS(AbstractRunning):
    """See the head of this file."""

    def __init__(
        self, options: MomentumRLS, model: Model, place: Coordinates, columns: Sequence[str], prior: np.ndarray | None
    ):
        if not 0 < options.window < options.memory:
            raise ValueError(
                f"`window` ({options.window} s) must be positive and shorter than `memory` ({options.memory} s)."
            )
        self.options, self.model = options, model
        self.free = Free.of(model, [c.name for c in place.charts])
        self._columns = _checked_columns(model, columns)
        self._velocities = bool(np.all(self._columns.qd >= 0))
        t = model.topology
        self.predicted = tuple(f"momentum.{t.dof_name(i)}" for i in range(model.nv))
        self.delay = 0.5 * options.window
        self._window = window_program(model, self.free, options.creep)
        self._chart = chart_program(model, place, self.free)
        mass = 0.3 * float(np.sum(np.asarray(model.bodies.mass))) if options.mass is None else options.mass
        self.z: np.ndarray = place.start.copy()
        self._basis = _basis(self._chart, self.z, self.free.sizes(model, mass, options.reach))
        self._place_prior(prior)
        self.forget()
        self.estimate()
        self._variance = np.zeros(model.nv)
        self._size = np.zeros(model.nv)  # of the sums of late
        self._early: list[tuple[np.ndarray, np.ndarray]] = []
        self._seen = 0
        self._previous: Sample | None = None
        self._restart()

    def _place_prior(self, prior: np.ndarray | None) -> None:
        """A prior on z narrows that on x."""
        self._information0 = np.eye(self._basis[1].shape[1])
        if prior is not None:
            D, B = self._basis
            J = np.linalg.pinv(D[:, None] * B) @ self._chart(self.z)[1]
            spread = J @ np.diag(prior**2) @ J.T
            self._information0 = np.linalg.inv(spread + 1e-6 * np.eye(len(spread)))

    def forget(self) -> None:
        self._x: np.ndarray = np.zeros(self._basis[1].shape[1])
        self._centre = self._chart(self.z)[0].copy()
        self._information = self._information0.copy()

    def _restart(self) -> None:
        """Empty windows, the second half a window behind the first."""
        nv, p = self.model.nv, self.free.size
        self._W, self._y = np.zeros((2, nv, p)), np.zeros((2, nv))
        self._phase = np.array([0.0, -0.5])  # shares of the windows that have passed; below zero: not begun

    def take(self, sample: Sample) -> Innovation | None:
        q = sample.y[self._columns.q]
        if not np.isfinite(q).all():
            return None  # the interval to the next complete sample is bridged by `_previous`
        previous, self._previous = self._previous, sample
        if sample.new or previous is None:
            self._restart()
            return None
        return self._interval(previous, sample, q)

    def _interval(self, a: Sample, b: Sample, q: np.ndarray) -> Innovation | None:
        """The time between two samples, split where a window ends within it."""
        step = b.time - a.time
        if step > self.options.window / 2:
            self._restart()
            return None
        qd = [s.y[self._columns.qd] if self._velocities else np.zeros(self.model.nv) for s in (a, b)]
        measured = self._velocities and bool(np.isfinite(qd[0]).all() and np.isfinite(qd[1]).all())
        qd = qd if measured else [np.zeros(self.model.nv)] * 2
        interval = (a.y[self._columns.q], q, *qd, b.before, step, 1.0 if measured else 0.0)
        begun, self._phase = self._phase, self._phase + step / self.options.window
        self._add(begun, self._phase, interval)
        found = None
        for k in np.flatnonzero(self._phase >= 1):
            found = self._learn(self._W[k], self._y[k])
            self._W[k], self._y[k] = 0.0, 0.0
            self._phase[k] -= 1
            self._add(
                np.zeros(2), np.where(np.arange(2) == k, self._phase[k], 0.0), interval
            )  # what is left of the interval
        return found

    def _add(self, begun: np.ndarray, ended: np.ndarray, interval: tuple[Any, ...]) -> None:
        """Adds to each window the share of an interval between two of its phases. The weights w = sin^2(pi phase) are
        integrated exactly, so that those of w' sum to zero wherever samples lie."""
        a, b = np.clip(begun, 0.0, 1.0), np.clip(ended, 0.0, 1.0)
        area = self.options.window * (0.5 * (b - a) - (np.sin(2 * np.pi * b) - np.sin(2 * np.pi * a)) / (4 * np.pi))
        rise = np.sin(np.pi * b) ** 2 - np.sin(np.pi * a) ** 2
        self._W[...], self._y[...] = self._window(self._W, self._y, area, rise, *interval)

    def _learn(self, W: np.ndarray, y: np.ndarray) -> Innovation | None:
        """One window: see the head of this file."""
        D, B = self._basis
        inertial = W @ self._chart(self.z)[0]
        self._size = np.maximum(0.98 * self._size, np.abs(y) + np.abs(inertial))
        y, W = y - W @ self._centre, W @ (D[:, None] * B)
        if self._seen < self.options.settling:
            self._first(W, y)
            return None
        self._seen += 1
        sigma = np.sqrt(self._variance + self._floor**2)
        A, b = W / sigma[:, None], y / sigma
        L = self._forgotten(A)
        P = np.linalg.inv(L)
        e = b - A @ self._x
        S = np.eye(len(b)) + A @ P @ A.T
        self._information = L + A.T @ A
        self._x = self._x + np.linalg.solve(self._information, A.T @ e)
        self._watch(e * (b - A @ self._x))
        self.estimate()
        return Innovation(e * sigma, np.sqrt(np.diag(S)) * sigma, np.linalg.solve(np.linalg.cholesky(S), e))

    def _first(self, W: np.ndarray, y: np.ndarray) -> None:
        """The first windows, together: deviations are the root mean squares of their residuals."""
        self._seen += 1
        self._early.append((W, y))
        sigma = np.maximum(self._floor, 0.03 * np.sqrt(np.mean([y**2 for _, y in self._early], axis=0)))
        for _ in range(3):
            L, h = self._information0.copy(), np.zeros(len(self._x))
            for W, y in self._early:
                A = W / sigma[:, None]
                L, h = L + A.T @ A, h + A.T @ (y / sigma)
            x = np.linalg.solve(L, h)
            share = max(0.1, 1 - len(x) / (len(y) * len(self._early)))
            self._variance = np.mean([(y - W @ x) ** 2 for W, y in self._early], axis=0) / share
            sigma = np.sqrt(self._variance + self._floor**2)
        self._information, self._x = L, x
        if self._seen == self.options.settling:
            self._early.clear()
        self.estimate()

    @property
    def _floor(self) -> np.ndarray:
        """Deviations that are always there."""
        return self.options.relative * self._size + 1e-12

    def _forgotten(self, A: np.ndarray) -> np.ndarray:
        """The information matrix before the window, less what is forgotten."""
        keep = np.exp(-0.5 * self.options.window / self.options.memory)
        _, s, Vt = np.linalg.svd(A, full_matrices=False)
        Q = Vt[s > 1].T
        if not Q.size:
            return self._information
        LQ = self._information @ Q
        return self._information - (1 - keep) * LQ @ np.linalg.solve(Q.T @ LQ, LQ.T)

    def _watch(self, square: np.ndarray) -> None:
        """The variance of errors beyond the floor, a running mean in which an outlier counts for little. `square` has the mean
        one where deviations are right."""
        whole = self._variance + self._floor**2
        bounded = np.clip(square, 0.0, 9.0) * whole - self._floor**2
        rate = 1.0 / min(self._seen, self.options.averaged)
        self._variance = np.maximum(self._variance + rate * (bounded - self._variance), 0.0)

    def estimate(self, steps: int = 12) -> None:
        """Gauss-Newton (Levenberg's damping) towards the nearest robot that can exist; its covariance."""
        D, B = self._basis
        V = self._information
        target = self._centre + D * (B @ self._x)

        def errors(z: Any) -> tuple[Any, Any]:
            theta, J = self._chart(z)
            return B.T @ ((theta - target) / D), B.T @ (J / D[:, None])

        r, J = errors(self.z)
        for _ in range(steps):
            H, g, cost = J.T @ V @ J, J.T @ (V @ r), r @ V @ r
            damping = 1e-9 * np.trace(H) / len(H) + 1e-12
            for _ in range(8):
                new = self.z - np.clip(np.linalg.solve(H + damping * np.eye(len(H)), g), -1.0, 1.0)
                after, J_after = errors(new)
                gain = cost - after @ V @ after
                if gain >= 0:
                    self.z, r, J = new, after.copy(), J_after.copy()
                    break
                damping = max(100 * damping, 1e-4 * np.trace(H) / len(H))
            if gain < ENOUGH:
                break
        H = J.T @ V @ J
        self.covariance = np.linalg.inv(H + 1e-9 * np.trace(H) / len(H) * np.eye(len(H)))


def _checked_columns(model: Model, columns: Sequence[str]) -> Columns:
    found = Columns.of(model, columns)
    t = model.topology
    absent = [t.q_name(i) for i in range(t.nq) if found.q[i] < 0]
    if absent:
        raise ValueError(
            f"'q.{absent[0]}' is not measured, and momentum needs all coordinates; `fx.adapt.Kalman` can do without."
        )
    return found


def _basis(chart: Any, z: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """D and B: theta never leaves theta_0 + D B x, which is found by looking at theta at random z."""
    rng = np.random.default_rng(0)
    start = chart(z)[0].copy()
    seen = [(chart(z + 0.5 * rng.normal(size=z.shape))[0] - start) / sizes for _ in range(4 * len(start) + 4)]
    _, s, Vt = np.linalg.svd(np.array(seen), full_matrices=False)
    return sizes, Vt[s > LEAST * s[0]].T
