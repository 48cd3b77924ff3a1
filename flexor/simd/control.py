"""Rules of loops and branches. Short loops are written out; others are regions of the scalar program.

Every lane runs a while loop as long as any lane wants it, and keeps its values once it does not; a branch is skipped when no
lane wants it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flexor.simd.arrays import Array, check_dtype, copied, copy_into, nodes, reader, shifted, strided, uniform
from flexor.simd.interpreter import CALLS, Interpreter, cost
from flexor.simd.program import BOOL, I64, Carry, Loop, Program

UNROLL = 40000  # nodes of a loop that is still written out
TRY = 150000  # elements of a loop that is worth a try
CHEAP = 16  # elements of a branch that is computed rather than jumped over


# which arrays are the same for all lanes, without making any node


_uniform_cache: dict[tuple[int, tuple[bool, ...]], tuple[Any, list[bool]]] = {}


def uniform_results(jaxpr: Any, flags: Sequence[bool]) -> list[bool]:
    """Whether each result of a jaxpr is uniform, given which arguments are."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    key = (id(inner), tuple(flags))
    found = _uniform_cache.get(key)
    if found is None or found[0] is not inner:
        found = _uniform_cache[key] = (inner, _uniform_results(inner, flags))
    return found[1]


def _uniform_results(inner: Any, flags: Sequence[bool]) -> list[bool]:
    uniform: dict[Any, bool] = dict.fromkeys(inner.constvars, True)
    uniform.update(zip(inner.invars, flags, strict=True))
    for eqn in inner.eqns:
        given = [True if not _is_var(v) else uniform[v] for v in eqn.invars]
        uniform.update(zip(eqn.outvars, _uniform_equation(eqn, given), strict=True))
    return [True if not _is_var(v) else uniform[v] for v in inner.outvars]


def _is_var(v: Any) -> bool:
    return not hasattr(v, "val")


def _uniform_equation(eqn: Any, given: list[bool]) -> list[bool]:
    name = eqn.primitive.name
    if name in CALLS:
        return uniform_results(eqn.params[CALLS[name]], given)
    if name == "scan":
        consts, n = eqn.params["num_consts"], eqn.params["num_carry"]
        carry = uniform_carry(eqn.params["jaxpr"], given[:consts], given[consts : consts + n], given[consts + n :])
        return [*carry, *uniform_results(eqn.params["jaxpr"], [*given[:consts], *carry, *given[consts + n :]])[n:]]
    if name == "while":
        carry, together = uniform_while(eqn.params, given)
        return [c and together for c in carry]
    if name == "cond":
        parts = [uniform_results(b, given[1:]) for b in eqn.params["branches"]]
        return [given[0] and all(flags) for flags in zip(*parts, strict=True)]
    return [all(given)] * len(eqn.outvars)


def uniform_carry(body: Any, consts: Sequence[bool], start: Sequence[bool], rest: Sequence[bool]) -> list[bool]:
    """Which carried values of a loop stay uniform."""
    carry = list(start)
    while True:
        after = uniform_results(body, [*consts, *carry, *rest])[: len(carry)]
        new = [a and b for a, b in zip(carry, after, strict=True)]
        if new == carry:
            return carry
        carry = new


def uniform_while(params: Any, given: Sequence[bool]) -> tuple[list[bool], bool]:
    """Which carried values of a while loop are the same in all lanes that are still in it, and whether all leave together."""
    nc, nb = params["cond_nconsts"], params["body_nconsts"]
    carry = uniform_carry(params["body_jaxpr"], given[nc : nc + nb], given[nc + nb :], [])
    return carry, uniform_results(params["cond_jaxpr"], [*given[:nc], *carry])[0]


# carried values


