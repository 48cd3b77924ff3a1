"""Rules of primitives that work element by element."""

from collections.abc import Callable
from typing import Any

import numpy as np

from flexor.simd import functions as fn
from flexor.simd.arrays import Array, UnsupportedError, mapped
from flexor.simd.interpreter import Interpreter
from flexor.simd.inverse_error import erf_inv
from flexor.simd.program import BOOL, F32, U32, U64, Program

MOST = 64  # elementary functions in a row: each is some thirty operations


def _direct(op: str, result: np.dtype | None = None) -> Any:
    """A rule that is one operation of the scalar program."""

    def rule(it: Interpreter, eqn: Any, *xs: Array) -> list[Array]:
        dtype = result or xs[-1].dtype
        return [mapped(it.p, lambda *a: it.p.node(op, dtype, *a), dtype, *xs)]

    return rule


def _written(f: Callable[..., int], result: np.dtype | None = None, most: int | None = None) -> Any:
    """A rule that a function of the program and nodes writes out; by a loop for more than `most` elements."""

    def rule(it: Interpreter, eqn: Any, *xs: Array) -> list[Array]:
        return [mapped(it.p, lambda *a: f(it.p, *a), result or xs[0].dtype, *xs, most=most)]

    return rule


def _division(op: str) -> Any:
    """Integers never trap: dividing by zero gives -1 and leaves x as the remainder, as in XLA."""

    def one(p: Program, x: int, y: int) -> int:
        dtype = p.dtype[x]
        if dtype.kind == "f":
            return p.node(op, dtype, x, y)
        zero, one_, minus = p.const(0, dtype), p.const(1, dtype), p.const(-1, dtype)
        void = p.node("eq", BOOL, y, zero)
        safe = p.node("select", dtype, void, one_, y)
        if dtype.kind == "i":
            edge = p.node("eq", BOOL, y, minus)
            safe = p.node("select", dtype, edge, one_, safe)
            value = p.node(op, dtype, x, safe)
            value = p.node("select", dtype, edge, p.node("neg", dtype, x) if op == "div" else zero, value)
        else:
            value = p.node(op, dtype, x, safe)
        return p.node("select", dtype, void, minus if op == "div" else x, value)

    return _written(one)


def _convert(it: Interpreter, eqn: Any, x: Array) -> list[Array]:
    dtype = np.dtype(eqn.params["new_dtype"])
    return [mapped(it.p, lambda a: it.p.node("convert", dtype, a), dtype, x)]


def _bitcast(it: Interpreter, eqn: Any, x: Array) -> list[Array]:
    dtype = np.dtype(eqn.params["new_dtype"])
    if dtype.itemsize != x.dtype.itemsize:
        raise UnsupportedError(f"bitcast from {x.dtype.name} to {dtype.name} changes the number of elements.")
    return [mapped(it.p, lambda a: it.p.node("bitcast", dtype, a), dtype, x)]


def _select(it: Interpreter, eqn: Any, which: Array, *cases: Array) -> list[Array]:
    p, dtype = it.p, cases[0].dtype

    def one(w: int, *xs: int) -> int:
        if p.dtype[w] == BOOL:
            return p.node("select", dtype, w, xs[1], xs[0])
        out = xs[-1]
        for k in range(len(xs) - 2, -1, -1):
            out = p.node("select", dtype, p.node("eq", BOOL, w, p.const(k, p.dtype[w])), xs[k], out)
        return out

    return [mapped(p, one, dtype, which, *cases)]


def _clamp(p: Program, low: int, x: int, high: int) -> int:
    return p.node("min", p.dtype[x], p.node("max", p.dtype[x], low, x), high)


def _integer_pow(it: Interpreter, eqn: Any, x: Array) -> list[Array]:
    return [mapped(it.p, lambda a: fn.integer_pow(it.p, a, eqn.params["y"]), x.dtype, x)]


def _power(it: Interpreter, eqn: Any, x: Array, y: Array) -> list[Array]:
    return [mapped(it.p, lambda a, b: fn.power(it.p, a, b), x.dtype, x, y)]


def _round(it: Interpreter, eqn: Any, x: Array) -> list[Array]:
    to_even = int(eqn.params["rounding_method"]) == 1
    return [mapped(it.p, lambda a: it.p.node("rint", x.dtype, a) if to_even else fn.round_away(it.p, a), x.dtype, x)]


