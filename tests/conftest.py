"""All tests run in double precision, and XLA is told to compile fast: the suite is mostly compilation.

The physics is tested through XLA; tests/simd and tests/solvers/test_kernels.py compare the kernels with it.
"""

import os
import tempfile

# A quarter of the compile time, for programs that run once. Before JAX starts its backend.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0")
os.environ.setdefault("FLEXOR_SIMD", "off")
os.environ.setdefault("FLEXOR_CACHE", tempfile.mkdtemp(prefix="flexor-tests-"))

import jax

jax.config.update("jax_enable_x64", True)
