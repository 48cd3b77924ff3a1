"""From a jaxpr of one example to the scalar program: every primitive has a rule, and rules do not depend on lanes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend import core as jex

from flexor.simd.arrays import Array, UnsupportedError, check_dtype, constant
from flexor.simd.program import Program

Rule = Callable[..., list[Array]]
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr",
         "checkpoint": "jaxpr", "remat2": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
         "custom_vjp_call_jaxpr": "fun_jaxpr"}  # fmt: skip


def rules() -> dict[str, Rule]:
    """The rules of all primitives, by name."""
    from flexor.simd import (
        contraction,
        control,
        elementwise,
        elimination,
        indexing,
        linalg,
        memory,
        ordering,
        random,
        structure,
    )

    parts = (structure, elementwise, contraction, indexing, ordering, linalg, control, random, memory, elimination)
    return {name: rule for part in parts for name, rule in part.RULES.items()}


class Interpreter:
    """Runs jaxprs on arrays of nodes."""

    def __init__(self, program: Program):
        self.p = program
        self.rules = rules()

    def closed(self, jaxpr: Any, args: Sequence[Array]) -> list[Array]:
        """The results of a jaxpr, closed or open without constants."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        return self.run(inner, [constant(self.p, c) for c in getattr(jaxpr, "consts", ())], args)

    def run(self, jaxpr: Any, consts: Sequence[Array], args: Sequence[Array]) -> list[Array]:
        """The results of an open jaxpr."""
        env: dict[Any, Array] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

        def read(v: Any) -> Array:
            literal = isinstance(v, jex.Literal)
            return constant(self.p, np.asarray(v.val, v.aval.dtype)) if literal else env[v]

        for eqn in jaxpr.eqns:
            results = self.equation(eqn, [read(v) for v in eqn.invars])
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def equation(self, eqn: Any, args: list[Array]) -> list[Array]:
        """The results of one equation."""
        name = eqn.primitive.name
        if name in CALLS:
            return self.closed(eqn.params[CALLS[name]], args)
        if name == "custom_linear_solve":
            counts = [
                eqn.params["const_lengths"].matvec,
                eqn.params["const_lengths"].vecmat,
                eqn.params["const_lengths"].solve,
            ]
            solve = args[sum(counts[:2]) : sum(counts)]
            return self.closed(eqn.params["jaxprs"].solve, [*solve, *args[sum(eqn.params["const_lengths"]) :]])
        rule = self.rules.get(name)
        if rule is None:
            raise UnsupportedError(
                f"flexor.simd has no rule for the primitive '{name}', used at {where(eqn)}. Write it with supported "
                "primitives, or use jax.vmap there; `flexor.simd.primitives()` lists what is supported."
            )
        try:
            for v in eqn.outvars:
                check_dtype(v.aval.dtype)
            return rule(self, eqn, *args)
        except UnsupportedError as error:
            if " at " in str(error):
                raise
            raise UnsupportedError(f"{error} The primitive '{name}' is used at {where(eqn)}.") from None


def where(eqn: Any) -> str:
    """The user's line that made an equation."""
    from jax._src import source_info_util

    return str(source_info_util.summarize(eqn.source_info))


def cost(jaxpr: Any) -> int:
    """Elements that one run of a jaxpr computes, roughly."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    kept = _costs.get(id(inner))
    if kept is None or kept[0] is not inner:
        kept = _costs[id(inner)] = (inner, _cost(inner))
    return kept[1]


_costs: dict[int, tuple[Any, int]] = {}


def forget_costs() -> None:
    """Drops the jaxprs whose costs are cached."""
    _costs.clear()


def _cost(jaxpr: Any) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        inner = [x for v in eqn.params.values() for x in (v if isinstance(v, tuple) else (v,)) if hasattr(x, "eqns")]
        inner += [x for v in eqn.params.values() for x in (v if isinstance(v, tuple) else (v,)) if hasattr(x, "jaxpr")]
        if inner:
            total += sum(cost(x) for x in inner) * int(eqn.params.get("length", 1))
        else:
            total += max(int(np.prod(v.aval.shape)) for v in eqn.outvars) if eqn.outvars else 0
    return total
