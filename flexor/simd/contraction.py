"""Rules of sums and products over axes. Small ones are written out, their zeros dropped; large ones become loops."""

from collections.abc import Callable
from typing import Any

import numpy as np

from flexor.simd.arrays import Array, check_dtype, copy_into, fold, nodes, shifted, strided
from flexor.simd.interpreter import Interpreter
from flexor.simd.program import BOOL, I64, Buffer, Program

PRODUCTS = 2048  # products beyond this number are made in a loop
GROUP = 8  # results that a loop accumulates side by side, to hide the latency of an addition


def _dot_general(it: Interpreter, eqn: Any, a: Array, b: Array) -> list[Array]:
    (ca, cb), (ba, bb) = eqn.params["dimension_numbers"]
    fa = [d for d in range(a.at.ndim) if d not in (*ca, *ba)]
    fb = [d for d in range(b.at.ndim) if d not in (*cb, *bb)]
    shape = [*(a.shape[d] for d in ba), *(a.shape[d] for d in fa), *(b.shape[d] for d in fb)]
    batch, inner = int(np.prod([a.shape[d] for d in ba])), int(np.prod([a.shape[d] for d in ca]))
    rows, columns = int(np.prod([a.shape[d] for d in fa])), int(np.prod([b.shape[d] for d in fb]))
    a = a.with_at(a.at.transpose([*ba, *fa, *ca]).reshape(batch, rows, inner))
    b = b.with_at(b.at.transpose([*bb, *fb, *cb]).reshape(batch, columns, inner))
    dtype = check_dtype(eqn.outvars[0].aval.dtype)
    if _products(it.p, a, b) > PRODUCTS:
        return [_looped_dot(it.p, a, b, dtype).with_at(np.arange(batch * rows * columns).reshape(shape))]
    return [Array(_written_dot(it.p, nodes(it.p, a), nodes(it.p, b), dtype).reshape(shape), dtype)]


def _products(p: Program, a: Array, b: Array) -> int:
    """Products without a zero factor."""
    left, right = (
        (x.at != p.const(0, x.dtype)).astype(np.int64) if x.buffer is None else np.ones(x.shape, np.int64) for x in (a, b)
    )
    return int((left.sum(1) * right.sum(1)).sum())


def _written_dot(p: Program, a: np.ndarray, b: np.ndarray, dtype: np.dtype) -> np.ndarray:
    zero = p.const(0, dtype)
    out = np.full((a.shape[0], a.shape[1], b.shape[1]), zero, dtype=np.int64)
    for k in range(a.shape[0]):
        left = [[(j, x) for j, x in enumerate(row) if x != zero] for row in a[k].tolist()]
        right = b[k].tolist()
        for i, row in enumerate(left):
            for j, column in enumerate(right):
                total = zero
                for at, x in row:
                    if column[at] != zero:
                        total = p.node("add", dtype, total, p.node("mul", dtype, x, column[at]))
                out[k, i, j] = total
    return out


def _looped_dot(p: Program, a: Array, b: Array, dtype: np.dtype) -> Array:
    """A loop over the longer free axis, in groups that share what they read of the other operand."""
    if a.shape[1] > b.shape[1]:
        swapped = _looped_dot(p, b, a, dtype)
        place = np.arange(swapped.size).reshape(a.shape[0], b.shape[1], a.shape[1])
        buffer = p.buffer(dtype, swapped.size)
        # results are stored transposed: read them so
        target = Array(place.transpose(0, 2, 1), dtype, swapped.buffer)
        copy_into(p, target, buffer, 0, None)
        return Array(np.arange(swapped.size), dtype, buffer)
    (a, a0, sa), (b, b0, sb) = strided(p, a), strided(p, b)
    batch, rows, inner, columns = a.shape[0], a.shape[1], a.shape[2], b.shape[1]
    out = p.buffer(dtype, batch * rows * columns)
    for k in range(batch):
        with p.count(rows) as i:
            base_a = _at(p, a.index, (i, sa[1]))
            for start, times, group in _groups(columns):
                with p.count(times) as j:
                    base_b = _at(p, b.index, (j, sb[1] * group))
                    starts = b0 + k * sb[0] + start * sb[1]
                    total = _inner(p, dtype, inner, a, a0 + k * sa[0], sa[2], base_a, b, starts, sb, base_b, group)
                    to = _at(p, None, (i, columns), (j, group))
                    for g, value in enumerate(total):
                        p.store(out, k * rows * columns + start + g, to, value)
    return Array(np.arange(out.size), dtype, out)


def _groups(columns: int) -> list[tuple[int, int, int]]:
    """First column, number of groups, and columns in a group."""
    whole = columns // GROUP
    parts = [(0, whole, GROUP)] if whole else []
    return parts + ([(whole * GROUP, 1, columns % GROUP)] if columns % GROUP else [])


