"""The JAX primitive behind `simd.vmap`: a batch of examples through a kernel, and all of JAX's transformations of it.

One primitive does everything. Its JVP is the primitive itself on the JVP of the example's function, marked linear in the
tangents; the transposition of that is the primitive on the VJP of the function, which runs forward and backward in one
kernel. So derivatives of any order are kernels too. Arguments that all examples share get the sum of their gradients.
"""

import warnings
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir

from flexor.simd import machine
from flexor.simd.compiler import Signature, compile_kernel, uncollected

kernel_p = jex.Primitive("simd_kernel")
kernel_p.multiple_results = True


def bind(jaxpr: Any, args: Sequence[Any], shared: Sequence[bool], summed: Sequence[bool], *, size: int, threads: int,
         linear: Sequence[bool] | None = None) -> list[Any]:  # fmt: skip
    """Results of the jaxpr of one example for a batch of `size`: a row for each, or the sum of all rows where `summed`.

    Inputs that are not `shared` have the batch as their first axis. `linear` marks inputs in which the results are linear.
    """
    linear = tuple(linear) if linear is not None else (False,) * len(args)
    return kernel_p.bind(
        *args, jaxpr=jaxpr, shared=tuple(shared), summed=tuple(summed), size=size, threads=threads, linear=linear
    )


def _abstract(*args: Any, jaxpr: Any, summed: Sequence[bool], size: int, **_: Any) -> list[Any]:
    return [
        jax.core.ShapedArray(v.aval.shape if s else (size, *v.aval.shape), v.aval.dtype)
        for v, s in zip(jaxpr.jaxpr.outvars, summed, strict=True)
    ]


kernel_p.def_abstract_eval(_abstract)


def _plain(*args: Any, jaxpr: Any, shared: Sequence[bool], summed: Sequence[bool], size: int, **_: Any) -> list[Any]:
    """The same by `jax.vmap`: where there are no kernels."""
    axes = [None if s else 0 for s in shared]
    results = jax.vmap(jex.jaxpr_as_fun(jaxpr), axes, axis_size=size)(*args)
    return [x.sum(0) if s else x for x, s in zip(results, summed, strict=True)]


def _run(
    *args: Any, jaxpr: Any, shared: Sequence[bool], summed: Sequence[bool], size: int, threads: int, **_: Any
) -> list[Any]:
    """The FFI call. Summed results come as a row for each block of lanes, and are added in that order."""
    out = [v.aval for v in jaxpr.jaxpr.outvars]
    if not out:
        return []
    args, keys = tuple(_words(x) for x in args), [a.dtype if _is_key(a.dtype) else None for a in out]
    out = [_words(a) for a in out]
    if size == 0:
        empty = [jnp.zeros(a.shape if s else (0, *a.shape), a.dtype) for a, s in zip(out, summed, strict=True)]
        return [_keys(x, k) for x, k in zip(empty, keys, strict=True)]
    whole = [s and size == 1 for s in summed]
    summed = [s and size > 1 for s in summed]  # a sum over one example is that example
    kernel = compile_kernel(jaxpr, Signature(tuple(shared), tuple(summed), size == 1))
    blocks = -(-size // kernel.lanes)
    shapes = [jax.ShapeDtypeStruct((blocks if s else size, *a.shape), a.dtype) for a, s in zip(out, summed, strict=True)]
    results = jax.ffi.ffi_call(kernel.target, shapes)(*args, threads=np.int64(threads))
    results = [x.sum(0) if s else x[0] if w else x for x, s, w in zip(results, summed, whole, strict=True)]
    return [_keys(x, k) for x, k in zip(results, keys, strict=True)]


def _is_key(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def _words(x: Any) -> Any:
    """Random keys as XLA holds them, two words each, also for a shape alone; anything else as it is."""
    if not _is_key(x.dtype):
        return x
    if isinstance(x, jax.Array):
        return jax.random.key_data(x)
    return jax.ShapeDtypeStruct((*x.shape, 2), np.uint32)


def _keys(x: Any, dtype: Any) -> Any:
    return x if dtype is None else jax.random.wrap_key_data(x, impl=str(dtype._impl.name))


def _notice(*args: Any, **params: Any) -> list[Any]:
    _warn_once(f"flexor.simd has no kernels on {jax.default_backend()}: the same calls run through jax.vmap and XLA.")
    return _plain(*args, **params)


@lru_cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)


def _on_cpu(*args: Any, **params: Any) -> list[Any]:
    reason = machine.supported()
    if reason:
        _warn_once(f"flexor.simd: {reason}; the same calls run through jax.vmap and XLA.")
        return _plain(*args, **params)
    return _run(*args, **params)


mlir.register_lowering(kernel_p, mlir.lower_fun(_notice, multiple_results=True))
mlir.register_lowering(kernel_p, mlir.lower_fun(_on_cpu, multiple_results=True), platform="cpu")


class _Call:
    """Parameters of a call as a dictionary key: jaxprs compare by identity."""

    def __init__(self, params: dict[str, Any]):
        self.params = params
        self.key = (id(params["jaxpr"]), *((k, v) for k, v in sorted(params.items()) if k != "jaxpr"))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Call) and self.key == other.key


