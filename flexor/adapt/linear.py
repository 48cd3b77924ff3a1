"""The equation of motion, linear in what is unknown, over windows of time and without accelerations.

With theta the ten numbers of every free body (`flexor.dynamics.regressor`), and of joints and motors the free ones among
armature, damping, dry friction and gain, generalised momentum p = P theta + p0 changes by

    dp/dt = S theta + f0           S = [Y_s, 0, -qd, -tanh(qd / creep), gear u]

A window of weights w that vanish at both ends takes the derivative from the measurements to the weights (modulating functions,
Shinbrot 1957; integration by parts):

    -int w' (P theta + p0) dt = int w (S theta + f0) dt      so      W theta = y
    W = -int (w' P + w S) dt                                        y = int (w f0 + w' p0) dt

P is linear in velocity, and velocity times dt is a difference of encoders: neither needs to be differentiated, and the time of a
sample enters through w alone.
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor import dynamics as dyn
from flexor.adapt.estimator import Program
from flexor.dynamics.regressor import PER_BODY
from flexor.identify.torque import motors_of
from flexor.identify.torque_problem import blank_passive
from flexor.model.charts import Coordinates
from flexor.model.model import Model
from flexor.spatial import take

INERTIAL = ("mass", "com", "inertia")
OF_JOINTS = ("armature", "damping", "frictionloss")
FIELDS = (*INERTIAL, *OF_JOINTS, "gain")


class Free(NamedTuple):
    """Rows of the bodies, joints and actuators with a free parameter: the parts of theta in their order."""

    bodies: tuple[int, ...]
    armature: tuple[int, ...]
    damping: tuple[int, ...]
    frictionloss: tuple[int, ...]
    gain: tuple[int, ...]

    @staticmethod
    def of(model: Model, names: Any) -> "Free":
        """Sorts names of parameters."""
        rows: dict[str, set[int]] = {"bodies": set(), **{f: set() for f in (*OF_JOINTS, "gain")}}
        for name in names:
            group, rest = name.split("[")[0].split(".", 1)
            owner, field = rest.rsplit(".", 1)
            if group == "body":
                rows["bodies"].add(model.body(owner))
            elif group == "joint":
                rows[field].add(model.joint(owner))
            else:
                rows["gain"].add(model.actuator(owner))
        return Free(*(tuple(sorted(rows[f])) for f in Free._fields))

    @property
    def size(self) -> int:
        return PER_BODY * len(self.bodies) + sum(map(len, self[1:]))

    def columns_of_bodies(self) -> np.ndarray:
        """Places in pi."""
        return np.array([PER_BODY * (b - 1) + k for b in self.bodies for k in range(PER_BODY)], int)

    def theta(self, model: Model) -> Float[Array, " p"]:
        """The numbers themselves."""
        j = model.joints
        parts = [dyn.inertial_parameters(model)[self.columns_of_bodies()]]
        parts += [take(getattr(j, f), np.array(rows, int)) for f, rows in zip(OF_JOINTS, self[1:4], strict=True)]
        return jnp.concatenate([*parts, take(model.actuators.gain, np.array(self.gain, int))])

    def spread(self, model: Model, joints: tuple[int, ...], x: Array) -> Float[Array, "nv n"]:
        """A column for each joint, with x in its own degrees of freedom."""
        own = np.array([[j == k for k in joints] for j in model.topology.dof_joint], bool).reshape(model.nv, len(joints))
        return jnp.where(own, x[:, None], 0.0)

    def sizes(self, model: Model, mass: float, reach: float) -> np.ndarray:
        """Deviations of theta under a vague guess: `mass` in kg for every body, about `reach` in m around its origin; joints
        and gains as large as they are, or 0.1."""
        body = mass * np.array([1.0, *[reach] * 3, *[reach**2] * 6])
        fields = [(getattr(model.joints, f), rows) for f, rows in zip(OF_JOINTS, self[1:4], strict=True)]
        fields.append((model.actuators.gain, self.gain))
        others = [np.maximum(np.abs(np.asarray(x)[list(rows)]), 0.1) for x, rows in fields if rows]
        return np.concatenate([np.tile(body, len(self.bodies)), *others])


class Interval(NamedTuple):
    """Two instants next to each other, the motors' inputs between them, the time between, and whether qd was measured (1) or is
    the slope of q (0)."""

    q0: Any
    q1: Any
    qd0: Any
    qd1: Any
    u: Any
    step: Any
    measured: Any


def window_terms(
    model: Model, free: Free, creep: float, q: Float[Array, " nq"], qd: Float[Array, " nv"], u: Float[Array, " nu"]
) -> tuple[Array, Array, Array, Array]:
    """P, S, p0 and f0 at an instant: see the head of this file."""
    fixed, kin = without(model, free), dyn.forward_kinematics(model, q)
    Yp, Ys = dyn.momentum_regressor(model, kin, qd), dyn.momentum_rate_regressor(model, kin, qd)
    push, dry = pushes(model, u), jnp.tanh(qd / creep)
    pi0, joints, joint = dyn.inertial_parameters(fixed), fixed.joints, model.topology.dof_joint
    p0 = Yp @ pi0 + take(joints.armature, joint) * qd
    f0 = Ys @ pi0 - take(joints.damping, joint) * qd - take(joints.frictionloss, joint) * dry
    f0 = f0 + dyn.passive_force(blank_passive(model), q, qd, kin)
    if model.nu:
        f0 = f0 + push @ fixed.actuators.gain
    own = free.columns_of_bodies()
    P = [Yp[:, own], free.spread(model, free.armature, qd)]
    S = [Ys[:, own], jnp.zeros((model.nv, len(free.armature)), qd.dtype)]
    for rows, x in ((free.damping, qd), (free.frictionloss, dry)):
        P.append(jnp.zeros((model.nv, len(rows)), qd.dtype))
        S.append(free.spread(model, rows, -x))
    P.append(jnp.zeros((model.nv, len(free.gain)), qd.dtype))
    S.append(push[:, np.array(free.gain, int)])
    return jnp.concatenate(P, axis=1), jnp.concatenate(S, axis=1), p0, f0


def window_program(model: Model, free: Free, creep: float, windows: int = 2) -> Program:
    """Adds an interval to the sums W and y of some windows: `program(W, y, area, rise, *interval)`, with int w dt and int w' dt
    of each window over the interval. The new W and y are its outputs."""

    def add(W: Array, y: Array, area: Array, rise: Array, *interval: Array) -> tuple[Array, Array]:
        i = Interval(*interval)
        move = dyn.difference(model, i.q0, i.q1)
        q = dyn.integrate(model, i.q0, 0.5 * move)
        qd = i.measured * 0.5 * (i.qd0 + i.qd1) + (1 - i.measured) * move / i.step
        P, S, p0, f0 = window_terms(model, free, creep, q, qd, i.u)
        a, b = rise[:, None, None], area[:, None, None]
        new = W - a * P[None] - b * S[None]
        return new, y + b[..., 0] * f0[None] + a[..., 0] * p0[None]

    motors_of(model)  # or a sentence
    nv, one = model.nv, np.zeros(())
    zeros = [np.zeros((windows, nv, free.size)), np.zeros((windows, nv)), np.zeros(windows), np.zeros(windows)]
    interval = [*(np.zeros(n) for n in (model.nq, model.nq, nv, nv, model.nu)), one, one]
    return Program(add, *zeros, *interval)


def theta_into(model: Model, free: Free, theta: Float[Array, " p"]) -> Model:
    """The model with theta in its place; gains stay."""
    n = PER_BODY * len(free.bodies)
    pi = dyn.inertial_parameters(model).at[free.columns_of_bodies()].set(theta[:n])
    made = dyn.with_inertial_parameters(model, pi)
    for f, rows in zip(OF_JOINTS, free[1:4], strict=True):
        old = getattr(model.joints, f)
        made = eqx.tree_at(partial(_of_joints, field=f), made, old.at[np.array(rows, int)].set(theta[n : n + len(rows)]))
        n += len(rows)
    return made


def without(model: Model, free: Free) -> Model:
    """The model with zeros in the place of theta, gains included."""
    made = theta_into(model, free, jnp.zeros(free.size, model.dtype))
    return eqx.tree_at(lambda m: m.actuators.gain, made, made.actuators.gain.at[np.array(free.gain, int)].set(0.0))


def motor_of_dof(model: Model) -> np.ndarray:
    """The motor of each degree of freedom, -1 where there is none. `motors_of` checks that they are motors."""
    t = model.topology
    found = np.full(model.nv, -1)
    found[[int(t.v_start[a.joint]) for a in t.actuators]] = np.arange(model.nu)
    return found


def _of_joints(model: Model, field: str) -> Array:
    return getattr(model.joints, field)  # type: ignore[no-any-return]


def pushes(model: Model, u: Array) -> Float[Array, "nv nu"]:
    """Generalised forces of inputs u for a gain of one, a column for each motor; inputs are bounded first."""
    bounds = model.actuators.ctrl_range
    pushed = model.actuators.gear * jnp.clip(u, bounds[:, 0], bounds[:, 1])
    motors = motor_of_dof(model)
    at = np.array([[m == a for a in range(model.nu)] for m in motors], bool).reshape(model.nv, model.nu)
    return jnp.where(at, pushed[None, :], 0.0)


def chart_program(model: Model, place: Coordinates, free: Free) -> Program:
    """theta at z, and its derivative by z."""

    def both(z: Array) -> tuple[Array, Array]:
        def theta(z: Array) -> Array:
            return free.theta(place.apply(model, z)[0])

        return theta(z), jax.jacfwd(theta)(z)

    return Program(both, place.start)
