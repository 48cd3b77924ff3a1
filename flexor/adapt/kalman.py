"""`Kalman`: an iterated extended Kalman filter of state and parameters, through the simulator's own derivatives.

The state is a displacement of coordinates in the tangent space, velocities, and the charts' numbers z, which wander slowly:

    x+ = step(x, z, u) + w        z+ = z + v        y = readings of x + e

One kernel gives the step and its derivatives, a direction in each SIMD lane. Readings are linear in x, so what is iterated is the
prediction: it is linearised again where the update says that the state before the step was (Bell & Cathey 1993, over one step).
Parameters need not act linearly, and readings may lack anything.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flexor import dynamics as dyn
from flexor.adapt.estimator import AbstractEstimator, AbstractRunning, Columns, Innovation, Program
from flexor.adapt.stream import Sample
from flexor.model.charts import Coordinates
from flexor.model.model import Control, Model, as_control
from flexor.solvers import Simulator
from flexor.solvers.solver import class_name

UNSEEN = 1.0  # deviation of coordinates and velocities that were never measured, rad, m, per second


class Kalman(AbstractEstimator):
    """Iterated extended Kalman filter. Any parameter, any solver that can be differentiated, any readings.

    Attributes:
        disturbance: what accelerations the model misses, as a random walk of velocities: rad/s (m/s) after a second.
        wander: random walk of z after a second; one unit of z is about 100 %.
        iterations: linearisations of a step; 1 is the extended Kalman filter.
        jitter: deviation of a sample's time from its stamp, in s: the motion in that time is noise.
        spread: deviation of z at the start and after a change.
    """

    disturbance: float = 0.05
    wander: float = 1e-3
    iterations: int = 2
    jitter: float = 0.0
    spread: float = 1.0

    def estimable(self, model: Model, name: str) -> bool:
        return True

    def start(
        self, sim: Simulator, place: Coordinates, columns: Sequence[str], noise: np.ndarray, prior: np.ndarray | None
    ) -> "RunningKalman":
        return RunningKalman(self, sim, place, columns, noise, prior)


class Stepped:
    """A step of the simulator and its derivatives by displacement, velocity and z, over NumPy arrays. The time of a step is an
    argument: samples do not come evenly."""

    def __init__(self, sim: Simulator, place: Coordinates):
        if not sim.solver.differentiable:
            raise ValueError(f"{class_name(sim.solver)} cannot be differentiated, so fx.adapt.Kalman cannot use it.")
        sim = sim.simplified()
        model, nv = sim.model, sim.model.nv
        start = jax.eval_shape(sim.reset)
        self.leaves, self.tree = jax.tree.flatten(start)
        n = 2 * nv + place.size

        def column(leaves: Any, u: Any, dt: Any, z: Any, direction: Any) -> Any:
            state = jax.tree.unflatten(self.tree, leaves)

            def after(x: Any) -> Any:
                robot, _ = place.apply(model, z + x[2 * nv :])
                moved = replace(state, q=dyn.integrate(model, state.q, x[:nv]), qd=state.qd + x[nv : 2 * nv])
                new = sim.solver.step(robot, moved, as_control(robot, Control(u=u)), dt)
                return dyn.difference(model, jax.lax.stop_gradient(new.q), new.q), new.qd, new

            (_, _, new), (dq, dqd, _) = jax.jvp(after, (jnp.zeros(n),), (direction,))
            return jax.tree.leaves(new), jnp.concatenate([dq, dqd])

        flat, others = len(self.leaves), (np.zeros(model.nu), np.zeros(()), place.start, np.zeros(n))

        def program(*args: Any) -> Any:
            return column(list(args[:flat]), *args[flat:])

        self._program = Program(program, *(np.zeros(x.shape) for x in self.leaves), *others, size=n, lanes=(flat + 3,))
        self._directions = np.eye(n)
        self._dt, self.nv, self.flat = float(sim.dt), nv, flat

    def __call__(self, leaves: Any, u: np.ndarray, time: float, z: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Leaves of the state after `time`, in as many steps as the simulator's own step asks for, and d(x+)/d(x, z)."""
        count = max(1, int(np.ceil(time / self._dt - 1e-3)))
        F = self._directions
        for _ in range(count):
            out = self._program(*leaves, u, time / count, z, self._directions)
            leaves = [x[0].copy() for x in out[: self.flat]]
            J = out[self.flat].T
            F = np.concatenate([J @ F, self._directions[2 * self.nv :]])
        return leaves, F


