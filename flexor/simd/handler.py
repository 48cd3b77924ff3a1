"""The way in and out: XLA's typed FFI handler, threads, and the transposition between rows of examples and lanes.

Offsets are those of the structs in jaxlib's `xla/ffi/api/c_api.h` (API 0.x; a struct only grows at its end). The handler answers
XLA's metadata query, then hands blocks of lanes to XLA's own thread pool: the calling thread and its helpers draw chunks of
blocks from one atomic counter until none is left. A helper that comes too late finds nothing to do, so nobody ever waits for a
thread that has not started.
"""

FRAME_EXTENSION, FRAME_API, FRAME_CONTEXT, FRAME_STAGE = 8, 16, 24, 32
FRAME_ARGS, FRAME_RETS, FRAME_ATTRS, LIST_ITEMS, ATTR_ITEMS = 40, 80, 120, 32, 40
BUFFER_DATA, BUFFER_DIMS, SCALAR_VALUE = 24, 40, 8
API_ERROR_CREATE, API_ERROR_DESTROY, API_SCHEDULE, API_THREADS, API_MINOR = 48, 64, 136, 144, 36
EXTENSION_TYPE, EXTENSION_METADATA, METADATA_MAJOR, METADATA_MINOR, METADATA_TRAITS = 16, 24, 24, 28, 32
EXECUTE = 3
# the job that threads share: next chunk, blocks done, references, examples, blocks, blocks in a chunk, failure, buffers
NEXT, DONE, REFERENCES, EXAMPLES, BLOCKS, CHUNK, FAILED, BUFFERS = 0, 8, 16, 24, 32, 40, 48, 56


