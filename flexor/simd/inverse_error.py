"""The inverse error function, by which `jax.random.normal` turns uniform numbers into normal ones. It is XLA's own arithmetic,
operation by operation, so that kernels draw the numbers that XLA draws, to the bit.

Giles, "Approximating the erfinv function" (GPU Computing Gems, 2012): x P(w), w = -log(1 - x^2), with a polynomial for each range
of w. log(1 + t) is Cephes' quotient of polynomials for small t; beyond, Cephes' `logf` in single precision and the C library's
`log` in double. Products are fused into sums where LLVM fuses them for XLA.
"""

from collections.abc import Sequence

import numpy as np

from flexor.simd.functions import Maths, log_parts
from flexor.simd.program import Program

# ranges of w in single precision: below 5, in powers of w - 2.5; above, of sqrt(w) - 3
SINGLE = (
    (1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087, -4.39150654e-06, -3.5233877e-06, 3.43273939e-07,
     2.81022636e-08),
    (2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844, 0.00134934322, 0.000100950558,
     -0.000200214257),
)  # fmt: skip
# in double precision: below 6.25, in powers of w - 3.125; below 16, of sqrt(w) - 3.25; above, of sqrt(w) - 5
DOUBLE = (
    (1.6536545626831027, 0.24015818242558962, -0.0060336708714301491, -0.000740702534166267, 0.00018673420803405714,
     -1.3882523362786469e-05, -1.3654692000834679e-06, 4.2347877827932404e-07, -2.9070369957882005e-08,
     -4.1126339803469837e-09, 1.0512122733215323e-09, -5.4154120542946279e-11, -1.2975133253453532e-11,
     2.6335093153082323e-12, -8.1519341976054722e-14, -4.0545662729752069e-14, 6.6376381343583238e-15,
     2.0972767875968562e-17, -1.3331716628546209e-16, 1.1157877678025181e-17, 1.28584807152564e-18,
     -1.6850591381820166e-19, -3.64441206401782e-21),
    (3.0838856104922208, 1.0052589676941592, 0.0053709145535900636, -0.0037512085075692412, 0.0024914420961078508,
     -0.0016882755560235047, 0.0009532893797373805, -0.00035503752036284748, 2.4031110387097894e-05,
     6.8284851459573175e-05, -4.7318229009055734e-05, 1.2475304481671779e-05, 2.9234449089955446e-06,
     -4.013867526981546e-06, 1.5027403968909828e-06, 1.8239629214389228e-08, -2.7517406297064545e-07,
     9.0756561938885391e-08, 2.2137376921775787e-09),
    (4.8499064014085844, 1.0103004648645344, -0.00013871931833623122, -0.00021503011930044477, 7.5995277030017761e-05,
     -1.9681778105531671e-05, 4.5260625972231537e-06, -9.9298272942317e-07, 2.2900482228026655e-07,
     -6.7711997758452339e-08, 2.9147953450901081e-08, -1.496002662714924e-08, 7.61570120807834e-09,
     -3.789465440126737e-09, 1.5076572693500548e-09, -2.5556418169965252e-10, -2.7109920616438573e-11),
)  # fmt: skip

# log(1 + t) = t - t^2 / 2 + t^3 P(t) / Q(t) for |t| < sqrt(2) - 1 (Cephes, log1p)
SMALL = 0.41421356237309504
P = (4.5270000862445199635215e-5, 4.9854102823193375972212e-1, 6.5787325942061044846969, 2.9911919328553073277375e1,
     6.0949667980987787057556e1, 5.7112963590585538103336e1, 2.0039553499201281259648e1)  # fmt: skip
Q = (1.0, 1.5062909083469192043167e1, 8.3047565967967209469434e1, 2.2176239823732856465394e2, 3.0909872225312059774938e2,
     2.1642788614495947685003e2, 6.0118660497603843919306e1)  # fmt: skip
# log(1 + f) = f - f^2 / 2 + f^3 R(f) for 1 + f between sqrt(1/2) and sqrt(2) (Cephes, logf)
R = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
     2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4


def erf_inv(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    w = m.one("neg", _log1p(m, m.mul(x, m.one("neg", x))))
    root = m.one("sqrt", w)
    if m.single:
        near = m.test("lt", w, m.c(5))
        t = m.when(near, m.sub(w, m.c(2.5)), m.sub(root, m.c(3)))
        value = _horner(m, t, [m.when(near, m.c(a), m.c(b)) for a, b in zip(*SINGLE, strict=True)])
    else:
        near, middle = m.test("lt", w, m.c(6.25)), m.test("lt", w, m.c(16))
        t = m.when(near, m.sub(w, m.c(3.125)), m.sub(root, m.when(middle, m.c(3.25), m.c(5))))
        a, b, c = (_horner(m, t, [m.c(k) for k in row]) for row in DOUBLE)
        value = m.when(near, a, m.when(middle, b, c))
    one = m.test("eq", m.one("abs", x), m.c(1))
    return m.mul(m.when(one, m.c(np.inf), value), x)


def _horner(m: Maths, x: int, coefficients: Sequence[int]) -> int:
    value = coefficients[-1]
    for k in reversed(coefficients[:-1]):
        value = m.fma(value, x, k)
    return value


def _log1p(m: Maths, t: int) -> int:
    """log(1 + t) for t from -1 to 0."""
    square = m.mul(t, t)
    quotient = m.div(_horner(m, t, _constants(m, P)), _horner(m, t, _constants(m, Q)))
    small = m.add(t, m.fma(square, m.c(-0.5), m.mul(m.mul(t, square), quotient)))
    return m.when(m.test("lt", m.one("abs", t), m.c(SMALL)), small, _log(m, m.add(t, m.c(1))))


def _log(m: Maths, x: int) -> int:
    """log(x) for x from 0 to 1, nan for others below 0."""
    if not m.single:
        return m.one("library log", x)
    k, f = log_parts(m, x)
    square = m.mul(f, f)
    cube = m.mul(square, f)
    a, b, c = (_horner(m, f, _constants(m, R[i : i + 3])) for i in (0, 3, 6))
    tail = m.fma(cube, m.fma(cube, m.fma(cube, a, b), c), m.mul(k, m.c(LN2_LOW)))
    value = m.fma(k, m.c(LN2_HIGH), m.add(m.fma(square, m.c(-0.5), f), tail))
    value = m.when(m.test("eq", x, m.c(0)), m.c(-np.inf), value)
    return m.when(m.test("ge", x, m.c(0)), value, m.c(np.nan))


def _constants(m: Maths, values: Sequence[float]) -> list[int]:
    """Constants, from the highest power down, as nodes from the lowest up."""
    return [m.c(v) for v in reversed(values)]
