"""Charts: free real numbers z in which every value is a valid parameter.

    positive x            x = s softplus(z)
    bounded x             x = low + (high - low) / (1 + exp(-z))
    inertia I about com   S = tr(I)/2 1 - I = L L^T, L lower triangular with diagonal exp(z)
    rotations             quat = quat0 exp(z / 2), axes likewise with two numbers
    everything else       x = x0 + s z

S is the matrix of second moments about the centre of mass. A body of positive density exists for (m, com, I) exactly when m
and S are positive (the pseudo-inertia of Wensing, Kim & Slotine 2018 is then positive definite), so mass, centre of mass and
inertia have charts of their own, and any of them may be free. s is the size of the number at the start, so that one unit of z
is about one hundred per cent.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.model.model import Model
from flexor.model.parameters import POSITIVE, parameters, replace
from flexor.spatial import inertia_matrix, quat_exp, quat_mul, take

SMALLEST = 1e-3  # of the size or range: how near to a bound a start may be, since a chart never reaches its bounds
ROUNDING = 1e-6  # of the range, by which a start in single precision may miss a bound
FIELD_SIZE = {
    "damping": 0.1, "frictionloss": 0.1, "armature": 0.01, "stiffness": 1.0, "friction": 0.5, "restitution": 0.3,
    "cfm": 1e-2, "baumgarte": 0.2, "com": 0.1, "pos": 0.1, "range": 1.0, "mass": 1.0, "delay": 0.02,
    "torsion": 0.01, "rolling": 1e-3, "adhesion": 1.0,
}  # fmt: skip
"""Size of a number that starts at zero, in SI units."""


@dataclass(frozen=True)
class Chart:
    """`value(z)` is `law(z, *numbers)` for z of length `size`; `start` is the z of the value `first` that it was made for, moved
    off its bounds."""

    name: str
    size: int
    start: np.ndarray
    first: np.ndarray
    law: Callable[..., Array]
    numbers: tuple[Any, ...]
    monotone: bool
    """Whether each number of the value grows with its own z and with no other."""
    bounded: bool = False
    positive: bool = False
    """Whether the value is always positive: flat towards zero, linear for large z."""
    linear: bool = False
    unit: np.ndarray | float = 1.0
    """What counts as one hundred per cent of each number of the value."""

    def value(self, z: Array) -> Array:
        """The parameter at z."""
        return self.law(z, *(jnp.asarray(x, z.dtype) for x in self.numbers))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the numbers in z. Those of an inertia are the logarithms and the off-diagonal numbers of L."""
        if self.name.endswith(".inertia"):
            return tuple(f"{self.name}:{part}" for part in ("log Lxx", "log Lyy", "log Lzz", "Lyx", "Lzx", "Lzy"))
        return (self.name,) if self.size == 1 else tuple(f"{self.name}.{i}" for i in range(self.size))


def chart(name: str, x: Any, bounds: tuple[Any, Any] | None = None, *, positive: bool = False) -> Chart:
    """The chart for a parameter with this name and value; see the head of this file. `positive` numbers may not be negative
    whatever they are called."""
    x = np.asarray(x, float)
    field = name.rsplit(".", 1)[-1].split("[")[0]
    if not np.all(np.isfinite(x)):
        raise ValueError(f"'{name}' is {x} and cannot be free: it has no finite value to start from.")
    if bounds is not None:
        return _between(name, x, *bounds)
    if positive or field in POSITIVE:
        return _positive(name, x, FIELD_SIZE.get(field, 1.0))
    if field == "inertia":
        return _inertia(name, x)
    if field == "quat":
        return Chart(name, 3, np.zeros(3), x, _turned, (x,), False)
    if field == "axis":
        basis = np.linalg.svd(x[None])[2][1:] * np.linalg.norm(x)
        return Chart(name, 2, np.zeros(2), x, _tilted, (x, basis), False)
    size = np.maximum(np.max(np.abs(x)), SMALLEST * FIELD_SIZE.get(field, 1.0)) if np.any(x) else FIELD_SIZE.get(field, 1.0)
    return Chart(name, x.size, np.zeros(x.size), x, _straight, (x, np.asarray(size)), True, linear=True, unit=size)


