"""All tests run in double precision, and XLA is told to compile fast: the suite is mostly compilation."""

import os

# A quarter of the compile time, for programs that run once. Before JAX starts its backend.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0")

import jax

jax.config.update("jax_enable_x64", True)
