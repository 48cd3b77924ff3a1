"""Elementary functions against mpmath; `benchmarks/ulp.py` prints the whole table."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def ulp():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import ulp

        yield ulp
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_large_angles(ulp, name, dtype):
    """Where float32 has steps of a tenth of a turn and more the reduction still knows the angle."""
    f, exact, *_ = ulp.ONE[name]
    x = np.random.default_rng(0).uniform(-1, 1, 200) * 10.0 ** np.random.default_rng(1).uniform(0, 12, 200)
    assert ulp.errors(f, exact, x.astype(dtype)).max() < 2


def test_the_tables_are_what_the_fit_prints():
    """Coefficients in the package are those of the script, to the last digit."""
    import subprocess

    if importlib.util.find_spec("mpmath") is None:
        pytest.skip("mpmath is not installed")
    script = BENCHMARKS / "_fit_polynomials.py"
    printed = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    fresh: dict = {}
    exec(printed, fresh)
    from flexor.simd import polynomials

    for name in ("SIN", "COS", "EXP", "LOG", "ATAN", "ASIN", "ERF", "ERFC"):
        assert getattr(polynomials, name) == fresh[name]
