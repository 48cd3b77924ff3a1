"""Spatial vectors: angular part first, then linear, at a stated point (Featherstone 2008, chapter 2).

A motion vector is (w, v) with v the velocity of the body-fixed point that is at the reference point now; a force vector is
(n, f) with n the moment about that point. All functions act on the last axis and broadcast over the others.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def _aligned(a: Array, b: Array) -> tuple[Array, Array]:
    """The two with equally many axes: leading ones of length one are added to the one that has fewer."""
    more = a.ndim - b.ndim
    if more > 0:
        return a, jnp.expand_dims(b, tuple(range(more)))
    return (jnp.expand_dims(a, tuple(range(-more))), b) if more else (a, b)


def cross(a: Float[Array, "... 3"], b: Float[Array, "... 3"]) -> Float[Array, "... 3"]:
    """Vector product a x b."""
    (a0, a1, a2), (b0, b1, b2) = (jnp.split(x, 3, axis=-1) for x in _aligned(a, b))
    return jnp.concatenate([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], axis=-1)


def dot(a: Float[Array, "... n"], b: Float[Array, "... n"]) -> Float[Array, "..."]:
    """Scalar product over the last axis."""
    a, b = _aligned(a, b)
    return jnp.sum(a * b, axis=-1)


def matvec(A: Float[Array, "... m n"], x: Float[Array, "... n"]) -> Float[Array, "... m"]:
    """A x over leading axes, as products and sums: for small matrices a compiler fuses them, and it does not fuse a dot."""
    A, x = _aligned(A, x[..., None, :])
    return jnp.sum(A * x, axis=-1)


def matmul(A: Float[Array, "... m k"], B: Float[Array, "... k n"]) -> Float[Array, "... m n"]:
    """A B over leading axes, as products and sums."""
    A, B = _aligned(A[..., :, :, None], B[..., None, :, :])
    return jnp.sum(A * B, axis=-2)


def skew(a: Float[Array, "... 3"]) -> Float[Array, "... 3 3"]:
    """The matrix [a]x with [a]x b = a x b."""
    zero = jnp.zeros_like(a[..., 0])
    x, y, z = a[..., 0], a[..., 1], a[..., 2]
    rows = [jnp.stack(r, axis=-1) for r in ([zero, -z, y], [z, zero, -x], [-y, x, zero])]
    return jnp.stack(rows, axis=-2)


def motion_cross(v: Float[Array, "... 6"], m: Float[Array, "... 6"]) -> Float[Array, "... 6"]:
    """Rate of change of a motion vector m fixed in a frame that moves with v: v x m (Featherstone eq. 2.33)."""
    w, u = v[..., :3], v[..., 3:]
    return jnp.concatenate([cross(w, m[..., :3]), cross(w, m[..., 3:]) + cross(u, m[..., :3])], axis=-1)


def force_cross(v: Float[Array, "... 6"], f: Float[Array, "... 6"]) -> Float[Array, "... 6"]:
    """Rate of change of a force vector f fixed in a frame that moves with v: v x* f (Featherstone eq. 2.34)."""
    w, u = v[..., :3], v[..., 3:]
    return jnp.concatenate([cross(w, f[..., :3]) + cross(u, f[..., 3:]), cross(w, f[..., 3:])], axis=-1)


def shift_motion(v: Float[Array, "... 6"], r: Float[Array, "... 3"]) -> Float[Array, "... 6"]:
    """The motion vector v, given at a point O, at the point O + r."""
    return jnp.concatenate([v[..., :3], v[..., 3:] + cross(v[..., :3], r)], axis=-1)


def shift_force(f: Float[Array, "... 6"], r: Float[Array, "... 3"]) -> Float[Array, "... 6"]:
    """The force vector f, given at a point O, at the point O + r."""
    return jnp.concatenate([f[..., :3] - cross(r, f[..., 3:]), f[..., 3:]], axis=-1)
