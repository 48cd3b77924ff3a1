"""Sensors of a description: what MuJoCo calls `sensordata`, by name.

Positions and velocities are those of the instant. Accelerations are given: the solver's over a step, or any. As in MuJoCo,
linear accelerations contain the reaction to gravity: an accelerometer at rest measures 9.81 m/s^2 upwards. Quaternions have
w >= 0, where MuJoCo's may have the other sign.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.actuators import actuator_forces, actuator_lengths, actuator_moment
from flexor.dynamics.forces import actuator_force
from flexor.dynamics.kinematics import Kinematics, body_poses, body_velocities, forward_kinematics, node_velocities
from flexor.dynamics.recursion import accumulate_outward, scatter_sum
from flexor.dynamics.tendons import tendon_jacobian, tendon_lengths
from flexor.model.model import Model
from flexor.model.topology import Sensor, SensorFrame
from flexor.spatial import cross, dot, inertia_matrix, matmul, matrix_to_quat, matvec, quat_to_matrix, rotate, take


class Moment(NamedTuple):
    """A robot at an instant, as its sensors need it. `u` are the inputs, activations in the place of those of actuators that have
    one; `qdd` the accelerations; `time` in s; `wrench` what acts on the bodies from outside, contacts included; `touch` what the
    touch sensors feel."""

    model: Model
    kin: Kinematics
    q: Float[Array, " nq"]
    qd: Float[Array, " nv"]
    qdd: Float[Array, " nv"]
    u: Float[Array, " nu"]
    time: Float[Array, ""]
    wrench: Float[Array, "nbody 6"]
    touch: Float[Array, " ntouch"]


def sensors(model: Model) -> dict[str, str]:
    """Names of the description's sensors that flexor has, each with its kind in MJCF. `sim.step` and `sim.rollout` record them as
    `sensor.<name>`."""
    return {s.name: s.kind for s in model.topology.sensors}


def read_sensors(
    model: Model,
    q: Float[Array, " nq"],
    qd: Float[Array, " nv"],
    qdd: Float[Array, " nv"] | None = None,
    u: Float[Array, " nu"] | None = None,
    *,
    names: Sequence[str] | None = None,
    time: Any = 0.0,
    wrench: Float[Array, "nbody 6"] | None = None,
    touch: Float[Array, " ntouch"] | None = None,
) -> dict[str, Array]:
    """Values of the sensors of these names, or of all that flexor has, as MuJoCo's `sensordata` holds them.

    `qdd` are the accelerations (zero if left out), `u` the inputs of the actuators; of an actuator with an activation, u is that
    activation. `wrench` acts on the bodies from outside, contacts included, moment about the body origin and force in world axes,
    and `touch` are the normal forces that the touch sensors feel; a step has them as the taps `link.external_force`,
    `link.contact_force` and `touch.force`. See `fx.sensors` for the names.
    """
    zeros, t = jnp.zeros(model.nv, q.dtype), model.topology
    now = Moment(
        model,
        forward_kinematics(model, q),
        q,
        qd,
        zeros if qdd is None else qdd,
        jnp.zeros(model.nu, q.dtype) if u is None else u,
        jnp.asarray(time, q.dtype),
        jnp.zeros((len(t.bodies), 6), q.dtype) if wrench is None else wrench,
        jnp.zeros(sum(s.kind == "touch" for s in t.sensors), q.dtype) if touch is None else touch,
    )
    wanted = [s.name for s in t.sensors] if names is None else names
    return {name: _value(now, find_sensor(model, name)) for name in wanted}


def find_sensor(model: Model, name: str) -> Sensor:
    """The sensor of this name; raises for one that is unknown or not supported, and says why."""
    t = model.topology
    for sensor in t.sensors:
        if sensor.name == name:
            return sensor
    refused = dict(t.refused_sensors)
    if name in refused:
        raise ValueError(f"sensor '{name}' of '{t.name}' {refused[name]}.")
    listed = ", ".join(repr(s.name) for s in t.sensors[:20]) or "none"
    raise KeyError(f"'{t.name}' has no sensor named '{name}'; it has {listed}.")


def _value(now: Moment, sensor: Sensor) -> Array:
    value = _LAWS[sensor.kind](now, sensor)
    return jnp.clip(value, -sensor.cutoff, sensor.cutoff) if sensor.cutoff > 0 else value


def _row(x: Array, sensor: Sensor) -> Array:
    return x[np.array([sensor.index])]


def _pose(now: Moment, frame: SensorFrame | None) -> tuple[Array, Array]:
    """Position and rotation matrix of a frame in the world."""
    assert frame is not None
    pos, rot = (x[frame.body] for x in body_poses(now.model, now.kin))
    if frame.kind == "site":
        place, turn = now.model.sites.pos[frame.index], now.model.sites.quat[frame.index]
    elif frame.kind == "body":
        return pos, rot
    else:
        place, turn = now.model.sensor_frames.pos[frame.index], now.model.sensor_frames.quat[frame.index]
    return pos + rotate(rot, place), matmul(rot, quat_to_matrix(turn))


def _velocity(now: Moment, frame: SensorFrame | None) -> tuple[Array, Array]:
    """Angular velocity of a frame and velocity of its origin, world axes."""
    assert frame is not None
    twist = body_velocities(now.model, now.kin, now.qd)[frame.body]
    arm = _pose(now, frame)[0] - body_poses(now.model, now.kin)[0][frame.body]
    return twist[:3], twist[3:] + cross(twist[:3], arm)


def _acceleration(now: Moment, frame: SensorFrame | None) -> tuple[Array, Array]:
    """Angular acceleration of a frame and acceleration of its origin against gravity, world axes."""
    assert frame is not None
    model, kin = now.model, now.kin
    nodes, dofs = model.topology.nodes, model.topology.dofs
    v, c = node_velocities(model, kin, now.qd)
    own = scatter_sum(kin.S * now.qdd[:, None], dofs.node, len(nodes.body)) + c
    node = int(nodes.of_body[frame.body])
    a, v = accumulate_outward(nodes.levels, nodes.parent, own)[node], v[node]
    arm = _pose(now, frame)[0] - kin.origin[node]
    moving = v[3:] + cross(v[:3], arm)
    return a[:3], a[3:] + cross(a[:3], arm) + cross(v[:3], moving) - model.gravity


def _frame_pos(now: Moment, sensor: Sensor) -> Array:
    pos = _pose(now, sensor.frame)[0]
    if sensor.reference is None:
        return pos
    origin, rot = _pose(now, sensor.reference)
    return rotate(rot.T, pos - origin)


def _frame_rot(now: Moment, sensor: Sensor) -> Array:
    rot = _pose(now, sensor.frame)[1]
    return rot if sensor.reference is None else matmul(_pose(now, sensor.reference)[1].T, rot)


def _frame_axis(axis: int, now: Moment, sensor: Sensor) -> Array:
    return _frame_rot(now, sensor)[:, axis]


def _frame_linvel(now: Moment, sensor: Sensor) -> Array:
    velocity = _velocity(now, sensor.frame)[1]
    if sensor.reference is None:
        return velocity
    (origin, rot), (turning, moving) = _pose(now, sensor.reference), _velocity(now, sensor.reference)
    return rotate(rot.T, velocity - moving - cross(turning, _pose(now, sensor.frame)[0] - origin))


def _frame_angvel(now: Moment, sensor: Sensor) -> Array:
    turning = _velocity(now, sensor.frame)[0]
    if sensor.reference is None:
        return turning
    return rotate(_pose(now, sensor.reference)[1].T, turning - _velocity(now, sensor.reference)[0])


def _in_site(
    of: Callable[[Moment, SensorFrame | None], tuple[Array, Array]], part: int, now: Moment, sensor: Sensor
) -> Array:
    return rotate(_pose(now, sensor.frame)[1].T, of(now, sensor.frame)[part])


def _below(now: Moment, body: int) -> np.ndarray:
    """The bodies of the subtree that begins with a body."""
    parents, inside = now.model.topology.parents, [body]
    for b in range(body + 1, len(parents)):
        if parents[b] in inside:
            inside.append(b)
    return np.array(inside)


def _subtree(now: Moment, sensor: Sensor) -> tuple[np.ndarray, Array, Array, Array, Array]:
    """Bodies of a subtree, their masses, centres of mass, velocities of these, and rotations."""
    assert sensor.frame is not None
    rows = _below(now, sensor.frame.body)
    pos, rot = (take(x, rows) for x in body_poses(now.model, now.kin))
    twist = take(body_velocities(now.model, now.kin, now.qd), rows)
    arm = rotate(rot, take(now.model.bodies.com, rows))
    return rows, take(now.model.bodies.mass, rows), pos + arm, twist[:, 3:] + cross(twist[:, :3], arm), rot


def _subtree_com(now: Moment, sensor: Sensor) -> Array:
    _, mass, com, _, _ = _subtree(now, sensor)
    return mass @ com / jnp.sum(mass)


def _subtree_linvel(now: Moment, sensor: Sensor) -> Array:
    _, mass, _, velocity, _ = _subtree(now, sensor)
    return mass @ velocity / jnp.sum(mass)


def _subtree_angmom(now: Moment, sensor: Sensor) -> Array:
    """Angular momentum of a subtree about its centre of mass, world axes."""
    rows, mass, com, velocity, rot = _subtree(now, sensor)
    turning = take(body_velocities(now.model, now.kin, now.qd), rows)[:, :3]
    own = rotate(jnp.swapaxes(rot, -1, -2), turning)
    spin = rotate(rot, matvec(inertia_matrix(take(now.model.bodies.inertia, rows)), own))
    share = mass / jnp.sum(mass)
    arm, relative = com - (share @ com)[None], velocity - (share @ velocity)[None]
    return jnp.sum(spin + mass[:, None] * cross(arm, relative), axis=0)


def _interaction(now: Moment, sensor: Sensor) -> tuple[Array, Array]:
    """Moment about a site and force by which the rest of the robot acts on the site's body and all that it carries: what moves
    them, less what acts on them from outside; world axes."""
    assert sensor.frame is not None
    model, kin = now.model, now.kin
    rows, mass, com, _, rot = _subtree(now, sensor)
    nodes, dofs = model.topology.nodes, model.topology.dofs
    v, c = node_velocities(model, kin, now.qd)
    own = scatter_sum(kin.S * now.qdd[:, None], dofs.node, len(nodes.body)) + c
    node = nodes.of_body[rows]
    a, v = take(accumulate_outward(nodes.levels, nodes.parent, own), node), take(v, node)
    arm = com - take(kin.origin, node)
    w, turning = v[:, :3], a[:, :3]
    linear = a[:, 3:] + cross(turning, arm) + cross(w, v[:, 3:] + cross(w, arm)) - model.gravity[None]
    I = matmul(matmul(rot, inertia_matrix(take(model.bodies.inertia, rows))), jnp.swapaxes(rot, -1, -2))
    spin = matvec(I, turning) + cross(w, matvec(I, w))
    place, given = _pose(now, sensor.frame)[0], take(now.wrench, rows)
    f, origin = mass[:, None] * linear, take(body_poses(model, kin)[0], rows)
    moment = spin + cross(com - place[None], f) - given[:, :3] - cross(origin - place[None], given[:, 3:])
    return jnp.sum(moment, axis=0), jnp.sum(f - given[:, 3:], axis=0)


def _between(part: int, now: Moment, sensor: Sensor) -> Array:
    """Torque or force between a site's body and its parent, in the axes of the site."""
    return rotate(_pose(now, sensor.frame)[1].T, _interaction(now, sensor)[part])


