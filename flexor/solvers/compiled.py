"""Steps and rollouts as SIMD kernels (`flexor.simd`), or through XLA where that is asked for or there is no choice."""

import os
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from flexor import simd
from flexor.simd import store

CONSTANT = 1024  # largest array outside the model that is compiled in: larger ones are a network's weights
FORMS = 64  # call signatures that a simulator remembers: a policy defined anew for every call has a new one
VARIANTS = 3  # sets of parameters of one robot that are compiled in before they become arguments


def by_default() -> bool:
    """Whether simulators use kernels unless told otherwise: on CPUs, and unless FLEXOR_SIMD=off."""
    choice = os.environ.get("FLEXOR_SIMD", "on").lower()
    if choice not in ("on", "off"):
        raise ValueError(f"FLEXOR_SIMD must be 'on' or 'off', got '{choice}'.")
    return choice == "on" and jax.default_backend() == "cpu"


def compiled(f: Callable[..., Any], sim: Any, args: Any, *, inner: bool = False) -> Any:
    """f(sim, *args) as one kernel; or, where the kernels are `inner` ones that f itself makes, as a function that XLA compiles.

    Arrays of the simulator with concrete values are compiled in, so that zeros and ones of a robot's description cost
    nothing; those that are large, differentiated or batched are arguments that all members of a batch share, as are arrays in
    functions among the arguments (a policy's weights). When one robot comes with new parameters again and again, these
    become arguments too: a loop over parameters compiles a few times, not every time.

    A simulator's arrays are inspected once: later calls with the same object find their program by the form of `args`.
    """
    parts = _parts(sim)
    leaves, tree = jax.tree.flatten(args)
    fixed = tuple([None if isinstance(x, _ARRAYS) else x for x in leaves])
    form = (f, tree, fixed, inner)
    found = parts.programs.get(form)
    program = None if found is None else found()
    if program is None:
        program = _program(f, parts, args, leaves, form)
        if len(parts.programs) >= FORMS:
            parts.programs.clear()
        parts.programs[form] = weakref.ref(program)
    return program(parts, leaves)


_ARRAYS = (jax.Array, np.ndarray)


class _Parts:
    """A simulator, without its idle parts, taken apart: arrays to compile in, arrays to hand over, the rest; and its programs by
    the form of a call."""

    def __init__(self, sim: Any):
        self.leaves, self.tree = jax.tree.flatten(sim.simplified())
        arrays = [isinstance(x, _ARRAYS) for x in self.leaves]
        robot = {id(x) for x in jax.tree.leaves(sim.model)}
        self.constant = tuple(
            a and not isinstance(x, jax.core.Tracer) and (x.size <= CONSTANT or id(x) in robot)
            for x, a in zip(self.leaves, arrays, strict=True)
        )
        self.static = tuple(None if a else x for x, a in zip(self.leaves, arrays, strict=True))
        self.given = [k for k, (a, c) in enumerate(zip(arrays, self.constant, strict=True)) if a and not c]
        self.every = [k for k, a in enumerate(arrays) if a]
        self.digest = tuple(
            (x.dtype.str, x.shape, np.asarray(x).tobytes()) for x, c in zip(self.leaves, self.constant, strict=True) if c
        )
        self.lasting = all(isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) for x in map(self.leaves.__getitem__,
                                                                                                         self.every))  # fmt: skip
        self.programs: dict[Any, weakref.ref[_Program]] = {}


_parts_by_id: dict[int, tuple[weakref.ref[Any], _Parts]] = {}


def _parts(sim: Any) -> _Parts:
    """Parts of a simulator, from memory where the same object was seen before and nothing in it can change: JAX's arrays do not,
    NumPy's and tracers do."""
    key = id(sim)
    found = _parts_by_id.get(key)
    if found is not None and found[0]() is sim:
        return found[1]
    parts = _Parts(sim)
    if parts.lasting and all(isinstance(x, jax.Array) for x in jax.tree.leaves(sim) if isinstance(x, _ARRAYS)):
        _parts_by_id[key] = (weakref.ref(sim, lambda ref: _forget(key, ref)), parts)
    return parts


def _forget(key: int, ref: Any) -> None:
    if key in _parts_by_id and _parts_by_id[key][0] is ref:
        del _parts_by_id[key]


class _Program:
    """A compiled function and which leaves it takes: of the simulator, of functions among the arguments, of the others."""

    def __init__(self, function: Callable[..., Any], given: list[int], functions: list[int], values: list[int]):
        self.function, self.given, self.functions, self.values = function, given, functions, values

    def __call__(self, parts: _Parts, leaves: list[Any]) -> Any:
        own = parts.leaves
        return self.function(
            [own[k] for k in self.given], [leaves[k] for k in self.functions], [leaves[k] for k in self.values]
        )


def _program(f: Callable[..., Any], parts: _Parts, args: Any, leaves: list[Any], form: Any) -> _Program:
    """The program of a call, from the store or made now."""
    kind = (form, parts.tree, parts.static, parts.constant)
    variants = store.keep(("variants", kind), lambda: {parts.digest})
    compile_in = parts.digest in variants or len(variants) < VARIANTS
    if compile_in:
        variants.add(parts.digest)
    key = ("simulator", kind, parts.digest if compile_in else None)

    def make() -> _Program:
        arrays = [k for k, x in enumerate(leaves) if isinstance(x, _ARRAYS)]
        owners = [callable(a) for a in args for _ in jax.tree.leaves(a)]
        functions, values = [k for k in arrays if owners[k]], [k for k in arrays if not owners[k]]
        given = parts.given if compile_in else parts.every
        own = [None if k in given else x for k, x in enumerate(parts.leaves)]
        tree, fixed, form_tree = parts.tree, list(form[2]), form[1]

        def call(given_leaves: Any, function_leaves: Any, value_leaves: Any) -> Any:
            whole = _filled(own, given, given_leaves)
            rest = _filled(_filled(fixed, functions, function_leaves), values, value_leaves)
            return f(jax.tree.unflatten(tree, whole), *jax.tree.unflatten(form_tree, rest))

        function = jax.jit(call) if form[3] else simd.jit(call, shared=(True, True, False))
        return _Program(function, given, functions, values)

    return store.keep(key, make)


def _filled(leaves: list[Any], places: list[int], values: list[Any]) -> list[Any]:
    out = list(leaves)
    for k, x in zip(places, values, strict=True):
        out[k] = x
    return out
