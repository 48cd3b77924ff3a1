"""Recursion over a tree, one level at a time, so that a program grows with the depth of the robot and not with its size.

`levels` lists the items of a tree by depth; each item's parent is on the level above. Items of a level are handled
together: the physics sees arrays with a leading axis over them.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flexor.spatial import take


def outward(levels: tuple[np.ndarray, ...], parent: np.ndarray, f: Callable[[Any, Any], Any], start: Any, xs: Any) -> Any:
    """y[i] = f(y[parent[i]], x[i]) from the roots to the leaves; `start` stands for the parent of the roots.

    `f` takes and returns pytrees with a leading axis over the items of a level, as has `xs`; `start` has none.
    """
    done: list[Any] = []
    for k, level in enumerate(levels):
        if k == 0:
            above = jax.tree.map(lambda s: jnp.broadcast_to(s, (len(levels[0]), *jnp.shape(s))), start)
        else:
            rows = np.searchsorted(levels[k - 1], parent[level])
            above = jax.tree.map(lambda y, r=rows: take(y, r), done[-1])
        done.append(f(above, jax.tree.map(lambda x, i=level: take(x, i), xs)))
    order = np.argsort(np.concatenate(levels))
    return jax.tree.map(lambda *y: take(jnp.concatenate(y), order), *done)


def inward(
    levels: tuple[np.ndarray, ...], parent: np.ndarray, f: Callable[[Any, Any], tuple[Any, Any]], zero: Any, xs: Any
) -> Any:
    """(m[i], y[i]) = f(sum of m over the children of i, x[i]) from the leaves to the roots; returns y.

    `zero` is the sum over no children, without a leading axis.
    """
    done: list[Any] = []
    messages: Any = None
    for k in reversed(range(len(levels))):
        level = levels[k]
        if messages is None:
            below = jax.tree.map(lambda z, i=level: jnp.zeros((len(i), *jnp.shape(z)), z.dtype), zero)
        else:
            rows = np.searchsorted(level, parent[levels[k + 1]])
            below = jax.tree.map(lambda m, r=rows, i=level: scatter_sum(m, r, len(i)), messages)
        messages, y = f(below, jax.tree.map(lambda x, i=level: take(x, i), xs))
        done.append(y)
    order = np.argsort(np.concatenate(levels[::-1]))
    return jax.tree.map(lambda *y: take(jnp.concatenate(y), order), *done)


def scatter_sum(x: Array, rows: np.ndarray, n: int) -> Array:
    """Array of n rows in which row r is the sum of the x[i] with rows[i] = r; a gather where nothing is to be added."""
    sources = _sources(tuple(int(r) for r in rows), n)
    padded = jnp.concatenate([x, jnp.zeros((1, *x.shape[1:]), x.dtype)])
    total = take(padded, sources[0])
    for source in sources[1:]:
        total = total + take(padded, source)
    return total


@lru_cache(maxsize=4096)
def _sources(rows: tuple[int, ...], n: int) -> tuple[np.ndarray, ...]:
    """k-th array: for each row the k-th item that goes there, or the zero row at the end."""
    items: list[list[int]] = [[] for _ in range(n)]
    for i, r in enumerate(rows):
        items[r].append(i)
    width = max(1, *(len(i) for i in items)) if items else 1
    return tuple(np.array([i[k] if k < len(i) else len(rows) for i in items], dtype=int) for k in range(width))


def accumulate_outward(levels: tuple[np.ndarray, ...], parent: np.ndarray, x: Array) -> Array:
    """Sum of x over an item and all its ancestors."""
    return outward(levels, parent, lambda above, own: above + own, jnp.zeros(x.shape[1:], x.dtype), x)


def accumulate_inward(levels: tuple[np.ndarray, ...], parent: np.ndarray, x: Array) -> Array:
    """Sum of x over an item and all its descendants."""

    def add(below: Array, own: Array) -> tuple[Array, Array]:
        return below + own, below + own

    return inward(levels, parent, add, jnp.zeros(x.shape[1:], x.dtype), x)