class _Carried:
    """Values handed from one run of a loop to the next: nodes, or memory where they are large."""

    def __init__(self, p: Program, loop: Loop, starts: list[Array], flags: list[bool]):
        self.p, self.loop = p, loop
        self.large = [x.in_loops or _looped(x) for x in starts]
        self.memory = [copied(p, x) if large else None for x, large in zip(starts, self.large, strict=True)]
        for m, x in zip(self.memory, starts, strict=True):
            if m is not None and m.buffer is not None:
                m.buffer.looped = _looped(x)
        self.start_nodes = [None if m else nodes(p, x) for m, x in zip(self.memory, starts, strict=True)]
        with p.inside(loop, loop.head):
            self.inner = [
                m or Array(np.array([p.phi(x.dtype, u) for _ in range(x.size)], dtype=np.int64).reshape(x.shape), x.dtype)
                for m, x, u in zip(self.memory, starts, flags, strict=True)
            ]

    def finish(self, new: list[Array], going: int | None) -> list[Array]:
        """Ends the body: the values become `new` where `going`. Returns them as they are seen after the loop.

        A value that is the same in all lanes still going stays a scalar inside the loop; lanes that have left keep their own.
        """
        p, carries = self.p, []
        with p.inside(self.loop, self.loop.body):
            waiting = [self._moved(m, x) for m, x in zip(self.memory, new, strict=True) if m]
            for x, inner, start in zip(new, self.inner, self.start_nodes, strict=True):
                if start is not None:
                    triples = zip(
                        inner.at.ravel().tolist(), start.ravel().tolist(), nodes(p, x).ravel().tolist(), strict=True
                    )
                    for i, s, n in triples:
                        kept = i
                        if going is not None and p.uniform[i]:
                            self.loop.carries.append(Carry(i, s, n, p.after(self.loop, p.dtype[i], True)))
                            with p.inside(self.loop, self.loop.head):
                                kept = p.phi(p.dtype[i], False)
                        carries.append((kept, s, n if going is None else p.node("select", p.dtype[i], going, n, kept)))
            if waiting:
                p.hold([n for _, _, n in carries])
            for memory, x in waiting:
                self._replace(memory, x, going)
        afters = []
        for i, s, n in carries:
            afters.append(p.after(self.loop, p.dtype[i], p.uniform[i]))
            self.loop.carries.append(Carry(i, s, n, afters[-1]))
        ids = iter(afters)
        return [
            m or Array(np.array([next(ids) for _ in range(x.size)], dtype=np.int64).reshape(x.shape), x.dtype)
            for x, m in zip(self.inner, self.memory, strict=True)
        ]

    def _moved(self, memory: Array, x: Array) -> tuple[Array, Array]:
        """The new value where no carried memory is overwritten before it is read."""
        mine = {id(m.buffer) for m in self.memory if m is not None}
        return memory, copied(self.p, x) if id(x.buffer) in mine and x is not memory else x

    def _replace(self, memory: Array, x: Array, going: int | None) -> None:
        p, buffer = self.p, memory.buffer
        assert buffer is not None
        if x is memory:
            return
        if going is None:
            copy_into(p, x, buffer, 0, None)
            return
        read = reader(p, x)
        with p.count(x.size) as i:
            old = p.load(buffer, 0, i, fresh=True)
            p.store(buffer, 0, i, p.node("select", x.dtype, going, read(i), old))


def _looped(x: Array) -> bool:
    """Whether an array lies in memory that loops go through."""
    return x.buffer is not None and x.buffer.looped


# rules


