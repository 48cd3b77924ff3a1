"""Moving along the configuration space: q (+) displacement."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.model.model import Model
from flexor.spatial import cross, quat_exp, quat_mul, take


def integrate(model: Model, q: Float[Array, " nq"], displacement: Float[Array, " nv"]) -> Float[Array, " nq"]:
    """Coordinates after moving from q by a displacement in velocity coordinates (velocity times time).

    Angles and lengths add; a quaternion turns by the rotation vector in the body frame, quat exp(w), and is normalised.
    """
    t = model.topology
    scalar_q: list[int] = []
    scalar_v: list[int] = []
    for j, qs, vs in zip(t.joints, t.q_start, t.v_start, strict=True):
        n = {"hinge": 1, "slide": 1, "ball": 0, "free": 3}[j.kind]
        scalar_q += range(qs, qs + n)
        scalar_v += range(vs, vs + n)
    rotating = t.joints_of("ball", "free")
    offset = np.array([3 if t.joints[j].kind == "free" else 0 for j in rotating], dtype=int)
    quat_rows = (t.q_start[rotating] + offset)[:, None] + np.arange(4)
    rate_rows = (t.v_start[rotating] + offset)[:, None] + np.arange(3)
    moved = take(q, np.array(scalar_q, dtype=int)) + take(displacement, np.array(scalar_v, dtype=int))
    if not len(rotating):
        return moved
    quat = quat_mul(take(q, quat_rows), quat_exp(take(displacement, rate_rows)))
    quat = quat / jnp.linalg.norm(quat, axis=-1, keepdims=True)
    order = np.argsort(np.concatenate([np.array(scalar_q, dtype=int), quat_rows.ravel()]))
    return take(jnp.concatenate([moved, quat.ravel()]), order)


def displacement_rate(model: Model, displacement: Float[Array, " nv"], qd: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """Rate of the displacement from a fixed q when the velocity is qd: the inverse of the exponential map's derivative.

    For a rotation vector x and a body angular velocity w it is w + x X w / 2 + x X (x X w) / 12, exact to the third order
    in x, which is what a method of order four needs (Munthe-Kaas 1998); elsewhere it is qd itself.
    """
    t = model.topology
    rotating = t.joints_of("ball", "free")
    if not len(rotating):
        return qd
    offset = np.array([3 if t.joints[j].kind == "free" else 0 for j in rotating], dtype=int)
    rows = (t.v_start[rotating] + offset)[:, None] + np.arange(3)
    x, w = displacement[rows], qd[rows]
    turn = cross(x, w)
    return qd.at[rows].add(turn / 2 + cross(x, turn) / 12)
