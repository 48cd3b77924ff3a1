"""`Blueprint`: which quantities of a step a network adds to, scales or replaces, and what it reads.

Names are those of the taps, with an optional selection in brackets: `joint.qd[elbow]`, `contact.depth[tip~*]` (shell pattern on
names of joints, bodies, pairs). A blueprint does not depend on a robot: `Simulator.augment` wires it to one.
"""

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxtyping import Array

from flexor.augment.networks import AbstractNet, Conservative, Dissipative, guarantee
from flexor.taps import TAPS

READ_ONLY = {
    "joint.q": "positions are moved by velocities alone; augment 'joint.qd', a force or 'joint.acceleration'",
    "link.rotation": "it is read-only",
    "link.velocity": "it is read-only",
    "contact.local_point": "it is read-only; augment 'contact.point'",
    "contact.local_normal": "it is read-only; augment 'contact.normal'",
}


@dataclass(frozen=True)
class AbstractMode(abc.ABC):
    """How a network's result changes a quantity. `fresh` says whether an untrained network must change nothing."""

    fresh = True

    @abc.abstractmethod
    def apply(self, value: Array, result: Array) -> Array:
        """The quantity with the network in it."""


@dataclass(frozen=True)
class Add(AbstractMode):
    """value + network."""

    def apply(self, value: Array, result: Array) -> Array:
        return value + result


@dataclass(frozen=True)
class Scale(AbstractMode):
    """value (1 + network)."""

    def apply(self, value: Array, result: Array) -> Array:
        return value * (1 + result)


@dataclass(frozen=True)
class Replace(AbstractMode):
    """The network alone; its weights start at random."""

    fresh = False

    def apply(self, value: Array, result: Array) -> Array:
        return result


@dataclass(frozen=True)
class AbstractScope(abc.ABC):  # noqa: B024
    """Over which elements of a quantity a network works: degrees of freedom, bodies, contact candidates."""


@dataclass(frozen=True)
class Whole(AbstractScope):
    """One network reads all inputs and writes all elements."""


@dataclass(frozen=True)
class Each(AbstractScope):
    """A network of its own for every element. Inputs of the output's kind are the element's own, unless they select."""


@dataclass(frozen=True)
class Shared(AbstractScope):
    """One set of weights, applied to every element in turn. Inputs as with `Each`."""


MODES = {c.__name__: c for c in (Add, Scale, Replace)}
SCOPES = {c.__name__: c for c in (Whole, Each, Shared)}


def split(name: str) -> tuple[str, str | None]:
    """Tap and selection of a name: "joint.qd[elbow]" is ("joint.qd", "elbow")."""
    if name.endswith("]") and "[" in name:
        tap, _, selection = name[:-1].partition("[")
        return tap, selection
    return name, None


