"""Controllers that adapt by themselves: Slotine & Li's, and computed torque with a model learnt by least squares on the way.

Both know the equation of motion as Y(q, qd, qdd) theta, theta the numbers of `flexor.adapt.linear.Free`, and carry theta in their
memory, so that they are policies of a rollout, and kernels.

    SlotineLi (1987)    s = (qd_d - qd) + lam e,  qd_r = qd_d + lam e
                        tau = Y(q, qd, qd_r, qdd_r) theta + kd s,      theta' = rate Y^T s

with C(q, qd) qd_r for Christoffel's C, which is bilinear: C(q, a) b = (C(q, a+b)(a+b) - C(q, a-b)(a-b)) / 4. It tracks whatever
theta becomes, and theta need not be physical.

    LeastSquaresTorque  computed torque with theta from the filtered momentum equation (Slotine & Li 1989; De Luca & Mattone 2003)
                        cut (P - P_f) theta - S_f theta = f_f - cut (p0 - p0_f),     x_f' = cut (x - x_f)

(in steps of dt, (exp(cut dt) - 1) / dt in the place of cut is the derivative that the filter of S has)
by recursive least squares that forgets exponentially, towards a guess.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, PRNGKeyArray

from flexor import dynamics as dyn
from flexor.adapt.linear import Free, is_linear, theta_into, window_terms, without
from flexor.control.tracking import AbstractTracking, Goal, inverse
from flexor.identify.torque_problem import blank_passive
from flexor.model.model import Control, Model, State
from flexor.spatial import take


def free_of(model: Model, names: list[str]) -> Free:
    """The numbers that a controller adapts, from names of parameters; those of a body come together."""
    for name in names:
        if not is_linear(name) or name.startswith("actuator."):
            raise ValueError(f"'{name}' is no inertia or friction, which is what adaptive controllers learn.")
    return Free.of(model, names)


class SlotineLi(AbstractTracking):
    """Slotine & Li's controller: see the head of this file. `lam` in 1/s, `kd` in N m s/rad, `rate` of every number of theta."""

    model: Model
    goal: Goal
    free: Free = eqx.field(static=True)
    dt: float = eqx.field(static=True)
    kd: Float[Array, " nv"]
    rate: Float[Array, " p"]
    lam: float = 10.0
    creep: float = 0.02

    def init(self, key: PRNGKeyArray | None) -> Float[Array, " p"]:
        return jnp.asarray(self.free.theta(self.model), self.model.dtype)

    def __call__(self, state: State, memory: Array, key: PRNGKeyArray | None) -> tuple[Control, Array]:
        q, qd, qdd = self.goal(state.time)
        e, de = q - state.q, qd - state.qd
        s, qd_r, qdd_r = de + self.lam * e, qd + self.lam * e, qdd + self.lam * de
        Y, known = self.regressor(state.q, state.qd, qd_r, qdd_r, qd)
        tau = Y @ memory + known + self.kd * s
        return Control(u=self.inputs(tau)), memory + self.dt * self.rate * (s @ Y)

    def regressor(self, q: Array, qd: Array, qd_r: Array, qdd_r: Array, along: Array) -> tuple[Array, Array]:
        """Y, and what does not depend on theta; dry friction opposes the velocity `along`."""
        model, free = self.model, self.free
        fixed, kin, still = without(model, free), dyn.forward_kinematics(model, q), jnp.zeros_like(qd)
        own, joint = free.columns_of_bodies(), model.topology.dof_joint

        def bilinear(f):  # type: ignore[no-untyped-def]
            return f(still, qdd_r) + 0.25 * (f(qd + qd_r, still) - f(qd - qd_r, still))

        Y = bilinear(lambda v, a: dyn.torque_regressor(model, kin, v, a)[:, own])
        known = bilinear(lambda v, a: dyn.rnea(fixed, kin, v, a)) - dyn.passive_force(blank_passive(model), q, qd, kin)
        dry = jnp.tanh(along / self.creep)
        known = known + take(fixed.joints.damping, joint) * qd_r + take(fixed.joints.frictionloss, joint) * dry
        parts = [free.spread(model, rows, x) for rows, x in zip(free[1:4], (qdd_r, qd_r, dry), strict=True)]
        return jnp.concatenate([Y, *parts], axis=1), known


