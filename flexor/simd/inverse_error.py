"""The inverse error function, by which `jax.random.normal` turns uniform numbers into normal ones.

Giles, "Approximating the erfinv function" (GPU Computing Gems, 2012): x P(w), w = -log(1 - x^2), with a polynomial for each range
of w; the same polynomials as XLA's.
"""

from collections.abc import Sequence

import numpy as np

from flexor.simd.functions import Maths, log1p
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


def erf_inv(p: Program, x: int) -> int:
    m = Maths(p, p.dtype[x])
    w = m.one("neg", log1p(p, m.mul(x, m.one("neg", x))))
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