def _inner(
    p: Program, dtype: np.dtype, inner: int, a: Array, a0: int, sa: int, base_a: int, b: Array, b0: int, sb: list[int],
    base_b: int, group: int,
) -> list[int]:  # fmt: skip
    buffer_a, buffer_b = a.buffer, b.buffer
    assert buffer_a is not None
    assert buffer_b is not None

    def body(k: int, totals: list[int]) -> list[int]:
        x = p.load(buffer_a, a0, _at(p, base_a, (k, sa)))
        at = _at(p, base_b, (k, sb[2]))
        return [
            p.node("add", dtype, t, p.node("mul", dtype, x, p.load(buffer_b, b0 + g * sb[1], at)))
            for g, t in enumerate(totals)
        ]

    return fold(p, inner, [p.const(0, dtype)] * group, body)


def _at(p: Program, base: int | None, *terms: tuple[int, int]) -> int:
    """base + sum of index times stride."""
    total = base
    for index, stride in terms:
        total = shifted(p, total, p.node("mul", I64, index, p.const(stride, I64)))
    assert total is not None
    return total


def _reduction(op: str, start: Callable[[np.dtype], Any]) -> Any:
    """A rule that reduces axes with an operation."""

    def rule(it: Interpreter, eqn: Any, x: Array) -> list[Array]:
        p, axes = it.p, tuple(eqn.params["axes"])
        kept = [d for d in range(x.at.ndim) if d not in axes]
        shape = [x.shape[d] for d in kept]
        count, length = int(np.prod(shape)), int(np.prod([x.shape[d] for d in axes]))
        flat = x.with_at(x.at.transpose([*kept, *axes]).reshape(count, length))
        first = p.const(start(x.dtype), x.dtype)
        if x.in_loops and length:
            return [_looped_reduction(p, op, flat, first).with_at(np.arange(count).reshape(shape))]
        ids = np.empty(count, dtype=np.int64)
        for k, row in enumerate(nodes(p, flat).tolist()):
            total = row[0] if row else first
            for n in row[1:]:
                total = p.node(op, x.dtype, total, n)
            ids[k] = total
        return [Array(ids.reshape(shape), x.dtype)]

    return rule


def _looped_reduction(p: Program, op: str, x: Array, first: int) -> Array:
    x, start, steps = strided(p, x)
    buffer, out = x.buffer, p.buffer(x.dtype, x.shape[0])
    assert buffer is not None
    source: Buffer = buffer
    with p.count(x.shape[0]) as i:
        base = _at(p, x.index, (i, steps[0]))
        total = fold(
            p,
            x.shape[1],
            [first],
            lambda k, t: [p.node(op, x.dtype, t[0], p.load(source, start, _at(p, base, (k, steps[1]))))],
        )
        p.store(out, 0, i, total[0])
    return Array(np.arange(x.shape[0]), x.dtype, out)


def _cumulative(op: str) -> Any:
    """A rule that runs an operation along an axis."""

    def rule(it: Interpreter, eqn: Any, x: Array) -> list[Array]:
        axis, p = eqn.params["axis"], it.p
        ids = np.moveaxis(nodes(p, x), axis, 0)
        ids = (ids[::-1] if eqn.params["reverse"] else ids).copy()
        for k in range(1, len(ids)):
            pairs = zip(ids[k - 1].ravel().tolist(), ids[k].ravel().tolist(), strict=True)
            ids[k] = np.array([p.node(op, x.dtype, a, b) for a, b in pairs], dtype=np.int64).reshape(ids[k].shape)
        ids = ids[::-1] if eqn.params["reverse"] else ids
        return [Array(np.moveaxis(ids, 0, axis), x.dtype)]

    return rule


def _lowest(dtype: np.dtype) -> Any:
    return False if dtype == BOOL else -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _highest(dtype: np.dtype) -> Any:
    return True if dtype == BOOL else np.inf if dtype.kind == "f" else np.iinfo(dtype).max


RULES = {
    "dot_general": _dot_general,
    "reduce_sum": _reduction("add", lambda t: 0),
    "reduce_prod": _reduction("mul", lambda t: 1),
    "reduce_max": _reduction("max", _lowest),
    "reduce_min": _reduction("min", _highest),
    "reduce_and": _reduction("and", lambda t: True),
    "reduce_or": _reduction("or", lambda t: False),
    "reduce_xor": _reduction("xor", lambda t: 0),
    "cumsum": _cumulative("add"),
    "cumprod": _cumulative("mul"),
    "cummax": _cumulative("max"),
    "cummin": _cumulative("min"),
}
