"""All stages in order: jaxpr, scalar program, schedule, LLVM IR, object code, a target that XLA can call."""

import contextlib
import gc
import hashlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from flexor.simd import cache, machine, store
from flexor.simd.arrays import Array, check_dtype, copy_into, nodes
from flexor.simd.emit import SCALAR, Argument, emit, width
from flexor.simd.fingerprint import fingerprint
from flexor.simd.handler import handler, plain_entry
from flexor.simd.interpreter import Interpreter, forget_costs
from flexor.simd.program import F32, F64, Buffer, Program
from flexor.simd.schedule import Schedule, schedule
from flexor.simd.transpose import lane_sum, transpose


@dataclass(frozen=True)
class Kernel:
    """Object code on its way into XLA: the name it is registered under, lanes, and what `inspect` reports."""

    target: str
    lanes: int
    operations: dict[str, int]
    bytes: int
    seconds: dict[str, float]
    warm: bool


@dataclass(frozen=True)
class Signature:
    """What a kernel is compiled for: which inputs are shared by all examples, which outputs are summed, how many lanes."""

    shared: tuple[bool, ...]
    summed: tuple[bool, ...]
    single: bool


_kernels: dict[str, Kernel] = {}
_registered: set[str] = set()
_registering = threading.Lock()


def compile_kernel(jaxpr: Any, signature: Signature) -> Kernel:
    """The kernel of a closed jaxpr of one example, from memory, from disk, or made now."""
    started = time.perf_counter()
    with uncollected():
        return _compile(jaxpr, signature, started)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's garbage collector, which would look through hundreds of thousands of small objects over and over, though
    all of them stay."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _key(jaxpr: Any, signature: Signature) -> str:
    text = f"{fingerprint(jaxpr)}|{signature}|{machine.identity()}|{machine.level()}|{cache.compiler()}"
    return hashlib.sha256(text.encode()).hexdigest()


def object_code(jaxpr: Any, signature: Signature) -> tuple[bytes, dict[str, Any]]:
    """Object code of a closed jaxpr of one example, from disk or compiled now, and its description."""
    with uncollected():
        return _object_code(jaxpr, signature, _key(jaxpr, signature))[:2]


def _object_code(jaxpr: Any, signature: Signature, key: str) -> tuple[bytes, dict[str, Any], bool]:
    """Code, its description, and whether it came from disk."""
    started = time.perf_counter()
    found = cache.read(key)
    if found is None:
        text, about = _translate(jaxpr, signature, f"flexor_simd_{key[:40]}")
        before = time.perf_counter()
        code = machine.compile_object(text)
        about["seconds"]["code"] = time.perf_counter() - before
        cache.write(key, code, about)
    else:
        code, about = found
    store.count(warm=found is not None, seconds=time.perf_counter() - started)
    return code, about, found is not None


def _compile(jaxpr: Any, signature: Signature, started: float) -> Kernel:
    key = _key(jaxpr, signature)
    if key in _kernels:
        return _kernels[key]
    code, about, warm = _object_code(jaxpr, signature, key)
    target = about["target"]
    with _registering:
        if target not in _registered:
            jax.ffi.register_ffi_target(target, machine.capsule(machine.load(code, target)), platform="cpu")
            _registered.add(target)
    seconds = {**about["seconds"], "total": time.perf_counter() - started}
    kernel = Kernel(target, about["lanes"], about["operations"], len(code), seconds, warm)
    return _kernels.setdefault(key, kernel)


def _lanes(p: Program, plan: Schedule) -> int:
    """A vector full of the floating type that lanes compute with most: single precision has some double in it, in the range
    reduction of sin and cos, and a jaxpr may hold doubles that nobody uses."""
    counts = dict.fromkeys((F32, F64), 0)
    for n, uses in enumerate(plan.uses):
        if uses and p.dtype[n] in counts and not p.uniform[n]:
            counts[p.dtype[n]] += 1
    return machine.lanes_for(F64 if counts[F64] > counts[F32] else F32)


