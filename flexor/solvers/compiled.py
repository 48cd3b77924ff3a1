"""Steps and rollouts as SIMD kernels (`flexor.simd`), or through XLA where that is asked for or there is no choice."""

import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from flexor import simd

_made: dict[Any, Callable[..., Any]] = {}
_variants: dict[Any, set[Any]] = {}
KEPT = 64  # compiled functions kept
CONSTANT = 1024  # numbers of an array that is compiled in: larger ones are a network's weights
VARIANTS = 3  # sets of parameters of one robot that are compiled in before they become arguments


def by_default() -> bool:
    """Whether simulators use kernels unless told otherwise: on CPUs, and unless FLEXOR_SIMD=off."""
    choice = os.environ.get("FLEXOR_SIMD", "on").lower()
    if choice not in ("on", "off"):
        raise ValueError(f"FLEXOR_SIMD must be 'on' or 'off', got '{choice}'.")
    return choice == "on" and jax.default_backend() == "cpu"


def compiled(f: Callable[..., Any], sim: Any, args: Any) -> Any:
    """f(sim, *args) as one kernel.

    Arrays of the simulator whose values are known are compiled in, so that zeros and ones of a robot's description cost
    nothing; those that are large, differentiated or batched are arguments that all members of a batch share, as are arrays in
    functions among the arguments (a policy's weights). When one robot comes with ever new parameters, these become arguments
    too: a loop over parameters compiles a few times, not every time.
    """
    known, rest = eqx.partition(sim, lambda x: eqx.is_array(x) and not isinstance(x, jax.core.Tracer) and x.size <= CONSTANT)
    shared, static = eqx.partition(rest, eqx.is_array)
    policy = tuple(callable(x) for x in args)
    parts = [eqx.partition(x, eqx.is_array) for x in args]
    leaves, tree = jax.tree.flatten(known)
    digest = tuple((x.dtype.str, x.shape, np.asarray(x).tobytes()) for x in leaves)
    rigid, form = jax.tree.flatten((static, [p[1] for p in parts]))
    kind = (f, tree, form, tuple(rigid), policy)
    variants = _variants.setdefault(kind, set())
    if digest not in variants and len(variants) >= VARIANTS:
        known, shared, digest = None, eqx.combine(known, shared), ()
    variants.add(digest)
    functions = [p[0] for p, is_function in zip(parts, policy, strict=True) if is_function]
    values = [p[0] for p, is_function in zip(parts, policy, strict=True) if not is_function]
    if (kind, digest) not in _made:
        while len(_made) >= KEPT:
            _made.pop(next(iter(_made)))
        fixed = [p[1] for p in parts]

        def call(shared: Any, functions: Any, values: Any) -> Any:
            whole = eqx.combine(shared, static) if known is None else eqx.combine(known, shared, static)
            given, plain = iter(functions), iter(values)
            return f(whole, *(eqx.combine(next(given if is_function else plain), rest)
                              for is_function, rest in zip(policy, fixed, strict=True)))  # fmt: skip

        _made[kind, digest] = simd.jit(call, shared=(True, True, False))
    return _made[kind, digest](shared, functions, values)
