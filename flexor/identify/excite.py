"""`excite`: a motion that makes a robot's inertial parameters visible.

    q_j(t) = c_j + s_j sum_k (a_jk sin(k w t) - b_jk cos(k w t) + b_jk) / (k w)        w = 2 pi / duration

(Swevers et al. 1997), periodic, at rest at its ends: sum_k a_k = 0 and sum_k k b_k = 0 make velocity and acceleration vanish
there. Each joint's motion is shrunk (s_j) until it stays within its limits of position, velocity and acceleration, so that every
point of the search is a motion that the robot can make. Sought is the largest determinant of the information W^T W about the base
parameters (D-optimal, whatever their units), by L-BFGS from several random starts.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor import dynamics as dyn
from flexor.identify.base_parameters import BaseParameters, base_parameters
from flexor.model.model import Model

ROOM = 0.95  # of each limit, which is met on a grid of times


class Excitation(NamedTuple):
    """The motion on an even grid of times, and how well it shows the base parameters: `information` is the logarithm of the
    determinant of W^T W over the number of instants, `condition` the condition number of W with columns of unit length."""

    time: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    qdd: np.ndarray
    base: BaseParameters
    information: float
    condition: float
    first_information: float
    """That of the first random motion within the limits."""


def excite(
    model: Model, *, duration: float = 10.0, harmonics: int = 5, velocity: float | np.ndarray = 1.5,
    acceleration: float | np.ndarray = 6.0, reach: float = np.pi, rate: float = 100.0, instants: int = 100, starts: int = 3,
    iterations: int = 60, seed: int = 0,
) -> Excitation:  # fmt: skip
    """A motion of `duration` seconds for the robot's hinges and slides.

    `velocity` and `acceleration` are limits for all joints or for each; positions stay within the joints' ranges, or within
    `reach` of the reference where there are none. `instants` points of the motion count in the search. Contacts are not checked.
    """
    t = model.topology
    if len(t.joints_of("ball")) or len(t.joints_of("free")):
        raise ValueError(
            f"'{t.name}' has ball or free joints, whose motion cannot be prescribed: `excite` needs hinges and slides."
        )
    if not model.nv:
        raise ValueError(f"'{t.name}' has no joints to move.")
    from scipy.optimize import minimize

    with jax.enable_x64(True):
        model = model.astype(np.float64)
        base = base_parameters(model)
        motion = _motion(model, duration, harmonics, velocity, acceleration, reach)
        times = jnp.linspace(0, duration, instants, endpoint=False)

        @jax.jit
        def loss(x: Array) -> Array:
            return -_information(model, base, *motion(x, times))

        slope = jax.jit(lambda x: (loss(x), jax.jacfwd(loss)(x)))  # forwards: a much smaller program than backwards
        rng, size = np.random.default_rng(seed), 2 * harmonics * model.nv + model.nv
        points = [rng.normal(size=size) for _ in range(starts)]

        def search(x: np.ndarray) -> Any:
            return minimize(lambda x: tuple(np.asarray(v, float) for v in slope(x)), x, jac=True, method="L-BFGS-B",
                            options={"maxiter": iterations})  # fmt: skip

        best = min((search(x) for x in points), key=lambda found: float(found.fun))
        fine = np.arange(0, duration + 0.5 / rate, 1 / rate)
        q, qd, qdd = (np.asarray(x) for x in jax.jit(motion)(best.x, fine))
        W = np.asarray(_regressor(model, base, *motion(best.x, times))).reshape(-1, len(base.names))
        condition = float(np.linalg.cond(W / np.linalg.norm(W, axis=0)))
        return Excitation(fine, q, qd, qdd, base, -float(best.fun), condition, -float(loss(points[0])))


def _motion(
    model: Model, duration: float, harmonics: int, velocity: Any, acceleration: Any, reach: float
) -> Callable[[Array, Array], tuple[Array, Array, Array]]:
    """Coordinates, velocities and accelerations as a function of the coefficients and of times."""
    n, w = model.nv, 2 * np.pi / duration
    limited = np.array([j.limited for j in model.topology.joints])[:, None]
    about = np.asarray(model.reference)[:, None] + reach * np.array([-1.0, 1.0])
    low, high = np.where(limited, np.asarray(model.joints.range, float), about).T
    k = np.arange(1.0, harmonics + 1)
    dense = jnp.linspace(0, duration, 40 * harmonics)
    most = tuple(np.broadcast_to(np.asarray(x, float), (n,)) for x in (velocity, acceleration))

    def raw(a: Array, b: Array, t: Array) -> tuple[Array, Array, Array]:
        phase = t[:, None] * (w * k)[None]
        s, c = jnp.sin(phase), jnp.cos(phase)
        rate = 1 / (w * k)
        return (
            s @ (a * rate[None]).T + (1 - c) @ (b * rate[None]).T,
            c @ a.T + s @ b.T,
            c @ (b / rate[None]).T - s @ (a / rate[None]).T,
        )

    def motion(x: Array, t: Array) -> tuple[Array, Array, Array]:
        a, b, place = x[: n * harmonics].reshape(n, -1), x[n * harmonics : -n].reshape(n, -1), x[-n:]
        a = a - a.mean(1, keepdims=True)
        b = b - k[None] * (b @ k)[:, None] / (k @ k)
        q, qd, qdd = raw(a, b, dense)
        span = q.max(0) - q.min(0)
        size = jnp.maximum(span / (high - low), jnp.maximum(jnp.abs(qd).max(0) / most[0], jnp.abs(qdd).max(0) / most[1]))
        s = ROOM / size
        free = (high - low) - s * span
        shift = low + free * jax.nn.sigmoid(place) - s * q.min(0)
        q, qd, qdd = raw(a, b, t)
        return shift[None] + s[None] * q, s[None] * qd, s[None] * qdd

    return motion


def _regressor(
    model: Model, base: BaseParameters, q: Float[Array, "t nv"], qd: Float[Array, "t nv"], qdd: Float[Array, "t nv"]
) -> Float[Array, "t nv nb"]:
    """The independent columns at every instant."""

    def one(q: Array, qd: Array, qdd: Array) -> Array:
        Y = dyn.torque_regressor(model, dyn.forward_kinematics(model, q), qd, qdd)
        return jnp.concatenate([Y, jnp.diag(qdd)], axis=1)[:, base.independent]

    return jax.vmap(one)(q, qd, qdd)


def _information(model: Model, base: BaseParameters, q: Array, qd: Array, qdd: Array) -> Float[Array, ""]:
    W = partial(_regressor, model, base)(q, qd, qdd).reshape(-1, len(base.names))
    return jnp.linalg.slogdet(W.T @ W / len(q))[1]