@lru_cache(maxsize=512)
def _eager(key: _Call) -> Any:
    return jax.jit(partial(kernel_p.bind, **key.params))


kernel_p.def_impl(lambda *args, **params: _eager(_Call(params))(*args))


# forward mode


@lru_cache(maxsize=512)
@uncollected()
def _jvp_jaxpr(key: "_Jaxpr", moving: tuple[bool, ...]) -> Any:
    """The tangents of the results, as a jaxpr of (arguments, tangents of the moving ones)."""
    f = jex.jaxpr_as_fun(key.jaxpr)
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in key.jaxpr.jaxpr.invars]

    def tangents(*args: Any) -> list[Any]:
        primals, rest = args[: len(avals)], iter(args[len(avals) :])
        given = [next(rest) if m else _no_tangent(x) for x, m in zip(primals, moving, strict=True)]
        out = jax.jvp(lambda *xs: [y for y in f(*xs) if _real(y.dtype)], primals, tuple(given))[1]
        return list(out)

    return jax.make_jaxpr(tangents)(*avals, *(a for a, m in zip(avals, moving, strict=True) if m))


class _Jaxpr:
    """A jaxpr as a dictionary key, by identity."""

    def __init__(self, jaxpr: Any):
        self.jaxpr = jaxpr

    def __hash__(self) -> int:
        return id(self.jaxpr)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Jaxpr) and self.jaxpr is other.jaxpr


def _real(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def _no_tangent(x: Any) -> Any:
    return jnp.zeros(x.shape, x.dtype) if _real(x.dtype) else np.zeros(x.shape, jax.dtypes.float0)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any, shared: Sequence[bool], summed: Sequence[bool],
         size: int, threads: int, linear: Sequence[bool]) -> Any:  # fmt: skip
    out = bind(jaxpr, primals, shared, summed, size=size, threads=threads, linear=linear)
    moving = tuple(
        not isinstance(t, ad.Zero) and _real(v.aval.dtype) for t, v in zip(tangents, jaxpr.jaxpr.invars, strict=True)
    )
    given = [t for t, m in zip(tangents, moving, strict=True) if m]
    real = [_real(v.aval.dtype) for v in jaxpr.jaxpr.outvars]
    moved: Any = iter(())
    if any(moving) and any(real):
        pushed = _jvp_jaxpr(_Jaxpr(jaxpr), moving)
        more = [s for s, m in zip(shared, moving, strict=True) if m]
        sums = [s for s, r in zip(summed, real, strict=True) if r]
        marks = [False] * len(primals) + [True] * len(given)
        moved = iter(bind(pushed, [*primals, *given], [*shared, *more], sums, size=size, threads=threads, linear=marks))
    out_tangents = [next(moved, None) if r else None for r in real]
    zeros = [ad.Zero(jax.core.ShapedArray(x.shape, jax.dtypes.float0 if not r else x.dtype)) if t is None else t
             for x, t, r in zip(out, out_tangents, real, strict=True)]  # fmt: skip
    return out, zeros


ad.primitive_jvps[kernel_p] = _jvp


# reverse mode