def _shift(op: str) -> Any:
    """Shifts by the width or more give what is shifted in, as in XLA."""

    def one(p: Program, x: int, by: int) -> int:
        dtype = p.dtype[x]
        last = p.const(8 * dtype.itemsize - 1, dtype)
        beyond = p.node("or", BOOL, p.node("lt", BOOL, by, p.const(0, dtype)), p.node("gt", BOOL, by, last))
        value = p.node(op, dtype, x, p.node("select", dtype, beyond, last, by))
        return value if op == "ashr" else p.node("select", dtype, beyond, p.const(0, dtype), value)

    return _written(one)


def _reduce_precision(it: Interpreter, eqn: Any, x: Array) -> list[Array]:
    """Fewer bits of exponent and mantissa in the same type, as XLA rounds: to even, to infinity beyond the range, and to zero
    below it (no subnormal numbers); nan stays."""
    p, dtype = it.p, x.dtype
    exponent, mantissa = int(eqn.params["exponent_bits"]), int(eqn.params["mantissa_bits"])
    ints, digits, size = (U32, 23, 8) if dtype == F32 else (U64, 52, 11)
    drop, least, sign = digits - mantissa, 1 << max(digits - mantissa, 0), 1 << (8 * dtype.itemsize - 1)

    def one(a: int) -> int:
        bits = p.node("bitcast", ints, a)
        if drop > 0:
            last = p.node("and", ints, p.node("lshr", ints, bits, p.const(drop, ints)), p.const(1, ints))
            bits = p.node("add", ints, bits, p.node("add", ints, last, p.const((least >> 1) - 1, ints)))
            bits = p.node("and", ints, bits, p.const((1 << 8 * dtype.itemsize) - least, ints))
        if exponent < size:
            middle, half = (1 << (size - 1)) - 1, (1 << (exponent - 1)) - 1
            own = p.node("and", ints, bits, p.const(((1 << size) - 1) << digits, ints))
            zero = p.node("and", ints, bits, p.const(sign, ints))
            high = p.node("gt", BOOL, own, p.const((middle + half) << digits, ints))
            low = p.node("le", BOOL, own, p.const((middle - half) << digits, ints))
            infinite = p.node("or", ints, zero, p.const(((1 << size) - 1) << digits, ints))
            bits = p.node("select", ints, high, infinite, p.node("select", ints, low, zero, bits))
        lost = p.node("ne", BOOL, a, a)
        return p.node("select", dtype, lost, a, p.node("bitcast", dtype, bits))

    return [x if drop <= 0 and exponent >= size else mapped(p, one, dtype, x)]


def _is_finite(p: Program, x: int) -> int:
    return p.node("lt", BOOL, p.node("abs", p.dtype[x], x), p.const(np.inf, p.dtype[x]))


def _sign(p: Program, x: int) -> int:
    dtype = p.dtype[x]
    zero, one = p.const(0, dtype), p.const(1, dtype)
    positive, negative = p.node("gt", BOOL, x, zero), p.node("lt", BOOL, x, zero)
    rest = p.node("select", dtype, negative, p.const(-1, dtype), x) if dtype.kind != "u" else x
    return p.node("select", dtype, positive, one, rest)


def _square(p: Program, x: int) -> int:
    return p.node("mul", p.dtype[x], x, x)


RULES = {
    **{name: _direct(name) for name in ("add", "sub", "mul", "neg", "abs", "sqrt", "floor", "ceil", "max", "min")},
    "add_any": _direct("add"),
    **{name: _direct(name) for name in ("and", "or", "xor", "not")},
    **{name: _direct(name, BOOL) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    "div": _division("div"),
    "rem": _division("rem"),
    "convert_element_type": _convert,
    "bitcast_convert_type": _bitcast,
    "select_n": _select,
    "clamp": _written(_clamp),
    "integer_pow": _integer_pow,
    "pow": _power,
    "round": _round,
    "shift_left": _shift("shl"),
    "shift_right_logical": _shift("lshr"),
    "shift_right_arithmetic": _shift("ashr"),
    "is_finite": _written(_is_finite, BOOL),
    "sign": _written(_sign),
    "square": _written(_square),
    **{name: _written(f, most=MOST) for name, f in fn.FUNCTIONS.items()},
    "erf_inv": _written(erf_inv, most=MOST),
    "reduce_precision": _reduce_precision,
}
