"""All tests run in double precision and, as users do, through kernels; a test that wants XLA says `simd=False`, and
tests/simd, tests/solvers/test_kernels.py and tests/solvers/test_contract.py compare the two.

The suite is mostly compilation. XLA and LLVM are told to compile fast, and what they have compiled is shared between processes
and between tests, in a folder of this run. tests/simd compiles kernels as users do, as do short runs of benchmarks.

Rank promotion and mixed dtypes are errors, and the shapes in annotations are checked at every call (`shapes.py`).
"""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from contextlib import contextmanager

# A quarter of the compile time, for programs that run once. Before JAX starts its backend.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0")
os.environ.setdefault("FLEXOR_SIMD", "on")
if sys.platform == "linux":  # elsewhere threads have too little stack for such code
    os.environ.setdefault("FLEXOR_SIMD_LEVEL", "0")
if "FLEXOR_CACHE" not in os.environ:  # not in the processes that this one starts
    folder = os.environ["FLEXOR_CACHE"] = tempfile.mkdtemp(prefix="flexor-tests-")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(folder, "xla"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

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


SLOW = (
    "test_contract",
    "test_ncp",
    "test_convex",
    "test_near",
    "test_loops",
    "test_certificate",
    "test_kernels",
    "test_demo",
    "test_docs",
)


def pytest_collection_modifyitems(items):
    """Files with long tests first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))


def pytest_sessionfinish():
    """pytest collects garbage five times as a worker ends, and pytest-xdist interrupts (SIGINT) one that takes longer than five
    seconds over it. What is left now need not be looked through."""
    gc.freeze()
