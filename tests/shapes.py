"""Checks the shapes and kinds of arrays that annotations promise; `conftest.py` puts it around every function of flexor.

jaxtyping binds the names of the axes over all arguments and the result of a call, and asks `check` to compare. Hints that hold no
jaxtyping array are left alone: bad input of other kinds is for flexor's own sentences. NumPy arrays and plain numbers may stand
for arrays, as they do for users.
"""

import functools
import inspect
import types
from typing import Any, Union, get_args, get_origin

import jax
import jaxtyping
import numpy as np

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def install() -> None:
    """From now on modules of flexor are imported with their shapes checked."""
    jaxtyping.Array = jax.Array | np.ndarray | np.generic | float
    jaxtyping.jaxtyped = functools.partial(_jaxtyped, jaxtyping.jaxtyped)
    jaxtyping.install_import_hook("flexor", "tests.shapes.check")


def _jaxtyped(decorate: Any, *, typechecker: Any) -> Any:
    """jaxtyping's decorator for those functions alone that speak of arrays: around the others, and most are called while a kernel
    is being built, it would take more time than all that they do."""

    def around(target: Any) -> Any:
        function = target.__init__ if inspect.isclass(target) else target
        hints = function.__annotations__.values() if inspect.isfunction(function) else ()
        plain = inspect.isfunction(function) and not any(map(may_be_shaped, hints))
        return target if plain else decorate(target, typechecker=typechecker)

    return around


def check(function: Any) -> Any:
    """The function, with the arrays among its arguments and results compared with their hints at every call."""
    signature = inspect.signature(function)
    hints = {n: p.annotation for n, p in signature.parameters.items() if p.kind not in VARIADIC and shaped(p.annotation)}
    promised = signature.return_annotation
    if not hints and not shaped(promised):
        return function

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        for name, hint in hints.items():
            if name in given and not matches(given[name], hint):
                raise TypeError(f"`{name}` is not {hint}")
        result = function(*args, **kwargs)
        if shaped(promised) and not matches(result, promised):
            raise TypeError(f"the result is not {promised}")
        return result

    return checked


def may_be_shaped(hint: Any) -> bool:
    """Whether a hint, which may not have been evaluated yet, speaks of a jaxtyping array."""
    return "Array" in hint if isinstance(hint, str) else shaped(hint)


def shaped(hint: Any) -> bool:
    """Whether a hint speaks of a jaxtyping array: alone, in a union, or in a tuple of fixed length."""
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return get_origin(hint) in (Union, types.UnionType, tuple) and any(shaped(part) for part in get_args(hint))


def matches(value: Any, hint: Any) -> bool:
    """Whether a value is what a hint says, as far as arrays go."""
    if hint is Any:
        return True
    parts = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return any(matches(value, part) for part in parts)
    if get_origin(hint) is tuple and Ellipsis not in parts:
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(matches, value, parts))
    if isinstance(hint, type):
        return isinstance(value, hint)
    return True
