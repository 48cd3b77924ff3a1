"""How exact are the kernels' elementary functions? Errors in units in the last place, against mpmath with 60 digits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
from _form import Result, at_most, run

import flexor as fx

jax.config.update("jax_enable_x64", True)
mpmath.mp.dps = 60
LIMIT = 5.0  # ulp
ONE: dict[str, Any] = {
    "sin": (jnp.sin, mpmath.sin, -1e4, 1e4), "cos": (jnp.cos, mpmath.cos, -1e4, 1e4), "tan": (jnp.tan, mpmath.tan, -30, 30),
    "asin": (jnp.arcsin, mpmath.asin, -1, 1), "acos": (jnp.arccos, mpmath.acos, -1, 1),
    "atan": (jnp.arctan, mpmath.atan, -50, 50),
    "exp": (jnp.exp, mpmath.exp, -80, 80), "exp2": (jnp.exp2, lambda x: mpmath.mpf(2) ** x, -100, 100),
    "expm1": (jnp.expm1, mpmath.expm1, -5, 5), "log": (jnp.log, mpmath.log, 1e-6, 1e6),
    "log1p": (jnp.log1p, mpmath.log1p, -0.9, 9),
    "tanh": (jnp.tanh, mpmath.tanh, -9, 9), "logistic": (jax.nn.sigmoid, lambda x: 1 / (1 + mpmath.exp(-x)), -50, 50),
    "softplus": (jax.nn.softplus, lambda x: mpmath.log1p(mpmath.exp(x)), -30, 30),
    "erf": (jax.scipy.special.erf, mpmath.erf, -5, 5),
    "erfc": (jax.scipy.special.erfc, mpmath.erfc, -5, 9), "sinh": (jnp.sinh, mpmath.sinh, -9, 9),
    "cosh": (jnp.cosh, mpmath.cosh, -9, 9),
    "asinh": (jnp.arcsinh, mpmath.asinh, -50, 50), "acosh": (jnp.arccosh, mpmath.acosh, 1, 50),
    "atanh": (jnp.arctanh, mpmath.atanh, -0.99, 0.99), "sqrt": (jnp.sqrt, mpmath.sqrt, 0, 1e6),
    "rsqrt": (jax.lax.rsqrt, lambda x: 1 / mpmath.sqrt(x), 1e-6, 1e6),
    "cbrt": (jnp.cbrt, lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)), -99, 99),
}  # fmt: skip
TWO: dict[str, Any] = {
    "atan2": (jnp.arctan2, mpmath.atan2, (-5, 5), (-5, 5)),
    "pow": (jnp.power, lambda x, y: mpmath.mpf(x) ** mpmath.mpf(y), (1e-3, 30), (-8, 8)),
    "x^1.5": (lambda x, y: x**1.5, lambda x, y: mpmath.mpf(x) ** mpmath.mpf(1.5), (1e-6, 30), (0, 1)),
}


def errors(f: Callable[..., Any], exact: Callable[..., Any], *args: np.ndarray) -> np.ndarray:
    """Errors in ulp of the exact value."""
    found = np.asarray(fx.simd.vmap(f)(*(jnp.asarray(a) for a in args)))
    out = []
    for k, value in enumerate(found):
        truth = exact(*(mpmath.mpf(float(a[k])) for a in args))
        ulp = float(np.spacing(np.abs(np.asarray(float(truth), found.dtype))))
        out.append(abs(float((mpmath.mpf(float(value)) - truth) / ulp)))
    return np.array(out)


def measure(quick: bool) -> Result:
    count, rows, checks = 300 if quick else 4000, [], []
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        for name, (f, exact, *ranges) in {**ONE, **TWO}.items():
            spans = [tuple(ranges)] if name in ONE else ranges
            args: list[Any] = [rng.uniform(low, high, count) for low, high in spans]
            if name in ONE and spans[0][0] <= 0:
                args[0][: count // 3] *= 10.0 ** rng.uniform(-6, 0, count // 3)  # and near zero
            args = [a.astype(dtype) for a in args]
            off = errors(f, exact, *args)
            rows.append({"function": name, "dtype": np.dtype(dtype).name, "from": str(spans), "largest ulp": float(off.max()),
                         "mean ulp": float(off.mean())})  # fmt: skip
            checks.append(at_most(f"{name}, {np.dtype(dtype).name}", float(off.max()), LIMIT, "ulp"))
    return Result(rows, checks)


if __name__ == "__main__":
    run("How exact are the elementary functions of SIMD kernels?", measure)