def _straight(z: Array, x: Array, size: Array) -> Array:
    return x + size * z.reshape(x.shape)


def _turned(z: Array, quat: Array) -> Array:
    return quat_mul(quat, quat_exp(z))


def _tilted(z: Array, axis: Array, basis: Array) -> Array:
    new = axis + z @ basis
    return new / jnp.linalg.norm(new) * jnp.linalg.norm(axis)


def _grown(z: Array, size: Array) -> Array:
    return size * jax.nn.softplus(z.reshape(size.shape))


def _shared(z: Array, low: Array, high: Array) -> Array:
    return low + (high - low) * jax.nn.sigmoid(z.reshape(low.shape))


def _second_moments(z: Array, size: Array) -> Array:
    """The six numbers of the inertia with second moments size^2 L L^T."""
    low = np.tril_indices(3, -1)
    full = jnp.zeros((3, 3), z.dtype).at[low].set(z[3:]) + jnp.diag(jnp.exp(z[:3]))
    moments = size**2 * full @ full.T
    I = jnp.trace(moments) * jnp.eye(3, dtype=z.dtype) - moments
    return I[np.array([0, 1, 2, 0, 0, 1]), np.array([0, 1, 2, 1, 2, 2])]


LAWS = {f.__name__.removeprefix("_"): f for f in (_straight, _turned, _tilted, _grown, _shared, _second_moments)}
"""The laws of all charts by name, for files."""


def _positive(name: str, x: np.ndarray, typical: float) -> Chart:
    if np.any(x < 0):
        raise ValueError(f"'{name}' starts at {x}, but it cannot be negative.")
    size = np.where(x > 0, np.maximum(x, SMALLEST * typical), typical)  # a start at zero does not give the size
    share = np.where(x > 0, x / size, SMALLEST)  # the chart does not contain zero itself
    start = np.log(np.expm1(share)).ravel()
    return Chart(name, x.size, start, size * share, _grown, (size,), True, positive=True, unit=size.ravel())


def _between(name: str, x: np.ndarray, low: Any, high: Any) -> Chart:
    if name.rsplit(".", 1)[-1] in ("inertia", "quat", "axis"):
        raise ValueError(f"bounds for '{name}' are not supported: its numbers are moved together, through a chart.")
    low, high = np.broadcast_to(low, x.shape).astype(float), np.broadcast_to(high, x.shape).astype(float)
    if not np.all(low < high):
        raise ValueError(f"the bounds of '{name}' are empty: {low} to {high}.")
    slack = ROUNDING * (high - low)
    if np.any(x < low - slack) or np.any(x > high + slack):
        raise ValueError(f"'{name}' starts at {x}, outside its bounds {low} to {high}.")
    share = np.clip((x - low) / (high - low), SMALLEST, 1 - SMALLEST)
    start = np.log(share / (1 - share)).ravel()
    unit = np.maximum(np.abs(x), (high - low) / 10).ravel()
    return Chart(name, x.size, start, low + (high - low) * share, _shared, (low, high), True, True, unit=unit)