def _scan(it: Interpreter, eqn: Any, *args: Array) -> list[Array]:
    q, p = eqn.params, it.p
    body, length = q["jaxpr"], q["length"]
    consts, n = q["num_consts"], q["num_carry"]
    fixed, carry, xs = list(args[:consts]), list(args[consts : consts + n]), list(args[consts + n :])
    looped = length > 1 and any(map(_looped, xs))
    if not looped and (length * cost(body) <= TRY or length <= 1):
        written = _unrolled(it, body, length, q["reverse"], fixed, carry, xs, eqn.outvars[n:])
        if written is not None:
            return written
    flags = uniform_carry(body, [uniform(p, x) for x in fixed], [uniform(p, x) for x in carry], [uniform(p, x) for x in xs])
    rows = [strided(p, x) for x in xs]
    stacks = [p.buffer(check_dtype(v.aval.dtype), int(np.prod(v.aval.shape))) for v in eqn.outvars[n:]]
    for stack in stacks:
        stack.looped = looped
    loop = p.loop()
    carried = _Carried(p, loop, carry, flags)
    with p.inside(loop, loop.head):
        count = p.phi(I64, True)
        loop.going = p.node("lt", BOOL, count, p.const(length, I64))
    with p.inside(loop, loop.body):
        at = p.node("sub", I64, p.const(length - 1, I64), count) if q["reverse"] else count
        items = [
            Array(x.at[0], x.dtype, x.buffer, shifted(p, x.index, p.node("mul", I64, at, p.const(steps[0], I64))))
            for x, _, steps in rows
        ]
        out = it.closed(body, [*fixed, *carried.inner, *items])
        for y, stack in zip(out[n:], stacks, strict=True):
            copy_into(p, y, stack, 0, p.node("mul", I64, at, p.const(y.size, I64)))
        following = p.node("add", I64, count, p.const(1, I64))
    loop.carries.append(Carry(count, p.const(0, I64), following, p.after(loop, I64, True)))
    final = carried.finish(out[:n], None)
    p.effects.append(loop)
    results = [
        Array(np.arange(s.size).reshape(v.aval.shape), s.dtype, s) for s, v in zip(stacks, eqn.outvars[n:], strict=True)
    ]
    return [*final, *results]


def _unrolled(
    it: Interpreter, body: Any, length: int, reverse: bool, fixed: list[Array], carry: list[Array], xs: list[Array],
    outvars: list[Any],
) -> list[Array] | None:  # fmt: skip
    """All iterations of the body written out; None, with nothing changed, if the first one is too large for that."""
    n, before, effects = len(carry), len(it.p.op), len(it.p.effects)
    ys: list[list[Array]] = [[] for _ in outvars]
    for count, k in enumerate(range(length - 1, -1, -1) if reverse else range(length)):
        if count == 1 and (len(it.p.op) - before) * length > UNROLL:
            del it.p.effects[effects:]
            return None
        out = it.closed(body, [*fixed, *carry, *(x.with_at(x.at[k]) for x in xs)])
        carry = out[:n]
        for y, stack in zip(out[n:], ys, strict=True):
            stack.insert(0, y) if reverse else stack.append(y)
    stacked = []
    for stack, v in zip(ys, outvars, strict=True):
        dtype, shape = check_dtype(v.aval.dtype), v.aval.shape
        if any(y.in_loops for y in stack):
            buffer, size = it.p.buffer(dtype, int(np.prod(shape))), stack[0].size
            for k, y in enumerate(stack):
                copy_into(it.p, y, buffer, k * size, None)
            stacked.append(Array(np.arange(buffer.size).reshape(shape), dtype, buffer))
        else:
            ids = np.stack([nodes(it.p, y) for y in stack]) if stack else np.zeros(shape, dtype=np.int64)
            stacked.append(Array(ids, dtype))
    return [*carry, *stacked]


def _while(it: Interpreter, eqn: Any, *args: Array) -> list[Array]:
    q, p = eqn.params, it.p
    nc, nb = q["cond_nconsts"], q["body_nconsts"]
    test, fixed, carry = args[:nc], args[nc : nc + nb], list(args[nc + nb :])
    flags, together = uniform_while(q, [uniform(p, x) for x in args])
    loop = p.loop()
    carried = _Carried(p, loop, carry, flags)
    with p.inside(loop, loop.head):
        going = int(nodes(p, it.closed(q["cond_jaxpr"], [*test, *carried.inner])[0]).reshape(()))
        alive = p.phi(BOOL, together)  # a lane that has left does not come back
        loop.going = going if together else p.node("and", BOOL, alive, going)
    outer = p.wanted
    with p.inside(loop, loop.body):
        p.wanted = outer if together else loop.going
        out = it.closed(q["body_jaxpr"], [*fixed, *carried.inner])
        p.wanted = outer
    # the results of lanes that have left a loop around this one are ignored
    start = p.const(True, BOOL) if together or outer is None else outer
    loop.carries.append(Carry(alive, start, loop.going, p.after(loop, BOOL, together)))
    final = carried.finish(out, None if together else loop.going)
    p.effects.append(loop)
    return final


