"""Parameters by name: `body.trunk.mass`, `joint.hip_fl.damping`, `pair.floor~foot_fl.friction`, `gravity`.

Patterns are shell-style (`*.mass`, `joint.hip_*.damping`). Names are read off the topology, values off the leaves.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flexor.model.model import Model

_GROUPS = {"body": "bodies", "joint": "joints", "geom": "geoms", "pair": "pairs", "actuator": "actuators", "site": "sites",
           "equality": "equalities", "tendon": "tendons", "loop": "loops", "transmission": "transmissions",
           "activation": "activations", "muscle": "muscles", "medium": "media", "fluid": "fluid_shapes",
           "sensor": "sensor_frames", "compliance": "compliances"}  # fmt: skip
_SIZES = ("stiffness", "damping", "cfm", "baumgarte")
POSITIVE = frozenset({
    *("mass", "friction", "armature", "frictionloss", "restitution", "delay", "margin", "torquescale", "torsion", "rolling"),
    *("adhesion", "gap"),
    *("crank_length", "time_constant", "release_time", "smoothing", "peak_force", "max_velocity"),
    *("response", "rotation_response"),
    *("density", "viscosity", "blunt_drag", "slender_drag", "angular_drag"),
    *_SIZES, *(f"limit_{name}" for name in _SIZES), *(f"rotation_{name}" for name in _SIZES),
})  # fmt: skip
"""Fields that must not be negative, here and in the charts of `flexor.model.charts`."""


def _names(model: Model, group: str) -> list[str]:
    rows = getattr(model.topology, _GROUPS[group])
    return [row if isinstance(row, str) else row.name for row in rows]


def _entries(model: Model) -> Iterator[tuple[str, str, str, int]]:
    for group in _GROUPS:
        table = getattr(model, _GROUPS[group])
        for i, name in enumerate(_names(model, group)):
            for field in table.__dataclass_fields__:
                if field != "vertices":
                    yield f"{group}.{name}.{field}", _GROUPS[group], field, i


def parameters(model: Model, pattern: str = "*") -> dict[str, Array]:
    """Name and value of every parameter that matches the pattern."""
    found = {name: getattr(getattr(model, g), f)[i] for name, g, f, i in _entries(model) if fnmatchcase(name, pattern)}
    if fnmatchcase("gravity", pattern):
        found["gravity"] = model.gravity
    return found


def replace(model: Model, values: Mapping[str, Any]) -> Model:
    """The model with parameters set by name or pattern: `replace(model, {"pair.*.friction": 0.5})`.

    Raises for a pattern that matches nothing, a wrong shape, and concrete values that no body can have.
    """
    entries = list(_entries(model))
    rows: dict[tuple[str, str], dict[int, Array | np.ndarray]] = {}
    for pattern, value in values.items():
        value = jnp.asarray(value, model.dtype) if _traced(value) else np.asarray(value, model.dtype)
        hits = [e for e in entries if fnmatchcase(e[0], pattern)]
        if fnmatchcase("gravity", pattern):
            model = eqx.tree_at(lambda m: m.gravity, model, jnp.broadcast_to(value, (3,)))
        elif not hits:
            raise KeyError(f"no parameter of '{model.topology.name}' matches '{pattern}'; `parameters(model)` lists them.")
        for name, group, field, i in hits:
            shape = getattr(getattr(model, group), field).shape[1:]
            if value.shape not in ((), shape):
                raise ValueError(f"'{name}' must have shape {shape}, got {value.shape}.")
            _check_value(name, field, value)
            if field == "delay":
                _check_room(model, i, value)
            rows.setdefault((group, field), {})[i] = value
    for (group, field), new in rows.items():  # a table at once: many free parameters make small programs
        model = eqx.tree_at(_leaf(group, field), model, _with(getattr(getattr(model, group), field), new))
    return _with_rows(model)


def _leaf(group: str, field: str) -> Callable[[Model], Array]:
    return lambda model: getattr(getattr(model, group), field)


def _with(table: Array, new: Mapping[int, Array | np.ndarray]) -> Array:
    """A table with other rows. Concrete values are put together by numpy: JAX would compile every operation."""
    rows, shape = np.array(list(new)), table.shape[1:]
    if any(_traced(x) for x in (table, *new.values())):
        return table.at[rows].set(jnp.stack([jnp.broadcast_to(x, shape) for x in new.values()]))
    made = np.array(table)
    made[rows] = np.stack([np.broadcast_to(x, shape) for x in new.values()])
    return jax.device_put(made)


def _traced(x: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(x))


def _check_value(name: str, field: str, value: Array | np.ndarray) -> None:
    if _traced(value):
        return
    numbers = np.asarray(value)  # numpy's own functions, since JAX's would be traced under jit even for concrete numbers
    if np.isnan(numbers).any():
        raise ValueError(f"'{name}' is not a number.")
    if field in POSITIVE and np.min(numbers) < 0:
        raise ValueError(f"'{name}' must not be negative, got {np.min(numbers)}.")


def _check_room(model: Model, actuator: int, delay: Array | np.ndarray) -> None:
    a = model.topology.actuators[actuator]
    if not a.samples and (_traced(delay) or np.any(np.asarray(delay) > 0)):
        raise ValueError(
            f"actuator '{a.name}' keeps no past inputs, so it cannot have a delay yet: "
            f'`fx.with_delay(model, {{"actuator.{a.name}.delay": 0.03}}, dt=..., longest=...)` makes room for them.'
        )


def _with_rows(model: Model) -> Model:
    """The model with dry friction switched on in every joint and tendon whose `frictionloss` is a positive number by now,
    the inertia of every tendon whose `armature` is, gravity compensation in every body whose `gravcomp` is not zero, margin
    and adhesion of every pair that has one, surfaces that move wherever their velocity is not zero, and a varying gain in
    every actuator with a `gain_slope`."""
    t, tendons, share, slope = model.topology, model.tendons, model.bodies.gravcomp, model.actuators.gain_slope
    belt = model.geoms.surface_velocity
    is_concrete = not isinstance(share, jax.core.Tracer)
    new = dataclasses.replace(
        t,
        joints=_switched(t.joints, "dry_friction", model.joints.frictionloss),
        pairs=_switched(_switched(t.pairs, "margined", model.pairs.margin), "sticky", model.pairs.adhesion),
        geoms=t.geoms if _traced(belt) else _switched(t.geoms, "carries", np.abs(np.asarray(belt)).sum(1)),
        tendons=_switched(_switched(t.tendons, "dry_friction", tendons.frictionloss), "inertial", tendons.armature),
        compensated=tuple(sorted({*t.compensated, *(np.flatnonzero(np.asarray(share)).tolist() if is_concrete else ())})),
        actuators=t.actuators if _traced(slope) else _switched(t.actuators, "varying", np.abs(np.asarray(slope)).sum(1)),
    )
    return model if new == t else dataclasses.replace(model, topology=new)


def _switched(rows: tuple[Any, ...], flag: str, values: Array | np.ndarray) -> tuple[Any, ...]:
    """The rows with the flag set where the value is a positive number; numbers that are traced switch nothing."""
    if isinstance(values, jax.core.Tracer):
        return rows
    return tuple(
        row if getattr(row, flag) or not x > 0 else dataclasses.replace(row, **{flag: True})
        for row, x in zip(rows, np.asarray(values), strict=True)
    )