def transpose(lanes: int, size: int) -> str:
    """Functions that move `count` elements of `size` bytes between rows of the caller and a lane buffer, both ways."""
    kind, vec = f"i{8 * size}", f"<{lanes} x i{8 * size}>"
    rows = "\n".join(
        f"  %l{i} = add i64 %lane, {i}\n  %c{i} = icmp slt i64 %l{i}, %end\n  %m{i} = select i1 %c{i}, i64 %l{i}, i64 %end\n"
        f"  %o{i} = mul i64 %m{i}, %row\n  %r{i} = getelementptr i8, ptr %rows, i64 %o{i}"
        for i in range(lanes)
    )
    head = f"(ptr %rows, i64 %count, i64 %lane, i64 %n, ptr %lanes) noinline nounwind {{\nentry:\n  %row = mul i64 %count, {size}"
    full = f"""
  %end = sub i64 %n, 1
{rows}
  %rest = urem i64 %count, {lanes}
  %tiles = sub i64 %count, %rest
  br label %tile
tile:
  %j = phi i64 [ 0, %START ], [ %j.next, %tile.body ]
  %t = icmp slt i64 %j, %tiles
  br i1 %t, label %tile.body, label %tail
tile.body:
  %jo = mul i64 %j, {size}
  %jl = mul i64 %j, {size * lanes}
  %at = getelementptr i8, ptr %lanes, i64 %jl
TILE
  %j.next = add i64 %j, {lanes}
  br label %tile
tail:
  %k = phi i64 [ %tiles, %tile ], [ %k.next, %tail.body ]
  %u = icmp slt i64 %k, %count
  br i1 %u, label %tail.body, label %finish
tail.body:
  %ko = mul i64 %k, {size}
  %kl = mul i64 %k, {size * lanes}
  %kat = getelementptr i8, ptr %lanes, i64 %kl
TAIL
  %k.next = add i64 %k, 1
  br label %tail
"""
    names, shuffles = _butterfly(lanes, vec, [f"%x{i}" for i in range(lanes)])
    along = [f"  %a{i} = getelementptr i8, ptr %r{i}, i64 %jo" for i in range(lanes)]
    across = [f"  %b{i} = getelementptr i8, ptr %at, i64 {i * lanes * size}" for i in range(lanes)]
    read = [f"  %x{i} = load {vec}, ptr %a{i}, align {size}" for i in range(lanes)]
    keep = [f"  store {vec} {names[i]}, ptr %b{i}, align {size}" for i in range(lanes)]
    tile_in = "\n".join([*along, *across, *read, *shuffles, *keep])
    read = [f"  %x{i} = load {vec}, ptr %b{i}, align {size}" for i in range(lanes)]
    keep = [f"  store {vec} {names[i]}, ptr %a{i}, align {size}" for i in range(lanes)]
    tile_out = "\n".join([*along, *across, *read, *shuffles, *keep])
    each = [
        f"  %e{i} = getelementptr i8, ptr %r{i}, i64 %ko\n  %f{i} = getelementptr i8, ptr %kat, i64 {i * size}"
        for i in range(lanes)
    ]
    copy = "\n  %v{i} = load {k}, ptr %{a}{i}, align {s}\n  store {k} %v{i}, ptr %{b}{i}, align {s}"
    tail_in = "\n".join(e + copy.format(i=i, k=kind, a="e", b="f", s=size) for i, e in enumerate(each))
    tail_out = "\n".join(e + copy.format(i=i, k=kind, a="f", b="e", s=size) for i, e in enumerate(each))
    partial = f"""
  %stop = add i64 %lane, {lanes}
  %whole = icmp sle i64 %stop, %n
  br i1 %whole, label %fast, label %slow
slow:
  %s = phi i64 [ %lane, %entry ], [ %s.next, %slow.next ]
  %sc = icmp slt i64 %s, %n
  br i1 %sc, label %slow.row, label %finish
slow.row:
  %so = mul i64 %s, %row
  %sr = getelementptr i8, ptr %rows, i64 %so
  %sl = sub i64 %s, %lane
  br label %slow.item
slow.item:
  %i = phi i64 [ 0, %slow.row ], [ %i.next, %slow.copy ]
  %ic = icmp slt i64 %i, %count
  br i1 %ic, label %slow.copy, label %slow.next
slow.copy:
  %il = mul i64 %i, {lanes}
  %is = add i64 %il, %sl
  %ip = getelementptr {kind}, ptr %lanes, i64 %is
  %id = getelementptr {kind}, ptr %sr, i64 %i
  %iv = load {kind}, ptr %ip, align {size}
  store {kind} %iv, ptr %id, align {size}
  %i.next = add i64 %i, 1
  br label %slow.item
slow.next:
  %s.next = add i64 %s, 1
  br label %slow
fast:"""
    body_in = full.replace("%START", "%entry").replace("TILE", tile_in).replace("TAIL", tail_in)
    body_out = full.replace("%START", "%fast").replace("TILE", tile_out).replace("TAIL", tail_out)
    return (
        f"define internal void @in{size}{head}{body_in}finish:\n  ret void\n}}\n"
        f"define internal void @out{size}{head}{partial}{body_out}finish:\n  ret void\n}}\n"
    )


def _butterfly(lanes: int, vec: str, rows: list[str]) -> tuple[list[str], list[str]]:
    """Transposition of a square of vectors, halves of growing blocks changing place (Eklundh 1972)."""
    lines: list[str] = []
    step = 1
    while step < lanes:
        new = list(rows)
        for i in (i for i in range(lanes) if not i & step):
            first = [j if not j & step else lanes + j - step for j in range(lanes)]
            second = [j + step if not j & step else lanes + j for j in range(lanes)]
            for target, mask in ((i, first), (i + step, second)):
                new[target] = f"%y{step}.{target}"
                picks = ", ".join(f"i32 {m}" for m in mask)
                lines.append(
                    f"  {new[target]} = shufflevector {vec} {rows[i]}, {vec} {rows[i + step]}, <{lanes} x i32> <{picks}>"
                )
        rows, step = new, 2 * step
    return rows, lines


