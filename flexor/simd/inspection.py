"""What a function becomes: operations, code, compile time, and time per example."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flexor.simd import machine
from flexor.simd.api import vmap
from flexor.simd.compiler import Signature, compile_kernel
from flexor.simd.interpreter import CALLS, rules

ARITHMETIC = {"add": 1, "sub": 1, "mul": 1, "div": 1, "sqrt": 1, "neg": 0, "fma": 2, "fms": 2, "fnma": 2, "max": 1, "min": 1}
SLOW = {"div": 12, "sqrt": 15}  # issue slots that these take on a wide vector unit, roughly


class Inspection(NamedTuple):
    """Of the kernel of a function: operations by kind in its code, floating-point operations in one pass through the code, bytes
    of object code, seconds of each stage, lanes, whether it came from disk, and nanoseconds per example: estimated (two
    operations a cycle at 3 GHz, loops counted once) and measured on one thread."""

    operations: dict[str, int]
    flops: int
    code_bytes: int
    compile_seconds: dict[str, float]
    lanes: int
    from_cache: bool
    estimated_ns: float
    measured_ns: float

    def __str__(self) -> str:
        most = ", ".join(f"{n} {op}" for op, n in sorted(self.operations.items(), key=lambda x: -x[1])[:8])
        stages = ", ".join(f"{name} {s:.2f} s" for name, s in self.compile_seconds.items())
        return (
            f"{sum(self.operations.values()):,} operations ({most}), {self.flops:,} flops, {self.code_bytes:,} bytes of code\n"
            f"compiled {'earlier' if self.from_cache else 'now'}: {stages}\n"
            f"{self.lanes} lanes; per example {self.estimated_ns:.0f} ns estimated, {self.measured_ns:.0f} ns measured"
        )


def inspect(f: Callable[..., Any], *args: Any, batch: int = 1024) -> Inspection:
    """Compiles `f` of one example (`args`), runs a batch of copies on one thread, and reports."""
    reason = machine.supported()
    if reason:
        raise RuntimeError(f"flexor.simd: {reason}, so there is no kernel to inspect.")
    leaves, tree = jax.tree.flatten(args)
    leaves = [jnp.asarray(x) for x in leaves]
    jaxpr = jax.make_jaxpr(lambda *xs: f(*jax.tree.unflatten(tree, xs)))(*leaves)
    kernel = compile_kernel(jaxpr, Signature((False,) * len(leaves), (False,) * len(jaxpr.out_avals), False))
    flops = sum(ARITHMETIC.get(op, 0) * n for op, n in kernel.operations.items())
    slots = sum(SLOW.get(op, 1) * n for op, n in kernel.operations.items())
    copies = jax.tree.unflatten(tree, [jnp.broadcast_to(x, (batch, *x.shape)) for x in leaves])
    measured = _best_time(vmap(f, threads=1), copies) / batch
    return Inspection(kernel.operations, flops, kernel.bytes, kernel.seconds, kernel.lanes, kernel.warm,
                      slots / 2 / 3 / kernel.lanes, measured * 1e9)  # fmt: skip


def _best_time(f: Callable[..., Any], args: Any, repeats: int = 5) -> float:
    jax.block_until_ready(f(*args))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(f(*args))
        times.append(time.perf_counter() - start)
    return float(np.min(times))


def primitives() -> tuple[str, ...]:
    """Names of the JAX primitives that kernels support."""
    return tuple(sorted({*rules(), *CALLS, "custom_linear_solve"} - {"simd_kernel"}))
