"""Rules of factorisations and triangular solves, written out; constant zeros cost nothing."""

from typing import Any

import numpy as np

from flexor.simd.arrays import Array, UnsupportedError, nodes
from flexor.simd.interpreter import Interpreter
from flexor.simd.program import Program


def _less(p: Program, dtype: np.dtype, total: int, a: int, b: int) -> int:
    """total - a b."""
    zero = p.const(0, dtype)
    return total if zero in (a, b) else p.node("sub", dtype, total, p.node("mul", dtype, a, b))


def _cholesky(it: Interpreter, eqn: Any, x: Array) -> list[Array]:
    """Lower factor from the lower triangle, row by row; the square root of a negative number is nan, as in XLA."""
    p, dtype, n = it.p, x.dtype, x.shape[-1]
    ids = nodes(p, x)
    out = np.full(ids.shape, p.const(0, dtype), dtype=np.int64)
    for at in np.ndindex(ids.shape[:-2]):
        A, L = ids[at].tolist(), [[p.const(0, dtype)] * n for _ in range(n)]
        inverse: list[int] = []
        for i in range(n):
            for j in range(i + 1):
                total = A[i][j]
                for k in range(j):
                    total = _less(p, dtype, total, L[i][k], L[j][k])
                if i == j:
                    L[i][i] = p.node("sqrt", dtype, total)
                    inverse.append(p.node("div", dtype, p.const(1, dtype), L[i][i]))
                else:
                    L[i][j] = p.node("mul", dtype, total, inverse[j])
        out[at] = L
    return [Array(out, dtype)]


def _triangular_solve(it: Interpreter, eqn: Any, a: Array, b: Array) -> list[Array]:
    """x of a x = b or x a = b, by substitution."""
    p, dtype, q = it.p, b.dtype, eqn.params
    if q.get("conjugate_a"):
        raise UnsupportedError("triangular_solve with a conjugated matrix.")
    A, B = nodes(p, a), nodes(p, b)
    lower = q["lower"]
    if q["transpose_a"]:
        A, lower = np.swapaxes(A, -1, -2), not lower
    if not q["left_side"]:
        A, B, lower = np.swapaxes(A, -1, -2), np.swapaxes(B, -1, -2), not lower
    n, out = A.shape[-1], B.copy()
    order = range(n) if lower else range(n - 1, -1, -1)
    for at in np.ndindex(B.shape[:-2]):
        rows = A[at].tolist()
        one = p.const(1, dtype)
        inverse = [one if q["unit_diagonal"] else p.node("div", dtype, one, rows[i][i]) for i in range(n)]
        for c in range(B.shape[-1]):
            x = B[at][:, c].tolist()
            for i in order:
                total = x[i]
                for k in range(i) if lower else range(n - 1, i, -1):
                    total = _less(p, dtype, total, rows[i][k], x[k])
                x[i] = p.node("mul", dtype, total, inverse[i])
            out[at][:, c] = x
    out = out if q["left_side"] else np.swapaxes(out, -1, -2)
    return [Array(out, dtype)]


RULES = {"cholesky": _cholesky, "triangular_solve": _triangular_solve}