def lane_sum(lanes: int, scalar: str) -> str:
    """A function that sums the lanes of every element, those beyond the last example left out, into one row for the block."""
    vec, size, short = f"<{lanes} x {scalar}>", {"float": 4, "double": 8}[scalar], {"float": "f32", "double": "f64"}[scalar]
    ids = ", ".join(f"i64 {i}" for i in range(lanes))
    return f"""declare {scalar} @llvm.vector.reduce.fadd.v{lanes}{short}({scalar}, {vec})
define internal void @sum.{scalar}(ptr %rows, i64 %count, i64 %lane, i64 %n, ptr %lanes) noinline nounwind {{
entry:
  %left = sub i64 %n, %lane
  %one = insertelement <{lanes} x i64> poison, i64 %left, i64 0
  %all = shufflevector <{lanes} x i64> %one, <{lanes} x i64> poison, <{lanes} x i32> zeroinitializer
  %mask = icmp slt <{lanes} x i64> <{ids}>, %all
  %block = udiv i64 %lane, {lanes}
  %first = mul i64 %block, %count
  br label %head
head:
  %j = phi i64 [ 0, %entry ], [ %j.next, %body ]
  %more = icmp slt i64 %j, %count
  br i1 %more, label %body, label %exit
body:
  %jl = mul i64 %j, {size * lanes}
  %p = getelementptr i8, ptr %lanes, i64 %jl
  %v = load {vec}, ptr %p, align {size}
  %w = select <{lanes} x i1> %mask, {vec} %v, {vec} zeroinitializer
  %s = call reassoc {scalar} @llvm.vector.reduce.fadd.v{lanes}{short}({scalar} 0.0, {vec} %w)
  %o = add i64 %first, %j
  %q = getelementptr {scalar}, ptr %rows, i64 %o
  store {scalar} %s, ptr %q, align {size}
  %j.next = add i64 %j, 1
  br label %head
exit:
  ret void
}}
"""


def handler(name: str, lanes: int, scratch: int, inputs: int, outputs: int, counted: tuple[str, int]) -> str:
    """The exported handler. `counted` says which list ("args" or "rets") and item has the batch as its first dimension."""
    parts = (_LIBRARY, _worker(scratch), _RELEASE, _query(name, counted), _threads(lanes), _job(inputs, outputs), _spread())
    return "".join(parts)


_LIBRARY = """
@message = private constant [64 x i8] c"flexor.simd: not enough memory for the scratch area of a kernel\\00"
declare ptr @malloc(i64)
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
declare i32 @sched_yield()
"""

_RELEASE = f"""
define internal void @release(ptr %job) nounwind {{
entry:
  %p = getelementptr i8, ptr %job, i64 {REFERENCES}
  %held = atomicrmw sub ptr %p, i64 1 acq_rel
  %last = icmp eq i64 %held, 1
  br i1 %last, label %drop, label %leave
drop:
  call void @free(ptr %job)
  br label %leave
leave:
  ret void
}}

define internal void @help(ptr %job) nounwind {{
entry:
  call void @work(ptr %job)
  call void @release(ptr %job)
  ret void
}}
"""


def _worker(scratch: int) -> str:
    """What a thread does with a job: chunk after chunk, with a scratch area of its own."""
    return f"""
define internal void @work(ptr %job) nounwind {{
entry:
  {_field("examples", "%job", EXAMPLES)}
  {_field("blocks", "%job", BLOCKS)}
  {_field("chunk", "%job", CHUNK)}
  %buffers = getelementptr i8, ptr %job, i64 {BUFFERS}
  %done.p = getelementptr i8, ptr %job, i64 {DONE}
  %failed.p = getelementptr i8, ptr %job, i64 {FAILED}
  %turn0 = atomicrmw add ptr %job, i64 1 acq_rel
  %first0 = mul i64 %turn0, %chunk
  %any = icmp slt i64 %first0, %blocks
  br i1 %any, label %prepare, label %leave
prepare:
  %scratch = call ptr @aligned_alloc(i64 64, i64 {scratch})
  %none = icmp eq ptr %scratch, null
  br label %next
next:
  %first = phi i64 [ %first0, %prepare ], [ %first1, %counted ]
  %open = icmp slt i64 %first, %blocks
  br i1 %open, label %run, label %give
run:
  %stop0 = add i64 %first, %chunk
  %over = icmp sgt i64 %stop0, %blocks
  %stop = select i1 %over, i64 %blocks, i64 %stop0
  br i1 %none, label %fail, label %go
fail:
  store atomic i64 1, ptr %failed.p seq_cst, align 8
  br label %counted
go:
  call void @kernel(ptr %buffers, i64 %examples, i64 %first, i64 %stop, ptr %scratch)
  br label %counted
counted:
  %part = sub i64 %stop, %first
  %before = atomicrmw add ptr %done.p, i64 %part acq_rel
  %turn1 = atomicrmw add ptr %job, i64 1 acq_rel
  %first1 = mul i64 %turn1, %chunk
  br label %next
give:
  call void @free(ptr %scratch)
  br label %leave
leave:
  ret void
}}
"""