def _inertia(name: str, six: Any) -> Chart:
    I = np.asarray(inertia_matrix(six))
    S = np.trace(I) / 2 * np.eye(3) - I
    w, V = np.linalg.eigh(S)
    if not w[-1] > 0:
        raise ValueError(f"'{name}' is {six}, which no body can have, so it cannot be free.")
    S = V @ np.diag(np.maximum(w, SMALLEST**2 * w[-1])) @ V.T
    size = np.sqrt(np.trace(S))
    L = np.linalg.cholesky(S) / size
    first = (np.trace(S) * np.eye(3) - S)[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]
    start = np.concatenate([np.log(np.diag(L)), L[np.tril_indices(3, -1)]])
    return Chart(name, 6, start, first, _second_moments, (size,), False)


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The free parameters of a model, and of whatever else stands beside it in `extra`, as one vector z."""

    charts: tuple[Chart, ...]
    extra: dict[str, np.ndarray]
    numbers: tuple[tuple[Any, ...], ...] = ()
    """The numbers in the charts' laws, stacked for all charts of a kind: many free parameters make small programs."""

    def __post_init__(self) -> None:
        if not self.numbers:
            object.__setattr__(self, "numbers", _stacked(self.charts))

    @property
    def size(self) -> int:
        return sum(c.size for c in self.charts)

    @property
    def start(self) -> np.ndarray:
        return np.concatenate([c.start for c in self.charts] or [np.zeros(0)])

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(label for c in self.charts for label in c.labels)

    def which(self, kind: str) -> np.ndarray:
        """The numbers of z whose charts are `bounded`, `positive` or `linear`, as a mask."""
        return np.array([getattr(c, kind) for c in self.charts for _ in range(c.size)], dtype=bool)

    def with_numbers(self, numbers: tuple[tuple[Any, ...], ...]) -> "Coordinates":
        """The same parameters with other numbers in the laws of their charts."""
        return dataclasses.replace(self, numbers=numbers)

    def blank(self, model: Model) -> Model:
        """The model with zeros in the place of its free parameters: what is left does not depend on where they start."""
        return self._with(model, [np.zeros_like(c.first) for c in self.charts])

    def at_start(self, model: Model) -> Model:
        """The model with its free parameters at the start, which compiles nothing; dry friction that is free is switched on."""
        return self._with(model, [c.first for c in self.charts])

    def _with(self, model: Model, given: Sequence[np.ndarray]) -> Model:
        values_now: dict[str, Any] = parameters(jax.device_get(model))
        values: dict[str, Any] = {}
        for chart, value in zip(self.charts, given, strict=True):
            base, part = _component(chart.name)
            if base not in self.extra:
                old = values.get(base, values_now[base])
                values[base] = value if part is None else np.where(np.arange(old.size) == part, value, old)
        return replace(model, values)

    def values(self, z: Float[Array, " n"]) -> dict[str, Array]:
        """The parameters at z, by name. Charts of a kind are computed together."""
        edges = np.cumsum([0, *(c.size for c in self.charts)])
        found: dict[int, Array] = {}
        for members, numbers in zip(_kinds(self.charts), self.numbers, strict=True):
            chart = self.charts[members[0]]
            own = take(z, edges[members][:, None] + np.arange(chart.size))
            value = jax.vmap(chart.law)(own, *(jnp.asarray(x, z.dtype) for x in numbers))
            found.update(zip(members, value, strict=True))
        return {c.name: found[i] for i, c in enumerate(self.charts)}

    def apply(self, model: Model, z: Float[Array, " n"]) -> tuple[Model, dict[str, Array]]:
        """The model with its free parameters at z, and `extra` with those of its own."""
        values = self.values(z)
        own = {name: jnp.asarray(x) for name, x in self.extra.items()}
        whole: dict[str, Array] = {}
        for name, value in values.items():
            base, part = _component(name)
            if part is None:
                whole[name] = value
            else:
                old = whole.get(base, own.get(base)) if base in whole or base in own else parameters(model, base)[base]
                whole[base] = jnp.asarray(old).at[part].set(value)
        extra = {name: whole.pop(name, x) for name, x in own.items()}
        return replace(model, whole), extra


def _kinds(charts: Sequence[Chart]) -> list[list[int]]:
    """Charts of the same law and shapes."""
    kinds: dict[Any, list[int]] = {}
    for i, c in enumerate(charts):
        kinds.setdefault((c.law, c.size, tuple(np.shape(x) for x in c.numbers)), []).append(i)
    return list(kinds.values())


