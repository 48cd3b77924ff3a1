"""A `vmap` for CPUs: the jaxpr of one example becomes a kernel with an example in every SIMD lane; see README.md here."""

from flexor.simd.api import jit, vmap
from flexor.simd.arrays import UnsupportedError
from flexor.simd.inspection import Inspection, inspect, primitives

__all__ = ["Inspection", "UnsupportedError", "inspect", "jit", "primitives", "vmap"]
