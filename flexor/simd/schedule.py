"""Which nodes and effects are needed, which products are fused into sums, and what each region takes from outside.

Within a region `emit.py` goes depth-first from each effect, so that a value is made shortly before it is used, and of a node's
operands to the one first that rests on most (`weights`): what it leaves behind for the others is then small. In forward
dynamics this takes the bias force of a link together with its inertia, instead of all inertias before all forces, and less
than half as many values wait at a time.
"""

from typing import Any, NamedTuple

from flexor.simd.program import BLOCK, Branch, Buffer, Hold, Loop, Program, Store

SAMPLE = 4096  # nodes by which weights are counted


class Schedule(NamedTuple):
    """Live effects by identity, for every region the nodes from outside that it uses, how often each node is used, how
    much it rests on, and the results of branches that nobody reads where the branch is jumped over."""

    effects: set[int]
    needs: dict[int, dict[int, None]]
    uses: list[int]
    weights: list[int]
    unread: set[int]


def schedule(p: Program, outputs: list[Buffer]) -> Schedule:
    """Drops what no output needs, fuses, and collects what regions need."""
    place: dict[int, int] = {}
    writers: dict[int, list[Store]] = {}
    _walk(p.block, BLOCK, place, writers)
    nodes, effects = _live(p, outputs, place, writers)
    nodes = _reciprocals(p, nodes)
    uses = [0] * len(p.op)
    for _, operands in _uses(p, nodes, effects, place):
        for a in operands:
            uses[a] += 1
    _fuse(p, nodes, uses)
    nodes = [n for n in nodes if uses[n] or p.op[n] == "phi"]
    found = _uses(p, nodes, effects, place)
    needs: dict[int, dict[int, None]] = {r: {} for r in range(len(p.regions))}
    for region, operands in found:
        for a in operands:
            inner = region
            while p.regions[inner].depth > p.regions[p.region[a]].depth:
                needs[inner][a] = None
                inner = p.regions[inner].parent
    return Schedule(set(effects), needs, uses, weights(p, nodes), _unread(p, found))


