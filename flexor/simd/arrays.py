"""Arrays of one example, as the interpreter of jaxprs holds them: nodes, or places in memory.

Either way an array is a numpy array of integers, so reshaping, slicing, transposing or gathering by constant indices happens
in numpy at compile time, and costs nothing at run time.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flexor.simd.program import BOOL, DTYPES, I64, U64, Buffer, Carry, Program

SMALL = 1024  # arrays in memory up to this size are read element by element, larger ones by loops
COPIED = 256  # arrays in memory up to this size are copied element by element
LARGE = 16384  # arrays of nodes beyond this size go to memory


class UnsupportedError(NotImplementedError):
    """A program that the compiler does not support; the message names the primitive, the line, and an alternative."""


class Array:
    """Nodes `at`; or, with a buffer, offsets `at` (plus a node `index`, known only at run time) into it."""

    __slots__ = ("at", "buffer", "dtype", "index")

    def __init__(self, at: np.ndarray, dtype: np.dtype, buffer: Buffer | None = None, index: int | None = None):
        self.at, self.dtype, self.buffer, self.index = at, dtype, buffer, index

    @property
    def shape(self) -> tuple[int, ...]:
        return self.at.shape

    @property
    def size(self) -> int:
        return self.at.size

    def with_at(self, at: np.ndarray) -> "Array":
        """The same elements in another arrangement."""
        return Array(at, self.dtype, self.buffer, self.index)

    @property
    def in_loops(self) -> bool:
        """Whether the array is too large to be treated element by element."""
        return self.size > (SMALL if self.buffer is not None else LARGE)


@cache
def check_dtype(dtype: Any) -> np.dtype:
    """The dtype; raises for unsupported ones. Tangents of integers, which are empty, count as bool."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return U64  # see `random.py`
    found = np.dtype(dtype)
    if found == jax.dtypes.float0:
        return BOOL
    if found not in DTYPES:
        names = ", ".join(d.name for d in DTYPES)
        raise UnsupportedError(f"flexor.simd has no {found.name}; it works with {names}.")
    return found


def constant(p: Program, value: Any) -> Array:
    """A constant array."""
    value = np.asarray(value)
    dtype = check_dtype(value.dtype)
    value = np.zeros(value.shape, bool) if value.dtype == jax.dtypes.float0 else value
    if value.size > LARGE:
        return Array(np.arange(value.size).reshape(value.shape), dtype, p.buffer(dtype, value.size, data=value.ravel()))
    flat = value.ravel()
    ids = np.fromiter((p.const(v, dtype) for v in flat), dtype=np.int64, count=flat.size)
    return Array(ids.reshape(value.shape), dtype)


def constant_values(p: Program, x: Array) -> np.ndarray | None:
    """The values of an array if all are constants."""
    if x.buffer is not None:
        return x.buffer.data[x.at] if x.buffer.data is not None and x.index is None else None
    flat = [p.value.get(i) for i in x.at.ravel().tolist()]
    if any(v is None for v in flat):
        return None
    return np.array(flat, dtype=x.dtype).reshape(x.shape)


def nodes(p: Program, x: Array) -> np.ndarray:
    """The elements as nodes."""
    if x.buffer is None:
        return x.at
    flat = np.fromiter((p.load(x.buffer, o, x.index) for o in x.at.ravel().tolist()), dtype=np.int64, count=x.size)
    return flat.reshape(x.shape)


def uniform(p: Program, x: Array) -> bool:
    """Whether all lanes have the same values."""
    if x.buffer is not None:
        return x.buffer.uniform and (x.index is None or p.uniform[x.index])
    return all(p.uniform[i] for i in x.at.ravel().tolist())


def shifted(p: Program, index: int | None, by: int) -> int:
    """index + by; the index may be None."""
    return by if index is None else p.node("add", I64, index, by)


def in_memory(p: Program, x: Array) -> Array:
    """The array in memory, in whatever arrangement it has there."""
    if x.buffer is not None:
        return x
    data = constant_values(p, x)
    if data is not None:
        buffer = p.buffer(x.dtype, x.size, data=data.ravel())
    else:
        buffer = p.buffer(x.dtype, x.size, uniform=False)
        for k, n in enumerate(x.at.ravel().tolist()):
            p.store(buffer, k, None, n)
    return Array(np.arange(x.size).reshape(x.shape), x.dtype, buffer)


