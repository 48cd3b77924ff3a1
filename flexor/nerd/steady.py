"""States at the steady instants of a recording, for recordings whose velocities cannot be trusted.

Recorded velocities are mostly differences of positions: noisy, and smeared where an impact lies within the difference. Where the
coordinates of 2 n + 1 instants lie on a parabola in time,

    difference(q_t, q_k) = c0 + c1 tau + c2 tau^2 / 2,    tau = dt (k - t),

no impact was near, and its coefficients give the state: q_t moved by c0, and qd = c1. The instants are those around t, or, before
an impact and after one, those up to t or from t on. Coordinates may lie `SPREAD` times as far off the parabola as they do in the
median over all recordings.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.contact import detect
from flexor.dynamics import forward_kinematics, integrate
from flexor.model.model import Model
from flexor.nerd.frames import Frames, dof_kinds

SPREAD = 3.0


class SteadyStates(NamedTuple):
    """Steady instants of one recording, and the states there."""

    at: np.ndarray
    q: np.ndarray
    qd: np.ndarray


def steady_states(frames: Frames, model: Model, recordings: Sequence[np.ndarray], n: int) -> list[SteadyStates]:
    """The steady instants of recordings of coordinates, (time, nq) each, by parabolas over 2 n + 1 instants."""
    longest = max(map(len, recordings))
    fits = []
    for q in recordings:
        whole = np.concatenate([q, np.repeat(q[-1:], longest - len(q), axis=0)])  # one compilation
        parts = [np.array(z)[:, : len(q)] for z in _parabolas(frames, model, jnp.asarray(whole, model.dtype), n)]
        inside = np.arange(len(q)) + _shifts(n)[:, None]
        parts[2][(inside < 0) | (inside + 2 * n >= len(q))] = np.inf
        fits.append(parts)
    around = np.concatenate([off[0] for _, _, off in fits])
    usual = np.median(around[np.isfinite(around[:, 0])], axis=0) if np.isfinite(around).any() else np.zeros(around.shape[1])
    found = []
    for q, qd, off in fits:
        fine = np.all(off <= SPREAD * usual, axis=-1)
        at = np.flatnonzero(fine.any(axis=0))
        which = np.argmax(fine[:, at], axis=0)
        found.append(SteadyStates(at, q[which, at], qd[which, at]))
    return found


def _shifts(n: int) -> np.ndarray:
    """Where the instants of a parabola begin: around the instant in question, up to it, from it on."""
    return np.array([-n, -2 * n, 0])


@partial(jax.jit, static_argnums=(0, 3))
def _parabolas(frames: Frames, model: Model, q: Float[Array, "t nq"], n: int) -> tuple[Array, Array, Array]:
    """Coordinates, velocities, and how far the recording lies off the parabola, root mean square by kind of coordinate
    (`dof_kinds`), for the three choices of instants: (3, t, ...)."""
    kinds = dof_kinds(frames.topology)
    rows = np.clip(np.arange(len(q))[:, None] + np.arange(-2 * n, 2 * n + 1), 0, len(q) - 1)
    delta = jax.vmap(jax.vmap(frames.difference, (None, 0)))(q, q[rows])

    def fit(shift: int) -> tuple[Array, Array, Array]:
        tau = frames.dt * (shift + np.arange(2 * n + 1))
        X = np.stack([np.ones_like(tau), tau, tau**2 / 2], axis=1)
        some = delta[:, 2 * n + shift : 4 * n + shift + 1]
        c = jnp.einsum("ij,tjv->tiv", jnp.asarray(np.linalg.pinv(X), q.dtype), some)
        off = some - jnp.einsum("ji,tiv->tjv", jnp.asarray(X, q.dtype), c)
        size = jnp.stack([jnp.sqrt(jnp.mean(off[..., kinds == k] ** 2, axis=(1, 2))) for k in np.unique(kinds)], axis=-1)
        return jax.vmap(lambda q, c: integrate(model, q, c))(q, c[:, 0]), c[:, 1], size

    made = [fit(int(shift)) for shift in _shifts(n)]
    return tuple(jnp.stack(z) for z in zip(*made, strict=True))  # type: ignore[return-value]


def lift(frames: Frames, model: Model, q: Float[Array, " nq"]) -> Float[Array, " nq"]:
    """What moves a robot with a free root out of the deepest overlap, along its normal; zero where nothing overlaps. Where the
    model's shape is not quite the robot's, a recorded robot overlaps the model's ground, and would be thrown out of it."""
    moved = jnp.zeros_like(q)
    found = detect(model, forward_kinematics(model, q))
    if frames.root is None or not len(found):
        return moved
    deepest = jnp.argmin(found.distance)
    away = jnp.asarray(np.where(np.array(found.bodies).reshape(-1, 2)[:, 1] == 0, -1.0, 1.0), q.dtype)
    at = int(frames.topology.q_start[frames.root])
    depth = jnp.maximum(-found.distance[deepest], 0.0)
    return moved.at[at : at + 3].set((away[deepest] * depth * found.normal[deepest]).astype(q.dtype))