@lru_cache(maxsize=512)
@uncollected()
def _vjp_jaxpr(key: _Jaxpr, undefined: tuple[bool, ...], defined_out: tuple[bool, ...]) -> Any:
    """Cotangents of the undefined arguments, in which the jaxpr is linear, as a jaxpr of (the others, cotangents)."""
    f = jex.jaxpr_as_fun(key.jaxpr)
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in key.jaxpr.jaxpr.invars]
    outs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in key.jaxpr.jaxpr.outvars]
    fixed = [a for a, u in zip(avals, undefined, strict=True) if not u]
    cotangents = [a for a, d in zip(outs, defined_out, strict=True) if d]

    def pullback(*args: Any) -> list[Any]:
        constants, given = iter(args[: len(fixed)]), iter(args[len(fixed) :])
        others = [None if u else next(constants) for u in undefined]

        def of(*xs: Any) -> list[Any]:
            rest = iter(xs)
            results = f(*(next(rest) if o is None else o for o in others))
            return [y for y, d in zip(results, defined_out, strict=True) if d]

        zeros = [jnp.zeros(a.shape, a.dtype) for a, u in zip(avals, undefined, strict=True) if u]
        return list(jax.vjp(of, *zeros)[1](list(given)))

    return jax.make_jaxpr(pullback)(*fixed, *cotangents)


def _transpose(cotangents: Sequence[Any], *args: Any, jaxpr: Any, shared: Sequence[bool], summed: Sequence[bool], size: int,
               threads: int, linear: Sequence[bool]) -> list[Any]:  # fmt: skip
    undefined = tuple(ad.is_undefined_primal(a) for a in args)
    if not all(m for m, u in zip(linear, undefined, strict=True) if u):
        raise NotImplementedError("flexor.simd: a kernel can be transposed in its tangents only.")
    defined = tuple(not isinstance(c, ad.Zero) for c in cotangents)
    if not any(defined):
        return [None] * len(args)
    pullback = _vjp_jaxpr(_Jaxpr(jaxpr), undefined, defined)
    given = [c for c, d in zip(cotangents, defined, strict=True) if d]
    fixed = [a for a, u in zip(args, undefined, strict=True) if not u]
    # the cotangent of a sum is the same for every example; a shared argument gets the sum of all
    flags = [s for s, u in zip(shared, undefined, strict=True) if not u] + [
        s for s, d in zip(summed, defined, strict=True) if d
    ]
    sums = [s for s, u in zip(shared, undefined, strict=True) if u]
    results = iter(bind(pullback, [*fixed, *given], flags, sums, size=size, threads=threads))
    return [next(results) if u else None for u in undefined]


ad.primitive_transposes[kernel_p] = _transpose


# vmap of a kernel: one more axis of examples


def _batch(args: Sequence[Any], dims: Sequence[Any], *, jaxpr: Any, shared: Sequence[bool], summed: Sequence[bool], size: int,
           threads: int, linear: Sequence[bool]) -> Any:  # fmt: skip
    count = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    if any(summed):
        return _batch_summed(args, dims, count, jaxpr, shared, summed, size, threads, linear)
    flat, still = [], []
    for a, d, s in zip(args, dims, shared, strict=True):
        if s and d is None:
            flat.append(a)
            still.append(True)
            continue
        a = jnp.broadcast_to(a, (count, *a.shape)) if d is None else jnp.moveaxis(a, d, 0)
        a = jnp.broadcast_to(a[:, None], (count, size, *a.shape[1:])) if s else a
        flat.append(a.reshape(count * size, *a.shape[2:]))
        still.append(False)
    out = bind(jaxpr, flat, still, summed, size=count * size, threads=threads, linear=linear)
    return [x.reshape(count, size, *x.shape[1:]) for x in out], [0] * len(out)


def _batch_summed(args: Sequence[Any], dims: Sequence[Any], count: int, jaxpr: Any, shared: Any, summed: Any, size: int,
                  threads: int, linear: Any) -> Any:  # fmt: skip
    """Sums over one of two batch axes: one kernel call after the other."""
    moved = [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]

    def one(k: Any) -> list[Any]:
        items = [
            a if d is None else lax.dynamic_index_in_dim(a, k, 0, keepdims=False) for a, d in zip(moved, dims, strict=True)
        ]
        return bind(jaxpr, items, shared, summed, size=size, threads=threads, linear=linear)

    out = lax.map(one, jnp.arange(count))
    return out, [0] * len(out)


batching.primitive_batchers[kernel_p] = _batch