class Learnt(NamedTuple):
    """Memory of `LeastSquaresTorque`: theta, filtered P, S, p0 and f0, the sums of least squares, and the
    last instant. `begun` counts instants up to two: an interval lies between two."""

    theta: Float[Array, " p"]
    P: Float[Array, "nv p"]
    S: Float[Array, "nv p"]
    p0: Float[Array, " nv"]
    f0: Float[Array, " nv"]
    information: Float[Array, "p p"]
    moment: Float[Array, " p"]
    u: Float[Array, " nu"]
    q: Float[Array, " nq"]
    qd: Float[Array, " nv"]
    begun: Float[Array, ""]


class LeastSquaresTorque(AbstractTracking):
    """Computed torque whose theta is learnt on the way: see the head of this file. `size` are deviations of theta around its
    start, `noise` those of the filtered torques in N m; `memory` in s after which what was learnt
    counts e times less; `cut` in 1/s."""

    model: Model
    goal: Goal
    free: Free = eqx.field(static=True)
    dt: float = eqx.field(static=True)
    size: Float[Array, " p"]
    noise: Float[Array, " nv"] | float = 0.1
    memory: float = 0.3
    cut: float = 30.0
    kp: float = 400.0
    kd: float = 40.0
    creep: float = 0.02

    def init(self, key: PRNGKeyArray | None) -> Learnt:
        n, p, dtype = self.model.nv, self.free.size, self.model.dtype
        theta = jnp.asarray(self.free.theta(self.model), dtype)
        wide, narrow, sums = jnp.zeros((n, p), dtype), jnp.zeros(n, dtype), jnp.zeros((p, p), dtype)
        zero = jnp.zeros((), dtype)
        return Learnt(
            theta,
            wide,
            wide,
            narrow,
            narrow,
            sums,
            jnp.zeros(p, dtype),
            jnp.zeros(self.model.nu, dtype),
            narrow,
            narrow,
            zero,
        )

    def __call__(self, state: State, memory: Learnt, key: PRNGKeyArray | None) -> tuple[Control, Learnt]:
        m = self._learnt(state, memory)
        robot = theta_into(self.model, self.free, m.theta)
        q, qd, qdd = self.goal(state.time)
        wanted = qdd + self.kp * (q - state.q) + self.kd * (qd - state.qd)
        u = self.inputs(inverse(robot, state.q, state.qd, wanted, qd, self.creep))
        return Control(u=u), m._replace(u=u, q=state.q, qd=state.qd, begun=jnp.minimum(m.begun + 1, 2.0))

    def _learnt(self, state: State, m: Learnt) -> Learnt:
        """One step of the filters, over the time since the last instant, and of least squares."""
        a, rate = 1 - np.exp(-self.cut * self.dt), (np.exp(self.cut * self.dt) - 1) / self.dt
        middle, velocity = 0.5 * (m.q + state.q), 0.5 * (m.qd + state.qd)
        now, old = window_terms(self.model, self.free, self.creep, middle, velocity, m.u), (m.P, m.S, m.p0, m.f0)
        going = m.begun > 1  # both sides of the equation begin at zero, with the first interval
        new = [x + jnp.where(going, a, k) * (y - x) for k, x, y in zip((1.0, 0.0, 1.0, 0.0), old, now, strict=True)]
        A = rate * (now[0] - new[0]) - new[1]
        b = new[3] - rate * (now[2] - new[2])
        scaled = A * self.size[None] / jnp.broadcast_to(jnp.asarray(self.noise, A.dtype), b.shape)[:, None]
        rest = (b - A @ self.free.theta(self.model)) / self.noise
        keep = np.exp(-self.dt / self.memory)
        share = jnp.where(going, self.dt * self.cut, 0.0)  # filtered torques hang together for 1 / cut
        L, h = keep * m.information + share * (scaled.T @ scaled), keep * m.moment + share * (scaled.T @ rest)
        x = cho_solve((jnp.linalg.cholesky(L + jnp.eye(len(h), dtype=L.dtype)), True), h)
        return m._replace(
            theta=self.free.theta(self.model) + self.size * x,
            P=new[0],
            S=new[1],
            p0=new[2],
            f0=new[3],
            information=L,
            moment=h,
        )