def _translate(jaxpr: Any, signature: Signature, target: str) -> tuple[str, dict[str, Any]]:
    """LLVM IR of kernel and handler; and lanes, operations by kind, seconds by stage."""
    times = [time.perf_counter()]
    p, inputs, outputs = build(jaxpr, signature)
    times.append(time.perf_counter())
    plan = schedule(p, [o.buffer for o in outputs])
    lanes = 1 if signature.single else _lanes(p, plan)
    kernel = emit(p, plan, lanes, inputs, outputs)
    arguments = [*inputs, *outputs]
    sizes = sorted({width(a.buffer.dtype) for a in arguments if not a.buffer.uniform})
    sums = sorted({SCALAR[a.buffer.dtype.name] for a in outputs if a.summed})
    rows = [0 if o.summed else o.buffer.size * width(o.buffer.dtype) for o in outputs]
    parts = [kernel.text, handler(target, lanes, kernel.scratch, len(inputs), rows, _counted(signature)),
             plain_entry(target)]  # fmt: skip
    if lanes > 1:
        parts += [transpose(lanes, s) for s in sizes] + [lane_sum(lanes, s) for s in sums]
    parts.append(
        f'attributes #0 = {{ nounwind noinline alignstack=64 "prefer-vector-width"="{8 * machine.vector_bytes()}" }}'
    )
    times.append(time.perf_counter())
    seconds = {"program": times[1] - times[0], "ir": times[2] - times[1]}
    about = {"target": target, "lanes": lanes, "scratch": kernel.scratch, "operations": count(p, plan), "seconds": seconds}
    return "\n".join(parts), about


def _counted(signature: Signature) -> tuple[str, int]:
    """Where the number of examples can be read: a result with a row for each, else an argument."""
    for k, summed in enumerate(signature.summed):
        if not summed:
            return "rets", k
    return "args", signature.shared.index(False)


def build(jaxpr: Any, signature: Signature) -> tuple[Program, list[Argument], list[Argument]]:
    """The scalar program of a jaxpr, with its inputs and outputs."""
    p = Program()
    inputs, arrays = [], []
    for v, shared in zip(jaxpr.jaxpr.invars, signature.shared, strict=True):
        dtype, size = check_dtype(v.aval.dtype), int(np.prod(v.aval.shape))
        buffer = p.buffer(dtype, size, uniform=shared, fixed=True)
        inputs.append(Argument(buffer))
        arrays.append(Array(np.arange(size).reshape(v.aval.shape), dtype, buffer))
    results = Interpreter(p).closed(jaxpr, arrays)
    forget_costs()
    taken: set[int] = set()
    outputs = [Argument(_output(p, x, taken), s) for x, s in zip(results, signature.summed, strict=True)]
    return p, inputs, outputs


def _output(p: Program, x: Array, taken: set[int]) -> Buffer:
    """The buffer of a result: the one it is in already, if that is its own and in order."""
    b = x.buffer
    whole = b is not None and not b.fixed and not b.uniform and x.index is None and x.size == b.size
    if b is not None and whole and id(b) not in taken and np.array_equal(x.at.ravel(), np.arange(b.size)):
        taken.add(id(b))
        return b
    buffer = p.buffer(x.dtype, x.size)
    if x.size and not x.in_loops:
        for k, n in enumerate(nodes(p, x).ravel().tolist()):
            p.store(buffer, k, None, n)
    elif x.size:
        copy_into(p, x, buffer, 0, None)
    return buffer


def count(p: Program, plan: Schedule) -> dict[str, int]:
    """Operations in the code by kind, each counted once however often a loop runs it."""
    found: dict[str, int] = {}
    for n, uses in enumerate(plan.uses):
        op = p.op[n]
        if uses and op not in ("const", "phi", "after"):
            kind = op if p.dtype[n].kind == "f" or op == "load" else "other"
            found[kind] = found.get(kind, 0) + 1
    return found
