"""The scalar program as LLVM IR: every node one instruction on a vector with a lane for each example.

Uniform nodes are scalars, broadcast where a vector needs them. Lane buffers lie in a scratch area, element by element, all
lanes of an element side by side. With one lane there are no vectors and no scratch copies of arguments.
"""

import struct
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from flexor.simd.program import BLOCK, BOOL, CALL, Branch, Buffer, Hold, Loop, Program, Store
from flexor.simd.schedule import Schedule

ALIGN = 64
SCALAR = {"float32": "float", "float64": "double", "int32": "i32", "int64": "i64", "uint32": "i32", "uint64": "i64",
          "bool": "i1"}  # fmt: skip
COMPARE = {"lt": ("olt", "slt", "ult"), "le": ("ole", "sle", "ule"), "gt": ("ogt", "sgt", "ugt"),
           "ge": ("oge", "sge", "uge"), "eq": ("oeq", "eq", "eq"), "ne": ("une", "ne", "ne")}  # fmt: skip
FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rem": "frem"}
INTEGER = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor", "shl": "shl", "ashr": "ashr",
           "lshr": "lshr"}  # fmt: skip
INTRINSIC = {"abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "rint": "rint", "trunc": "trunc",
             "max": "maximum", "min": "minimum", "copysign": "copysign", "fma": "fma", "library log": "log"}  # fmt: skip


class Argument(NamedTuple):
    """A buffer of the caller: an input or output of the kernel. `summed` outputs hold a sum over the lanes for each block."""

    buffer: Buffer
    summed: bool = False


class Kernel(NamedTuple):
    """Text of `@kernel(ptr buffers, i64 n, i64 first, i64 last, ptr scratch)`, and the bytes of scratch it wants."""

    text: str
    scratch: int


def literal(value: Any) -> str:
    """A constant as LLVM writes it."""
    if isinstance(value, np.bool_ | bool):
        return "true" if value else "false"
    if np.asarray(value).dtype.kind == "f":
        return "0x" + struct.pack(">d", float(value)).hex().upper()
    return str(int(value))


def width(dtype: np.dtype) -> int:
    """Bytes of an element in memory; a bool is a byte, as in XLA's buffers."""
    return int(dtype.itemsize)


def emit(p: Program, plan: Schedule, lanes: int, inputs: list[Argument], outputs: list[Argument]) -> Kernel:
    """LLVM IR of the program for vectors of the given number of lanes."""
    return _Emitter(p, plan, lanes, inputs, outputs).run()


@cache
def _kind(dtype: np.dtype, lanes: int, memory: bool) -> str:
    """The type of a value in LLVM; asked for at every operand, so that NumPy's slow names of types are read once."""
    scalar = "i8" if memory and dtype == BOOL else SCALAR[dtype.name]
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