class RunningKalman(AbstractRunning):
    """See the head of this file."""

    def __init__(
        self, options: Kalman, sim: Simulator, place: Coordinates, columns: Sequence[str], noise: np.ndarray,
        prior: np.ndarray | None,
    ):  # fmt: skip
        if options.iterations < 1:
            raise ValueError(f"`iterations` must be at least 1, got {options.iterations}.")
        self.options, self.step = options, Stepped(sim, place)
        self.readings = Readings(sim.model, columns, noise)
        self.predicted = self.readings.names
        t = jax.tree.unflatten(self.step.tree, list(range(self.step.flat)))
        self._iq, self._iqd = t.q, t.qd
        self._start = [np.array(x) for x in jax.tree.leaves(sim.reset())]
        self._leaves = [x.copy() for x in self._start]
        self.nv, self.z, self._first_z = sim.model.nv, place.start.copy(), place.start.copy()
        self._prior = np.full(place.size, options.spread) if prior is None else options.spread * prior
        n = 2 * self.nv + place.size
        self.P = np.zeros((n, n))
        self._integrate = Program(lambda q, d: dyn.integrate(sim.model, q, d), np.zeros(sim.model.nq), np.zeros(self.nv))
        self.forget()

    @property
    def covariance(self) -> np.ndarray:  # type: ignore[override]
        return self.P[2 * self.nv :, 2 * self.nv :]

    @property
    def q(self) -> np.ndarray:
        """Coordinates as they are believed to be."""
        return self._leaves[self._iq]

    @property
    def qd(self) -> np.ndarray:
        """Velocities as they are believed to be."""
        return self._leaves[self._iqd]

    def forget(self) -> None:
        m = 2 * self.nv
        self.P[m:] = 0.0
        self.P[:, m:] = 0.0
        self.P[m:, m:] = np.diag(self._prior**2)

    def take(self, sample: Sample) -> Innovation | None:
        F = None
        if sample.new:
            self._begin()
            leaves = [x.copy() for x in self._leaves]
        else:
            leaves, F = self.step(self._leaves, sample.before, sample.step, self.z)
        try:
            found = self._updated(sample.y, leaves, F, sample)
            if np.isfinite(self.P).all() and np.isfinite(self.z).all():
                return found
        except np.linalg.LinAlgError:
            pass
        self.restarts += 1  # the numbers broke down: everything begins anew
        self.z = self._first_z.copy()
        self._begin()
        self.forget()
        return None

    def _begin(self) -> None:
        """Nothing is known of the state, but what was learnt of z stays."""
        m = 2 * self.nv
        self._leaves = [x.copy() for x in self._start]
        self.P[:m] = 0.0
        self.P[:, :m] = 0.0
        self.P[:m, :m] = UNSEEN**2 * np.eye(m)

    def _process(self, step: float, leaves: Any) -> np.ndarray:
        """Covariance of what happens in a step beyond the model, which leads to `leaves`."""
        nv = self.nv
        a, w = self.options.disturbance**2 * step, self.options.wander**2 * step
        Q = np.diag(np.concatenate([np.full(nv, a * step**2 / 3), np.full(nv, a), np.full(len(self.z), w)]))
        i = np.arange(nv)
        Q[i, nv + i] = Q[nv + i, i] = a * step / 2
        if self.options.jitter:
            rate = np.concatenate([leaves[self._iqd], (leaves[self._iqd] - self._leaves[self._iqd]) / step])
            Q[: 2 * nv, : 2 * nv] += self.options.jitter**2 * np.outer(rate, rate)
        return Q

    def _updated(self, y: np.ndarray, leaves: Any, F: np.ndarray | None, sample: Sample) -> Innovation | None:
        """Prediction and update; `F` is None where there is nothing to predict from."""
        n = len(self.P)
        shift, P0, first = np.zeros(n), self.P, self._leaves  # where the prediction is linearised, from the estimate before
        z0, found = self.z.copy(), None
        for k in range(self.options.iterations if F is not None else 1):
            if k:
                moved = [x.copy() for x in first]
                moved[self._iq] = self._integrate(first[self._iq], shift[: self.nv])[0].copy()
                moved[self._iqd] = first[self._iqd] + shift[self.nv : 2 * self.nv]
                leaves, F = self.step(moved, sample.before, sample.step, z0 + shift[2 * self.nv :])
            P = P0 if F is None else F @ P0 @ F.T + self._process(sample.step, leaves)
            mean = np.zeros(n) if F is None else -F @ shift  # displacement from `leaves` (and from z at the linearisation)
            e, R, H = self.readings(leaves[self._iq], leaves[self._iqd], y)
            e = e - mean[H]
            S = P[np.ix_(H, H)] + np.diag(R)
            whole = np.linalg.inv(S)
            change = mean + P[:, H] @ (whole @ e)
            if F is not None and k + 1 < self.options.iterations:
                shift = P0 @ F.T[:, H] @ (whole @ e)
            found = (e, S) if k == 0 else found
        self._leaves = leaves
        self._leaves[self._iq] = self._integrate(leaves[self._iq], change[: self.nv])[0].copy()
        self._leaves[self._iqd] = leaves[self._iqd] + change[self.nv : 2 * self.nv]
        self.z = z0 + shift[2 * self.nv :] + change[2 * self.nv :]
        K = P[:, H] @ whole
        P = P - K @ P[H]
        self.P = 0.5 * (P + P.T)
        return self._innovation(found, H)

    def _innovation(self, found: Any, H: np.ndarray) -> Innovation | None:
        e, S = found
        if not len(H):
            return None
        places = self.readings.places(H)
        out = [np.full(len(self.predicted), np.nan) for _ in range(3)]
        for x, values in zip(out, (e, np.sqrt(np.diag(S)), np.linalg.solve(np.linalg.cholesky(S), e)), strict=True):
            x[places] = values
        return Innovation(*out)