def _stacked(charts: Sequence[Chart]) -> tuple[tuple[np.ndarray, ...], ...]:
    columns = (zip(*(charts[i].numbers for i in members), strict=True) for members in _kinds(charts))
    return tuple(tuple(np.stack(x) for x in column) for column in columns)


def coordinates(
    model: Model, free: Sequence[str], *, bounds: Mapping[str, Any] | None = None, extra: Mapping[str, Any] | None = None,
    positive: Sequence[str] = (),
) -> Coordinates:  # fmt: skip
    """Coordinates of all parameters that match a pattern in `free`; `body.lower.pos[2]` is one number of a parameter. Mass,
    centre of mass and inertia of bodies that never move are matched by their full names alone.

    `bounds` maps patterns to (low, high). `extra` are numbers of the user's own; a pattern may match them too.
    Those that match a pattern in `positive` are kept positive.
    """
    bounds, own = dict(bounds or {}), {k: np.asarray(v, float) for k, v in (extra or {}).items()}
    values: dict[str, Any] = parameters(jax.device_get(model))  # by numpy, which compiles nothing
    taken = [name for name in own if name in values]
    if taken:
        raise ValueError(
            f"`extra` names '{taken[0]}', which is a parameter of '{model.topology.name}': choose another name."
        )
    values = {**own, **values}
    charts: dict[str, Chart] = {}
    named, idle = [name for name in values if not name.startswith("body.world.")], _idle(model)
    for pattern in free:
        whole, part = _component(pattern)
        hits = [name for name in named if fnmatchcase(name, whole) and (name == whole or name not in idle)]
        if not hits:
            raise KeyError(f"no parameter of '{model.topology.name}' matches '{pattern}'; `parameters(model)` lists them.")
        for name in hits:
            x = np.asarray(values[name])
            label, x = (name, x) if part is None else (f"{name}[{part}]", _part(name, x, part))
            is_positive = any(fnmatchcase(label, p) for p in positive)
            charts[label] = chart(label, x, _bounds_of(label, bounds), positive=is_positive)
    names = list(charts)
    for name in names:
        if "[" in name and name.split("[")[0] in names:
            raise ValueError(f"'{name}' is free twice: by itself and as part of '{name.split('[')[0]}'.")
    for pattern in bounds:
        if not any(_matches(name, pattern) for name in names):
            raise KeyError(f"the bounds for '{pattern}' match none of the free parameters.")
    return Coordinates(tuple(charts.values()), own)


def _idle(model: Model) -> set[str]:
    """Inertial parameters of the bodies that never move, on which no motion depends."""
    t = model.topology
    resting = t.dofs.owner[t.nodes.of_body] < 0
    return {f"body.{t.bodies[i]}.{field}" for i in np.flatnonzero(resting) for field in ("mass", "com", "inertia")}


def _component(pattern: str) -> tuple[str, int | None]:
    found = re.fullmatch(r"(.*)\[(\d+)\]", pattern)
    return (found[1], int(found[2])) if found else (pattern, None)


def _part(name: str, x: np.ndarray, part: int) -> np.ndarray:
    if name.rsplit(".", 1)[-1] in ("inertia", "quat", "axis"):
        raise ValueError(f"the numbers of '{name}' are moved together; make all of it free.")
    if x.ndim != 1 or part >= x.size:
        raise ValueError(f"'{name}' has no component {part}: its shape is {x.shape}.")
    return x[part]


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern) or fnmatchcase(name.split("[")[0], pattern)


def _bounds_of(name: str, bounds: Mapping[str, Any]) -> tuple[Any, Any] | None:
    for pattern, value in bounds.items():
        if _matches(name, pattern):
            if not isinstance(value, list | tuple) or len(value) != 2:
                raise ValueError(f"the bounds of '{pattern}' must be a pair (low, high), got {value!r}.")
            return value[0], value[1]
    return None