def _cond(it: Interpreter, eqn: Any, index: Array, *args: Array) -> list[Array]:
    p, branches = it.p, eqn.params["branches"]
    which = int(nodes(p, index).reshape(()))
    if p.value.get(which) is not None:
        return it.closed(branches[int(np.clip(p.value[which], 0, len(branches) - 1))], args)
    masks = [p.node("eq", BOOL, which, p.const(k, p.dtype[which])) for k in range(len(branches))]
    # cheap branches are computed for all lanes, the others where a lane wants them
    order = sorted(range(len(branches)), key=lambda k: cost(branches[k]) > CHEAP)
    out: list[np.ndarray] | None = None
    for k in order:
        if out is None:
            guard = cost(branches[k]) > CHEAP
            out = (
                _guarded(it, branches[k], masks[k], args, _zeros(p, eqn.outvars))
                if guard
                else _results(it, branches[k], args)
            )
        elif cost(branches[k]) > CHEAP:
            out = _guarded(it, branches[k], masks[k], args, out)
        else:
            out = [_chosen(p, masks[k], new, old) for new, old in zip(_results(it, branches[k], args), out, strict=True)]
    assert out is not None
    return [Array(ids, check_dtype(v.aval.dtype)) for ids, v in zip(out, eqn.outvars, strict=True)]


def _results(it: Interpreter, body: Any, args: Sequence[Array]) -> list[np.ndarray]:
    return [nodes(it.p, x) for x in it.closed(body, args)]


def _zeros(p: Program, outvars: list[Any]) -> list[np.ndarray]:
    return [np.full(v.aval.shape, p.const(0, check_dtype(v.aval.dtype)), dtype=np.int64) for v in outvars]


def _chosen(p: Program, mask: int, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    pairs = zip(new.ravel().tolist(), old.ravel().tolist(), strict=True)
    return np.array([p.node("select", p.dtype[a], mask, a, b) for a, b in pairs], dtype=np.int64).reshape(new.shape)


def _guarded(it: Interpreter, body: Any, mask: int, args: Sequence[Array], otherwise: list[np.ndarray]) -> list[np.ndarray]:
    """The results of a branch where the mask says so, and `otherwise` elsewhere; skipped where no lane wants it."""
    p = it.p
    branch, outer = p.branch(mask), p.wanted
    with p.inside(branch, branch.body):
        p.wanted = mask if outer is None else p.node("and", BOOL, outer, mask)
        inner = [_chosen(p, mask, new, old) for new, old in zip(_results(it, body, args), otherwise, strict=True)]
    p.wanted, out = outer, []
    for ids, old in zip(inner, otherwise, strict=True):
        after = ids.copy().ravel()
        for k, (n, o) in enumerate(zip(ids.ravel().tolist(), old.ravel().tolist(), strict=True)):
            if n != o:
                after[k] = p.after(branch, p.dtype[n], p.uniform[n] and p.uniform[o] and p.uniform[mask])
                branch.carries.append(Carry(-1, o, n, int(after[k])))
        out.append(after.reshape(ids.shape))
    p.effects.append(branch)
    return out


def _kernel(it: Interpreter, eqn: Any, *args: Array) -> list[Array]:
    """A kernel called within a kernel: its examples one after the other."""
    q = eqn.params
    rows = [it.closed(q["jaxpr"], [x if s else x.with_at(x.at[k]) for x, s in zip(args, q["shared"], strict=True)])
            for k in range(q["size"])]  # fmt: skip
    out = []
    for column, summed in zip(zip(*rows, strict=True), q["summed"], strict=True):
        ids = np.stack([nodes(it.p, x) for x in column])
        if summed:
            total = ids[0].ravel().tolist()
            for row in ids[1:]:
                total = [it.p.node("add", column[0].dtype, a, b) for a, b in zip(total, row.ravel().tolist(), strict=True)]
            ids = np.array(total, dtype=np.int64).reshape(ids.shape[1:])
        out.append(Array(ids, column[0].dtype))
    return out


RULES = {"simd_kernel": _kernel, "scan": _scan, "while": _while, "cond": _cond}
