"""All tests run in double precision, and XLA is told to compile fast: the suite is mostly compilation.

The physics is tested through XLA; tests/simd and tests/solvers/test_kernels.py compare the kernels with it. Rank promotion and
mixed dtypes are errors, and the shapes in annotations are checked at every call (`shapes.py`), but for the files in `LENIENT`.
"""

import gc
import os
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path

# A quarter of the compile time, for programs that run once. Before JAX starts its backend.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0")
os.environ.setdefault("FLEXOR_SIMD", "off")
os.environ.setdefault("FLEXOR_CACHE", tempfile.mkdtemp(prefix="flexor-tests-"))

import jax
import jaxtyping
import pytest

from tests import shapes, standard

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
shapes.install()
standard.install()
gc.set_threshold(200_000, 20, 100)  # tracing makes millions of small objects, and most of them stay

# A background job of a shell ignores Ctrl-C, and so would every process that it starts; some tests send that signal.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# files that were not yet tried with strict rules
LENIENT = ("certify/test_certificate.py", "contact/test_loops.py", "test_survey.py")


@pytest.fixture(scope="module", autouse=True)
def rules(request):
    """JAX's standard rules, and no shapes checked, for a file in `LENIENT`."""
    path = request.path.relative_to(Path(__file__).parent).as_posix()
    if path not in LENIENT:
        yield
        return
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"), unchecked():
        yield


@pytest.fixture
def any_shapes():
    """For tests of flexor's own sentences about shapes: annotations are not checked."""
    with unchecked():
        yield


@contextmanager
def unchecked():
    """Annotations are not compared with shapes."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


SLOW = ("test_certificate", "test_ncp", "test_kernels", "test_demo", "test_docs")


def pytest_collection_modifyitems(items):
    """Files with long tests first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))


def pytest_sessionfinish():
    """pytest collects garbage five times as a worker ends, and pytest-xdist interrupts (SIGINT) one that takes longer than five
    seconds over it. What is left now need not be looked through."""
    gc.freeze()
