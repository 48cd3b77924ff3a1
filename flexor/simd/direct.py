"""Kernels without JAX: a plain C entry beside XLA's handler, called on NumPy memory that belongs to the program.

A call hands over one struct: the table of buffers, the number of examples, the blocks to compute, a scratch area, and a table of
copies (to, from, bytes) to make afterwards, by which outputs become inputs of the next call. Nothing is allocated or converted.
"""

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import jax
import numpy as np

from flexor.simd import machine
from flexor.simd.api import trace
from flexor.simd.compiler import Signature, object_code
from flexor.simd.handler import SHARES

BUFFERS, EXAMPLES, FIRST, LAST, SCRATCH, COPIES, COUNT = range(7)  # the struct of a call, in words
PAGE = 64  # bytes: every array of a program starts at a multiple of it


class Direct:
    """A program of NumPy arrays in place: `run()` computes `outputs` from `inputs`, and then copies each output with a place
    in `feeds` to that input. Inputs that are not `shared`, and outputs, have a row for each of `size` examples; without a
    size they are those of one example.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        *examples: Any,
        feeds: Sequence[int | None] = (),
        shared: Sequence[bool] | None = None,
        size: int | None = None,
        threads: int | None = None,
    ):
        leaves, tree = jax.tree.flatten((examples, {}))
        jaxpr, outside, self.shape = trace(f, tree, leaves)
        if outside:
            raise ValueError("a program that is called directly cannot close over values that JAX is tracing.")
        shared = (False,) * len(leaves) if shared is None else tuple(shared)
        n = 1 if size is None else size
        code, about = object_code(jaxpr, Signature(shared, (False,) * len(jaxpr.out_avals), n == 1))
        rows = () if size is None else (size,)
        self.inputs = [_memory(x.shape if s else (*rows, *x.shape), x.dtype) for x, s in zip(leaves, shared, strict=True)]
        self.outputs = [_memory((*rows, *a.shape), a.dtype) for a in jaxpr.out_avals]
        self.seconds = about["seconds"]
        address, library = machine.load_direct(code, about["target"])
        self._blocks, self._scratch = -(-n // about["lanes"]), about["scratch"]
        self._table = np.array([x.ctypes.data for x in (*self.inputs, *self.outputs)] or [0], np.uintp)
        pairs = [(self.inputs[k], x) for x, k in zip(self.outputs, feeds, strict=False) if k is not None and x.nbytes]
        self._copies = np.array([(a.ctypes.data, b.ctypes.data, b.nbytes) for a, b in pairs] or [(0, 0, 0)], np.uintp)
        self._count, self._size = len(pairs), n
        self._frames: list[np.ndarray] = []
        # what a call needs by its address: the code, which is freed with `library`, and the memory. `run` keeps it alive
        kept = (library, self.inputs, self.outputs, self._table, self._copies, self._frames)
        threads = min(threads or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
                      self._blocks)  # fmt: skip
        if threads > 1 and n > 1:
            self._start_threads(address, threads, kept)
        else:
            # keeps Python's lock: a step is shorter than handing it over and back
            call, frame = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(address), self._frame(0, self._blocks, self._count)
            self.run = _bound(call, int(frame.ctypes.data), kept)

    @staticmethod
    def unsupported() -> str:
        """Why programs cannot be compiled here; empty if they can."""
        return machine.supported()

    def _frame(self, first: int, last: int, copies: int) -> np.ndarray:
        scratch = _memory((max(self._scratch, PAGE),), np.uint8)
        frame = np.array([self._table.ctypes.data, self._size, first, last, scratch.ctypes.data, self._copies.ctypes.data,
                          copies], np.uintp)  # fmt: skip
        self._frames += [scratch, frame]
        return frame

    def _start_threads(self, address: int, threads: int, kept: Any) -> None:
        """Workers that draw chunks of blocks from one counter, as in `handler.py`; this thread is one of them."""
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        frames = [self._frame(0, 0, 0) for _ in range(threads)]
        last = self._frame(0, 0, self._count)
        chunk, blocks = -(-self._blocks // (threads * SHARES)), self._blocks
        pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="flexor-simd")

        def work(frame: np.ndarray, turn: Any) -> None:
            at = int(frame.ctypes.data)
            while (first := next(turn) * chunk) < blocks:
                frame[FIRST], frame[LAST] = first, min(first + chunk, blocks)
                call(at)

        def run(kept: Any = kept) -> None:
            turn = count()
            others = [pool.submit(work, frame, turn) for frame in frames[1:]]
            work(frames[0], turn)
            for other in others:
                other.result()
            call(int(last.ctypes.data))

        weakref.finalize(run, pool.shutdown, wait=False)
        self.run = run


def _bound(call: Any, at: int, kept: Any) -> Callable[[], None]:
    def run(kept: Any = kept) -> None:
        call(at)

    return run


def _memory(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros that start at a multiple of `PAGE` bytes."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size + PAGE, np.uint8)
    start = -raw.ctypes.data % PAGE
    return raw[start : start + size].view(dtype).reshape(shape)
