"""Equalities of joints: by how much they are violated, and along which direction of the velocities."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.model.model import Model
from flexor.spatial import take


def violation(model: Model, q: Float[Array, " nq"]) -> tuple[Float[Array, " neq"], Float[Array, "neq nv"]]:
    """r = (q1 - ref1) - p(q2 - ref2) of every equality with its polynomial p (see `Equalities`), and J with dr/dt = J qd."""
    t, c = model.topology, model.equalities.coefficients
    first = np.array([e.first for e in t.equalities], int)
    coupled = np.array([e.second is not None for e in t.equalities], bool)
    second = np.array([e.first if e.second is None else e.second for e in t.equalities], int)
    moved = q - model.reference
    x = jnp.where(coupled, take(moved, t.q_start[second]), 0.0)
    value = c[:, 0] + x * (c[:, 1] + x * (c[:, 2] + x * (c[:, 3] + x * c[:, 4])))
    slope = c[:, 1] + x * (2 * c[:, 2] + x * (3 * c[:, 3] + x * 4 * c[:, 4]))
    eye = np.eye(t.nv)
    to, by = eye[t.v_start[first]], np.where(coupled[:, None], eye[t.v_start[second]], 0.0)
    J = jnp.asarray(to, q.dtype) - jnp.where(by == 0, 0.0, slope[:, None])
    return take(moved, t.q_start[first]) - value, J