def _query(name: str, counted: tuple[str, int]) -> str:
    """The beginning of the handler: answers the metadata query, and reads the number of examples."""
    batch = {"args": FRAME_ARGS, "rets": FRAME_RETS}[counted[0]] + LIST_ITEMS
    return f"""
define ptr @{name}(ptr %frame) nounwind {{
entry:
  {_field("api", "%frame", FRAME_API, "ptr")}
  {_field("ctx", "%frame", FRAME_CONTEXT, "ptr")}
  {_field("ext", "%frame", FRAME_EXTENSION, "ptr")}
  %asked = icmp ne ptr %ext, null
  br i1 %asked, label %query, label %staged
query:
  {_field("kind", "%ext", 8, "i32")}
  %metadata = icmp eq i32 %kind, 1
  br i1 %metadata, label %answer, label %staged
answer:
  {_field("md", "%ext", EXTENSION_METADATA, "ptr")}
  {_field("minor", "%api", API_MINOR, "i32")}
  {_set("%md", METADATA_MAJOR, "i32", "0")}
  {_set("%md", METADATA_MINOR, "i32", "%minor")}
  {_set("%md", METADATA_TRAITS, "i32", "0")}
  ret ptr null
staged:
  {_field("stage", "%frame", FRAME_STAGE, "i32")}
  %execute = icmp eq i32 %stage, {EXECUTE}
  br i1 %execute, label %count, label %nothing
count:
  {_field("items", "%frame", batch, "ptr")}
  {_field("item", "%items", 8 * counted[1], "ptr")}
  {_field("dims", "%item", BUFFER_DIMS, "ptr")}
  {_field("n", "%dims", 0)}
  %empty = icmp eq i64 %n, 0
  br i1 %empty, label %nothing, label %share
"""


def _threads(lanes: int) -> str:
    """How many blocks there are, and how many threads the pool has; one, if it does not say."""
    return f"""share:
  %n.up = add i64 %n, {lanes - 1}
  %blocks = udiv i64 %n.up, {lanes}
  {_field("attrs", "%frame", FRAME_ATTRS + ATTR_ITEMS, "ptr")}
  {_field("attr", "%attrs", 0, "ptr")}
  {_field("limit.p", "%attr", SCALAR_VALUE, "ptr")}
  {_field("limit", "%limit.p", 0)}
  %threads.out = alloca i64
  store i64 1, ptr %threads.out
  %ask = alloca [4 x i64]
  {_set("%ask", 0, "i64", "32")}
  {_set("%ask", 8, "i64", "0")}
  {_set("%ask", 16, "ptr", "%ctx")}
  {_set("%ask", 24, "ptr", "%threads.out")}
  {_field("threads.f", "%api", API_THREADS, "ptr")}
  %threads.e = call ptr %threads.f(ptr %ask)
  %threads.ok = icmp eq ptr %threads.e, null
  br i1 %threads.ok, label %plan, label %alone
alone:
  %destroy = alloca [3 x i64]
  {_set("%destroy", 0, "i64", "24")}
  {_set("%destroy", 8, "i64", "0")}
  {_set("%destroy", 16, "ptr", "%threads.e")}
  {_field("destroy.f", "%api", API_ERROR_DESTROY, "ptr")}
  call void %destroy.f(ptr %destroy)
  store i64 1, ptr %threads.out
  br label %plan
"""


