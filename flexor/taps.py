"""Names for quantities: the identity, until somebody listens.

The physics calls `tap("joint.passive_force", x)` on every quantity a user may care about. Nobody listening, `tap` returns
`x` itself and leaves no trace in the program. Under `listen(handler)` each tapped value passes through
`handler(name, value)`, in the order of computation, and what the handler returns goes on in its place. This is decided
while JAX traces the function: wrap the function *before* `jax.jit`, since a trace already cached does not listen.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from jaxtyping import Array


class Tap(NamedTuple):
    """What a name stands for: shape in symbols of the model, unit, meaning. `contact.*` has a row for each candidate."""

    shape: str
    unit: str
    meaning: str


TAPS: dict[str, Tap] = {
    "joint.q": Tap("nq", "rad, m", "positions at the start of the step; with RK4 at every stage"),
    "joint.qd": Tap("nv", "rad/s, m/s", "velocities at the start of the step; with RK4 at every stage"),
    "link.rotation": Tap("nbody 3 3", "1", "rotation matrix of the body's frame in the world; to be read only"),
    "link.velocity": Tap("nbody 6", "rad/s, m/s", "angular, and that of the body's origin, world axes; to be read only"),
    "joint.applied_force": Tap("nv", "N m, N", "actuators and `Control.tau`"),
    "joint.passive_force": Tap("nv", "N m, N", "springs and dampers"),
    "joint.gravity_force": Tap("nv", "N m, N", "generalised gravity, part of the bias"),
    "joint.bias_force": Tap("nv", "N m, N", "Coriolis, centrifugal and gravity: what RNEA returns at zero acceleration"),
    "link.external_force": Tap("nbody 6", "N m, N", "moment about the body origin and force, world axes"),
    "contact.point": Tap("ncon 3", "m", "halfway between the two surfaces, world axes; where the forces act"),
    "contact.depth": Tap("ncon", "m", "overlap of the two bodies, negative when apart"),
    "contact.normal": Tap("ncon 3", "1", "unit normal from body a towards body b, world axes"),
    "contact.local_point": Tap("ncon 3", "m", "the point in the frame of body b; to be read only"),
    "contact.local_normal": Tap("ncon 3", "1", "the normal in the axes of body b; to be read only"),
    "contact.relative_velocity": Tap("ncon 3", "m/s", "velocity of b's point less a's: along normal, two tangents"),
    "contact.normal_force": Tap("ncon", "N", "force on b along the normal"),
    "contact.friction_force": Tap("ncon 2", "N", "force on b along the two tangents"),
    "joint.limit_force": Tap("nv", "N m, N", "force of the joint limits"),
    "joint.friction_force": Tap("nv", "N m, N", "dry friction in the joints"),
    "joint.acceleration": Tap("nv", "rad/s2, m/s2", "acceleration before integration and before contact impulses"),
}

Handler = Callable[[str, Array], Array]
_handler: ContextVar[Handler | None] = ContextVar("flexor_tap_handler", default=None)


def tap(name: str, value: Array) -> Array:
    """Gives `value` its name; returns what the listener makes of it, or `value` itself."""
    handler = _handler.get()
    if handler is None:
        return value
    if name not in TAPS:
        raise KeyError(f"'{name}' is not a tap; the names are {', '.join(TAPS)}.")
    out = handler(name, value)
    if out.shape != value.shape:
        raise ValueError(f"the handler of tap '{name}' must keep its shape {value.shape}, got {out.shape}.")
    return out


def listening() -> bool:
    """Whether anybody hears the taps now; quantities that only a listener wants need not be computed otherwise."""
    return _handler.get() is not None


@contextmanager
def listen(handler: Handler) -> Iterator[None]:
    """Within this context every tap passes through `handler`; an outer listener hears what the inner one returned."""
    outer = _handler.get()

    def chained(name: str, value: Array) -> Array:
        value = handler(name, value)
        return value if outer is None else outer(name, value)

    token = _handler.set(chained)
    try:
        yield
    finally:
        _handler.reset(token)


def collect(f: Callable[..., Any]) -> Callable[..., tuple[Any, dict[str, Array]]]:
    """`collect(f)(*args)` is `(f(*args), {name: value})` with every quantity that `f` tapped; the last value of a name.

    An integrator with several stages taps everything at each: those of the first are kept, at the start of the step.
    """

    def collected(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Array]]:
        heard: dict[str, Array] = {}
        stages = 0

        def keep(name: str, value: Array) -> Array:
            nonlocal stages
            stages += name == "joint.q"
            if stages <= 1:
                heard[name] = value
            return value

        with listen(keep):
            out = f(*args, **kwargs)
        return out, heard

    return collected
