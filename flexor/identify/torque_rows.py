"""From a log to the rows of a linear problem: the robot's equation of motion at instants, or integrated over stretches.

    inverse dynamics    Y(q, qd, qdd) pi + armature qdd           = motors - friction + springs
    momentum            (Y_p pi + armature qd at b, less at a) / (b - a) - mean of Y_s pi
                                                                  = mean of (motors - friction + springs)     from a to b

The second needs no accelerations, which are the noisiest thing in a log; a stretch of 0.1 to 0.5 s takes their place.
"""

import abc
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flexor import dynamics as dyn
from flexor.identify.filters import AbstractFilter
from flexor.identify.log import Log
from flexor.model.model import Model

AT_ONCE = 256  # instants whose regressors are computed together


class Signals(NamedTuple):
    """A log on an even grid of times: coordinates, velocities, accelerations and the motors' inputs."""

    time: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    qdd: np.ndarray
    u: np.ndarray


class Rows(NamedTuple):
    """Left side and right side of the equations: `Y` for pi, `turn` for armatures; velocities, springs and inputs at the
    instants over which the right side is averaged (`k` of them)."""

    time: np.ndarray  # (rows,)
    Y: np.ndarray  # (rows, nv, n)
    turn: np.ndarray  # (rows, nv)
    qd: np.ndarray  # (rows, k, nv)
    passive: np.ndarray  # (rows, k, nv)
    u: np.ndarray  # (rows, k, nu)


class AbstractEquations(eqx.Module):
    """Which form of the equation of motion is fitted."""

    @abc.abstractmethod
    def rows(self, model: Model, signals: Signals) -> Rows:
        """The equations of one log."""


class InverseDynamics(AbstractEquations):
    """At every `every`-th instant, with accelerations from the filtered velocities."""

    every: int = 1

    def rows(self, model: Model, signals: Signals) -> Rows:
        s = Signals(*(x[:: self.every] for x in signals))
        Y, passive = torque_rows(model, s.q, s.qd, s.qdd)
        return Rows(s.time, Y, s.qdd, s.qd[:, None], passive[:, None], s.u[:, None])


class Momentum(AbstractEquations):
    """Over stretches of `window` seconds, one beginning every `stride` seconds; no accelerations."""

    window: float = 0.2
    stride: float = 0.05

    def rows(self, model: Model, signals: Signals) -> Rows:
        step = float(signals.time[1] - signals.time[0])
        k, stride = max(1, round(self.window / step)), max(1, round(self.stride / step))
        first = np.arange(0, len(signals.time) - k, stride)
        if not len(first):
            raise ValueError(
                f"a stretch of {self.window:g} s is longer than the log, {signals.time[-1] - signals.time[0]:.3g} s."
            )
        within = first[:, None] + np.arange(k + 1)
        P, S, passive = momentum_rows(model, signals.q, signals.qd)
        ends, span = (first, first + k), k * step
        Y = (P[ends[1]] - P[ends[0]]) / span - _trapezoid(S, within)
        turn = (signals.qd[ends[1]] - signals.qd[ends[0]]) / span

        # the trapezoid's half weights at both ends: means of neighbours
        def middle(x: np.ndarray) -> np.ndarray:
            return (x[within[:, :-1]] + x[within[:, 1:]]) / 2

        return Rows(signals.time[first] + span / 2, Y, turn, middle(signals.qd), middle(passive), middle(signals.u))


