"""Rules of primitives that only rearrange: they cost nothing, or a copy of what is large."""

from typing import Any

import numpy as np

from flexor.simd.arrays import COPIED, Array, constant, copy_into, nodes
from flexor.simd.interpreter import Interpreter


def _rearranged(f: Any) -> Any:
    """A rule that applies f(places, params) to a single operand."""

    def rule(it: Interpreter, eqn: Any, x: Array) -> list[Array]:
        return [x.with_at(f(x.at, eqn.params))]

    return rule


def _broadcast(at: np.ndarray, params: Any) -> np.ndarray:
    shape, dims = params["shape"], params["broadcast_dimensions"]
    expanded = np.ones(len(shape), dtype=int)
    expanded[list(dims)] = at.shape
    return np.broadcast_to(at.reshape(expanded), shape)


def _reshape(at: np.ndarray, params: Any) -> np.ndarray:
    first = params.get("dimensions")
    return (at if first is None else at.transpose(first)).reshape(params["new_sizes"])


def _slice(at: np.ndarray, params: Any) -> np.ndarray:
    steps = params["strides"] or (1,) * at.ndim
    return at[tuple(slice(a, b, s) for a, b, s in zip(params["start_indices"], params["limit_indices"], steps, strict=True))]


def _reverse(at: np.ndarray, params: Any) -> np.ndarray:
    return np.flip(at, params["dimensions"])


def _concatenate(it: Interpreter, eqn: Any, *xs: Array) -> list[Array]:
    return _joined(it, eqn.params["dimension"], list(xs))


def _joined(it: Interpreter, axis: int, xs: list[Array]) -> list[Array]:
    dtype = xs[0].dtype
    total = sum(x.size for x in xs)
    looped = any(x.buffer is not None and x.buffer.looped for x in xs)
    if not looped and (total <= COPIED or all(x.buffer is None for x in xs)):
        return [Array(np.concatenate([nodes(it.p, x) for x in xs], axis), dtype)]
    buffer = it.p.buffer(dtype, total)
    buffer.looped = looped
    places, start = [], 0
    for x in xs:
        copy_into(it.p, x, buffer, start, None)
        places.append(start + np.arange(x.size).reshape(x.shape))
        start += x.size
    return [Array(np.concatenate(places, axis), dtype, buffer)]


def _stack(it: Interpreter, eqn: Any, *xs: Array) -> list[Array]:
    axis = eqn.params["axis"]
    expanded = [x.with_at(np.expand_dims(x.at, axis)) for x in xs]
    return _joined(it, axis, expanded)


def _unstack(it: Interpreter, eqn: Any, x: Array) -> list[Array]:
    return [x.with_at(at) for at in np.moveaxis(x.at, eqn.params["axis"], 0)]


def _split(it: Interpreter, eqn: Any, x: Array) -> list[Array]:
    ends = np.cumsum(eqn.params["sizes"])[:-1]
    return [x.with_at(at) for at in np.split(x.at, ends, eqn.params["axis"])]


def _pad(it: Interpreter, eqn: Any, x: Array, value: Array) -> list[Array]:
    at, fill = nodes(it.p, x), int(nodes(it.p, value).reshape(()))
    for axis, (low, high, inner) in enumerate(eqn.params["padding_config"]):
        n = at.shape[axis]
        length = n + max(n - 1, 0) * inner
        shape = list(at.shape)
        shape[axis] = max(low, 0) + length + max(high, 0)
        new = np.full(shape, fill, dtype=np.int64)
        where = [slice(None)] * at.ndim
        where[axis] = slice(max(low, 0), max(low, 0) + length, inner + 1)
        new[tuple(where)] = at
        where[axis] = slice(max(-low, 0), shape[axis] - max(-high, 0))
        at = new[tuple(where)]
    return [Array(at, x.dtype)]


def _iota(it: Interpreter, eqn: Any) -> list[Array]:
    shape, axis = eqn.params["shape"], eqn.params["dimension"]
    line = np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    return [constant(it.p, np.broadcast_to(line, shape).astype(eqn.params["dtype"]))]


def _empty(it: Interpreter, eqn: Any) -> list[Array]:
    aval = eqn.outvars[0].aval
    return [constant(it.p, np.zeros(aval.shape, aval.dtype))]


def _same(it: Interpreter, eqn: Any, *xs: Array) -> list[Array]:
    return list(xs)


RULES = {
    "reshape": _rearranged(_reshape),
    "squeeze": _rearranged(lambda at, params: np.squeeze(at, params["dimensions"])),
    "expand_dims": _rearranged(lambda at, params: np.expand_dims(at, params["dimensions"])),
    "transpose": _rearranged(lambda at, params: np.transpose(at, params["permutation"])),
    "broadcast_in_dim": _rearranged(_broadcast),
    "slice": _rearranged(_slice),
    "rev": _rearranged(_reverse),
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "split": _split,
    "tile": _rearranged(lambda at, params: np.tile(at, params["reps"])),
    "pad": _pad,
    "iota": _iota,
    "empty": _empty,
    "empty2": _empty,
    "name": _same,
    "copy": _same,
    "copy_p": _same,
    "optimization_barrier": _same,
    "stop_gradient": _same,
    "sharding_constraint": _same,
}
