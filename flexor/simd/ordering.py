"""Rules of sorting and of largest and smallest elements: sorting networks, which take the same way for every lane."""

from typing import Any

import numpy as np

from flexor.simd.arrays import Array, nodes
from flexor.simd.interpreter import Interpreter
from flexor.simd.program import BOOL, Program


def _before(p: Program, a: int, b: int) -> int:
    """a < b in XLA's order of sorting, where nan comes last."""
    less = p.node("lt", BOOL, a, b)
    if p.dtype[a].kind != "f":
        return less
    valid, lost = p.node("eq", BOOL, a, a), p.node("ne", BOOL, b, b)
    return p.node("or", BOOL, less, p.node("and", BOOL, valid, lost))


def _precedes(p: Program, a: list[int], b: list[int], keys: int) -> int:
    """Lexicographic order by the first `keys` entries; ties go by the last entry, the original position."""
    order = _before(p, a[-1], b[-1])
    for k in range(keys - 1, -1, -1):
        equal = p.node("not", BOOL, p.node("or", BOOL, _before(p, a[k], b[k]), _before(p, b[k], a[k])))
        order = p.node("or", BOOL, _before(p, a[k], b[k]), p.node("and", BOOL, equal, order))
    return order


def _network(n: int) -> list[tuple[int, int]]:
    """Pairs to compare, in order: Batcher's odd-even merge sort for any length (Knuth, Algorithm 5.2.2M)."""
    pairs: list[tuple[int, int]] = []
    top = 1
    while top < n:
        top *= 2
    step = top // 2
    while step > 0:
        q, r, d = top // 2, 0, step
        while True:
            pairs += [(i, i + d) for i in range(n - d) if i & step == r]
            if q == step:
                break
            d, q, r = q - step, q // 2, step
        step //= 2
    return pairs


def sort_rows(p: Program, items: list[list[int]], keys: int) -> list[list[int]]:
    """Items (entries of one position each) in stable ascending order."""
    index = [p.const(k, np.dtype("int32")) for k in range(len(items))]
    rows = [[*item, i] for item, i in zip(items, index, strict=True)]
    for a, b in _network(len(rows)):
        swap = _precedes(p, rows[b], rows[a], keys)
        first = [p.node("select", p.dtype[x], swap, y, x) for x, y in zip(rows[a], rows[b], strict=True)]
        second = [p.node("select", p.dtype[x], swap, x, y) for x, y in zip(rows[a], rows[b], strict=True)]
        rows[a], rows[b] = first, second
    return rows


def _sort(it: Interpreter, eqn: Any, *xs: Array) -> list[Array]:
    axis, keys = eqn.params["dimension"], eqn.params["num_keys"]
    ids = [np.moveaxis(nodes(it.p, x), axis, -1) for x in xs]
    out = [i.copy() for i in ids]
    for place in np.ndindex(ids[0].shape[:-1]):
        rows = sort_rows(it.p, np.stack([i[place] for i in ids], axis=-1).tolist(), keys)
        for k, o in enumerate(out):
            o[place] = [row[k] for row in rows]
    return [Array(np.moveaxis(o, -1, axis), x.dtype) for o, x in zip(out, xs, strict=True)]


def _top_k(it: Interpreter, eqn: Any, x: Array) -> list[Array]:
    p, k = it.p, eqn.params["k"]
    ids = np.moveaxis(nodes(p, x), eqn.params.get("axis", -1), -1)
    values = np.empty((*ids.shape[:-1], k), dtype=np.int64)
    places = values.copy()
    index = np.dtype(eqn.outvars[1].aval.dtype)
    for at in np.ndindex(ids.shape[:-1]):
        # descending: sort what is negated; nan counts as the largest
        items = [[p.node("neg", x.dtype, n), n] for n in ids[at].tolist()]
        rows = _sorted_descending(p, items)
        values[at] = [row[1] for row in rows[:k]]
        places[at] = [p.node("convert", index, row[-1]) for row in rows[:k]]
    axis = eqn.params.get("axis", -1)
    return [Array(np.moveaxis(values, -1, axis), x.dtype), Array(np.moveaxis(places, -1, axis), index)]


def _sorted_descending(p: Program, items: list[list[int]]) -> list[list[int]]:
    lost = [[p.node("convert", np.dtype("int32"), p.node("eq", BOOL, item[1], item[1])), *item] for item in items]
    return [row[1:] for row in sort_rows(p, lost, 2)]


def _arg(op: str) -> Any:
    """A rule for the index of an extreme; the first of equals, and the first nan before all."""

    def rule(it: Interpreter, eqn: Any, x: Array) -> list[Array]:
        p, (axis,), dtype = it.p, eqn.params["axes"], np.dtype(eqn.params["index_dtype"])
        ids = np.moveaxis(nodes(p, x), axis, -1)
        out = np.empty(ids.shape[:-1], dtype=np.int64)
        for at in np.ndindex(ids.shape[:-1]):
            row = ids[at].tolist()
            best, index = row[0], p.const(0, dtype)
            for k, n in enumerate(row[1:], start=1):
                better = p.node(op, BOOL, n, best)
                if x.dtype.kind == "f":
                    first = p.node("and", BOOL, p.node("ne", BOOL, n, n), p.node("eq", BOOL, best, best))
                    better = p.node("or", BOOL, p.node("and", BOOL, better, p.node("eq", BOOL, best, best)), first)
                best = p.node("select", x.dtype, better, n, best)
                index = p.node("select", dtype, better, p.const(k, dtype), index)
            out[at] = index
        return [Array(out, dtype)]

    return rule


RULES = {"sort": _sort, "top_k": _top_k, "argmax": _arg("gt"), "argmin": _arg("lt")}
