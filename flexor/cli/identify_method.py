"""The `method` of a configuration of `flexor identify`: "shooting", or "torque" and its settings."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from flexor.dynamics.friction import LAWS
from flexor.identify import Butterworth, InverseDynamics, Load, Momentum, SavitzkyGolay, Torque, Unfiltered

FILTERS = {c.__name__: c for c in (Butterworth, SavitzkyGolay, Unfiltered)}
EQUATIONS = {c.__name__: c for c in (InverseDynamics, Momentum)}
METHODS = ("shooting", "torque")


def read_method(given: Any) -> Torque | None:
    """What `method` says: None for shooting. Parts are tables with a `name` and fields, or names alone."""
    name, fields = _named(given, "method")
    if name not in METHODS:
        raise ValueError(f"'method' must be one of {', '.join(METHODS)}, got {name!r}.")
    if name == "shooting":
        _fields(fields, (), "method")
        return None
    for key, table in (("filter", FILTERS), ("equations", EQUATIONS), ("friction", LAWS)):
        if key in fields:
            fields[key] = _part(fields[key], table, f"method.{key}")
    if "loads" in fields:
        fields["loads"] = {pattern: _load(x, f"method.loads.{pattern}") for pattern, x in fields["loads"].items()}
    _fields(fields, [f.name for f in dataclasses.fields(Torque)], "method")
    return Torque(**fields)


def _named(given: Any, where: str) -> tuple[Any, dict[str, Any]]:
    fields = {"name": given} if isinstance(given, str) else dict(given) if isinstance(given, Mapping) else None
    if fields is None:
        raise ValueError(f"'{where}' must be a name or a table, got {given!r}.")
    return fields.pop("name", None), fields


def _part(given: Any, table: Mapping[str, Any], where: str) -> Any:
    name, fields = _named(given, where)
    if name not in table:
        raise ValueError(f"'{where}' needs a name among {', '.join(table)}, got {name!r}.")
    _fields(fields, [f.name for f in dataclasses.fields(table[name])], where)
    return table[name](**fields)


def _load(given: Any, where: str) -> Load:
    if not isinstance(given, Mapping):
        raise ValueError(f"'{where}' must be a table with name, body and mass, got {given!r}.")
    _fields(given, [f.name for f in dataclasses.fields(Load)], where)
    lacking = [key for key in ("name", "body", "mass") if key not in given]
    if lacking:
        raise ValueError(f"'{where}' lacks the key '{lacking[0]}'.")
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    return Load(**fields)


def _fields(given: Mapping[str, Any], known: Any, where: str) -> None:
    for key in given:
        if key not in known:
            raise ValueError(f"'{where}' has the unknown key '{key}'; the keys are {', '.join(('name', *known))}.")
