"""Gaussian elimination of a dense matrix that is too large to be written out: in a kernel, loops over its rows in memory."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir

from flexor.simd.arrays import Array, copied
from flexor.simd.interpreter import Interpreter
from flexor.simd.program import BOOL, I64


def eliminate(H: Any, least: float) -> Any:
    """The factors of H = L U without row exchanges, in one matrix: above the diagonal U, whose diagonal is one, below it L, and
    on it the inverse of L's diagonal.

    A pivot that is smaller than `least` times its row is moved away from zero (Li & Demmel 1998): what solves with the factors
    corrects for it.
    """
    return eliminate_p.bind(H, least=least)


def _with_xla(H: Any, *, least: float) -> Any:
    numbers = jnp.arange(len(H))

    def step(H: Any, k: Any) -> tuple[Any, None]:
        after = numbers > k
        row, column = jnp.where(after, H[k], 0), jnp.where(after, H[:, k], 0)
        inverse = 1 / _kept_away(H[k, k], least * jnp.maximum(jnp.max(jnp.abs(row)), jnp.abs(H[k, k])))
        H = H - column[:, None] * (row * inverse)[None]
        return H.at[k].set(jnp.where(after, row * inverse, H[k])).at[k, k].set(inverse), None

    return lax.scan(step, H, numbers)[0]


def _kept_away(pivot: Any, floor: Any) -> Any:
    return jnp.where(jnp.abs(pivot) < floor, jnp.copysign(floor, pivot), pivot)


eliminate_p = jex.Primitive("eliminate")
eliminate_p.def_impl(jax.jit(_with_xla, static_argnames="least"))
eliminate_p.def_abstract_eval(lambda H, *, least: H)
mlir.register_lowering(eliminate_p, mlir.lower_fun(_with_xla, multiple_results=False))


def _jvp(primals: Any, tangents: Any, *, least: float) -> Any:
    return jax.jvp(partial(_with_xla, least=least), primals, tuple(map(ad.instantiate_zeros, tangents)))


def _batch(args: Any, dims: Any, *, least: float) -> Any:
    return jax.vmap(partial(_with_xla, least=least), dims[0])(args[0]), 0


ad.primitive_jvps[eliminate_p] = _jvp
batching.primitive_batchers[eliminate_p] = _batch


def _eliminate(it: Interpreter, eqn: Any, H: Array) -> list[Array]:
    """Pivot by pivot; what a pivot does to the rows below it is a loop."""
    p, dtype, n = it.p, H.dtype, H.shape[0]
    out = copied(p, H)
    buffer, one, width = out.buffer, p.const(1, dtype), p.const(n, I64)
    assert buffer is not None
    least = p.const(eqn.params["least"], dtype)
    for k in range(n):
        row = [p.load(buffer, k * n + j, fresh=True) for j in range(k, n)]
        largest = p.node("abs", dtype, row[0])
        size = largest
        for x in row[1:]:
            largest = p.node("max", dtype, largest, p.node("abs", dtype, x))
        floor = p.node("mul", dtype, least, largest)
        signed = p.node("select", dtype, p.node("lt", BOOL, row[0], p.const(0, dtype)), p.node("neg", dtype, floor), floor)
        pivot = p.node("select", dtype, p.node("lt", BOOL, size, floor), signed, row[0])
        inverse = p.node("div", dtype, one, pivot)
        scaled = [p.node("mul", dtype, x, inverse) for x in row[1:]]
        for j, x in enumerate((inverse, *scaled), start=k):
            p.store(buffer, k * n + j, None, x)
        if k + 1 < n:
            with p.count(n - 1 - k) as i:
                below = p.node("mul", I64, i, width)
                start = (k + 1) * n
                factor = p.load(buffer, start + k, below, fresh=True)
                for j, x in enumerate(scaled, start=k + 1):
                    old = p.load(buffer, start + j, below, fresh=True)
                    p.store(buffer, start + j, below, p.node("sub", dtype, old, p.node("mul", dtype, factor, x)))
    return [Array(np.arange(n * n).reshape(n, n), dtype, buffer)]


RULES = {"eliminate": _eliminate}
