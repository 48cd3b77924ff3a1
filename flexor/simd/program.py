"""The scalar program: what the compiler knows between the jaxpr and LLVM.

A *node* is one scalar of one example: an operation on earlier nodes. A *region* is a piece of code that runs as a whole: the
call (0, once for each call of the kernel), the block (1, once for each group of lanes), and inside it bodies of loops and
branches. A node lives in the outermost region where its arguments exist, so what does not change in a loop is computed before
it, and what does not depend on the lane is computed once and never as a vector. Nodes are shared (two equal ones are one) and
simplified as they are made (`algebra.py`). *Effects* (stores, loops, branches) run in the order in which they were made; nodes
have no order until `schedule.py` gives them one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from flexor.simd.algebra import simplify

BOOL, I32, I64 = np.dtype(bool), np.dtype("int32"), np.dtype("int64")
U32, U64 = np.dtype("uint32"), np.dtype("uint64")
F32, F64 = np.dtype("float32"), np.dtype("float64")
DTYPES = (BOOL, I32, I64, U32, U64, F32, F64)
CALL, BLOCK = 0, 1


@dataclass(eq=False)
class Buffer:
    """Memory of `size` elements: for each lane its own, or one for all (`uniform`).

    `fixed` memory is not written by the program: an argument, or a constant with its `data`. Loops over `looped` memory are
    not written out.
    """

    dtype: np.dtype
    size: int
    uniform: bool = False
    fixed: bool = False
    data: np.ndarray | None = None
    looped: bool = False


class Store(NamedTuple):
    """buffer[offset + at] = value."""

    buffer: Buffer
    offset: int
    at: int | None
    value: int


class Hold(NamedTuple):
    """Values that must be computed before the effects that follow, since those overwrite what they read."""

    values: list[int]


class Carry(NamedTuple):
    """A value that a loop or a branch hands on: inside it is `inner`; it starts as `start`, becomes `next`, then is `after`."""

    inner: int
    start: int
    next: int
    after: int


@dataclass(eq=False)
class Loop:
    """Runs `region` while `going` (any lane, where it is not uniform); `head` effects belong to the test, `body` to the rest."""

    region: int
    carries: list[Carry] = field(default_factory=list)
    going: int = -1
    head: list[Any] = field(default_factory=list)
    body: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class Branch:
    """Runs `region` if any lane wants it (`mask`); afterwards `after` is `next` if it ran, else `start`."""

    region: int
    mask: int
    carries: list[Carry] = field(default_factory=list)
    body: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class Region:
    """Where a region hangs, and how far out its nodes may move."""

    parent: int
    depth: int
    floor: int
    owner: Any = None
    shared: dict[Any, int] = field(default_factory=dict)


class Program:
    """Nodes in parallel lists, regions, and the effects of the block."""

    def __init__(self) -> None:
        self.op: list[str] = []
        self.dtype: list[np.dtype] = []
        self.args: list[tuple[Any, ...]] = []
        self.region: list[int] = []
        self.uniform: list[bool] = []
        self.value: dict[int, Any] = {}
        self.regions = [Region(0, 0, 0), Region(0, 1, 0)]
        self.current = BLOCK
        self.wanted: int | None = None  # the lanes whose results are of interest where nodes are made now; None: all
        self.block: list[Any] = []
        self.effects = self.block
        self.buffers: list[Buffer] = []
        self.zeros: set[int] = set()
        self.ones: set[int] = set()
        self.minus: set[int] = set()
        self._constants: dict[Any, int] = {}

    # nodes

    def const(self, value: Any, dtype: np.dtype) -> int:
        """A constant of the given type."""
        if type(value) is int:
            found = self._constants.get((dtype.char, value))
            if found is not None:
                return found
        scalar = np.asarray(value).astype(dtype)[()]
        key = (dtype.char, scalar.tobytes())
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = self._append("const", dtype, (), CALL, True)
            self.value[found] = scalar
            for special, ids in ((0, self.zeros), (1, self.ones), (-1, self.minus)):
                if scalar == special and (special >= 0 or dtype.kind in "fi"):
                    ids.add(found)
        if type(value) is int:
            self._constants[dtype.char, value] = found
        return found

    def node(self, op: str, dtype: np.dtype, *args: int) -> int:
        """The value of an operation: simplified, shared, and placed as far out as its arguments allow."""
        simple = simplify(self, op, dtype, args)
        if simple is not None:
            return simple
        return self._place(op, dtype, args, self.regions[self.current].floor)

    def load(self, buffer: Buffer, offset: int, index: int | None = None, *, fresh: bool = False) -> int:
        """buffer[offset + index]; read where it is asked for, since a temporary buffer is written along the way.

        `fresh` is for memory that is read and written in turn: the value then is not shared with earlier reads.
        """
        if buffer.data is not None and index is None:
            return self.const(buffer.data[offset], buffer.dtype)
        key = ("load", id(buffer), offset, index)
        place = self.current
        if buffer.fixed:
            place = self.region[index] if index is not None else CALL
            place = place if buffer.uniform or place != CALL else BLOCK
        region = place
        while not fresh:
            if key in self.regions[region].shared:
                return self.regions[region].shared[key]
            if region == self.regions[region].parent:
                break
            region = self.regions[region].parent
        uniform = buffer.uniform and (index is None or self.uniform[index])
        new = self._append("load", buffer.dtype, (buffer, offset, index), place, uniform)
        if not fresh:
            self.regions[place].shared[key] = new
        return new

    def _place(self, op: str, dtype: np.dtype, args: tuple[int, ...], floor: int) -> int:
        place, uniform = CALL, True
        for a in args:
            uniform = uniform and self.uniform[a]
            if self.regions[self.region[a]].depth > self.regions[place].depth:
                place = self.region[a]
        place = place if uniform or place != CALL else BLOCK
        key = (op, dtype.char, args)
        natural = self.regions[place].shared.get(key)
        if natural is not None:
            return natural
        if self.regions[place].depth < self.regions[floor].depth:
            place = floor
        shared = self.regions[place].shared
        found = shared.get(key)
        if found is None:
            found = shared[key] = self._append(op, dtype, args, place, uniform)
        return found

    def reciprocal(self, one: int, divisor: int, region: int) -> int:
        """1 / divisor in a given region, where all divisions by it are."""
        key = ("div", self.dtype[divisor].char, (one, divisor))
        shared = self.regions[region].shared
        if key not in shared:
            shared[key] = self._append("div", self.dtype[divisor], (one, divisor), region, self.uniform[divisor])
        return shared[key]

    def _append(self, op: str, dtype: np.dtype, args: tuple[Any, ...], region: int, uniform: bool) -> int:
        self.op.append(op)
        self.dtype.append(dtype)
        self.args.append(args)
        self.region.append(region)
        self.uniform.append(uniform)
        return len(self.op) - 1

    # memory

    def buffer(
        self, dtype: np.dtype, size: int, *, uniform: bool = False, fixed: bool = False, data: np.ndarray | None = None
    ) -> Buffer:
        """New memory; constant where `data` is given, the caller's where `fixed`."""
        new = Buffer(dtype, size, uniform or data is not None, fixed or data is not None, data)
        self.buffers.append(new)
        return new

    def store(self, buffer: Buffer, offset: int, index: int | None, value: int) -> None:
        """buffer[offset + index] = value."""
        self.effects.append(Store(buffer, offset, index, value))

    def hold(self, values: list[int]) -> None:
        """Has values computed before the memory they read changes."""
        self.effects.append(Hold(values))

    # control

    def phi(self, dtype: np.dtype, uniform: bool) -> int:
        """A value that changes from one run of the current region to the next."""
        return self._append("phi", dtype, (), self.current, uniform)

    def after(self, effect: Loop | Branch, dtype: np.dtype, uniform: bool) -> int:
        """A carried value as it is seen after a loop or branch."""
        return self._append("after", dtype, (effect,), self.current, uniform)

    @contextmanager
    def inside(self, owner: Loop | Branch, effects: list[Any]) -> Iterator[None]:
        """Nodes and effects made in this context belong to the region of `owner`."""
        outer, outer_effects = self.current, self.effects
        self.current, self.effects = owner.region, effects
        try:
            yield
        finally:
            self.current, self.effects = outer, outer_effects

    def new_region(self, *, pinned: bool) -> int:
        """A region inside the current one; nodes of a pinned one (a branch) do not move out of it."""
        here = self.regions[self.current]
        new = len(self.regions)
        self.regions.append(Region(self.current, here.depth + 1, new if pinned else here.floor))
        return new

    def loop(self) -> Loop:
        """A loop in the current region, still empty."""
        new = Loop(self.new_region(pinned=False))
        self.regions[new.region].owner = new
        return new

    def branch(self, mask: int) -> Branch:
        """A branch in the current region, still empty."""
        new = Branch(self.new_region(pinned=True), mask)
        self.regions[new.region].owner = new
        return new

    @contextmanager
    def count(self, times: int) -> Iterator[int]:
        """A loop over 0 .. times - 1; yields the index."""
        loop = self.loop()
        zero, one = self.const(0, I64), self.const(1, I64)
        with self.inside(loop, loop.head):
            index = self.phi(I64, True)
            loop.going = self.node("lt", BOOL, index, self.const(times, I64))
        with self.inside(loop, loop.body):
            yield index
            following = self.node("add", I64, index, one)
        loop.carries.append(Carry(index, zero, following, self.after(loop, I64, True)))
        self.effects.append(loop)