class Readings:
    """What is measured, in the tangent space: every column of a hinge or slide is a degree of freedom, a quaternion is three and
    must be whole."""

    def __init__(self, model: Model, columns: Sequence[str], noise: np.ndarray):
        t, self._columns = model.topology, Columns.of(model, columns)
        self._coordinates: list[np.ndarray] = []
        for joint, q0 in zip(t.joints, t.q_start, strict=True):
            free = joint.kind == "free"
            if free:
                self._coordinates += [np.array([q0 + k]) for k in range(3)]
            if free or joint.kind == "ball":
                first = q0 + 3 * free
                self._coordinates += [np.arange(first, first + 4)] * 3
            else:
                self._coordinates.append(np.array([q0]))
        self.nv, self._columns_q = model.nv, [self._columns.q[c] for c in self._coordinates]
        q_dofs = [i for i, c in enumerate(self._columns_q) if np.all(c >= 0)]
        v_dofs = [i for i in range(model.nv) if self._columns.qd[i] >= 0]
        if not q_dofs and not v_dofs:
            raise ValueError("nothing is measured: `columns` must name coordinates or velocities of the robot.")
        self._rows = np.array([*q_dofs, *(model.nv + i for i in v_dofs)], int)
        self.names = (*(f"q.{t.dof_name(i)}" for i in q_dofs), *(f"qd.{t.dof_name(i)}" for i in v_dofs))
        of_q = [float(np.mean(noise[self._columns_q[i]])) * (2.0 if len(self._columns_q[i]) > 1 else 1.0) for i in q_dofs]
        self._variance = np.array([*of_q, *noise[self._columns.qd[v_dofs]]]) ** 2
        self._difference = Program(lambda a, b: dyn.difference(model, a, b), np.zeros(model.nq), np.zeros(model.nq))
        self._measured_q = self._columns.q >= 0

    def __call__(self, q: np.ndarray, qd: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Measured less predicted, variances, and the numbers of x that they are of; without what is not a number."""
        seen = np.where(self._measured_q, y[self._columns.q], np.nan)
        whole = np.where(np.isfinite(seen), seen, q)
        dq = self._difference(q, whole)[0].copy()
        for i, c in enumerate(self._coordinates):
            if not np.isfinite(seen[c]).all():
                dq[i] = np.nan
        dv = np.where(self._columns.qd >= 0, y[self._columns.qd], np.nan) - qd
        e = np.concatenate([dq, dv])[self._rows]
        good = np.isfinite(e)
        return e[good], self._variance[good], self._rows[good]

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Where numbers of x stand among the names."""
        return np.searchsorted(self._rows, rows)
