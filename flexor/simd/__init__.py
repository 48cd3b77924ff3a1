"""A `vmap` for CPUs: the jaxpr of one example becomes a kernel with an example in every SIMD lane; see README.md here."""

from flexor.simd.api import jit, vmap
from flexor.simd.arrays import UnsupportedError
from flexor.simd.direct import Direct
from flexor.simd.elimination import eliminate
from flexor.simd.inspection import Inspection, inspect, primitives
from flexor.simd.memory import stored
from flexor.simd.store import Programs, programs

__all__ = [
    "Direct",
    "Inspection",
    "Programs",
    "UnsupportedError",
    "eliminate",
    "inspect",
    "jit",
    "primitives",
    "programs",
    "stored",
    "vmap",
]