def _touched(now: Moment, sensor: Sensor) -> Array:
    zones = [s.name for s in now.model.topology.sensors if s.kind == "touch"]
    return now.touch[np.array([zones.index(sensor.name)])]


def _tendon_actuators(now: Moment, sensor: Sensor) -> Array:
    on = np.array([a.tendon == sensor.index for a in now.model.topology.actuators], dtype=bool)
    return jnp.sum(jnp.where(on, actuator_forces(now.model, now.q, now.qd, now.u, now.kin), 0.0))[None]


def _ball_quat(now: Moment, sensor: Sensor) -> Array:
    quat = now.q[now.model.topology.q_start[sensor.index] + np.arange(4)]
    return quat / jnp.sqrt(dot(quat, quat))


_LAWS: dict[str, Callable[[Moment, Sensor], Array]] = {
    "jointpos": lambda now, s: now.q[now.model.topology.q_start[[s.index]]],
    "jointvel": lambda now, s: now.qd[now.model.topology.v_start[[s.index]]],
    "jointactuatorfrc": lambda now, s: actuator_force(now.model, now.q, now.qd, now.u, now.kin)[
        now.model.topology.v_start[[s.index]]
    ],
    "ballquat": _ball_quat,
    "ballangvel": lambda now, s: now.qd[now.model.topology.v_start[s.index] + np.arange(3)],
    "tendonpos": lambda now, s: _row(tendon_lengths(now.model, now.kin, now.q), s),
    "tendonvel": lambda now, s: _row(matvec(tendon_jacobian(now.model, now.kin), now.qd), s),
    "tendonactuatorfrc": _tendon_actuators,
    "actuatorpos": lambda now, s: _row(actuator_lengths(now.model, now.q, now.kin), s),
    "actuatorvel": lambda now, s: _row(matvec(actuator_moment(now.model, now.q, now.kin), now.qd), s),
    "actuatorfrc": lambda now, s: _row(actuator_forces(now.model, now.q, now.qd, now.u, now.kin), s),
    "framepos": _frame_pos,
    "framequat": lambda now, s: matrix_to_quat(_frame_rot(now, s)),
    "framexaxis": partial(_frame_axis, 0),
    "frameyaxis": partial(_frame_axis, 1),
    "framezaxis": partial(_frame_axis, 2),
    "framelinvel": _frame_linvel,
    "frameangvel": _frame_angvel,
    "framelinacc": lambda now, s: _acceleration(now, s.frame)[1],
    "frameangacc": lambda now, s: _acceleration(now, s.frame)[0],
    "velocimeter": partial(_in_site, _velocity, 1),
    "gyro": partial(_in_site, _velocity, 0),
    "accelerometer": partial(_in_site, _acceleration, 1),
    "torque": partial(_between, 0),
    "force": partial(_between, 1),
    "touch": _touched,
    "subtreecom": _subtree_com,
    "subtreelinvel": _subtree_linvel,
    "subtreeangmom": _subtree_angmom,
    "clock": lambda now, s: now.time[None],
}
