"""Simplification of one node as it is made: constants, zeros, ones, signs.

A literal zero times anything is zero, whatever the other factor (XLA keeps 0 * inf = nan): this is what makes the structural
zeros of rotation axes, Jacobians and masks free. Nothing else changes a value by more than a rounding: sums are not
reordered and divisions are not turned into products, except by powers of two.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from flexor.simd.program import Program

BOOL = np.dtype(bool)


def simplify(p: "Program", op: str, dtype: np.dtype, args: tuple[int, ...]) -> int | None:
    """A node that already has the value of `op` on `args`, or None."""
    constants = p.value
    for a in args:
        if a not in constants:
            break
    else:
        if op in FOLD:
            with np.errstate(all="ignore"):
                return p.const(FOLD[op](dtype, *(constants[a] for a in args)), dtype)
    rule = RULES.get(op)
    return rule(p, dtype, args) if rule else None


def _negated(p: "Program", a: int) -> int | None:
    """b where a is the node -b."""
    return p.args[a][0] if p.op[a] == "neg" else None


def _add(p: "Program", dtype: np.dtype, args: tuple[int, ...]) -> int | None:
    a, b = args
    if a in p.zeros:
        return b
    if b in p.zeros:
        return a
    if dtype.kind == "f":
        for x, y in ((a, b), (b, a)):
            other = _negated(p, y)
            if other is not None:
                return p.node("sub", dtype, x, other)
    return p.node("add", dtype, b, a) if a > b else None


def _sub(p: "Program", dtype: np.dtype, args: tuple[int, ...]) -> int | None:
    a, b = args
    if b in p.zeros:
        return a
    if a in p.zeros:
        return p.node("neg", dtype, b)
    other = _negated(p, b)
    if other is not None and dtype.kind == "f":
        return p.node("add", dtype, a, other)
    return p.const(0, dtype) if a == b and dtype.kind != "f" else None


def _mul(p: "Program", dtype: np.dtype, args: tuple[int, ...]) -> int | None:
    a, b = args
    if a in p.zeros:
        return a
    if b in p.zeros:
        return b
    if a in p.ones:
        return b
    if b in p.ones:
        return a
    if a in p.minus or b in p.minus:
        return p.node("neg", dtype, b if a in p.minus else a)
    if dtype.kind == "f":
        for x, y in ((a, b), (b, a)):
            other = _negated(p, y)
            if other is not None:
                return p.node("neg", dtype, p.node("mul", dtype, x, other))
    return p.node("mul", dtype, b, a) if a > b else None


def _div(p: "Program", dtype: np.dtype, args: tuple[int, ...]) -> int | None:
    a, b = args
    if b in p.ones:
        return a
    if dtype.kind != "f":
        return None
    if a in p.zeros:
        return a
    divisor = p.value.get(b)
    if divisor is not None and np.isfinite(divisor) and abs(np.frexp(divisor)[0]) == 0.5:
        return p.node("mul", dtype, a, p.const(1 / divisor, dtype))
    for x, y, order in ((a, b, False), (b, a, True)):
        other = _negated(p, x)
        if other is not None:
            return p.node("neg", dtype, p.node("div", dtype, *((y, other) if order else (other, y))))
    return None


def _neg(p: "Program", dtype: np.dtype, args: tuple[int, ...]) -> int | None:
    return _negated(p, args[0])


def _abs(p: "Program", dtype: np.dtype, args: tuple[int, ...]) -> int | None:
    other = _negated(p, args[0])
    if other is not None:
        return p.node("abs", dtype, other)
    return args[0] if p.op[args[0]] == "abs" else None


def _select(p: "Program", dtype: np.dtype, args: tuple[int, ...]) -> int | None:
    which, yes, no = args
    if which in p.value:
        return yes if p.value[which] else no
    if yes == no:
        return yes
    if dtype == BOOL:
        values = [None, p.value.get(yes), p.value.get(no)]
        if values[1] is not None and values[2] is not None:
            return which if values[1] else p.node("not", BOOL, which)
        if values[1] is not None:
            return p.node("or", BOOL, which, no) if values[1] else p.node("and", BOOL, p.node("not", BOOL, which), no)
        if values[2] is not None:
            return p.node("or", BOOL, p.node("not", BOOL, which), yes) if values[2] else p.node("and", BOOL, which, yes)
    if p.op[which] == "not":
        return p.node("select", dtype, p.args[which][0], no, yes)
    return None


def _logic(op: str) -> Callable[..., int | None]:
    def rule(p: "Program", dtype: np.dtype, args: tuple[int, ...]) -> int | None:
        a, b = args
        if a == b:
            return p.const(0, dtype) if op == "xor" else a
        if dtype == BOOL and op != "xor":
            for x, v in ((b, p.value.get(a)), (a, p.value.get(b))):
                if v is not None:
                    keep = bool(v) == (op == "and")
                    return x if keep else p.const(op == "or", BOOL)
        return p.node(op, dtype, b, a) if a > b else None

    return rule


def _not(p: "Program", dtype: np.dtype, args: tuple[int, ...]) -> int | None:
    return p.args[args[0]][0] if p.op[args[0]] == "not" else None


def _extreme(p: "Program", dtype: np.dtype, args: tuple[int, ...]) -> int | None:
    return args[0] if args[0] == args[1] else None


def _convert(p: "Program", dtype: np.dtype, args: tuple[int, ...]) -> int | None:
    return args[0] if p.dtype[args[0]] == dtype else None


RULES: dict[str, Callable[..., int | None]] = {
    "add": _add, "sub": _sub, "mul": _mul, "div": _div, "neg": _neg, "abs": _abs, "select": _select,
    "and": _logic("and"), "or": _logic("or"), "xor": _logic("xor"), "not": _not, "max": _extreme, "min": _extreme,
    "convert": _convert,
}  # fmt: skip


def _to(dtype: np.dtype, x: Any) -> Any:
    """Conversion as XLA does it: floats to integers saturate, and nan becomes 0."""
    if dtype.kind in "iu" and np.asarray(x).dtype.kind == "f":
        info = np.iinfo(dtype)
        if np.isnan(x):
            return 0
        return info.min if x <= info.min else info.max if x >= info.max else int(x)
    return x


def _integer_division(x: Any, y: Any) -> Any:
    """Towards zero; by zero all bits are set, as in XLA."""
    return -1 if y == 0 else int(np.trunc(np.longdouble(x) / np.longdouble(y)))


FOLD: dict[str, Callable[..., Any]] = {
    "add": lambda t, x, y: x + y,
    "sub": lambda t, x, y: x - y,
    "mul": lambda t, x, y: x * y,
    "div": lambda t, x, y: x / y if t.kind == "f" else _integer_division(x, y),
    "rem": lambda t, x, y: np.fmod(x, y) if t.kind == "f" or y != 0 else x,
    "neg": lambda t, x: -x if t.kind != "u" else np.negative(x),
    "abs": lambda t, x: np.abs(x),
    "sqrt": lambda t, x: np.sqrt(x),
    "max": lambda t, x, y: np.maximum(x, y),
    "min": lambda t, x, y: np.minimum(x, y),
    "floor": lambda t, x: np.floor(x),
    "ceil": lambda t, x: np.ceil(x),
    "rint": lambda t, x: np.rint(x),
    "trunc": lambda t, x: np.trunc(x),
    "lt": lambda t, x, y: x < y,
    "le": lambda t, x, y: x <= y,
    "gt": lambda t, x, y: x > y,
    "ge": lambda t, x, y: x >= y,
    "eq": lambda t, x, y: x == y,
    "ne": lambda t, x, y: x != y,
    "and": lambda t, x, y: x & y,
    "or": lambda t, x, y: x | y,
    "xor": lambda t, x, y: x ^ y,
    "not": lambda t, x: ~x,
    "select": lambda t, c, x, y: x if c else y,
    "convert": _to,
}
