"""Rows of arrays, by numbers that are known when a program is traced."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def take(x: Array, rows: np.ndarray) -> Array:
    """x[rows] for known row numbers, as one operation where JAX's own indexing would trace several. Rows that x does not have
    raise, for a compiled program would read anything there."""
    if not rows.size:
        return jnp.zeros((*rows.shape, *x.shape[1:]), x.dtype)
    if rows.min() < -len(x) or rows.max() >= len(x):
        raise IndexError(f"rows {rows.min()} to {rows.max()} were asked of an array that has {len(x)}.")
    if rows.ndim == 1 and rows[0] >= 0 and (np.diff(rows) == 1).all():
        return x if len(rows) == len(x) else jax.lax.slice_in_dim(x, int(rows[0]), int(rows[-1]) + 1)
    offset = tuple(range(rows.ndim, rows.ndim + x.ndim - 1))
    numbers = jax.lax.GatherDimensionNumbers(offset_dims=offset, collapsed_slice_dims=(0,), start_index_map=(0,))
    index = np.where(rows < 0, rows + len(x), rows)[..., None]
    return jax.lax.gather(x, index, numbers, (1, *x.shape[1:]), mode="promise_in_bounds")