def strides(x: Array) -> tuple[int, list[int]] | None:
    """Start and strides, where the places are an affine function of the array's indices."""
    if x.size == 0:
        return 0, [0] * x.at.ndim
    start = int(x.at.flat[0])
    steps = [int(x.at[tuple(int(d == k) for d in range(x.at.ndim))]) - start if n > 1 else 0 for k, n in enumerate(x.shape)]
    grid = start + sum((np.arange(n) * s).reshape([-1 if d == k else 1 for d in range(x.at.ndim)])
                       for k, (n, s) in enumerate(zip(x.shape, steps, strict=True)))  # fmt: skip
    return (start, steps) if np.array_equal(np.broadcast_to(grid, x.shape), x.at) else None


def strided(p: Program, x: Array) -> tuple[Array, int, list[int]]:
    """The array in memory with constant strides; copied if it lies there otherwise."""
    x = in_memory(p, x)
    found = strides(x)
    if found is None:
        x = copied(p, x)
        found = strides(x)
        assert found is not None
    return x, *found


def copied(p: Program, x: Array) -> Array:
    """A copy in new memory, row by row."""
    buffer = p.buffer(x.dtype, x.size)
    copy_into(p, x, buffer, 0, None)
    return Array(np.arange(x.size).reshape(x.shape), x.dtype, buffer)


def copy_into(p: Program, x: Array, buffer: Buffer, offset: int, index: int | None) -> None:
    """Stores all elements, in order, from the given place on."""
    if x.size <= COPIED or not (x.in_loops or x.buffer is not None):
        for k, n in enumerate(nodes(p, x).ravel().tolist()):
            p.store(buffer, offset + k, index, n)
        return
    read = reader(p, x)
    with p.count(x.size) as i:
        p.store(buffer, offset, shifted(p, index, i), read(i))


def reader(p: Program, x: Array) -> Callable[[int], int]:
    """A function from a node i to the node of the i-th element, for use in a loop."""
    flat = x.at.ravel()
    if x.buffer is None and (flat == flat[0]).all():
        return lambda i: int(flat[0])
    x = in_memory(p, x)
    flat, buffer = x.at.ravel(), x.buffer
    assert buffer is not None
    steps = np.diff(flat)
    if len(steps) == 0 or (steps == steps[0]).all():
        stride = p.const(steps[0] if len(steps) else 0, I64)
        return lambda i: p.load(buffer, int(flat[0]), shifted(p, x.index, p.node("mul", I64, i, stride)))
    table = p.buffer(I64, flat.size, data=flat.astype(np.int64))
    return lambda i: p.load(buffer, 0, shifted(p, x.index, p.load(table, 0, i)))


def mapped(p: Program, f: Callable[..., int], dtype: np.dtype, *operands: Array, most: int | None = None) -> Array:
    """f of every element: element by element, or by a loop where arrays are large, or lanes have more than `most` elements."""
    shape = operands[0].shape
    spread = list(operands)
    if any(x.shape != shape for x in operands):
        shape = np.broadcast_shapes(*(x.shape for x in operands))
        spread = [x.with_at(np.broadcast_to(x.at, shape)) for x in operands]
    count = math.prod(shape)
    many = most is not None and count > most and not all(uniform(p, x) for x in operands)
    if many or any(x.in_loops for x in spread):
        readers = [reader(p, x) for x in spread]
        buffer = p.buffer(dtype, count)
        with p.count(count) as i:
            p.store(buffer, 0, i, f(*(read(i) for read in readers)))
        return Array(np.arange(count).reshape(shape), dtype, buffer)
    columns = [nodes(p, x).ravel().tolist() for x in spread]
    ids = np.fromiter((f(*item) for item in zip(*columns, strict=True)), dtype=np.int64, count=count)
    return Array(ids.reshape(shape), dtype)


def fold(p: Program, times: int, starts: Sequence[int], body: Callable[[int, list[int]], list[int]]) -> list[int]:
    """Nodes carried through a loop: `body(i, values)` gives the next values; the last ones are returned."""
    loop = p.loop()
    zero, one = p.const(0, I64), p.const(1, I64)
    with p.inside(loop, loop.head):
        index = p.phi(I64, True)
        inner = [p.phi(p.dtype[s], False) for s in starts]
        loop.going = p.node("lt", BOOL, index, p.const(times, I64))
    with p.inside(loop, loop.body):
        following = body(index, inner)
        last = p.node("add", I64, index, one)
    loop.carries.append(Carry(index, zero, last, p.after(loop, I64, True)))
    out = [p.after(loop, p.dtype[s], False) for s in starts]
    loop.carries += [Carry(*c) for c in zip(inner, starts, following, out, strict=True)]
    p.effects.append(loop)
    return out
