"""All tests run in double precision, and XLA is told to compile fast: the suite is mostly compilation.

The physics is tested through XLA; tests/simd and tests/solvers/test_kernels.py compare the kernels with it.
"""

import gc
import os
import tempfile

# A quarter of the compile time, for programs that run once. Before JAX starts its backend.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0")
os.environ.setdefault("FLEXOR_SIMD", "off")
os.environ.setdefault("FLEXOR_CACHE", tempfile.mkdtemp(prefix="flexor-tests-"))

import jax

jax.config.update("jax_enable_x64", True)
gc.set_threshold(200_000, 20, 100)  # tracing makes millions of small objects, and most of them stay

SLOW = ("test_experiments", "test_benchmarks", "test_certificate", "test_ncp", "test_kernels", "test_demo", "test_docs")


def pytest_collection_modifyitems(items):
    """Files with long tests first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))