def _job(inputs: int, outputs: int) -> str:
    """How blocks are cut into chunks, and the job that threads share."""
    total = inputs + outputs
    pointers = "\n".join(_pointer(k, inputs) for k in range(total))
    return f"""plan:
  %pool = load i64, ptr %threads.out
  %free.choice = icmp eq i64 %limit, 0
  %fewer = icmp slt i64 %limit, %pool
  %capped = select i1 %fewer, i64 %limit, i64 %pool
  %threads0 = select i1 %free.choice, i64 %pool, i64 %capped
  %many = icmp slt i64 %threads0, %blocks
  %threads = select i1 %many, i64 %threads0, i64 %blocks
  %shares = mul i64 %threads, 4
  %shares.less = sub i64 %shares, 1
  %blocks.up = add i64 %blocks, %shares.less
  %chunk.many = udiv i64 %blocks.up, %shares
  %single = icmp eq i64 %threads, 1
  %chunk = select i1 %single, i64 %blocks, i64 %chunk.many
  %job = call ptr @malloc(i64 {BUFFERS + 8 * total})
  {_set("%job", NEXT, "i64", "0")}
  {_set("%job", DONE, "i64", "0")}
  {_set("%job", REFERENCES, "i64", "%threads")}
  {_set("%job", EXAMPLES, "i64", "%n")}
  {_set("%job", BLOCKS, "i64", "%blocks")}
  {_set("%job", CHUNK, "i64", "%chunk")}
  {_set("%job", FAILED, "i64", "0")}
{pointers}
"""


def _spread() -> str:
    """Helpers are sent for, the caller works too, waits for blocks under way, and reports."""
    return f"""  %task = alloca [5 x i64]
  {_set("%task", 0, "i64", "40")}
  {_set("%task", 8, "i64", "0")}
  {_set("%task", 16, "ptr", "%ctx")}
  {_set("%task", 24, "ptr", "@help")}
  {_set("%task", 32, "ptr", "%job")}
  {_field("schedule.f", "%api", API_SCHEDULE, "ptr")}
  br label %spread
spread:
  %h = phi i64 [ 1, %plan ], [ %h.next, %launched ]
  %h.more = icmp slt i64 %h, %threads
  br i1 %h.more, label %launch, label %self
launch:
  %launch.e = call ptr %schedule.f(ptr %task)
  %launch.ok = icmp eq ptr %launch.e, null
  br i1 %launch.ok, label %launched, label %refused
refused:
  call void @release(ptr %job)
  br label %launched
launched:
  %h.next = add i64 %h, 1
  br label %spread
self:
  call void @work(ptr %job)
  %done.p = getelementptr i8, ptr %job, i64 {DONE}
  br label %wait
wait:
  %done = load atomic i64, ptr %done.p acquire, align 8
  %ready = icmp eq i64 %done, %blocks
  br i1 %ready, label %end, label %yield
yield:
  %y = call i32 @sched_yield()
  br label %wait
end:
  {_field("failed", "%job", FAILED)}
  call void @release(ptr %job)
  %bad = icmp ne i64 %failed, 0
  br i1 %bad, label %report, label %nothing
report:
  %error = alloca [4 x i64]
  {_set("%error", 0, "i64", "28")}
  {_set("%error", 8, "i64", "0")}
  {_set("%error", 16, "ptr", "@message")}
  {_set("%error", 24, "i32", "8")}
  {_field("create.f", "%api", API_ERROR_CREATE, "ptr")}
  %report.e = call ptr %create.f(ptr %error)
  ret ptr %report.e
nothing:
  ret ptr null
}}
"""


def _pointer(k: int, inputs: int) -> str:
    items = (FRAME_ARGS if k < inputs else FRAME_RETS) + LIST_ITEMS
    at = k if k < inputs else k - inputs
    return "\n".join(
        "  " + line
        for line in (
            _field(f"list{k}", "%frame", items, "ptr"),
            _field(f"buffer{k}", f"%list{k}", 8 * at, "ptr"),
            _field(f"data{k}", f"%buffer{k}", BUFFER_DATA, "ptr"),
            _set("%job", BUFFERS + 8 * k, "ptr", f"%data{k}"),
        )
    )


def _field(name: str, base: str, offset: int, kind: str = "i64") -> str:
    align = 8 if kind != "i32" else 4
    return f"%{name}.at = getelementptr i8, ptr {base}, i64 {offset}\n  %{name} = load {kind}, ptr %{name}.at, align {align}"


def _set(base: str, offset: int, kind: str, value: str) -> str:
    at = f"%set{base[1:]}{offset}"
    align = 8 if kind != "i32" else 4
    return f"{at} = getelementptr i8, ptr {base}, i64 {offset}\n  store {kind} {value}, ptr {at}, align {align}"
