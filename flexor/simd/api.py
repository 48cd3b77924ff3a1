"""`simd.vmap`, `simd.jit`: JAX's signatures, kernels instead of XLA's loops."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from flexor.simd import store
from flexor.simd.compiler import uncollected
from flexor.simd.control import uniform_results
from flexor.simd.primitive import bind


def vmap(f: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, *, threads: int | None = None) -> Callable[..., Any]:
    """`jax.vmap` for CPUs: `f` of one example is compiled to a kernel with an example in every SIMD lane.

    Arguments with axis None are shared: loaded and computed once, their gradients summed over the batch. Like `jax.jit`, it
    traces `f` once for every shape and type of an example's arguments, whatever the size of the batch. `threads` bounds the
    number of threads; results do not depend on it.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"`threads` must be a positive number, got {threads}.")
    owner = object()

    @jax.jit
    @wraps(f)
    def batched(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        axes = [*_axes(in_axes, args, "in_axes"), *[0] * len(jax.tree.leaves(kwargs))]
        size = _size(leaves, axes, f)
        flat = [x if a is None else jnp.moveaxis(x, a, 0) for x, a in zip(map(jnp.asarray, leaves), axes, strict=True)]
        examples = [
            jax.ShapeDtypeStruct(x.shape if a is None else x.shape[1:], x.dtype) for x, a in zip(flat, axes, strict=True)
        ]
        jaxpr, outside, shape = trace(f, tree, examples, owner)
        flat, shared = outside + flat, [True] * len(outside) + [a is None for a in axes]
        back = _axes(out_axes, shape, "out_axes")
        if any(a is None and not same for a, same in zip(back, uniform_results(jaxpr, shared), strict=True)):
            raise ValueError(f"a result of {_name(f)} with axis None in `out_axes` is not the same for all examples.")
        out = bind(jaxpr, flat, shared, [False] * len(jaxpr.out_avals), size=size, threads=threads or 0)
        placed = [x[0] if a is None else jnp.moveaxis(x, 0, a) for x, a in zip(out, back, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(shape), placed)

    return batched


def jit(f: Callable[..., Any], *, shared: bool | tuple[bool, ...] = False) -> Callable[..., Any]:
    """`jax.jit` for CPUs: `f` as one kernel for a single example.

    Arguments that are `shared` stay so when the result is batched by `jax.vmap` over the others.
    """

    @jax.jit
    @wraps(f)
    def single(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        marks = shared if isinstance(shared, tuple) else (shared,) * len(args)
        flags = [mark for mark, part in zip(marks, args, strict=True) for _ in jax.tree.leaves(part)]
        flags += [False] * len(jax.tree.leaves(kwargs))
        leaves = [jnp.asarray(x) for x in leaves]
        examples = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
        jaxpr, outside, shape = trace(f, tree, examples)
        rows = outside + [x if s else x[None] for x, s in zip(leaves, flags, strict=True)]
        out = bind(jaxpr, rows, [True] * len(outside) + flags, [False] * len(jaxpr.out_avals), size=1, threads=0)
        return jax.tree.unflatten(jax.tree.structure(shape), [x[0] for x in out])

    return single


def trace(f: Callable[..., Any], tree: Any, examples: list[Any], owner: object = None) -> tuple[Any, list[Any], Any]:
    """The program of f as a function of leaves, traced values that it closes over, and the form of its result; from the store
    where it has an `owner`. What closes over traced values belongs to its surroundings and is not kept."""
    key = ("trace", owner, tree, *((x.shape, x.dtype) for x in examples), jax.dtypes.canonicalize_dtype(float))
    found = None if owner is None else store.find(key)
    if found is not None:
        return found  # type: ignore[no-any-return]

    def flat(*xs: Any) -> Any:
        args, kwargs = jax.tree.unflatten(tree, xs)
        return f(*args, **kwargs)

    with uncollected():
        jaxpr, shape = jax.make_jaxpr(flat, return_shape=True)(*examples)
    jaxpr, outside = _hoisted(jaxpr)
    if not outside and owner is not None:
        store.store(key, (jaxpr, outside, shape))
    return jaxpr, outside, shape


def _hoisted(closed: Any) -> tuple[Any, list[Any]]:
    """The program with the traced values that it closes over as its first arguments, and these values."""
    traced = [isinstance(c, jax.core.Tracer) for c in closed.consts]
    if not any(traced):
        return closed, []
    pairs = list(zip(closed.jaxpr.constvars, closed.consts, traced, strict=True))
    jaxpr = closed.jaxpr.replace(
        constvars=[v for v, _, t in pairs if not t],
        invars=[*(v for v, _, t in pairs if t), *closed.jaxpr.invars],
        debug_info=closed.jaxpr.debug_info.with_unknown_names(),
    )
    return jex.ClosedJaxpr(jaxpr, [c for _, c, t in pairs if not t]), [c for _, c, t in pairs if t]


def _axes(axes: Any, tree: Any, what: str) -> list[int | None]:
    """An axis or None for every leaf, from a prefix of the tree as in `jax.vmap`."""
    try:
        spread = jax.tree.map(
            lambda a, part: [a] * len(jax.tree.leaves(part)),
            tuple(axes) if isinstance(axes, list) else axes,
            tree,
            is_leaf=lambda a: a is None or isinstance(a, int),
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"`{what}` must be an integer, None, or a tree of those that fits the arguments: {error}") from None
    return [a for part in jax.tree.leaves(spread, is_leaf=lambda x: isinstance(x, list)) for a in part]


def _size(leaves: list[Any], axes: list[int | None], f: Callable[..., Any]) -> int:
    sizes = {}
    for k, (x, a) in enumerate(zip(leaves, axes, strict=True)):
        if a is not None:
            if jnp.ndim(x) <= a or jnp.ndim(x) < -a:
                raise ValueError(
                    f"argument {k} of {_name(f)} has {jnp.ndim(x)} dimensions, so none with the index {a} in `in_axes`."
                )
            sizes[k] = jnp.shape(x)[a]
    if not sizes:
        raise ValueError(f"simd.vmap of {_name(f)} needs an argument with a batch axis; all of `in_axes` are None.")
    if len(set(sizes.values())) > 1:
        raise ValueError(f"simd.vmap of {_name(f)} got batches of different sizes: "
                         + ", ".join(f"argument {k} has {n}" for k, n in sizes.items()) + ".")  # fmt: skip
    return next(iter(sizes.values()))


def _name(f: Any) -> str:
    return getattr(f, "__name__", type(f).__name__)