def weights(p: Program, nodes: list[int]) -> list[int]:
    """For every node, on how many of the others it depends, directly or not, counted on a regular sample of at most `SAMPLE`
    nodes. A node that depends on everything another one does never weighs less than that one."""
    marked = {n: 1 << k for k, n in enumerate(nodes[:: len(nodes) // SAMPLE + 1])}
    below: dict[int, int] = {}
    for first in nodes:
        work = [first]
        while work:
            n = work[-1]
            op, args = p.op[n], p.args[n]
            args = () if op in ("phi", "after", "const", "load") else args
            missing = [a for a in args if a not in below]
            if missing:
                work.extend(missing)
                continue
            work.pop()
            rests = marked.get(n, 0)
            for a in args:
                rests |= below[a]
            below[n] = rests
    found = [0] * len(p.op)
    for n, rests in below.items():
        found[n] = rests.bit_count()
    return found


def _unread(p: Program, found: list[tuple[int, list[int]]]) -> set[int]:
    """Results of branches that are read under the same mask alone: jumping over the branch then need not set them.

    A region under that mask runs only where a lane wants the branch too, and so after it.
    """
    masks: list[frozenset[int]] = []
    for r in p.regions:
        outer = masks[r.parent] if masks else frozenset()
        masks.append(outer | {r.owner.mask} if isinstance(r.owner, Branch) else outer)
    results = {a for _, operands in found for a in operands if p.op[a] == "after" and isinstance(p.args[a][0], Branch)}
    read = {a for region, operands in found for a in operands if a in results and p.args[a][0].mask not in masks[region]}
    return results - read


def _walk(effects: list[Any], region: int, place: dict[int, int], writers: dict[int, list[Store]]) -> None:
    for e in effects:
        place[id(e)] = region
        if isinstance(e, Store):
            writers.setdefault(id(e.buffer), []).append(e)
        elif not isinstance(e, Hold):
            if isinstance(e, Loop):
                _walk(e.head, e.region, place, writers)
            _walk(e.body, e.region, place, writers)


def _live(
    p: Program, outputs: list[Buffer], place: dict[int, int], writers: dict[int, list[Store]]
) -> tuple[list[int], dict[int, Any]]:
    """Nodes in the order in which they were made, and effects, that the outputs depend on."""
    seen = bytearray(len(p.op))
    effects: dict[int, Any] = {}
    buffers: set[int] = set()
    work: list[Any] = []

    def need_buffer(b: Buffer) -> None:
        if not b.fixed and id(b) not in buffers:
            buffers.add(id(b))
            work.extend(writers.get(id(b), []))

    for b in outputs:
        need_buffer(b)
    while work:
        item = work.pop()
        if isinstance(item, int):
            if seen[item]:
                continue
            seen[item] = 1
            op, args = p.op[item], p.args[item]
            if op == "load":
                need_buffer(args[0])
                work.extend([] if args[2] is None else [args[2]])
            elif op in ("phi", "after"):
                owner = p.regions[p.region[item]].owner if op == "phi" else args[0]
                carry = next(c for c in owner.carries if item in (c.inner, c.after))
                work.extend([owner, carry.start, carry.next])
                work.extend([carry.inner, carry.after] if isinstance(owner, Loop) else [])
            else:
                work.extend(args)
        elif id(item) not in effects:
            effects[id(item)] = item
            owner = p.regions[place[id(item)]].owner
            work.extend([] if owner is None else [owner])
            if isinstance(item, Store):
                work.extend([item.value] if item.at is None else [item.value, item.at])
            else:
                work.append(item.going if isinstance(item, Loop) else item.mask)
    for e in effects.values():
        if not isinstance(e, Store):
            e.carries = [c for c in e.carries if seen[c.after] or (isinstance(e, Loop) and seen[c.inner])]
    return [n for n in range(len(p.op)) if seen[n]], effects


def _uses(p: Program, nodes: list[int], effects: dict[int, Any], place: dict[int, int]) -> list[tuple[int, list[int]]]:
    """Pairs of a region and nodes used there."""
    found: list[tuple[int, list[int]]] = []
    for n in nodes:
        op, args = p.op[n], p.args[n]
        if op == "load":
            found.append((p.region[n], [] if args[2] is None else [args[2]]))
        elif op not in ("phi", "after", "const"):
            found.append((p.region[n], list(args)))
    for e in effects.values():
        here = place[id(e)]
        if isinstance(e, Store):
            found.append((here, [e.value] if e.at is None else [e.value, e.at]))
        else:
            found.append((here, [c.start for c in e.carries]))
            found.append((e.region, [c.next for c in e.carries]))
            found.append((e.region, [e.going]) if isinstance(e, Loop) else (here, [e.mask]))
    return found


def _reciprocals(p: Program, nodes: list[int]) -> list[int]:
    """Divisions that share a divisor become products with its reciprocal: a rounding more, a dozen cycles less for each."""
    shared: dict[tuple[int, int], list[int]] = {}
    for n in nodes:
        if p.op[n] == "div" and p.dtype[n].kind == "f":
            shared.setdefault((p.args[n][1], p.region[n]), []).append(n)
    out = list(nodes)
    for (divisor, region), group in shared.items():
        if len(group) > 1:
            one = p.const(1, p.dtype[divisor])
            inverse = p.reciprocal(one, divisor, region)
            out += [m for m in (one, inverse) if m not in group]
            for n in group:
                if n != inverse:
                    p.op[n], p.args[n] = "mul", (p.args[n][0], inverse)
    return list(dict.fromkeys(out))


def _fuse(p: Program, nodes: list[int], uses: list[int]) -> None:
    """a b + c, a b - c and c - a b with one rounding, where the product serves nothing else.

    Decided here and not by LLVM, so that one example gives the same bits in a vector of any width.
    """
    for n in nodes:
        if p.op[n] not in ("add", "sub") or p.dtype[n].kind != "f":
            continue
        x, y = p.args[n]
        for product, other in ((y, x), (x, y)):
            single = p.op[product] == "mul" and uses[product] == 1 and p.region[product] == p.region[n]
            if single and p.uniform[product] == p.uniform[n]:
                a, b = p.args[product]
                if p.op[n] == "add":
                    p.op[n] = "fma"
                else:
                    p.op[n] = "fnma" if product == y else "fms"
                p.args[n] = (a, b, other)
                uses[product] = 0
                break
