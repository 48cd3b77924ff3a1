"""Rotations as quaternions (w x y z) and matrices. A quaternion is normalised where it enters, so q and 2q are the same.

Everything here has a finite derivative everywhere, the identity included: where the textbook divides by an angle, the
quotient is a smooth function of the squared angle, and its series is used near zero.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.spatial.vector import cross, matvec


def quat_mul(a: Float[Array, "... 4"], b: Float[Array, "... 4"]) -> Float[Array, "... 4"]:
    """Hamilton product a b: first b's rotation, then a's."""
    aw, av = a[..., :1], a[..., 1:]
    bw, bv = b[..., :1], b[..., 1:]
    w = aw * bw - jnp.sum(av * bv, axis=-1, keepdims=True)
    return jnp.concatenate([w, aw * bv + bw * av + cross(av, bv)], axis=-1)


def quat_to_matrix(quat: Float[Array, "... 4"]) -> Float[Array, "... 3 3"]:
    """Rotation matrix of a quaternion of any non-zero length."""
    w, x, y, z = (quat[..., i] for i in range(4))
    s = 2.0 / (w * w + x * x + y * y + z * z)
    rows = [
        [1 - s * (y * y + z * z), s * (x * y - w * z), s * (x * z + w * y)],
        [s * (x * y + w * z), 1 - s * (x * x + z * z), s * (y * z - w * x)],
        [s * (x * z - w * y), s * (y * z + w * x), 1 - s * (x * x + y * y)],
    ]
    return jnp.stack([jnp.stack(r, axis=-1) for r in rows], axis=-2)


def axis_angle_matrix(axis: Float[Array, "... 3"], angle: Float[Array, "..."]) -> Float[Array, "... 3 3"]:
    """Rodrigues' formula for a unit axis."""
    c, s = jnp.cos(angle), jnp.sin(angle)
    x, y, z = axis[..., 0], axis[..., 1], axis[..., 2]
    t = 1 - c
    rows = [
        [t * x * x + c, t * x * y - s * z, t * x * z + s * y],
        [t * x * y + s * z, t * y * y + c, t * y * z - s * x],
        [t * x * z - s * y, t * y * z + s * x, t * z * z + c],
    ]
    return jnp.stack([jnp.stack(r, axis=-1) for r in rows], axis=-2)


def quat_exp(w: Float[Array, "... 3"]) -> Float[Array, "... 4"]:
    """Unit quaternion of the rotation vector w: (cos |w|/2, sin(|w|/2) w/|w|)."""
    half2 = jnp.sum(w * w, axis=-1, keepdims=True) / 4
    # sin(x)/x by its series below x^2 = 1e-4, where the first left-out term, x^8/9!, is far below rounding.
    small = half2 < 1e-4
    half = jnp.sqrt(jnp.where(small, 1.0, half2))
    series = 1 - half2 / 6 * (1 - half2 / 20 * (1 - half2 / 42))
    sinc = jnp.where(small, series, jnp.sin(half) / half)
    cos_series = 1 - half2 / 2 * (1 - half2 / 12 * (1 - half2 / 30))
    cos = jnp.where(small, cos_series, jnp.cos(half))
    return jnp.concatenate([cos, sinc * w / 2], axis=-1)


def quat_log(quat: Float[Array, "... 4"]) -> Float[Array, "... 3"]:
    """Rotation vector of a unit quaternion, of length at most pi: the inverse of `quat_exp`."""
    quat = jnp.where(quat[..., :1] < 0, -quat, quat)
    w, v = quat[..., :1], quat[..., 1:]
    s2 = jnp.sum(v * v, axis=-1, keepdims=True)
    small = s2 < 1e-8
    s = jnp.sqrt(jnp.where(small, 1.0, s2))
    # 2 atan(s/w)/s = 2/w (1 - (s/w)^2/3 + ...) near zero
    w_safe = jnp.where(small, w, 1.0)
    return v * jnp.where(small, 2 / w_safe * (1 - s2 / (3 * w_safe**2)), 2 * jnp.arctan2(s, w) / s)


def matrix_to_quat(R: Float[Array, "... 3 3"]) -> Float[Array, "... 4"]:
    """Unit quaternion, w >= 0, of a rotation matrix, by the largest of its four forms (Shepperd 1978)."""
    d = [R[..., i, i] for i in range(3)]
    trace = d[0] + d[1] + d[2]
    wx, wy, wz = R[..., 2, 1] - R[..., 1, 2], R[..., 0, 2] - R[..., 2, 0], R[..., 1, 0] - R[..., 0, 1]
    xy, xz, yz = R[..., 0, 1] + R[..., 1, 0], R[..., 0, 2] + R[..., 2, 0], R[..., 1, 2] + R[..., 2, 1]
    forms = jnp.stack(
        [
            jnp.stack([1 + trace, wx, wy, wz], axis=-1),
            jnp.stack([wx, 1 + 2 * d[0] - trace, xy, xz], axis=-1),
            jnp.stack([wy, xy, 1 + 2 * d[1] - trace, yz], axis=-1),
            jnp.stack([wz, xz, yz, 1 + 2 * d[2] - trace], axis=-1),
        ],
        axis=-2,
    )
    best = jnp.argmax(jnp.stack([trace, *d], axis=-1), axis=-1)
    quat = jnp.take_along_axis(forms, best[..., None, None], axis=-2)[..., 0, :]
    quat = quat / jnp.linalg.norm(quat, axis=-1, keepdims=True)
    return jnp.where(quat[..., :1] < 0, -quat, quat)


def rotate(R: Float[Array, "... 3 3"], v: Float[Array, "... 3"]) -> Float[Array, "... 3"]:
    """R v, over leading axes."""
    return matvec(R, v)
