"""Names for quantities: the identity, until somebody listens.

The physics calls `tap("joint.passive_force", x)` on every quantity a user may care about. Nobody listening, `tap` returns
`x` itself and leaves no trace in the program. There are two kinds of listeners. *Handlers* (`listen`) may change a quantity:
each tapped value passes through `handler(name, value)`, in the order of computation, and the physics goes on with what the
handler returns. *Recorders* (`collect`) keep the value with which the physics goes on, after all handlers.

All of this happens while JAX traces the function: wrap the function *before* `jax.jit`, since a trace already cached does not
listen. A handler may act inside a loop of JAX's. What is recorded must leave the loop as one of its results, so whoever loops
over steps (`Substeps`) collects inside and records outside (`record`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from jaxtyping import Array


class Tap(NamedTuple):
    """What a name stands for: shape in symbols of the model, unit, meaning. `contact.*` has a row for each candidate.

    Where one step is several (`Substeps`), a quantity is recorded at the last of them, or as their mean where `mean` says so:
    forces, so that force times time step is the impulse of the whole step.
    """

    shape: str
    unit: str
    meaning: str
    mean: bool = False


TAPS: dict[str, Tap] = {
    "joint.q": Tap("nq", "rad, m", "positions at the start of the step; with RK4 at every stage"),
    "joint.qd": Tap("nv", "rad/s, m/s", "velocities at the start of the step; with RK4 at every stage"),
    "link.rotation": Tap("nbody 3 3", "1", "rotation matrix of the body's frame in the world; to be read only"),
    "link.velocity": Tap("nbody 6", "rad/s, m/s", "angular, and that of the body's origin, world axes; to be read only"),
    "joint.applied_force": Tap("nv", "N m, N", "actuators and `Control.tau`", mean=True),
    "tendon.length": Tap("ntendon", "m", "length of every tendon, as its spring feels it (a fixed tendon: rad, m)"),
    "tendon.velocity": Tap("ntendon", "m/s", "rate of the length, as its damper feels it"),
    "tendon.force": Tap("ntendon", "N", "spring and damper of every tendon; negative where it pulls", mean=True),
    "joint.passive_force": Tap("nv", "N m, N", "springs and dampers, those of tendons too, gravity compensation", mean=True),
    "joint.gravity_force": Tap("nv", "N m, N", "generalised gravity, part of the bias", mean=True),
    "joint.bias_force": Tap(
        "nv", "N m, N", "Coriolis, centrifugal and gravity: what RNEA returns at zero acceleration", mean=True
    ),
    "link.external_force": Tap("nbody 6", "N m, N", "moment about the body origin and force, world axes", mean=True),
    "link.fluid_force": Tap(
        "nbody 6", "N m, N", "of a fluid, where there is one: moment about the body origin and force, world axes", mean=True
    ),
    "contact.point": Tap("ncon 3", "m", "halfway between the two surfaces, world axes; where the forces act"),
    "contact.depth": Tap("ncon", "m", "overlap of the two bodies, negative when apart"),
    "contact.normal": Tap("ncon 3", "1", "unit normal from body a towards body b, world axes"),
    "contact.local_point": Tap("ncon 3", "m", "the point in the frame of body b; to be read only"),
    "contact.local_normal": Tap("ncon 3", "1", "the normal in the axes of body b; to be read only"),
    "contact.relative_velocity": Tap("ncon 3", "m/s", "velocity of b's point less a's: along normal, two tangents"),
    "contact.normal_force": Tap("ncon", "N", "force on b along the normal", mean=True),
    "contact.friction_force": Tap("ncon 2", "N", "force on b along the two tangents", mean=True),
    "link.contact_force": Tap(
        "nbody 6",
        "N m, N",
        "of all contacts: moment about the body origin and force, world axes; to be read only",
        mean=True,
    ),
    "touch.force": Tap("ntouch", "N", "normal forces over the zone of every touch sensor; to be read only", mean=True),
    "joint.limit_force": Tap("nv", "N m, N", "force of the joint limits", mean=True),
    "joint.friction_force": Tap("nv", "N m, N", "dry friction in the joints", mean=True),
    "joint.equality_force": Tap("nv", "N m, N", "force of equalities and loops, where the model has any", mean=True),
    "joint.acceleration": Tap("nv", "rad/s2, m/s2", "acceleration before integration and before contact impulses"),
}

Handler = Callable[[str, Array], Array]


class Recorder:
    """The values of one step by name; `names` are those to keep, or None for all. `outer` receives everything, too.

    An integrator with several stages taps everything at each, beginning with `joint.q`: those of the first stage are kept, at
    the start of the step, and what comes after the stages alone. Within a stage the last value of a name counts.
    """

    def __init__(self, names: Sequence[str] | None, outer: "Recorder | None" = None) -> None:
        self.names, self.outer = names, outer
        self.values: dict[str, Array] = {}
        self._stages = 0

    def add(self, name: str, value: Array) -> None:
        """Keeps a value."""
        self._stages += name == "joint.q"
        if (self._stages <= 1 or name not in self.values) and (self.names is None or name in self.names):
            self.values[name] = value
        if self.outer is not None:
            self.outer.add(name, value)


_handlers: ContextVar[tuple[Handler, ...]] = ContextVar("flexor_tap_handlers", default=())
_recorder: ContextVar[Recorder | None] = ContextVar("flexor_tap_recorder", default=None)


def tap(name: str, value: Array) -> Array:
    """Gives `value` its name; returns what the handlers make of it, or `value` itself."""
    if not listening():
        return value
    if name not in TAPS:
        raise KeyError(f"'{name}' is not a tap; the names are {', '.join(TAPS)}.")
    for handler in reversed(_handlers.get()):
        shape, value = value.shape, handler(name, value)
        if value.shape != shape:
            raise ValueError(f"the handler of tap '{name}' must keep its shape {shape}, got {value.shape}.")
    record({name: value})
    return value


def collecting() -> bool:
    """Whether quantities are being collected now."""
    return _recorder.get() is not None


def listening() -> bool:
    """Whether there is any listener now; quantities that only a listener wants need not be computed otherwise."""
    return bool(_handlers.get()) or collecting()


@contextmanager
def listen(handler: Handler) -> Iterator[None]:
    """Within this context every tap passes through `handler`; an outer handler gets what the inner one returned."""
    with _set(_handlers, (*_handlers.get(), handler)):
        yield


def collect(f: Callable[..., Any], names: Sequence[str] | None = None) -> Callable[..., tuple[Any, dict[str, Array]]]:
    """`collect(f)(*args)` is `(f(*args), {name: value})` with the quantities that `f` tapped, all or those of `names`."""

    def collected(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Array]]:
        recorder = Recorder(names, _recorder.get())
        with _set(_recorder, recorder):
            return f(*args, **kwargs), recorder.values

    return collected


def collect_in_loop(f: Callable[..., Any]) -> Callable[..., tuple[Any, dict[str, Array]]]:
    """`collect(f)` for the body of a loop of JAX's: the quantities that are being collected outside of the loop, which does not
    see them. Give them to `record` when they have left the loop. Without a collector outside there are none."""

    def collected(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Array]]:
        outside = _recorder.get()
        if outside is None:
            return f(*args, **kwargs), {}
        recorder = Recorder(None if outside.outer is not None else outside.names)
        with _set(_recorder, recorder):
            return f(*args, **kwargs), recorder.values

    return collected


def record(values: Mapping[str, Array]) -> None:
    """Hands quantities to the collector, if there is one; handlers do not get them."""
    recorder = _recorder.get()
    if recorder is not None:
        for name, value in values.items():
            recorder.add(name, value)


@contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
