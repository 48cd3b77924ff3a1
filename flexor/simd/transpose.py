"""Between rows of examples and lanes: functions that transpose blocks of a caller's array, and sum lanes."""


def transpose(lanes: int, size: int) -> str:
    """Functions that move `count` elements of `size` bytes between rows of the caller and a lane buffer, both ways."""
    kind, vec = f"i{8 * size}", f"<{lanes} x i{8 * size}>"
    head = f"(ptr %rows, i64 %count, i64 %lane, i64 %n, ptr %lanes) noinline nounwind {{\nentry:\n  %row = mul i64 %count, {size}"
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
    full, partial = _squares(lanes, size), _last_block(lanes, size)
    body_in = full.replace("%START", "%entry").replace("TILE", tile_in).replace("TAIL", tail_in)
    body_out = full.replace("%START", "%fast").replace("TILE", tile_out).replace("TAIL", tail_out)
    return (
        f"define internal void @in{size}{head}{body_in}finish:\n  ret void\n}}\n"
        f"define internal void @out{size}{head}{partial}{body_out}finish:\n  ret void\n}}\n"
    )


def _squares(lanes: int, size: int) -> str:
    """Squares of `lanes` elements and rows at a time, then the elements that are left; both bodies to be filled in."""
    rows = "\n".join(
        f"  %l{i} = add i64 %lane, {i}\n  %c{i} = icmp slt i64 %l{i}, %end\n  %m{i} = select i1 %c{i}, i64 %l{i}, i64 %end\n"
        f"  %o{i} = mul i64 %m{i}, %row\n  %r{i} = getelementptr i8, ptr %rows, i64 %o{i}"
        for i in range(lanes)
    )
    return f"""
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


def _last_block(lanes: int, size: int) -> str:
    """Rows one by one, where there are fewer of them than lanes."""
    kind = f"i{8 * size}"
    return f"""
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
