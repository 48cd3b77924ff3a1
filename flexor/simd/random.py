"""Rules of `jax.random`'s primitives, for threefry keys: JAX's own implementation, which is integers alone, so the same bits.

A key is one scalar of 64 bits in the program (its first word in the lower half), so that keys are sliced, selected, carried
through loops and kept in memory like numbers.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flexor.simd.arrays import Array, UnsupportedError, constant, mapped
from flexor.simd.interpreter import Interpreter
from flexor.simd.program import U32, U64


def _wrap(it: Interpreter, eqn: Any, words: Array) -> list[Array]:
    """Keys of their words, (..., 2) unsigned integers."""
    _check(eqn.outvars[0].aval.dtype)
    p = it.p
    shift = p.const(32, U64)

    def key(low: int, high: int) -> int:
        wide = p.node("shl", U64, p.node("convert", U64, high), shift)
        return p.node("or", U64, p.node("convert", U64, low), wide)

    return [mapped(p, key, U64, words.with_at(words.at[..., 0]), words.with_at(words.at[..., 1]))]


def _words(it: Interpreter, keys: Array) -> Array:
    p = it.p
    shift = p.const(32, U64)
    low = mapped(p, lambda k: p.node("convert", U32, k), U32, keys)
    high = mapped(p, lambda k: p.node("convert", U32, p.node("lshr", U64, k, shift)), U32, keys)
    stack = it.rules["concatenate"]
    parts = [x.with_at(x.at[..., None]) for x in (low, high)]
    return stack(it, _Dimension(len(keys.shape)), *parts)[0]


class _Dimension:
    """What the rule of `concatenate` asks of an equation."""

    def __init__(self, axis: int):
        self.params = {"dimension": axis}


def _unwrap(it: Interpreter, eqn: Any, keys: Array) -> list[Array]:
    return [_words(it, keys)]


def _run(it: Interpreter, f: Any, avals: list[Any], arrays: list[Array]) -> list[Array]:
    return it.closed(jax.make_jaxpr(f)(*avals), arrays)


def _over(f: Any, times: int) -> Any:
    for _ in range(times):
        f = jax.vmap(f)
    return f


def _bits(it: Interpreter, eqn: Any, keys: Array) -> list[Array]:
    impl = _check(eqn.invars[0].aval.dtype)
    width, shape = eqn.params["bit_width"], eqn.params["shape"]
    if width not in (32, 64):
        raise UnsupportedError(f"flexor.simd draws 32 or 64 random bits at a time, not {width}.")
    f = _over(lambda k: impl.random_bits(k, width, shape), len(keys.shape))
    return _run(it, f, [_aval(keys)], [_words(it, keys)])


def _split(it: Interpreter, eqn: Any, keys: Array) -> list[Array]:
    impl = _check(eqn.invars[0].aval.dtype)
    f = _over(lambda k: impl.split(k, eqn.params["shape"]), len(keys.shape))
    return _wrap(it, eqn, *_run(it, f, [_aval(keys)], [_words(it, keys)]))


def _fold_in(it: Interpreter, eqn: Any, keys: Array, data: Array) -> list[Array]:
    impl = _check(eqn.invars[0].aval.dtype)
    shape = np.broadcast_shapes(keys.shape, data.shape)
    keys, data = (x.with_at(np.broadcast_to(x.at, shape)) for x in (keys, data))
    avals = [_aval(keys), jax.ShapeDtypeStruct(shape, data.dtype)]
    return _wrap(it, eqn, *_run(it, _over(impl.fold_in, len(shape)), avals, [_words(it, keys), data]))


def _seed(it: Interpreter, eqn: Any, seeds: Array) -> list[Array]:
    impl = _check(eqn.outvars[0].aval.dtype)
    avals = [jax.ShapeDtypeStruct(seeds.shape, seeds.dtype)]
    return _wrap(it, eqn, *_run(it, _over(impl.seed, len(seeds.shape)), avals, [seeds]))


def _aval(keys: Array) -> Any:
    return jax.ShapeDtypeStruct((*keys.shape, 2), np.uint32)


def _check(dtype: Any) -> Any:
    """The implementation of a type of keys, which must be threefry."""
    impl = dtype._impl
    if impl.tag != "fry":
        raise UnsupportedError(f"flexor.simd draws random numbers from threefry keys, not from '{impl.name}'.")
    return impl


ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _hash(k0: Any, k1: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with twenty rounds (Salmon et al. 2011)."""
    schedule = (k0, k1, k0 ^ k1 ^ jnp.uint32(0x1BD11BDA))
    x0, x1 = x0 + k0, x1 + k1
    for turn in range(5):
        for r in ROTATIONS[turn % 2]:
            x0 = x0 + x1
            x1 = (x1 << jnp.uint32(r)) | (x1 >> jnp.uint32(32 - r))
            x1 = x0 ^ x1
        x0 = x0 + schedule[(turn + 1) % 3]
        x1 = x1 + schedule[(turn + 2) % 3] + jnp.uint32(turn + 1)
    return x0, x1


def _threefry(it: Interpreter, eqn: Any, *words: Array) -> list[Array]:
    shape = np.broadcast_shapes(*(x.shape for x in words))
    spread = [x.with_at(np.broadcast_to(x.at, shape)) for x in words]
    return _run(it, _hash, [jax.ShapeDtypeStruct(shape, np.uint32)] * 4, spread)


def _counts(it: Interpreter, eqn: Any) -> list[Array]:
    """The number of every element, row by row, in two words: the higher first."""
    shape = eqn.params["shape"]
    numbers = np.arange(int(np.prod(shape)), dtype=np.uint64).reshape(shape)
    return [constant(it.p, (numbers >> np.uint64(32)).astype(np.uint32)), constant(it.p, numbers.astype(np.uint32))]


RULES = {
    "iota_2x32_shape": _counts,
    "random_wrap": _wrap,
    "random_unwrap": _unwrap,
    "random_bits": _bits,
    "random_split": _split,
    "random_fold_in": _fold_in,
    "random_seed": _seed,
    "random_clone": lambda it, eqn, keys: [keys],
    "threefry2x32": _threefry,
}
