"""`stored`: an array that a kernel keeps in memory, where loops read it; elsewhere the identity.

Small arrays become scalars in a kernel and short loops over them are written out, which finds every zero, and costs code. Where
there is nothing to find (tables read by an index that only the running program knows, long lists that are gone through row by
row), memory and a loop are better: code does not grow with the length of the list.
"""

from typing import Any

import jax
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir

from flexor.simd.arrays import Array, in_memory
from flexor.simd.interpreter import Interpreter

stored_p = jex.Primitive("stored")
stored_p.def_impl(lambda x: x)
stored_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(stored_p, lambda ctx, x: [x])
ad.deflinear2(stored_p, lambda ct, _: [ct if isinstance(ct, ad.Zero) else stored_p.bind(ct)])
batching.defvectorized(stored_p)


def stored(tree: Any) -> Any:
    """The same arrays; in a kernel they lie in memory, and loops over their rows stay loops."""
    return jax.tree.map(stored_p.bind, tree)


def _stored(it: Interpreter, eqn: Any, x: Array) -> list[Array]:
    new = in_memory(it.p, x)
    assert new.buffer is not None
    new.buffer.looped = True
    return [new]


RULES = {"stored": _stored}
