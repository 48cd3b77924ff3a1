"""Frozen objects as JSON and arrays, and back, to the same bits; only classes of a given table are ever made.

None, True, 3, 0.1, "x"        themselves
nan, inf, -inf                 {"float": "nan"}
(1, 2), [1, 2]                 [1, 2], {"list": [1, 2]}
{"a": 1}                       {"dict": [["a", 1]]}
NCP(iterations=30, …)          {"class": "NCP", "iterations": 30, …}: any dataclass or Equinox module of the table, field by field
jnp.zeros(3)                   {"array": "model.bodies.mass"}, the array itself under that name in a safetensors file
np.zeros(3), np.float32(1)     {"numpy": …}, {"scalar": …}, likewise
jax.random.key(0)              {"key": …, "impl": "threefry2x32"}
a function of the table        {"function": "straight"}
"""

import dataclasses
import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Table = Mapping[str, Any]
"""Names to classes and functions: themselves, or where they are to be imported from, as "flexor.nerd.solver:NerdSolver"."""

_NATIVE = {"float64", "float32", "float16", "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}


def encode(value: Any, table: Table, where: str) -> tuple[Any, dict[str, np.ndarray]]:
    """The value as JSON, and its arrays by name. `where` is the value's own name, with which those of its arrays begin."""
    names = {_address(x): name for name, x in table.items()}
    arrays: dict[str, np.ndarray] = {}
    return _encode(value, where, names, arrays), arrays


def _address(x: Any) -> str:
    return x if isinstance(x, str) else f"{x.__module__}:{x.__qualname__}"


def _encode(value: Any, where: str, names: Mapping[str, str], arrays: dict[str, np.ndarray]) -> Any:
    def inside(x: Any, name: Any) -> Any:
        return _encode(x, f"{where}.{name}", names, arrays)

    if isinstance(value, jax.core.Tracer):
        raise ValueError(f"`{where}` has no value yet, inside a JAX transformation: save outside of jit, vmap and grad.")
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _encode_array(value, where, arrays)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    name = names.get(_address(value if inspect.isfunction(value) else type(value)))
    if name is not None and inspect.isfunction(value):
        return {"function": name}
    if name is not None and dataclasses.is_dataclass(value):
        fields = [f.name for f in dataclasses.fields(value) if f.init and f.metadata.get("saved", True)]
        return {"class": name, **{f: inside(getattr(value, f), f) for f in fields}}
    if type(value) is tuple:
        return [inside(x, i) for i, x in enumerate(value)]
    if type(value) is list:
        return {"list": [inside(x, i) for i, x in enumerate(value)]}
    if isinstance(value, Mapping) and all(isinstance(k, str | int) for k in value):
        return {"dict": [[k, inside(x, k)] for k, x in value.items()]}
    raise TypeError(
        f"`{where}` cannot be saved: {_described(value)} is not among the classes that flexor writes to files. "
        "Name classes of your own with `classes=[...]`, when saving and when opening."
    )


def _described(value: Any) -> str:
    return f"the function '{value.__qualname__}'" if inspect.isfunction(value) else f"a {type(value).__qualname__}"


def _encode_array(value: Any, where: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    name, count = where, 1
    while name in arrays:
        name, count = f"{where}_{count + 1}", count + 1
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        arrays[name] = np.asarray(jax.random.key_data(value))
        return {"key": name, "impl": str(jax.random.key_impl(value))}
    made: dict[str, Any] = {
        "array" if isinstance(value, jax.Array) else "numpy" if isinstance(value, np.ndarray) else "scalar": name
    }
    if isinstance(value, jax.Array) and value.weak_type and not value.shape:
        made["weak"] = True
    plain = np.asarray(value)
    if plain.dtype.name not in _NATIVE:
        if plain.dtype.kind not in "Vf":
            raise TypeError(f"`{where}` cannot be saved: it is an array of {plain.dtype}.")
        made["dtype"] = plain.dtype.name
        plain = plain.view(f"u{plain.dtype.itemsize}")
    arrays[name] = plain
    return made


def decode(data: Any, table: Table, arrays: Mapping[str, np.ndarray]) -> Any:
    """The inverse of `encode`. Raises ValueError for unknown classes, and for missing fields and arrays."""
    if isinstance(data, list):
        return tuple(decode(x, table, arrays) for x in data)
    if not isinstance(data, dict):
        return data
    kind = next(iter(data), "")
    if kind in ("array", "numpy", "scalar", "key"):
        return _decode_array(kind, data, arrays)
    simple: dict[str, Callable[[Any], Any]] = {
        "float": float,
        "list": lambda x: [decode(y, table, arrays) for y in x],
        "dict": lambda x: {k: decode(v, table, arrays) for k, v in x},
        "function": lambda x: lookup(x, table),
    }
    if kind in simple:
        return simple[kind](data[kind])
    if kind != "class":
        raise ValueError(f"it has a value of the unknown kind '{kind}'")
    made = lookup(data["class"], table)
    fields = {k: decode(v, table, arrays) for k, v in data.items() if k != "class"}
    own = {f.name for f in dataclasses.fields(made) if f.init}
    unknown = sorted(set(fields) - own)
    if unknown:
        raise ValueError(f"a {data['class']} of this flexor has no field '{unknown[0]}'")
    try:
        return made(**fields)
    except TypeError as error:  # a field that is new since then and has no default
        raise ValueError(f"a {data['class']} cannot be made of it: {error}") from error


def lookup(name: Any, table: Table) -> Any:
    """The class or function of this name in the table."""
    if not isinstance(name, str) or name not in table:
        raise ValueError(f"there is no class '{name}' in this flexor")
    found = table[name]
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        found = getattr(importlib.import_module(module), attribute)
    return found


def _decode_array(kind: str, data: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    name = data[kind]
    if name not in arrays:
        raise ValueError(f"it has no array '{name}'")
    plain = np.array(arrays[name])
    if "dtype" in data:
        plain = plain.view(jnp.dtype(data["dtype"]))
    if kind == "numpy":
        return plain
    if kind == "scalar":
        return plain[()]
    if kind == "key":
        return jax.random.wrap_key_data(jnp.asarray(plain), impl=data["impl"])
    if jax.dtypes.canonicalize_dtype(plain.dtype) != plain.dtype:
        raise ValueError(
            f"'{name}' is in double precision ({plain.dtype}): call jax.config.update(\"jax_enable_x64\", True) before opening it"
        )
    weak = jnp.asarray(plain.item()) if data.get("weak") else None
    return weak if weak is not None and weak.dtype == plain.dtype else jnp.asarray(plain)
