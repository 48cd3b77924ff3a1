"""Means over many robots, piece by piece: each piece fits into a core's cache, and sums have one order whatever the threads.

XLA hands large products and sums to several threads, and the order in which they add then depends on how many there are. Pieces
of some hundred steps are below what it hands out.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

PIECE = 256  # steps


def mean_over(
    f: Callable[[Int[Array, " some"]], Any], robots: Int[Array, " robots"], *, steps: int, piece: int = PIECE
) -> Any:
    """The mean of f, a tree of arrays, over pieces of equal size of a row of robots, each with `steps` steps: at most `piece` of
    them together, or one robot."""
    count = robots.shape[0]
    pieces = next(n for n in range(1, count + 1) if count % n == 0 and (count // n * steps <= piece or n == count))

    def further(total: Any, some: Array) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, f(some)), None

    none = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(f, robots[: count // pieces]))
    total = jax.lax.scan(further, none, robots.reshape(pieces, -1))[0]
    return jax.tree.map(lambda x: x / pieces, total)
