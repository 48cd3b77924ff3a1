"""A step and the quantities to record: tapped quantities by name, and sensors of the description as `sensor.<name>`.

Sensors are those of the state at the start of the step, under its control. Accelerations are those of the whole step,
(qd+ - qd) / dt: with semi-implicit Euler and without contact they are the accelerations at its start, and with contact impulses
they are the means that a real sensor at this rate would measure.
"""

from collections.abc import Mapping, Sequence

from jaxtyping import Array, Float

from flexor.dynamics.activation import activated
from flexor.dynamics.sensors import find_sensor, read_sensors
from flexor.model.delay import delayed
from flexor.model.mocap import with_mocap
from flexor.model.model import Control, Model, State, as_control
from flexor.solvers.solver import AbstractSolver, class_name
from flexor.taps import TAPS, collect

SENSOR = "sensor."


def check_record(model: Model, record: Sequence[str]) -> None:
    """Raises for names that are neither taps nor sensors of the model."""
    for name in record:
        if name.startswith(SENSOR):
            find_sensor(model, name.removeprefix(SENSOR))
        elif name not in TAPS:
            raise KeyError(f"'{name}' is not a tap; the names are {', '.join(TAPS)}, and `sensor.<name>`.")


def recorded_step(
    solver: AbstractSolver, model: Model, state: State, control: Control, dt: Float[Array, ""], record: Sequence[str]
) -> tuple[State, dict[str, Array]]:
    """The next state, and the quantities of the step that `record` names."""
    taps = [name for name in record if not name.startswith(SENSOR)]
    sensors = [name for name in record if name.startswith(SENSOR)]
    needed = _needed(model, sensors)
    recorded: dict[str, Array] = {}
    if taps or needed:
        new, recorded = collect(solver.step, list(dict.fromkeys([*taps, *needed])))(model, state, control, dt)
    else:
        new = solver.step(model, state, control, dt)
    missing = [name for name in taps if name not in recorded]
    if missing:
        raise ValueError(f"{class_name(solver)} does not compute '{missing[0]}' for this model.")
    kept = {name: recorded[name] for name in taps}
    if not sensors:
        return new, kept
    lost = [name for name in needed if name not in recorded]
    if lost and model.topology.pairs:
        raise ValueError(f"{class_name(solver)} does not compute '{lost[0]}', which '{needed[lost[0]]}' needs.")
    return new, kept | _measured(model, state, new, control, dt, sensors, recorded)


def _needed(model: Model, sensors: Sequence[str]) -> dict[str, str]:
    """Taps that sensors are made of, each with the first sensor that needs it."""
    by_kind = {"force": "link.contact_force", "torque": "link.contact_force", "touch": "touch.force"}
    found: dict[str, str] = {}
    for name in sensors:
        kind = find_sensor(model, name.removeprefix(SENSOR)).kind
        if kind in by_kind:
            found.setdefault(by_kind[kind], name)
    return found


def _measured(
    model: Model,
    state: State,
    new: State,
    control: Control,
    dt: Float[Array, ""],
    names: Sequence[str],
    recorded: Mapping[str, Array],
) -> dict[str, Array]:
    acting, _ = delayed(model, state.history, as_control(model, control), dt)
    acting, _ = activated(model, state.act, acting, dt)
    assert acting.wrench is not None
    wanted = [name.removeprefix(SENSOR) for name in names]
    acceleration = (new.qd - state.qd) / dt
    robot, contact = with_mocap(model, control), recorded.get("link.contact_force")
    found = read_sensors(
        robot, state.q, state.qd, acceleration, acting.u, names=wanted, time=state.time,
        wrench=acting.wrench if contact is None else contact + acting.wrench, touch=recorded.get("touch.force"),
    )  # fmt: skip
    return {name: found[name.removeprefix(SENSOR)] for name in names}
