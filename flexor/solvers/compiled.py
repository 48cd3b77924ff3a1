"""Steps and rollouts as SIMD kernels (`flexor.simd`), or through XLA where that is asked for or there is no choice."""

import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flexor import simd

_made: dict[Any, Callable[..., Any]] = {}
KEPT = 64  # compiled functions kept for models that are compiled in


def by_default() -> bool:
    """Whether simulators use kernels unless told otherwise: on CPUs, and unless FLEXOR_SIMD=off."""
    choice = os.environ.get("FLEXOR_SIMD", "on").lower()
    if choice not in ("on", "off"):
        raise ValueError(f"FLEXOR_SIMD must be 'on' or 'off', got '{choice}'.")
    return choice == "on" and jax.default_backend() == "cpu"


def compiled(f: Callable[..., Any], sim: Any, args: Any) -> Any:
    """f(sim, *args) as one kernel.

    Arrays of the simulator whose values are known are compiled in, so that zeros and ones of a robot's description cost
    nothing; those that are being differentiated or batched are arguments that all members of a batch share, as are arrays in
    functions among the arguments (a policy's weights).
    """
    known, rest = eqx.partition((f, sim), lambda x: eqx.is_array(x) and not isinstance(x, jax.core.Tracer))
    shared, static = eqx.partition(rest, eqx.is_array)
    policy = [callable(x) for x in args]
    parts = [eqx.partition(x, eqx.is_array) for x in args]
    arrays, fixed = [p[0] for p in parts], [p[1] for p in parts]
    functions = [a for a, is_function in zip(arrays, policy, strict=True) if is_function]
    values = [a for a, is_function in zip(arrays, policy, strict=True) if not is_function]
    leaves, tree = jax.tree.flatten(known)
    digest = tuple((x.dtype.str, x.shape, np.asarray(x).tobytes()) for x in leaves)
    rigid = jax.tree.flatten((static, fixed))
    key = (f, tree, digest, rigid[1], tuple(rigid[0]), tuple(policy))
    if key not in _made:
        while len(_made) >= KEPT:
            _made.pop(next(iter(_made)))

        def call(shared: Any, functions: Any, values: Any) -> Any:
            function, simulator = eqx.combine(jax.tree.unflatten(tree, leaves), shared, static)
            given, plain = iter(functions), iter(values)
            return function(simulator, *(eqx.combine(next(given if is_function else plain), rest)
                                         for is_function, rest in zip(policy, fixed, strict=True)))  # fmt: skip

        _made[key] = simd.jit(call, shared=(True, True, False))
    return _made[key](shared, functions, jax.tree.map(jnp.asarray, values))
