"""The way in and out: XLA's typed FFI handler, and threads.

Offsets are those of the structs in jaxlib's `xla/ffi/api/c_api.h` (API 0.x; a struct only grows at its end). The handler answers
XLA's metadata query, then hands blocks of lanes to XLA's own thread pool: the calling thread and its helpers draw chunks of
blocks from one atomic counter until none is left. A helper that comes too late finds nothing to do, so nobody ever waits for a
thread that has not started.
"""

import platform

LARGE = 8 << 20  # bytes of an output that wants large pages
SHARES = 16  # chunks of blocks for each thread: those that end first take over from the others
FRAME_EXTENSION, FRAME_API, FRAME_CONTEXT, FRAME_STAGE = 8, 16, 24, 32
FRAME_ARGS, FRAME_RETS, FRAME_ATTRS, LIST_ITEMS, ATTR_ITEMS = 40, 80, 120, 32, 40
BUFFER_DATA, BUFFER_DIMS, SCALAR_VALUE = 24, 40, 8
API_ERROR_CREATE, API_ERROR_DESTROY, API_SCHEDULE, API_THREADS, API_MINOR = 48, 64, 136, 144, 36
EXTENSION_TYPE, EXTENSION_METADATA, METADATA_MAJOR, METADATA_MINOR, METADATA_TRAITS = 8, 24, 24, 28, 32
EXECUTE = 3
# the job that threads share: next chunk, blocks done, references, examples, blocks, blocks in a chunk, failure, buffers
NEXT, DONE, REFERENCES, EXAMPLES, BLOCKS, CHUNK, FAILED, BUFFERS = 0, 8, 16, 24, 32, 40, 48, 56


def handler(name: str, lanes: int, scratch: int, inputs: int, rows: list[int], counted: tuple[str, int]) -> str:
    """The exported handler. `rows` are bytes of an example in each output, 0 where examples are summed; `counted` says which list
    ("args" or "rets") and item has the batch as its first dimension."""
    start = (_LIBRARY, _worker(scratch), _RELEASE, _advice(), _query(name, counted))
    return "".join((*start, _threads(lanes), _job(inputs, rows), _spread()))


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


def _advice() -> str:
    """Asks Linux for large pages where an output is large: it is new memory, and a fault for every 4 KiB of it takes longer than
    the kernel takes to fill them. Elsewhere nothing is asked."""
    ask = "  %none = call i32 @madvise(ptr %from.p, i64 %size, i32 14)\n" if platform.system() == "Linux" else ""
    return f"""
declare i32 @madvise(ptr, i64, i32)
define internal void @advise(ptr %data, i64 %bytes) nounwind {{
entry:
  %large = icmp sge i64 %bytes, {LARGE}
  br i1 %large, label %ask, label %leave
ask:
  %at = ptrtoint ptr %data to i64
  %at.up = add i64 %at, 4095
  %from = and i64 %at.up, -4096
  %end = add i64 %at, %bytes
  %to = and i64 %end, -4096
  %size = sub i64 %to, %from
  %from.p = inttoptr i64 %from to ptr
{ask}  br label %leave
leave:
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
  {_field("kind", "%ext", EXTENSION_TYPE, "i32")}
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


def _job(inputs: int, rows: list[int]) -> str:
    """How blocks are cut into chunks, and the job that threads share."""
    total = inputs + len(rows)
    pointers = "\n".join(_pointer(k, inputs) for k in range(total))
    advice = "\n".join(
        f"  %bytes{k} = mul i64 %n, {size}\n  call void @advise(ptr %data{k}, i64 %bytes{k})"
        for k, size in enumerate(rows, start=inputs)
        if size
    )
    return f"""plan:
  %pool = load i64, ptr %threads.out
  %free.choice = icmp eq i64 %limit, 0
  %fewer = icmp slt i64 %limit, %pool
  %capped = select i1 %fewer, i64 %limit, i64 %pool
  %threads0 = select i1 %free.choice, i64 %pool, i64 %capped
  %many = icmp slt i64 %threads0, %blocks
  %threads = select i1 %many, i64 %threads0, i64 %blocks
  %shares = mul i64 %threads, {SHARES}
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
{advice}
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


def plain_entry(name: str) -> str:
    """The entry without XLA (`direct.py`): a struct of the table of buffers, examples, first and last block, scratch area,
    table of copies and their number. Copies are made after the blocks."""
    loaded = "\n".join(f"  {_field(n, '%call', 8 * k, t)}" for k, (n, t) in enumerate(
        (("buffers", "ptr"), ("n", "i64"), ("first", "i64"), ("last", "i64"), ("scratch", "ptr"), ("copies", "ptr"),
         ("count", "i64"))))  # fmt: skip
    return f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define void @{name}_direct(ptr %call) nounwind {{
entry:
{loaded}
  %some = icmp slt i64 %first, %last
  br i1 %some, label %compute, label %head
compute:
  call void @kernel(ptr %buffers, i64 %n, i64 %first, i64 %last, ptr %scratch)
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ 0, %compute ], [ %k.next, %copy ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %copy, label %leave
copy:
  %offset = mul i64 %k, 24
  %row = getelementptr i8, ptr %copies, i64 %offset
  {_field("to", "%row", 0, "ptr")}
  {_field("from", "%row", 8, "ptr")}
  {_field("bytes", "%row", 16)}
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)
  %k.next = add i64 %k, 1
  br label %head
leave:
  ret void
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
