"""A step and the quantities to record: tapped quantities by name, and sensors of the description as `sensor.<name>`.

Sensors are those of the state at the start of the step, under its control. Accelerations are those of the whole step,
(qd+ - qd) / dt: with semi-implicit Euler and without contact they are the accelerations at its start, and with contact impulses
they are the means that a real sensor at this rate would measure.
"""

from collections.abc import Sequence

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
    recorded: dict[str, Array] = {}
    if taps:
        new, recorded = collect(solver.step, taps)(model, state, control, dt)
    else:
        new = solver.step(model, state, control, dt)
    missing = [name for name in taps if name not in recorded]
    if missing:
        raise ValueError(f"{class_name(solver)} does not compute '{missing[0]}' for this model.")
    return new, {**recorded, **_measured(model, state, new, control, dt, sensors)} if sensors else recorded


def _measured(
    model: Model, state: State, new: State, control: Control, dt: Float[Array, ""], names: Sequence[str]
) -> dict[str, Array]:
    acting, _ = delayed(model, state.history, as_control(model, control), dt)
    acting, _ = activated(model, state.act, acting, dt)
    wanted = [name.removeprefix(SENSOR) for name in names]
    acceleration = (new.qd - state.qd) / dt
    robot = with_mocap(model, control)
    found = read_sensors(robot, state.q, state.qd, acceleration, acting.u, names=wanted, time=state.time)
    return {name: found[name.removeprefix(SENSOR)] for name in names}