@dataclass(frozen=True)
class Entry:
    """One line of a blueprint."""

    output: str
    inputs: tuple[str, ...]
    net: AbstractNet
    mode: AbstractMode
    over: AbstractScope
    scales: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        tap, _ = split(self.output)
        if tap not in TAPS:
            raise KeyError(f"'{tap}' is not a tap, so it cannot be augmented; the names are {', '.join(TAPS)}.")
        if tap in READ_ONLY:
            raise ValueError(f"'{tap}' cannot be augmented: {READ_ONLY[tap]}.")
        if not self.inputs:
            raise ValueError(f"the network of '{self.output}' needs at least one input.")
        kinds = ((self.net, AbstractNet, "net", "fx.nets.MLP()"), (self.mode, AbstractMode, "mode", "fx.Add()"),
                 (self.over, AbstractScope, "over", "fx.Whole()"))  # fmt: skip
        for value, kind, what, example in kinds:
            if not isinstance(value, kind):
                raise TypeError(f"`{what}` of '{self.output}' must be an object such as {example}, got {value!r}.")
        self._check_guarantee(tap)
        self._check_scales()

    def _check_guarantee(self, tap: str) -> None:
        net = guarantee(self.net)
        if net.adds_only and not isinstance(self.mode, Add):
            raise ValueError(
                f"{type(net).__name__} constrains the force that it adds, so '{self.output}' needs mode=Add(), "
                f"not {type(self.mode).__name__}()."
            )
        if isinstance(net, Dissipative) and tap not in CONJUGATE:
            raise ValueError(
                f"Dissipative needs a force with a velocity on which it does work; '{tap}' has none. "
                f"It works for {', '.join(CONJUGATE)}."
            )
        if isinstance(net, Dissipative) and tap.startswith("contact.") and isinstance(self.over, Whole):
            raise ValueError(
                f"contacts come and go, so a Dissipative network for '{tap}' must work on each by itself: use over=Each() "
                "or over=Shared()."
            )
        if isinstance(net, Conservative) and not (tap.startswith("joint.") and tap in CONJUGATE):
            joints = ", ".join(t for t in CONJUGATE if t.startswith("joint."))
            raise ValueError(f"Conservative needs a joint force, which '{tap}' is not. It works for {joints}.")
        others = [n for n in self.inputs if split(n)[0] != "joint.q"]
        if isinstance(net, Conservative) and others:
            raise ValueError(
                f"a potential is a function of positions: Conservative reads only 'joint.q', not '{others[0]}'."
            )

    def _check_scales(self) -> None:
        names = {self.output, split(self.output)[0], *self.inputs, *(split(n)[0] for n in self.inputs)}
        for name, value in self.scales:
            if name not in names and not any("*" in split(n)[0] for n in self.inputs):
                raise KeyError(f"`scales` of '{self.output}' names '{name}', which is neither its output nor an input.")
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise ValueError(f"the scale of '{name}' must be a positive number, got {value!r}.")

    def scale(self, name: str, tap: str) -> float:
        """Typical magnitude of a quantity: as given for the name as written, or for the tap; else 1."""
        scales = dict(self.scales)
        return float(scales.get(name, scales.get(tap, 1.0)))


# The velocity on which a force does work, which of its numbers, and the sign with which the force enters the motion.
CONJUGATE: dict[str, tuple[str, tuple[int, ...] | None, float]] = {
    "joint.applied_force": ("joint.qd", None, 1.0),
    "joint.passive_force": ("joint.qd", None, 1.0),
    "joint.limit_force": ("joint.qd", None, 1.0),
    "joint.friction_force": ("joint.qd", None, 1.0),
    "joint.gravity_force": ("joint.qd", None, -1.0),
    "joint.bias_force": ("joint.qd", None, -1.0),
    "link.external_force": ("link.velocity", None, 1.0),
    "tendon.force": ("tendon.velocity", None, 1.0),
    "contact.normal_force": ("contact.relative_velocity", (0,), 1.0),
    "contact.friction_force": ("contact.relative_velocity", (1, 2), 1.0),
}


@dataclass
class Blueprint:
    """Lines added one by one with `add`; `Simulator.augment` makes networks of them."""

    entries: list[Entry] = field(default_factory=list)

    def add(
        self,
        output: str,
        *,
        inputs: Sequence[str],
        net: AbstractNet,
        mode: AbstractMode = Add(),
        over: AbstractScope = Whole(),
        scales: Mapping[str, float] | None = None,
    ) -> "Blueprint":
        """Wires a network to the quantity `output`; returns the blueprint itself.

        `inputs` are taps computed before it; "joint.*" stands for all of that kind. `scales` are typical magnitudes: an input is
        divided by its own, the network's result multiplied by the output's.
        """
        if isinstance(inputs, str):
            raise TypeError(f"`inputs` of '{output}' must be a list of names, got the string '{inputs}'.")
        if output in [e.output for e in self.entries]:
            raise ValueError(f"the blueprint has a network for '{output}' already.")
        entry = Entry(output, tuple(inputs), net, mode, over, tuple(sorted((scales or {}).items())))
        self.entries.append(entry)
        return self