class _Emitter:
    def __init__(self, p: Program, plan: Schedule, lanes: int, inputs: list[Argument], outputs: list[Argument]):
        self.p, self.plan, self.lanes = p, plan, lanes
        self.inputs, self.outputs = inputs, outputs
        self.lines: list[str] = []
        self.globals: list[str] = []
        self.declared: dict[str, str] = {}
        self.counter = 0
        self.label = "entry"
        self.name: dict[int, str] = {}
        self.splats: list[dict[int, str]] = [{}]
        self.scratch = 0
        self.base: dict[int, tuple[str, int]] = {}
        self.kept: dict[int, int] = {}

    # text

    def new(self) -> str:
        self.counter += 1
        return f"%t{self.counter}"

    def add(self, text: str) -> str:
        name = self.new()
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        self.lines.append("  " + text)

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label

    def kind(self, dtype: np.dtype, uniform: bool, memory: bool = False) -> str:
        return _kind(dtype, 1 if uniform else self.lanes, memory)

    def intrinsic(self, name: str, kind: str, result: str, *operands: str) -> str:
        """A call of an overloaded LLVM intrinsic, all operands of one type."""
        suffix = kind.replace("<", "v").replace(" x ", "").replace(">", "").replace("float", "f32").replace("double", "f64")
        full = f"@llvm.{name}.{suffix}"
        extra = ", i1" if name in ("abs",) else ""
        self.declared[full] = f"declare {result} {full}({', '.join([kind] * len(operands))}{extra})"
        tail = ", i1 false" if extra else ""
        return f"call {result} {full}({', '.join(f'{kind} {o}' for o in operands)}{tail})"

    # memory

    def place(self, buffer: Buffer) -> tuple[str, int]:
        """Pointer and byte offset of a buffer; scratch is given out on first use."""
        found = self.base.get(id(buffer))
        if found is None:
            if buffer.data is not None:
                name = f"@c{len(self.globals)}"
                kind = "i8" if buffer.dtype == BOOL else SCALAR[buffer.dtype.name]
                values = ", ".join(f"{kind} {literal(v if buffer.dtype != BOOL else int(v))}" for v in buffer.data)
                self.globals.append(f"{name} = private constant [{buffer.size} x {kind}] [{values}], align {ALIGN}")
                found = (name, 0)
            else:
                found = ("%scratch", self.scratch)
                size = buffer.size * width(buffer.dtype) * (1 if buffer.uniform else self.lanes)
                self.scratch += -(-size // ALIGN) * ALIGN
            self.base[id(buffer)] = found
        return found

    def address(self, buffer: Buffer, offset: int, index: int | None) -> str:
        base, start = self.place(buffer)
        stride = width(buffer.dtype) * (1 if buffer.uniform else self.lanes)
        pointer = base
        if index is not None:
            scaled = self.add(f"mul i64 {self.use(index, True)}, {stride}")
            pointer = self.add(f"getelementptr i8, ptr {pointer}, i64 {scaled}")
        return self.add(f"getelementptr i8, ptr {pointer}, i64 {start + offset * stride}")

    def addresses(self, buffer: Buffer, offset: int, index: int) -> str:
        """A pointer for each lane, where every lane has its own index."""
        base, start = self.place(buffer)
        size = width(buffer.dtype)
        stride = size * (1 if buffer.uniform else self.lanes)
        vec = f"<{self.lanes} x i64>"
        lane = ", ".join(f"i64 {start + offset * stride + (0 if buffer.uniform else i * size)}" for i in range(self.lanes))
        scaled = self.add(f"mul {vec} {self.use(index, False)}, splat (i64 {stride})")
        total = self.add(f"add {vec} {scaled}, <{lane}>")
        return self.add(f"getelementptr i8, ptr {base}, {vec} {total}")

    def load(self, buffer: Buffer, offset: int, index: int | None, uniform: bool) -> str:
        kind = self.kind(buffer.dtype, uniform, memory=True)
        if index is not None and not self.p.uniform[index] and self.lanes > 1:
            pointers = self.addresses(buffer, offset, index)
            n, scalar = self.lanes, kind.split(" x ")[1][:-1]
            short = {"float": "f32", "double": "f64"}.get(scalar, scalar)
            name = f"@llvm.masked.gather.v{n}{short}.v{n}p0"
            self.declared[name] = f"declare {kind} {name}(<{n} x ptr>, i32, <{n} x i1>, {kind})"
            everywhere = f"<{n} x i1> splat (i1 true)"
            value = self.add(
                f"call {kind} {name}(<{n} x ptr> {pointers}, i32 {width(buffer.dtype)}, {everywhere}, {kind} poison)"
            )
        else:
            full = not (uniform or buffer.uniform or self.lanes == 1)
            align = width(buffer.dtype) * (self.lanes if full else 1)
            if not uniform and buffer.uniform:
                kind = self.kind(buffer.dtype, True, memory=True)
            value = self.add(f"load {kind}, ptr {self.address(buffer, offset, index)}, align {min(align, ALIGN)}")
            if not uniform and buffer.uniform:
                value = self.splat(kind, value)
                kind = self.kind(buffer.dtype, False, memory=True)
        if buffer.dtype == BOOL:
            value = (
                self.add(f"icmp ne {kind} {value}, zeroinitializer")
                if "x" in kind
                else self.add(f"icmp ne {kind} {value}, 0")
            )
        return value

    def splat(self, kind: str, value: str) -> str:
        if self.lanes == 1:
            return value
        vec = f"<{self.lanes} x {kind}>"
        one = self.add(f"insertelement {vec} poison, {kind} {value}, i64 0")
        return self.add(f"shufflevector {vec} {one}, {vec} poison, <{self.lanes} x i32> zeroinitializer")

    def write(self, e: Store) -> None:
        p, buffer = self.p, e.buffer
        value = self.use(e.value, buffer.uniform)
        kind = self.kind(buffer.dtype, buffer.uniform)
        if buffer.dtype == BOOL:
            byte = self.kind(BOOL, buffer.uniform, memory=True)
            value, kind = self.add(f"zext {kind} {value} to {byte}"), byte
        if e.at is not None and not p.uniform[e.at] and self.lanes > 1:
            pointers = self.addresses(buffer, e.offset, e.at)
            n, scalar = self.lanes, kind.split(" x ")[1][:-1]
            short = {"float": "f32", "double": "f64"}.get(scalar, scalar)
            name = f"@llvm.masked.scatter.v{n}{short}.v{n}p0"
            self.declared[name] = f"declare void {name}({kind}, <{n} x ptr>, i32, <{n} x i1>)"
            self.do(
                f"call void {name}({kind} {value}, <{n} x ptr> {pointers}, i32 {width(buffer.dtype)}, <{n} x i1> splat (i1 true))"
            )
            return
        align = width(buffer.dtype) * (1 if buffer.uniform or self.lanes == 1 else self.lanes)
        self.do(f"store {kind} {value}, ptr {self.address(buffer, e.offset, e.at)}, align {min(align, ALIGN)}")

    # nodes

    def use(self, n: int, uniform: bool) -> str:
        """A node as an operand: a scalar, or a vector."""
        p = self.p
        scalar = uniform or self.lanes == 1
        if p.op[n] == "const":
            text = literal(p.value[n])
            return text if scalar else f"splat ({SCALAR[p.dtype[n].name]} {text})"
        if p.region[n] == CALL and self.inner:
            value = self.outside(n)
            return value if scalar else self.splat(SCALAR[p.dtype[n].name], value)
        if uniform or not p.uniform[n] or self.lanes == 1:
            return self.name[n]
        for scope in self.splats:
            if n in scope:
                return scope[n]
        made = self.splats[-1][n] = self.splat(SCALAR[p.dtype[n].name], self.name[n])
        return made

    def outside(self, n: int) -> str:
        """A scalar computed once for the call, read where it is used: a broadcast from memory costs nothing extra."""
        p = self.p
        if p.op[n] == "load":
            buffer, offset, index = p.args[n]
            return self.load(buffer, offset, index, True)
        kind = "i8" if p.dtype[n] == BOOL else SCALAR[p.dtype[n].name]
        pointer = self.add(f"getelementptr i8, ptr %scratch, i64 {self.kept[n]}")
        value = self.add(f"load {kind}, ptr {pointer}, align 8")
        return self.add(f"trunc i8 {value} to i1") if p.dtype[n] == BOOL else value

    def demand(self, wanted: list[int], region: int) -> None:
        """Emits nodes of a region, depth first, heaviest operands first."""
        p, name = self.p, self.name
        stack = list(reversed(wanted))
        while stack:
            n = stack[-1]
            if n in name or p.region[n] != region or p.op[n] == "const":
                stack.pop()
                continue
            args = p.args[n]
            if p.op[n] == "load":
                args = () if args[2] is None else (args[2],)
            elif p.op[n] == "after":
                raise AssertionError("a carried value is used before its loop")
            missing = [a for a in args if a not in name and p.region[a] == region and p.op[a] != "const"]
            if missing:
                stack.extend(sorted(missing, key=self.plan.weights.__getitem__, reverse=True)[::-1])
                continue
            stack.pop()
            name[n] = self.instruction(n)

    def instruction(self, n: int) -> str:
        p = self.p
        op, dtype, args, uniform = p.op[n], p.dtype[n], p.args[n], p.uniform[n]
        if op == "load":
            buffer, offset, index = args
            return self.load(buffer, offset, index, uniform)
        operands = [self.use(a, uniform) for a in args]
        kind = self.kind(dtype, uniform)
        if op in COMPARE:
            return self.compare(op, p.dtype[args[0]], uniform, operands)
        if op == "select":
            mask = self.kind(BOOL, uniform)
            return self.add(f"select {mask} {operands[0]}, {kind} {operands[1]}, {kind} {operands[2]}")
        if op == "convert":
            return self.convert(p.dtype[args[0]], dtype, uniform, operands[0])
        if op == "whole":
            raw = self.add(f"fptosi {self.kind(p.dtype[args[0]], uniform)} {operands[0]} to {kind}")
            return self.add(f"freeze {kind} {raw}")
        if op == "bitcast":
            return self.add(f"bitcast {self.kind(p.dtype[args[0]], uniform)} {operands[0]} to {kind}")
        if op == "not":
            ones = self.use(p.const(True if dtype == BOOL else -1, dtype), uniform)
            return self.add(f"xor {kind} {operands[0]}, {ones}")
        return self.add(self.floating(op, kind, operands) if dtype.kind == "f" else self.integer(op, dtype, kind, operands))

    def compare(self, op: str, dtype: np.dtype, uniform: bool, operands: list[str]) -> str:
        real, signed, unsigned = COMPARE[op]
        code = f"fcmp {real}" if dtype.kind == "f" else f"icmp {signed if dtype.kind == 'i' else unsigned}"
        return self.add(f"{code} {self.kind(dtype, uniform)} {operands[0]}, {operands[1]}")

    def floating(self, op: str, kind: str, x: list[str]) -> str:
        if op in FLOAT:
            return f"{FLOAT[op]} {kind} {x[0]}, {x[1]}"
        if op == "neg":
            return f"fneg {kind} {x[0]}"
        if op in ("fms", "fnma"):
            flipped = self.add(f"fneg {kind} {x[2] if op == 'fms' else x[0]}")
            x = [x[0], x[1], flipped] if op == "fms" else [flipped, x[1], x[2]]
            op = "fma"
        return self.intrinsic(INTRINSIC[op], kind, kind, *x)

    def integer(self, op: str, dtype: np.dtype, kind: str, x: list[str]) -> str:
        sign = "u" if dtype.kind == "u" else "s"
        if op in INTEGER:
            return f"{INTEGER[op]} {kind} {x[0]}, {x[1]}"
        if op in ("div", "rem"):
            return f"{sign}{op} {kind} {x[0]}, {x[1]}"
        if op == "neg":
            zero = "zeroinitializer" if "x" in kind else "0"
            return f"sub {kind} {zero}, {x[0]}"
        if op == "abs":
            return self.intrinsic("abs", kind, kind, x[0])
        if dtype == BOOL:
            return f"{'or' if op == 'max' else 'and'} {kind} {x[0]}, {x[1]}"
        return self.intrinsic(f"{sign}{op}", kind, kind, *x)

    def convert(self, old: np.dtype, new: np.dtype, uniform: bool, x: str) -> str:
        a, b = self.kind(old, uniform), self.kind(new, uniform)
        if new == BOOL:
            zero = "zeroinitializer" if old.kind == "f" or "x" in a else "0"
            return self.add(f"fcmp une {a} {x}, {zero}" if old.kind == "f" else f"icmp ne {a} {x}, {zero}")
        if old.kind == "f" and new.kind == "f":
            return self.add(f"{'fpext' if new.itemsize > old.itemsize else 'fptrunc'} {a} {x} to {b}")
        if old.kind == "f":
            name = f"fpto{'u' if new.kind == 'u' else 's'}i.sat"
            suffix = [k.replace("<", "v").replace(" x ", "").replace(">", "").replace("float", "f32").replace("double", "f64")
                      for k in (b, a)]  # fmt: skip
            full = f"@llvm.{name}.{suffix[0]}.{suffix[1]}"
            self.declared[full] = f"declare {b} {full}({a})"
            return self.add(f"call {b} {full}({a} {x})")
        signed = old.kind == "i"
        if new.kind == "f":
            return self.add(f"{'sitofp' if signed else 'uitofp'} {a} {x} to {b}")
        if SCALAR[old.name] == SCALAR[new.name]:
            return self.add(f"bitcast {a} {x} to {b}")
        if old == BOOL or new.itemsize > old.itemsize:
            return self.add(f"{'sext' if signed else 'zext'} {a} {x} to {b}")
        return self.add(f"trunc {a} {x} to {b}")

    # effects

    def effects(self, effects: list[Any], region: int) -> None:
        for e in effects:
            if isinstance(e, Hold):
                self.demand([n for n in e.values if self.plan.uses[n]], region)
            if id(e) not in self.plan.effects:
                continue
            if isinstance(e, Store):
                self.demand([e.value] if e.at is None else [e.at, e.value], region)
                self.write(e)
            elif isinstance(e, Loop):
                self.loop(e, region)
            else:
                self.branch(e, region)

    def any(self, mask: str, uniform: bool) -> str:
        if uniform or self.lanes == 1:
            return mask
        bits = self.add(f"bitcast <{self.lanes} x i1> {mask} to i{self.lanes}")
        return self.add(f"icmp ne i{self.lanes} {bits}, 0")

    def loop(self, e: Loop, region: int) -> None:
        p = self.p
        self.demand([*self.plan.needs[e.region], *(c.start for c in e.carries)], region)
        starts = [self.use(c.start, p.uniform[c.inner]) for c in e.carries]
        self.counter += 1
        tag, before = self.counter, self.label
        self.do(f"br label %head{tag}")
        self.start(f"head{tag}")
        at = len(self.lines)
        for c in e.carries:
            self.name[c.inner] = f"%p{c.inner}"
            self.name[c.after] = f"%p{c.inner}"
        self.splats.append({})
        self.effects(e.head, e.region)
        self.demand([e.going], e.region)
        going = self.any(self.use(e.going, p.uniform[e.going]), p.uniform[e.going])
        self.do(f"br i1 {going}, label %body{tag}, label %exit{tag}")
        self.start(f"body{tag}")
        self.effects(e.body, e.region)
        self.demand([c.next for c in e.carries], e.region)
        nexts = [self.use(c.next, p.uniform[c.inner]) for c in e.carries]
        latch = self.label
        self.do(f"br label %head{tag}")
        self.splats.pop()
        self.lines[at:at] = [
            f"  %p{c.inner} = phi {self.kind(p.dtype[c.inner], p.uniform[c.inner])} [ {s}, %{before} ], [ {x}, %{latch} ]"
            for c, s, x in zip(e.carries, starts, nexts, strict=True)
        ]
        self.start(f"exit{tag}")

    def branch(self, e: Branch, region: int) -> None:
        p = self.p
        starting = [c.start for c in e.carries if c.after not in self.plan.unread]
        self.demand([*self.plan.needs[e.region], e.mask, *starting], region)
        starts = ["poison" if c.after in self.plan.unread else self.use(c.start, p.uniform[c.after]) for c in e.carries]
        self.counter += 1
        tag = self.counter
        taken = self.any(self.use(e.mask, p.uniform[e.mask]), p.uniform[e.mask])
        before = self.label
        self.do(f"br i1 {taken}, label %then{tag}, label %join{tag}")
        self.start(f"then{tag}")
        self.splats.append({})
        self.effects(e.body, e.region)
        self.demand([c.next for c in e.carries], e.region)
        nexts = [self.use(c.next, p.uniform[c.after]) for c in e.carries]
        last = self.label
        self.do(f"br label %join{tag}")
        self.splats.pop()
        self.start(f"join{tag}")
        for c, s, x in zip(e.carries, starts, nexts, strict=True):
            self.name[c.after] = f"%q{c.after}"
            kind = self.kind(p.dtype[c.after], p.uniform[c.after])
            self.do(f"%q{c.after} = phi {kind} [ {s}, %{before} ], [ {x}, %{last} ]")

    # the kernel

    def run(self) -> Kernel:
        p = self.p
        self.inner = False
        pointers = []
        for k, a in enumerate([*self.inputs, *self.outputs]):
            pointers.append(self.add(f"getelementptr ptr, ptr %buffers, i64 {k}"))
            self.do(f"%arg{k} = load ptr, ptr {pointers[-1]}, align 8")
            if a.buffer.uniform:
                self.base[id(a.buffer)] = (f"%arg{k}", 0)
        self.prologue()
        self.do("br label %blocks")
        self.lines += ["blocks:", "  %block = phi i64 [ %first, %entry ], [ %block.next, %done ]",
                       "  %more = icmp slt i64 %block, %last", "  br i1 %more, label %work, label %finish"]  # fmt: skip
        self.start("work")
        self.inner = True
        self.do(f"%lane = mul i64 %block, {self.lanes}")
        self.fetch()
        self.effects(p.block, BLOCK)
        self.deliver()
        self.do("br label %done")
        self.start("done")
        self.do("%block.next = add i64 %block, 1")
        self.do("br label %blocks")
        self.start("finish")
        self.do("ret void")
        parameters = "ptr noalias %buffers, i64 %n, i64 %first, i64 %last, ptr noalias %scratch"
        head = f"define internal void @kernel({parameters}) #0 {{\nentry:"
        text = "\n".join([*self.globals, *self.declared.values(), head, *self.lines, "}"])
        return Kernel(text, max(self.scratch, ALIGN))

    def prologue(self) -> None:
        """What does not depend on the lane, once; kept in scratch for the blocks."""
        p = self.p
        once = [n for n in self._read_by_blocks() if p.op[n] not in ("const", "load")]
        self.demand(once, CALL)
        for n in once:
            self.kept[n] = self.scratch
            self.scratch += 8
            kind, value = SCALAR[p.dtype[n].name], self.name[n]
            if p.dtype[n] == BOOL:
                kind, value = "i8", self.add(f"zext i1 {value} to i8")
            pointer = self.add(f"getelementptr i8, ptr %scratch, i64 {self.kept[n]}")
            self.do(f"store {kind} {value}, ptr {pointer}, align 8")
        self.scratch = -(-self.scratch // ALIGN) * ALIGN

    def _read_by_blocks(self) -> list[int]:
        """Nodes of the call that blocks use, and what they are loaded by: a load is not kept but done again."""
        p = self.p
        waiting = [n for n in self.plan.needs[BLOCK] if p.region[n] == CALL]
        found: dict[int, None] = {}
        for n in waiting:  # which grows
            found[n] = None
            if p.op[n] == "load" and p.args[n][2] is not None:
                waiting.append(p.args[n][2])
        return list(found)

    def fetch(self) -> None:
        """Lane buffers of the inputs, filled by transposing rows; with one lane a buffer is the caller's row itself."""
        for k, a in enumerate([*self.inputs, *self.outputs]):
            if a.buffer.uniform:
                continue
            if self.lanes == 1:
                shift = self.add(f"mul i64 %lane, {a.buffer.size * width(a.buffer.dtype)}")
                self.base[id(a.buffer)] = (self.add(f"getelementptr i8, ptr %arg{k}, i64 {shift}"), 0)
            elif k < len(self.inputs):
                self.move(a, k, "in")

    def deliver(self) -> None:
        for k, a in enumerate(self.outputs, start=len(self.inputs)):
            if self.lanes > 1:
                self.move(a, k, "sum" if a.summed else "out")

    def move(self, a: Argument, k: int, what: str) -> None:
        """Calls the transposition of `transpose.py` between the caller's rows and a lane buffer."""
        base, start = self.place(a.buffer)
        pointer = self.add(f"getelementptr i8, ptr {base}, i64 {start}")
        tail = f".{SCALAR[a.buffer.dtype.name]}" if what == "sum" else str(width(a.buffer.dtype))
        self.do(f"call void @{what}{tail}(ptr %arg{k}, i64 {a.buffer.size}, i64 %lane, i64 %n, ptr {pointer})")
