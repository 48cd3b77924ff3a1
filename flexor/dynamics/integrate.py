"""Moving along the configuration space, q (+) displacement, and the displacement between two configurations."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.model.model import Model
from flexor.spatial import cross, dot, quat_exp, quat_log, quat_mul, take


def integrate(model: Model, q: Float[Array, " nq"], displacement: Float[Array, " nv"]) -> Float[Array, " nq"]:
    """Coordinates after moving from q by a displacement in velocity coordinates (velocity times time).

    Angles and lengths add; a quaternion turns by the rotation vector in the body frame, quat exp(w), and is normalised.
    """
    plain, quats, plain_v, turns = coordinate_rows(model)
    moved = take(q, plain) + take(displacement, plain_v)
    if not len(quats):
        return moved
    quat = quat_mul(take(q, quats), quat_exp(take(displacement, turns)))
    quat = quat / jnp.linalg.norm(quat, axis=-1, keepdims=True)
    return take(jnp.concatenate([moved, quat.ravel()]), np.argsort(np.concatenate([plain, quats.ravel()])))


def difference(model: Model, q1: Float[Array, " nq"], q2: Float[Array, " nq"]) -> Float[Array, " nv"]:
    """The displacement in velocity coordinates that leads from q1 to q2, the inverse of `integrate`:
    integrate(q1, difference(q1, q2)) = q2, quaternions up to their sign.

    Angles and lengths subtract, without taking turns off; a rotation gives its vector in the body frame of q1, log(q1^-1 q2),
    the shortest, of length at most pi. Smooth at q1 = q2. Two rotations half a turn apart are joined by two shortest ways: the
    vector is then one of the two, and jumps to the other as the angle goes through pi; derivatives are finite on either side.
    """
    plain, quats, plain_v, turns = coordinate_rows(model)
    moved = take(q2, plain) - take(q1, plain)
    if not len(quats):
        return moved
    turned = quat_log(quat_mul(_conjugate(take(q1, quats)), take(q2, quats)))
    return take(jnp.concatenate([moved, turned.ravel()]), np.argsort(np.concatenate([plain_v, turns.ravel()])))


def _conjugate(quat: Float[Array, "n 4"]) -> Float[Array, "n 4"]:
    return quat * jnp.array([[1.0, -1, -1, -1]], quat.dtype)


def rate_of(model: Model, q: Float[Array, " nq"], dq: Float[Array, " nq"]) -> Float[Array, " nv"]:
    """The velocity qd with which q changes by dq; the change of a quaternion's length is ignored."""
    plain, quats, plain_v, turns = coordinate_rows(model)
    rate = take(dq, plain)
    if not len(quats):
        return rate
    quat = take(q, quats)
    inverse = _conjugate(quat) / dot(quat, quat)[:, None]
    turn = 2 * quat_mul(inverse, take(dq, quats))[:, 1:]
    return take(jnp.concatenate([rate, turn.ravel()]), np.argsort(np.concatenate([plain_v, turns.ravel()])))


def coordinate_rows(model: Model) -> tuple[np.ndarray, ...]:
    """Rows of q that simply add, and of the quaternions; the same of their rates in qd."""
    t = model.topology
    scalar_q: list[int] = []
    scalar_v: list[int] = []
    for j, qs, vs in zip(t.joints, t.q_start, t.v_start, strict=True):
        n = {"hinge": 1, "slide": 1, "ball": 0, "free": 3}[j.kind]
        scalar_q += range(qs, qs + n)
        scalar_v += range(vs, vs + n)
    rotating = t.joints_of("ball", "free")
    offset = np.array([3 if t.joints[j].kind == "free" else 0 for j in rotating], dtype=int)
    quats = (t.q_start[rotating] + offset)[:, None] + np.arange(4)
    turns = (t.v_start[rotating] + offset)[:, None] + np.arange(3)
    return np.array(scalar_q, dtype=int), quats, np.array(scalar_v, dtype=int), turns


def displacement_rate(model: Model, displacement: Float[Array, " nv"], qd: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """Rate of the displacement from a fixed q when the velocity is qd: the inverse of the exponential map's derivative.

    For a rotation vector x and a body angular velocity w it is w + x X w / 2 + x X (x X w) / 12, exact to the third order
    in x, which is what a method of order four needs (Munthe-Kaas 1998); elsewhere it is qd itself.
    """
    rows = coordinate_rows(model)[3]
    if not len(rows):
        return qd
    x, w = displacement[rows], qd[rows]
    turn = cross(x, w)
    return qd.at[rows].add(turn / 2 + cross(x, turn) / 12)
