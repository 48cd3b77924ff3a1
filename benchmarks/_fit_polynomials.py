"""Prints `flexor/simd/polynomials.py`: near-minimax polynomials (Chebyshev interpolation in 90 digits) for `functions.py`.

python benchmarks/_fit_polynomials.py > flexor/simd/polynomials.py
"""

from mpmath import asin, atan, chebyfit, cos, erf, erfc, exp, expm1, log, mp, mpf, nstr, pi, sin, sqrt

mp.dps = 90


def even(f, shift, power):
    """g(z) = (f(x) - shift(x)) / x^power with z = x^2, by its limit near 0."""

    def g(z):
        x = sqrt(max(z, mpf(10) ** -24))
        return (f(x) - shift(x)) / x**power

    return g


def exp_tail(r):
    """(exp(r) - 1 - r) / r^2."""
    r = r if abs(r) > mpf(10) ** -25 else mpf(10) ** -25
    return (expm1(r) - r) / r**2


def log_tail(z):
    """With s = sqrt(z) = f / (2 + f): (log((1 + s) / (1 - s)) - 2 s) / s^3."""
    s = sqrt(max(z, mpf(10) ** -24))
    return (log((1 + s) / (1 - s)) - 2 * s) / s**3


def erfc_tail(w):
    """log(erfc(x) exp(x^2) / t) with t = w + 1/2 = 2 / (2 + x) (Numerical Recipes, 6.2)."""
    t = max(w + mpf("0.5"), mpf(10) ** -9)
    x = 2 / t - 2
    if x > 60:
        x2 = 1 / (2 * x * x)
        series = 1 - x2 + 3 * x2**2 - 15 * x2**3
        return log(series / (x * sqrt(pi)) / t)
    return log(erfc(x) * exp(x * x) / t)


Z = (pi / 4 * mpf("1.02")) ** 2
R = log(2) / 2 * mpf("1.02")
S = ((sqrt(2) - 1) / (sqrt(2) + 1)) ** 2 * mpf("1.02")
A = (sqrt(2) - 1) ** 2 * mpf("1.02")
TABLES = {
    "SIN": (even(sin, lambda x: x, 3), (0, Z), (3, 6)),
    "COS": (even(cos, lambda x: 1 - x * x / 2, 4), (0, Z), (3, 6)),
    "EXP": (exp_tail, (-R, R), (6, 11)),
    "LOG": (log_tail, (0, S), (4, 8)),
    "ATAN": (even(atan, lambda x: x, 3), (0, A), (5, 11)),
    "ASIN": (even(asin, lambda x: x, 3), (0, mpf("0.255")), (6, 13)),
    "ERF": (even(erf, lambda x: x * 0, 1), (0, mpf("1.02")), (8, 14)),
    "ERFC": (erfc_tail, (mpf("-0.44"), mpf("0.5")), (13, 26)),
}

if __name__ == "__main__":
    print('"""Coefficients, lowest power first, printed by `benchmarks/_fit_polynomials.py`: for float32, for float64."""\n')
    for name, (f, interval, sizes) in TABLES.items():
        print(f"{name} = (")
        for size in sizes:
            coefficients, error = chebyfit(f, [mpf(x) for x in interval], size, error=True)
            numbers = ", ".join(nstr(c, 20) for c in reversed(coefficients))
            print(f"    ({numbers}),  # error {nstr(error, 2)}")
        print(")")
