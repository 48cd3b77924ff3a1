"""Rules of gather, scatter and dynamic slices. Known indices rearrange; others select among few, or address memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode

from flexor.simd.arrays import Array, constant_values, copied, nodes, shifted, strided, strides
from flexor.simd.interpreter import Interpreter
from flexor.simd.program import BOOL, I64, Program

SELECTIONS = 1024  # choices by comparison up to this number, by memory beyond


def _clamped(p: Program, index: int, top: int) -> tuple[int, int]:
    """The index as int64 within 0 .. top, and whether it was there."""
    wide = p.node("convert", I64, index)
    zero, last = p.const(0, I64), p.const(max(top, 0), I64)
    inside = p.node("and", BOOL, p.node("ge", BOOL, wide, zero), p.node("le", BOOL, wide, last))
    return p.node("min", I64, p.node("max", I64, wide, zero), last), inside


def _read_at(p: Program, x: Array, window: np.ndarray, starts: list[int], tops: list[int], axes: list[int]) -> np.ndarray:
    """Nodes of x.at[window] moved by `starts` along `axes`; `window` holds flat indices into x at start zero."""
    moving = [(s, t, a) for s, t, a in zip(starts, tops, axes, strict=True) if p.value.get(s) is None]
    fixed = sum(int(p.value[s]) * int(np.prod(x.shape[a + 1 :])) for s, t, a in zip(starts, tops, axes, strict=True)
                if p.value.get(s) is not None)  # fmt: skip
    window = window + fixed
    if not moving:
        return nodes(p, x.with_at(x.at.ravel()[window]))
    choices = int(np.prod([t + 1 for _, t, _ in moving]))
    if x.buffer is None and choices * window.size <= SELECTIONS:
        return _selected(p, x.at.ravel(), window, [(s, t, int(np.prod(x.shape[a + 1 :]))) for s, t, a in moving], x.dtype)
    x, _, steps = strided(p, x)
    index = x.index
    for s, _, a in moving:
        index = shifted(p, index, p.node("mul", I64, s, p.const(steps[a], I64)))
    at = x.at.ravel()[window]
    buffer = x.buffer
    assert buffer is not None
    return np.array([p.load(buffer, int(o), index) for o in at.ravel()], dtype=np.int64).reshape(window.shape)


def _selected(
    p: Program, flat: np.ndarray, window: np.ndarray, moving: list[tuple[int, int, int]], dtype: np.dtype
) -> np.ndarray:
    """Comparison with every possible start, one axis after the other."""
    (start, top, step), rest = moving[0], moving[1:]
    out: np.ndarray | None = None
    for k in range(top, -1, -1):
        here = _selected(p, flat, window + k * step, rest, dtype) if rest else flat[window + k * step]
        if out is None:
            out = here
            continue
        mask = p.node("eq", BOOL, start, p.const(k, I64))
        pairs = zip(here.ravel().tolist(), out.ravel().tolist(), strict=True)
        out = np.array([p.node("select", dtype, mask, a, b) for a, b in pairs], dtype=np.int64).reshape(window.shape)
    assert out is not None
    return out


def _gather(it: Interpreter, eqn: Any, x: Array, indices: Array) -> list[Array]:
    p, d = it.p, eqn.params["dimension_numbers"]
    sizes, mode = eqn.params["slice_sizes"], eqn.params["mode"]
    fill = mode == GatherScatterMode.FILL_OR_DROP
    batching = list(getattr(d, "operand_batching_dims", ()))
    start_batching = list(getattr(d, "start_indices_batching_dims", ()))
    shape = eqn.outvars[0].aval.shape
    offset_dims = list(d.offset_dims)
    batch_dims = [k for k in range(len(shape)) if k not in offset_dims]
    inner = [k for k in range(x.at.ndim) if k not in (*d.collapsed_slice_dims, *batching)]
    window = np.arange(x.size).reshape(x.shape)[tuple(slice(0, s) for s in sizes)]
    window = window.reshape([sizes[k] for k in inner])
    tops = [x.shape[a] - sizes[a] for a in d.start_index_map]
    batch_shape = [shape[k] for k in batch_dims]
    static = constant_values(p, indices)
    if static is not None and not x.in_loops:
        return [
            _static_gather(p, eqn, x, static, window, batch_shape, offset_dims, batch_dims, tops, batching, start_batching)
        ]
    ids = nodes(p, indices).reshape(-1, indices.shape[-1])
    out = np.empty((len(ids), *window.shape), dtype=np.int64)
    places = list(np.ndindex(*batch_shape)) if batch_shape else [()]
    for k, row in enumerate(ids.tolist()):
        starts, inside = [], p.const(True, BOOL)
        for n, top in zip(row, tops, strict=True):
            at, ok = _clamped(p, n, top)
            starts.append(at)
            inside = p.node("and", BOOL, inside, ok)
        extra = sum(places[k][b] * int(np.prod(x.shape[o + 1 :])) for o, b in zip(batching, start_batching, strict=True))
        values = _read_at(p, x, window + extra, starts, tops, list(d.start_index_map))
        if fill:
            blank = p.const(_fill(eqn.params.get("fill_value"), x.dtype), x.dtype)
            flat = [p.node("select", x.dtype, inside, v, blank) for v in values.ravel().tolist()]
            values = np.array(flat, dtype=np.int64).reshape(values.shape)
        out[k] = values
    out = out.reshape([*batch_shape, *window.shape])
    return [Array(np.moveaxis(out, range(len(batch_shape)), batch_dims), x.dtype)]


def _static_gather(
    p: Program, eqn: Any, x: Array, indices: np.ndarray, window: np.ndarray, batch_shape: list[int], offset_dims: list[int],
    batch_dims: list[int], tops: list[int], batching: list[int], start_batching: list[int],
) -> Array:  # fmt: skip
    """Known indices: a rearrangement, and constants where they point outside."""
    d = eqn.params["dimension_numbers"]
    rows = indices.reshape(-1, indices.shape[-1]).astype(np.int64)
    limit = np.array(tops, dtype=np.int64)
    weights = np.array([int(np.prod(x.shape[a + 1 :])) for a in d.start_index_map], dtype=np.int64)
    inside = ((rows >= 0) & (rows <= limit)).all(1)
    base = (np.clip(rows, 0, limit) * weights).sum(1)
    places = np.array(list(np.ndindex(*batch_shape)), dtype=np.int64).reshape(len(rows), -1)
    for o, b in zip(batching, start_batching, strict=True):
        base = base + places[:, b] * int(np.prod(x.shape[o + 1 :]))
    flat = base.reshape(-1, *[1] * window.ndim) + window
    flat = np.moveaxis(flat.reshape([*batch_shape, *window.shape]), range(len(batch_shape)), batch_dims)
    if inside.all() or eqn.params["mode"] != GatherScatterMode.FILL_OR_DROP:
        return x.with_at(x.at.ravel()[flat])
    ids = nodes(p, x).ravel()[flat]
    blank = p.const(_fill(eqn.params.get("fill_value"), x.dtype), x.dtype)
    ok = np.broadcast_to(inside.reshape([*batch_shape, *[1] * window.ndim]), [*batch_shape, *window.shape])
    return Array(np.where(np.moveaxis(ok, range(len(batch_shape)), batch_dims), ids, blank), x.dtype)


def _fill(value: Any, dtype: np.dtype) -> Any:
    if value is not None:
        return value
    return (
        np.nan
        if dtype.kind == "f"
        else True
        if dtype == BOOL
        else np.iinfo(dtype).min
        if dtype.kind == "i"
        else np.iinfo(dtype).max
    )


def _scatter(combine: Callable[[Program, np.dtype, int, int], int]) -> Any:
    """A rule for scatter with the given way to combine old and new."""

    def rule(it: Interpreter, eqn: Any, x: Array, indices: Array, updates: Array) -> list[Array]:
        p, d = it.p, eqn.params["dimension_numbers"]
        batching = list(getattr(d, "operand_batching_dims", ()))
        index_batching = list(getattr(d, "scatter_indices_batching_dims", ()))
        window_dims = list(d.update_window_dims)
        batch_dims = [k for k in range(updates.at.ndim) if k not in window_dims]
        inner = [k for k in range(x.at.ndim) if k not in (*d.inserted_window_dims, *batching)]
        sizes = [1] * x.at.ndim
        for k, u in zip(inner, window_dims, strict=True):
            sizes[k] = updates.shape[u]
        axes = list(d.scatter_dims_to_operand_dims)
        tops = [x.shape[a] - sizes[a] for a in axes]
        window = np.arange(x.size).reshape(x.shape)[tuple(slice(0, s) for s in sizes)].ravel()
        batch_shape = [updates.shape[k] for k in batch_dims]
        new = np.moveaxis(nodes(p, updates), batch_dims, range(len(batch_dims))).reshape(-1, window.size)
        rows = nodes(p, indices).reshape(-1, indices.shape[-1]).tolist()
        places = list(np.ndindex(*batch_shape)) if batch_shape else [()]
        extra = [sum(places[k][b] * int(np.prod(x.shape[o + 1 :])) for o, b in zip(batching, index_batching, strict=True))
                 for k in range(len(rows))]  # fmt: skip
        clip = eqn.params["mode"] == GatherScatterMode.CLIP
        return [_scattered(p, x, rows, extra, window, new, tops, axes, clip, combine)]

    return rule


def _scattered(
    p: Program, x: Array, rows: list[list[int]], extra: list[int], window: np.ndarray, new: np.ndarray, tops: list[int],
    axes: list[int], clip: bool, combine: Callable[[Program, np.dtype, int, int], int],
) -> Array:  # fmt: skip
    """One update after the other, on nodes; or in a copy in memory where there are too many choices."""
    weights = [int(np.prod(x.shape[a + 1 :])) for a in axes]
    choices = int(np.prod([t + 1 for t in tops])) * len(rows) * window.size
    static = all(p.value.get(n) is not None for row in rows for n in row)
    in_nodes = (static and not x.in_loops) or (choices <= SELECTIONS and not x.in_loops)
    ids = nodes(p, x).ravel().copy() if in_nodes else None
    target = None if in_nodes else copied(p, x)
    for row, more, values in zip(rows, extra, new.tolist(), strict=True):
        starts, inside = [], p.const(True, BOOL)
        for n, top in zip(row, tops, strict=True):
            at, ok = _clamped(p, n, top)
            starts.append(at)
            inside = inside if clip else p.node("and", BOOL, inside, ok)
        if ids is not None:
            _update_nodes(p, ids, x.dtype, starts, tops, weights, inside, window + more, values, combine)
        else:
            assert target is not None
            _update_memory(p, target, starts, weights, inside, window + more, values, combine)
    if ids is not None:
        return Array(ids.reshape(x.shape), x.dtype)
    assert target is not None
    return target


def _update_nodes(
    p: Program, ids: np.ndarray, dtype: np.dtype, starts: list[int], tops: list[int], weights: list[int], inside: int,
    window: np.ndarray, values: list[int], combine: Callable[[Program, np.dtype, int, int], int],
) -> None:  # fmt: skip
    options = [
        [int(p.value[s])] if p.value.get(s) is not None else list(range(t + 1)) for s, t in zip(starts, tops, strict=True)
    ]
    for choice in np.ndindex(*(len(o) for o in options)):
        mask, shift = inside, 0
        for s, w, o, c in zip(starts, weights, options, choice, strict=True):
            mask = p.node("and", BOOL, mask, p.node("eq", BOOL, s, p.const(o[c], I64)))
            shift += o[c] * w
        for at, value in zip((window + shift).tolist(), values, strict=True):
            ids[at] = p.node("select", dtype, mask, combine(p, dtype, int(ids[at]), value), int(ids[at]))


def _update_memory(
    p: Program, target: Array, starts: list[int], weights: list[int], inside: int, window: np.ndarray, values: list[int],
    combine: Callable[[Program, np.dtype, int, int], int],
) -> None:  # fmt: skip
    index: int | None = None
    for s, w in zip(starts, weights, strict=True):
        index = shifted(p, index, p.node("mul", I64, s, p.const(w, I64)))
    buffer = target.buffer
    assert buffer is not None
    for at, value in zip(window.tolist(), values, strict=True):
        old = p.load(buffer, at, index, fresh=True)
        p.store(buffer, at, index, p.node("select", target.dtype, inside, combine(p, target.dtype, old, value), old))


def _dynamic_slice(it: Interpreter, eqn: Any, x: Array, *starts: Array) -> list[Array]:
    p, sizes = it.p, eqn.params["slice_sizes"]
    tops = [n - s for n, s in zip(x.shape, sizes, strict=True)]
    at = [_clamped(p, int(nodes(p, s).reshape(())), t)[0] for s, t in zip(starts, tops, strict=True)]
    steps = strides(x) if x.buffer is not None else None
    if steps is not None and all(p.uniform[s] for s in at):
        index = x.index
        for s, step in zip(at, steps[1], strict=True):
            index = shifted(p, index, p.node("mul", I64, s, p.const(step, I64)))
        return [Array(x.at[tuple(slice(0, s) for s in sizes)], x.dtype, x.buffer, index)]
    window = np.arange(x.size).reshape(x.shape)[tuple(slice(0, s) for s in sizes)]
    return [Array(_read_at(p, x, window, at, tops, list(range(x.at.ndim))), x.dtype)]


def _dynamic_update_slice(it: Interpreter, eqn: Any, x: Array, update: Array, *starts: Array) -> list[Array]:
    p = it.p
    tops = [n - s for n, s in zip(x.shape, update.shape, strict=True)]
    window = np.arange(x.size).reshape(x.shape)[tuple(slice(0, s) for s in update.shape)].ravel()
    row = [int(nodes(p, s).reshape(())) for s in starts]
    new = nodes(p, update).reshape(1, -1)
    axes = list(range(x.at.ndim))
    return [_scattered(p, x, [row], [0], window, new, tops, axes, True, lambda p, t, old, value: value)]


RULES = {
    "gather": _gather,
    "scatter": _scatter(lambda p, t, old, new: new),
    "scatter-add": _scatter(lambda p, t, old, new: p.node("add", t, old, new)),
    "scatter_add": _scatter(lambda p, t, old, new: p.node("add", t, old, new)),
    "scatter-sub": _scatter(lambda p, t, old, new: p.node("sub", t, old, new)),
    "scatter-mul": _scatter(lambda p, t, old, new: p.node("mul", t, old, new)),
    "scatter_mul": _scatter(lambda p, t, old, new: p.node("mul", t, old, new)),
    "scatter-min": _scatter(lambda p, t, old, new: p.node("min", t, old, new)),
    "scatter_min": _scatter(lambda p, t, old, new: p.node("min", t, old, new)),
    "scatter-max": _scatter(lambda p, t, old, new: p.node("max", t, old, new)),
    "scatter_max": _scatter(lambda p, t, old, new: p.node("max", t, old, new)),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
}
