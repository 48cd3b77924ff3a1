"""Elementary functions written out in additions, products and selections, so that they vectorise like everything else.

Each is range reduction, a polynomial (`polynomials.py`), and reconstruction, after Cephes and fdlibm; `benchmarks/ulp.py` prints
the errors. sin and cos are exact to a few ulp for |x| < 1e15 and give nan beyond, where there is no angle left in a double.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from flexor.simd import polynomials as poly
from flexor.simd.program import BOOL, F32, F64, I32, I64, Program


class Maths:
    """Arithmetic on nodes of one floating type, written as formulas."""

    def __init__(self, p: Program, dtype: np.dtype):
        self.p, self.t = p, dtype
        self.single = dtype == F32
        self.int = I32 if self.single else I64
        self.digits = 23 if self.single else 52
        self.bias = 127 if self.single else 1023

    def c(self, value: float) -> int:
        return self.p.const(value, self.t)

    def add(self, a: int, b: int) -> int:
        return self.p.node("add", self.t, a, b)

    def sub(self, a: int, b: int) -> int:
        return self.p.node("sub", self.t, a, b)

    def mul(self, a: int, b: int) -> int:
        return self.p.node("mul", self.t, a, b)

    def div(self, a: int, b: int) -> int:
        return self.p.node("div", self.t, a, b)

    def fma(self, a: int, b: int, c: int) -> int:
        """a b + c with one rounding."""
        return self.p.node("fma", self.t, a, b, c)

    def one(self, op: str, a: int) -> int:
        return self.p.node(op, self.t, a)

    def when(self, mask: int, a: int, b: int) -> int:
        return self.p.node("select", self.t, mask, a, b)

    def test(self, op: str, a: int, b: int) -> int:
        return self.p.node(op, BOOL, a, b)

    def polynomial(self, table: Sequence[Sequence[float]], x: int) -> int:
        """Horner's scheme with the coefficients of this precision."""
        coefficients = table[0 if self.single else 1]
        value = self.c(coefficients[-1])
        for k in reversed(coefficients[:-1]):
            value = self.fma(value, x, self.c(k))
        return value

    def copysign(self, a: int, b: int) -> int:
        return self.p.node("copysign", self.t, a, b)

    def power_of_two(self, n: int) -> int:
        """2^n of an integer node within the normal range."""
        p = self.p
        biased = p.node("add", self.int, n, p.const(self.bias, self.int))
        return p.node("bitcast", self.t, p.node("shl", self.int, biased, p.const(self.digits, self.int)))

    def scaled(self, x: int, n: int) -> int:
        """x 2^n of a whole floating number n, in two steps so that results may be subnormal or overflow."""
        p = self.p
        whole = p.node("whole", self.int, n)
        half = p.node("ashr", self.int, whole, p.const(1, self.int))
        return self.mul(self.mul(x, self.power_of_two(half)), self.power_of_two(p.node("sub", self.int, whole, half)))


def _parts(value: str, count: int, dtype: np.dtype) -> list[float]:
    """A constant with many digits as a sum of floating numbers."""
    rest, out = Fraction(value), []
    for _ in range(count):
        out.append(float(dtype.type(float(rest))))
        rest -= Fraction(out[-1])
    return out


HALF_PI = "1.57079632679489661923132169163975144209858469968755291048747229615390820314310449931"
LN2 = "0.693147180559945309417232121458176568075500134360255254120680009493393621969694715605863"


def _quadrant(m: Maths, x: int) -> tuple[int, int]:
    """r and k mod 4 with x = k pi/2 + r, |r| <= pi/4: Cody and Waite's reduction with fused products, in double precision."""
    p = m.p
    d = Maths(p, F64)
    wide = p.node("convert", F64, x)
    huge = d.test("gt", d.one("abs", wide), d.c(1e15))
    wide = d.when(huge, d.c(np.nan), wide)
    k = d.one("rint", d.mul(wide, d.c(2 / np.pi)))
    r = wide
    for part in _parts(HALF_PI, 2 if m.single else 3, F64):
        r = d.fma(k, d.c(-part), r)
    quarter = d.fma(d.one("floor", d.mul(k, d.c(0.25))), d.c(-4), k)
    return p.node("convert", m.t, r), p.node("convert", m.t, quarter)