def _trapezoid(x: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Means over the stretches, by the trapezoidal rule from running sums."""
    running = np.concatenate([np.zeros_like(x[:1]), np.cumsum((x[1:] + x[:-1]) / 2, axis=0)])
    return (running[within[:, -1]] - running[within[:, 0]]) / (within.shape[1] - 1)


def torque_rows(model: Model, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray) -> tuple[np.ndarray, ...]:
    """Y and the passive forces at every instant."""
    return _in_blocks(_torque_block, model, q, qd, qdd)


def momentum_rows(model: Model, q: np.ndarray, qd: np.ndarray) -> tuple[np.ndarray, ...]:
    """Y_p, Y_s and the passive forces at every instant."""
    return _in_blocks(_momentum_block, model, q, qd)


def _in_blocks(f: Callable[..., Any], model: Model, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """f over the instants, so many at a time that one program serves logs of all lengths."""
    n = len(arrays[0])
    at = np.minimum(np.arange(-(-n // AT_ONCE) * AT_ONCE), n - 1).reshape(-1, AT_ONCE)
    made = [f(model, *(x[rows] for x in arrays)) for rows in at]
    return tuple(np.concatenate([np.asarray(x) for x in column])[:n] for column in zip(*made, strict=True))


@eqx.filter_jit
@partial(jax.vmap, in_axes=(None, 0, 0, 0))
def _torque_block(model: Model, q: Any, qd: Any, qdd: Any) -> Any:
    kin = dyn.forward_kinematics(model, q)
    return dyn.torque_regressor(model, kin, qd, qdd), dyn.passive_force(model, q, qd, kin)


@eqx.filter_jit
@partial(jax.vmap, in_axes=(None, 0, 0))
def _momentum_block(model: Model, q: Any, qd: Any) -> Any:
    kin = dyn.forward_kinematics(model, q)
    regressors = (f(model, kin, qd) for f in (dyn.momentum_regressor, dyn.momentum_rate_regressor))
    return (*regressors, dyn.passive_force(model, q, qd, kin))


def signals_of(log: Log, model: Model, low_pass: AbstractFilter, rate: float | None) -> Signals:
    """The log on an even grid, filtered, its ends cut off. Velocities that were not measured are slopes of the coordinates, which
    the model must then have in equal number."""
    t = model.topology
    q_columns, v_columns = [f"q.{t.q_name(i)}" for i in range(t.nq)], [f"qd.{t.dof_name(i)}" for i in range(t.nv)]
    lacking = [c for c in q_columns if c not in log.columns]
    if lacking:
        raise ValueError(f"'{log.name}' does not measure '{lacking[0]}', without which there is no inverse dynamics.")
    if not np.isfinite(log.values).all():
        raise ValueError(f"'{log.name}' has missing values; split it there (`Log.split`) to identify from torques.")
    u = _inputs(log, model)
    rate = 1 / float(np.median(np.diff(log.time))) if rate is None else rate
    time = np.arange(log.time[0], log.time[-1], 1 / rate)
    q = _resampled(log.time, log.values[:, [log.columns.index(c) for c in q_columns]], time)
    if all(c in log.columns for c in v_columns):
        qd = _resampled(log.time, log.values[:, [log.columns.index(c) for c in v_columns]], time)
    elif t.nq == t.nv:
        qd = np.gradient(low_pass(q, rate), 1 / rate, axis=0)
    else:
        raise ValueError(f"'{log.name}' does not measure all velocities, and '{t.name}' has ball or free joints.")
    q, qd, u = low_pass(q, rate), low_pass(qd, rate), low_pass(_resampled(log.time, u, time), rate)
    if len(t.joints_of("ball")) or len(t.joints_of("free")):
        q = np.asarray(
            jax.vmap(partial(dyn.integrate, model))(jnp.asarray(q), jnp.zeros((len(q), t.nv)))
        )  # unit quaternions
    qdd = np.gradient(qd, 1 / rate, axis=0)
    cut = max(1, int(np.ceil(low_pass.settling * rate)))
    if len(time) < 2 * cut + 3:
        raise ValueError(f"'{log.name}' lasts {log.time[-1] - log.time[0]:.3g} s, too short for the filter {low_pass}.")
    inner = slice(cut, -cut)
    return Signals(time[inner], q[inner], qd[inner], qdd[inner], u[inner])


def _inputs(log: Log, model: Model) -> np.ndarray:
    if log.controls is None and model.nu:
        raise ValueError(f"'{log.name}' has no controls: the torques or currents of the motors are what is fitted.")
    u = np.zeros((len(log.time), 0)) if log.controls is None else log.controls
    if u.shape[1] != model.nu:
        raise ValueError(f"'{log.name}' has {u.shape[1]} controls; '{model.topology.name}' has {model.nu} actuators.")
    return u if len(u) == len(log.time) else np.concatenate([u, u[-1:]])


def _resampled(time: np.ndarray, x: np.ndarray, at: np.ndarray) -> np.ndarray:
    return np.stack([np.interp(at, time, column) for column in x.T], axis=1) if x.shape[1] else np.zeros((len(at), 0))
