"""Inertias: six numbers of the rotational inertia (xx yy zz xy xz yz), and the 6 x 6 spatial inertia."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.spatial.vector import matmul, skew

_SYMMETRIC = np.array([[0, 3, 4], [3, 1, 5], [4, 5, 2]], np.int32)  # the type of an index in every precision


def inertia_matrix(six: Float[Array, "... 6"]) -> Float[Array, "... 3 3"]:
    """Symmetric matrix of (xx yy zz xy xz yz), the order of MJCF's `fullinertia`."""
    return six[..., _SYMMETRIC]


def six_of(matrix: Float[Array, "... 3 3"]) -> Float[Array, "... 6"]:
    """(xx yy zz xy xz yz) of a symmetric matrix; the inverse of `inertia_matrix`."""
    return matrix[..., [0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]


def rotated_inertia(R: Float[Array, "... 3 3"], six: Float[Array, "... 6"]) -> Float[Array, "... 3 3"]:
    """R I R^T of an inertia given by six numbers; symmetric to the last bit."""
    full = matmul(matmul(R, inertia_matrix(six)), jnp.swapaxes(R, -1, -2))
    return inertia_matrix(six_of(full))


def spatial_inertia(
    mass: Float[Array, "..."], com: Float[Array, "... 3"], inertia: Float[Array, "... 3 3"]
) -> Float[Array, "... 6 6"]:
    """Spatial inertia at the origin of a body whose centre of mass is at `com` (Featherstone eq. 2.63).

    `inertia` is the rotational inertia about the centre of mass, in the axes of the result.
    """
    c = skew(com)
    m = mass[..., None, None]
    upper = jnp.concatenate([inertia - m * matmul(c, c), m * c], axis=-1)
    lower = jnp.concatenate([-m * c, jnp.broadcast_to(jnp.eye(3, dtype=com.dtype), c.shape) * m], axis=-1)
    return jnp.concatenate([upper, lower], axis=-2)