def _sin_cos(p: Program, x: int, turn: int) -> int:
    """sin(x + turn pi/2)."""
    m = Maths(p, p.dtype[x])
    r, k = _quadrant(m, x)
    z = m.mul(r, r)
    sine = m.fma(m.mul(z, r), m.polynomial(poly.SIN, z), r)
    cosine = m.fma(m.mul(z, z), m.polynomial(poly.COS, z), m.fma(z, m.c(-0.5), m.c(1)))
    odd = p.node("or", BOOL, m.test("eq", k, m.c(1)), m.test("eq", k, m.c(3)))
    if turn:
        flip = p.node("or", BOOL, m.test("eq", k, m.c(1)), m.test("eq", k, m.c(2)))
        value = m.when(odd, sine, cosine)
        return m.when(flip, m.one("neg", value), value)
    flip = m.test("ge", k, m.c(2))
    value = m.when(odd, cosine, sine)
    value = m.when(flip, m.one("neg", value), value)
    return m.when(m.test("eq", x, m.c(0)), x, value)


def sin(p: Program, x: int) -> int:
    return _sin_cos(p, x, 0)


def cos(p: Program, x: int) -> int:
    return _sin_cos(p, x, 1)


def tan(p: Program, x: int) -> int:
    return p.node("div", p.dtype[x], sin(p, x), cos(p, x))


def _exp_parts(m: Maths, x: int) -> tuple[int, int, int]:
    """n, r and exp(r) - 1 with x = n ln 2 + r, for x clamped to where exp(x) is neither 0 nor infinite (nan stays nan)."""
    top, bottom = (89.0, -104.0) if m.single else (710.0, -746.0)
    x = m.when(m.test("gt", x, m.c(top)), m.c(top), m.when(m.test("lt", x, m.c(bottom)), m.c(bottom), x))
    n = m.one("rint", m.mul(x, m.c(1 / np.log(2))))
    r = x
    for part in _parts(LN2, 2, m.t):
        r = m.fma(n, m.c(-part), r)
    return n, r, m.fma(m.mul(r, r), m.polynomial(poly.EXP, r), r)


