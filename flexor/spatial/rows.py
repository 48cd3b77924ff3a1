"""Rows of arrays, by numbers that are known when a program is traced, or only when it runs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int


def take(x: Array, rows: np.ndarray) -> Array:
    """x[rows] for known row numbers, as one operation where JAX's own indexing would trace several. Rows that x does not have
    raise, for a compiled program would read anything there."""
    if not rows.size:
        return jnp.zeros((*rows.shape, *x.shape[1:]), x.dtype)
    if rows.min() < -len(x) or rows.max() >= len(x):
        raise IndexError(f"rows {rows.min()} to {rows.max()} were asked of an array that has {len(x)}.")
    if rows.ndim == 1 and rows[0] >= 0 and (np.diff(rows) == 1).all():
        return x if len(rows) == len(x) else jax.lax.slice_in_dim(x, int(rows[0]), int(rows[-1]) + 1)
    return _rows(x, np.where(rows < 0, rows + len(x), rows))


def gathered(x: Array, rows: Int[Array, " *n"] | np.ndarray) -> Array:
    """x[rows]: `take` where the row numbers are known, else read when the program runs; they must be rows that x has."""
    return take(x, rows) if isinstance(rows, np.ndarray) else _rows(x, rows)


def _rows(x: Array, rows: Any) -> Array:
    offset = tuple(range(rows.ndim, rows.ndim + x.ndim - 1))
    numbers = jax.lax.GatherDimensionNumbers(offset_dims=offset, collapsed_slice_dims=(0,), start_index_map=(0,))
    return jax.lax.gather(x, rows[..., None], numbers, (1, *x.shape[1:]), mode="promise_in_bounds")