def exp(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    n, _, small = _exp_parts(m, x)
    return m.scaled(m.add(small, m.c(1)), n)


def exp2(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    top, bottom = (130.0, -152.0) if m.single else (1030.0, -1080.0)
    x = m.when(m.test("gt", x, m.c(top)), m.c(top), m.when(m.test("lt", x, m.c(bottom)), m.c(bottom), x))
    n = m.one("rint", x)
    r = m.mul(m.sub(x, n), m.c(np.log(2)))
    return m.scaled(m.add(m.fma(m.mul(r, r), m.polynomial(poly.EXP, r), r), m.c(1)), n)


def expm1(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    n, _, small = _exp_parts(m, x)
    # 2^n overflows one step before exp does: half of it first
    half = m.scaled(m.c(0.5), n)
    value = m.mul(m.fma(small, half, m.sub(half, m.c(0.5))), m.c(2))
    value = m.when(m.test("eq", n, m.c(0)), small, value)
    return m.when(m.test("eq", x, m.c(0)), x, m.when(m.test("eq", x, m.c(np.inf)), x, value))


def log_parts(m: Maths, x: int) -> tuple[int, int]:
    """k and f with x = 2^k (1 + f), 1 + f between sqrt(1/2) and sqrt(2), for positive finite x."""
    p, shift = m.p, m.digits + 2
    tiny = m.test("lt", x, m.c(np.finfo(m.t).tiny))
    x = m.when(tiny, m.mul(x, m.c(2.0**shift)), x)
    bits = p.node("bitcast", m.int, x)
    root = int(np.array(np.sqrt(0.5), m.t).view(np.int32 if m.single else np.int64))
    moved = p.node("sub", m.int, bits, p.const(root, m.int))
    k = p.node("ashr", m.int, moved, p.const(m.digits, m.int))
    mantissa = p.node("sub", m.int, bits, p.node("shl", m.int, k, p.const(m.digits, m.int)))
    f = m.sub(p.node("bitcast", m.t, mantissa), m.c(1))
    return m.sub(p.node("convert", m.t, k), m.when(tiny, m.c(shift), m.c(0))), f


def _log_edges(m: Maths, x: int, value: int) -> int:
    value = m.when(m.test("eq", x, m.c(np.inf)), x, value)
    value = m.when(m.test("eq", x, m.c(0)), m.c(-np.inf), value)
    return m.when(m.p.node("not", BOOL, m.test("ge", x, m.c(0))), m.c(np.nan), value)


def log(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    k, f = log_parts(m, x)
    s = m.div(f, m.add(f, m.c(2)))
    z = m.mul(s, s)
    # log(1 + f) = f - s (f - z P): the leading term carries no rounding error
    tail = m.mul(s, m.sub(f, m.mul(z, m.polynomial(poly.LOG, z))))
    high, low = _parts(LN2, 2, m.t)
    value = m.fma(k, m.c(high), m.sub(f, m.fma(k, m.c(-low), tail)))
    return _log_edges(m, x, value)


def log1p(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    u = m.add(x, m.c(1))
    lost = m.div(m.sub(x, m.sub(u, m.c(1))), u)
    value = m.add(log(p, u), lost)
    value = m.when(m.test("eq", u, m.c(1)), x, value)
    return m.when(m.test("eq", x, m.c(np.inf)), x, m.when(m.test("eq", x, m.c(-1)), m.c(-np.inf), value))


def power(p: Program, x: int, y: int) -> int:
    """x^y; constant integer and half-integer exponents become products and a root."""
    m = Maths(p, p.dtype[x])
    exponent = p.value.get(y)
    if p.dtype[y].kind != "f":
        if exponent is None:
            return power(p, x, p.node("convert", m.t, y))
        return integer_pow(p, x, int(exponent))
    if exponent is not None and float(2 * exponent).is_integer() and abs(exponent) <= 16:
        whole = int(np.floor(exponent))
        if exponent == whole:
            return integer_pow(p, x, whole)
        if exponent > 0:
            root = m.one("sqrt", x)
            return (
                m.mul(root, integer_pow(p, x, whole)) if whole else m.when(m.test("eq", x, m.c(-np.inf)), m.c(np.inf), root)
            )
    if m.single:
        wide = power(p, p.node("convert", F64, x), p.node("convert", F64, y))
        return p.node("convert", F32, wide)
    return _power_double(m, x, y)


def _power_double(m: Maths, x: int, y: int) -> int:
    """exp(y log|x|) with the logarithm in two doubles, then the special cases of C's pow."""
    p = m.p
    a = m.one("abs", x)
    k, f = log_parts(m, a)
    high, low = _log_double(m, k, f)
    product = m.mul(y, high)
    rest = m.fma(y, low, m.fma(y, high, m.one("neg", product)))
    rest = m.when(m.test("lt", m.one("abs", product), m.c(1e6)), rest, m.c(0))
    n, _, small = _exp_parts(m, product)
    base = m.add(small, m.c(1))
    value = m.scaled(m.fma(base, rest, base), n)
    zero, inf, one = m.c(0), m.c(np.inf), m.c(1)
    up = m.test("gt", y, zero)
    value = m.when(m.test("eq", a, zero), m.when(up, zero, inf), value)
    value = m.when(m.test("eq", a, inf), m.when(up, inf, zero), value)
    whole = m.test("eq", m.one("trunc", y), y)
    half = m.mul(y, m.c(0.5))
    odd = p.node("and", BOOL, whole, m.test("ne", m.one("trunc", half), half))
    negative = m.test("lt", m.copysign(one, x), zero)
    value = m.when(p.node("and", BOOL, negative, odd), m.one("neg", value), value)
    lost = p.node("and", BOOL, m.test("lt", x, zero), p.node("not", BOOL, whole))
    value = m.when(p.node("and", BOOL, lost, m.test("lt", a, inf)), m.c(np.nan), value)
    large = m.test("eq", m.one("abs", y), inf)
    grows = p.node("eq", BOOL, m.test("gt", a, one), up)
    value = m.when(large, m.when(m.test("eq", a, one), one, m.when(grows, inf, zero)), value)
    for z in (x, y):
        value = m.when(m.test("ne", z, z), z, value)
    always = p.node("or", BOOL, m.test("eq", y, zero), m.test("eq", x, one))
    return m.when(always, one, value)


def _log_double(m: Maths, k: int, f: int) -> tuple[int, int]:
    """k ln 2 + log(1 + f) as a sum of two doubles."""
    two = m.c(2)
    d = m.add(f, two)
    d_low = m.sub(f, m.sub(d, two))
    s = m.div(f, d)
    s_low = m.div(m.sub(m.fma(m.one("neg", s), d, f), m.mul(s, d_low)), d)
    z = m.mul(s, s)
    z_low = m.add(m.fma(s, s, m.one("neg", z)), m.mul(m.mul(two, s), s_low))
    # 2 s + s^3 (2/3 + z Q): the first two terms in two doubles
    third = _parts("0.66666666666666666666666666666666666666666667", 2, F64)
    cube = m.mul(s, z)
    cube_low = m.add(m.fma(s, z, m.one("neg", cube)), m.add(m.mul(s, z_low), m.mul(s_low, z)))
    tail = m.sub(m.polynomial(poly.LOG, z), m.c(third[0]))
    a = m.mul(cube, m.c(third[0]))
    a_low = m.add(m.fma(cube, m.c(third[0]), m.one("neg", a)), m.add(m.mul(cube_low, m.c(third[0])), m.mul(cube, tail)))
    high, low = _two_sum(m, m.mul(two, s), a)
    low = m.add(low, m.add(m.mul(two, s_low), a_low))
    ln = _parts(LN2, 2, F64)
    scaled = m.mul(k, m.c(ln[0]))
    scaled_low = m.add(m.fma(k, m.c(ln[0]), m.one("neg", scaled)), m.mul(k, m.c(ln[1])))
    total, rest = _two_sum(m, scaled, high)
    rest = m.add(rest, m.add(low, scaled_low))
    return _two_sum(m, total, rest)


def _two_sum(m: Maths, a: int, b: int) -> tuple[int, int]:
    """a + b and its rounding error (Knuth)."""
    s = m.add(a, b)
    t = m.sub(s, a)
    return s, m.add(m.sub(a, m.sub(s, t)), m.sub(b, t))


def integer_pow(p: Program, x: int, n: int) -> int:
    """x^n by repeated squaring."""
    dtype = p.dtype[x]
    if n < 0:
        return p.node("div", dtype, p.const(1, dtype), integer_pow(p, x, -n))
    value, square = p.const(1, dtype), x
    while n:
        value = p.node("mul", dtype, value, square) if n & 1 else value
        n >>= 1
        square = p.node("mul", dtype, square, square) if n else square
    return value


def tanh(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    bound = m.c(10.0 if m.single else 20.0)
    a = m.one("abs", x)
    a = m.when(m.test("gt", a, bound), bound, a)
    e = expm1(p, m.mul(a, m.c(2)))
    return m.copysign(m.div(e, m.add(e, m.c(2))), x)


def logistic(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    return m.div(m.c(1), m.add(exp(p, m.one("neg", x)), m.c(1)))


def sinh(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    a = m.one("abs", x)
    e = expm1(p, a)
    small = m.mul(m.c(0.5), m.add(e, m.div(e, m.add(e, m.c(1)))))
    h = exp(p, m.mul(a, m.c(0.5)))
    large = m.mul(m.mul(m.c(0.5), h), h)
    return m.copysign(m.when(m.test("gt", a, m.c(20.0)), large, small), x)


def cosh(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    h = exp(p, m.mul(m.one("abs", x), m.c(0.5)))
    large = m.mul(m.mul(m.c(0.5), h), h)
    return m.add(large, m.div(m.c(0.25), large))


def asinh(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    a = m.one("abs", x)
    big = m.test("gt", a, m.c(1e9))
    safe = m.when(big, m.c(1), a)
    z = m.mul(safe, safe)
    value = log1p(p, m.add(safe, m.div(z, m.add(m.c(1), m.one("sqrt", m.add(z, m.c(1)))))))
    return m.copysign(m.when(big, m.add(log(p, a), m.c(np.log(2))), value), x)


def acosh(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    big = m.test("gt", x, m.c(1e9))
    t = m.sub(m.when(big, m.c(2), x), m.c(1))
    value = log1p(p, m.add(t, m.one("sqrt", m.fma(t, t, m.mul(m.c(2), t)))))
    return m.when(big, m.add(log(p, x), m.c(np.log(2))), value)


def atanh(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    a = m.one("abs", x)
    value = m.mul(m.c(0.5), log1p(p, m.div(m.mul(m.c(2), a), m.sub(m.c(1), a))))
    return m.copysign(value, x)


def _atan_ratio(m: Maths, small: int, large: int) -> int:
    """atan(small / large) for 0 <= small <= large, with one division."""
    turn = m.test("gt", small, m.mul(large, m.c(np.sqrt(2) - 1)))
    top = m.when(turn, m.sub(small, large), small)
    bottom = m.when(turn, m.add(small, large), large)
    t = m.div(top, bottom)
    z = m.mul(t, t)
    value = m.fma(m.mul(z, t), m.polynomial(poly.ATAN, z), t)
    half, half_low = _parts(HALF_PI, 2, m.t)
    return m.when(turn, m.add(m.c(half / 2), m.add(value, m.c(half_low / 2))), value)


def atan2(p: Program, y: int, x: int) -> int:
    m = Maths(p, p.dtype[x])
    ay, ax = m.one("abs", y), m.one("abs", x)
    swap = m.test("gt", ay, ax)
    large, small = m.when(swap, ay, ax), m.when(swap, ax, ay)
    both = m.test("eq", small, m.c(np.inf))
    small = m.when(both, m.c(1), small)
    large = m.when(both, m.c(1), large)
    large = m.when(m.test("eq", large, m.c(0)), m.c(1), large)
    value = _atan_ratio(m, small, large)
    value = m.when(m.test("eq", large, m.c(np.inf)), m.c(0), value)
    half, half_low = _parts(HALF_PI, 2, m.t)
    value = m.when(swap, m.add(m.sub(m.c(half), value), m.c(half_low)), value)
    back = m.test("lt", m.copysign(m.c(1), x), m.c(0))
    value = m.when(back, m.add(m.sub(m.c(2 * half), value), m.c(2 * half_low)), value)
    lost = p.node("or", BOOL, m.test("ne", x, x), m.test("ne", y, y))
    return m.when(lost, m.c(np.nan), m.copysign(value, y))


def atan(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    a = m.one("abs", x)
    swap = m.test("gt", a, m.c(1))
    value = _atan_ratio(m, m.when(swap, m.c(1), a), m.when(swap, a, m.c(1)))
    half, half_low = _parts(HALF_PI, 2, m.t)
    return m.copysign(m.when(swap, m.add(m.sub(m.c(half), value), m.c(half_low)), value), x)


def _asin_parts(m: Maths, x: int) -> tuple[int, int, int]:
    """Whether |x| > 1/2, the argument t (|x|, or sqrt((1 - |x|) / 2)), and asin(t)."""
    a = m.one("abs", x)
    outer = m.test("gt", a, m.c(0.5))
    half = m.mul(m.sub(m.c(1), a), m.c(0.5))
    z = m.when(outer, half, m.mul(a, a))
    t = m.when(outer, m.one("sqrt", half), a)
    return outer, t, m.fma(m.mul(z, t), m.polynomial(poly.ASIN, z), t)


def asin(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    outer, _, value = _asin_parts(m, x)
    half, half_low = _parts(HALF_PI, 2, m.t)
    far = m.add(m.sub(m.c(half), m.mul(m.c(2), value)), m.c(half_low))
    return m.copysign(m.when(outer, far, value), x)


def acos(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    outer, _, value = _asin_parts(m, x)
    half, half_low = _parts(HALF_PI, 2, m.t)
    double = m.mul(m.c(2), value)
    back = m.add(m.sub(m.c(2 * half), double), m.c(2 * half_low))
    negative = m.test("lt", x, m.c(0))
    near = m.add(m.sub(m.c(half), m.copysign(value, x)), m.c(half_low))
    return m.when(outer, m.when(negative, back, double), near)


def _erfc_positive(m: Maths, a: int) -> int:
    """erfc(a) = t exp(-a^2 + P(t - 1/2)), t = 2 / (2 + a), for 0 <= a < 30."""
    t = m.div(m.c(2), m.add(a, m.c(2)))
    square = m.mul(a, a)
    low = m.fma(a, a, m.one("neg", square))
    tail = m.polynomial(poly.ERFC, m.sub(t, m.c(0.5)))
    value = m.mul(exp(m.p, m.one("neg", square)), exp(m.p, m.sub(tail, low)))
    return m.mul(t, value)


def erf(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    a = m.one("abs", x)
    inner = m.test("lt", a, m.c(1))
    near = m.mul(a, m.polynomial(poly.ERF, m.when(inner, m.mul(a, a), m.c(0))))
    top = m.c(4.0 if m.single else 6.0)
    far = m.sub(m.c(1), _erfc_positive(m, m.when(m.test("gt", a, top), top, a)))
    return m.copysign(m.when(inner, near, far), x)


def erfc(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    a = m.one("abs", x)
    top = m.c(11.0 if m.single else 28.0)
    a = m.when(m.test("gt", a, top), top, a)
    near = m.test("lt", a, m.c(0.5))
    direct = m.sub(m.c(1), erf(p, x))
    far = _erfc_positive(m, a)
    far = m.when(m.test("lt", x, m.c(0)), m.sub(m.c(2), far), far)
    return m.when(near, direct, far)


def rsqrt(p: Program, x: int) -> int:
    return p.node("div", p.dtype[x], p.const(1, p.dtype[x]), p.node("sqrt", p.dtype[x], x))


def cbrt(p: Program, x: int) -> int:
    """exp(log|x| / 3), then one step of Newton's method."""
    m = Maths(p, p.dtype[x])
    a = m.one("abs", x)
    plain = m.p.node("and", BOOL, m.test("gt", a, m.c(0)), m.test("lt", a, m.c(np.inf)))
    safe = m.when(plain, a, m.c(1))
    r = exp(p, m.mul(log(p, safe), m.c(1 / 3)))
    excess = m.sub(m.mul(m.mul(r, r), r), safe)
    r = m.sub(r, m.div(excess, m.mul(m.mul(r, r), m.c(3))))
    return m.copysign(m.when(plain, r, a), x)


def round_away(p: Program, x: int) -> int:
    """To the nearest whole number, halves away from zero."""
    m = Maths(p, p.dtype[x])
    whole = m.one("trunc", x)
    up = m.test("ge", m.one("abs", m.sub(x, whole)), m.c(0.5))
    return m.copysign(m.add(m.one("abs", whole), m.when(up, m.c(1), m.c(0))), x)


FUNCTIONS: dict[str, Callable[..., int]] = {
    "sin": sin, "cos": cos, "tan": tan, "asin": asin, "acos": acos, "atan": atan, "atan2": atan2, "exp": exp, "exp2": exp2,
    "expm1": expm1, "log": log, "log1p": log1p, "tanh": tanh, "logistic": logistic, "sinh": sinh, "cosh": cosh,
    "asinh": asinh, "acosh": acosh, "atanh": atanh, "erf": erf, "erfc": erfc, "rsqrt": rsqrt, "cbrt": cbrt,
}  # fmt: skip
