"""Forces of the actuators: from inputs and activations, by the laws of `Actuators` and `Muscles`."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.kinematics import Kinematics, forward_kinematics
from flexor.dynamics.muscles import muscle_bias, muscle_gain
from flexor.dynamics.recursion import scatter_sum
from flexor.dynamics.transmission import full_turns, kind_of, transmission
from flexor.model.model import Model
from flexor.model.topology import INDEX
from flexor.spatial import matvec, take


def actuator_lengths(model: Model, q: Float[Array, " nq"], kin: Kinematics | None = None) -> Float[Array, " nu"]:
    """Length of every actuator, `gear` times that of what it pushes on; rad or m for a gear of one."""
    if model.nu == 0:
        return jnp.zeros(0, q.dtype)
    joint = _joints(model)
    if joint is not None:
        return model.actuators.gear * take(q, model.topology.q_start[joint])
    return transmission(model, forward_kinematics(model, q) if kin is None else kin, q)[0]


def actuator_moment(model: Model, q: Float[Array, " nq"], kin: Kinematics | None = None) -> Float[Array, "nu nv"]:
    """J with velocities J qd of the actuators and generalised forces J^T f."""
    if model.nu == 0:
        return jnp.zeros((0, model.nv), q.dtype)
    return transmission(model, forward_kinematics(model, q) if kin is None else kin, q)[1]


def actuator_forces(
    model: Model, q: Float[Array, " nq"], qd: Float[Array, " nv"], u: Float[Array, " nu"], kin: Kinematics | None = None
) -> Float[Array, " nu"]:
    """Force of every actuator along its length: clip(gain clip(u) + bias . (1, length, velocity)), or that of a muscle. Of an
    actuator with an activation, u is that activation."""
    if model.nu == 0:
        return jnp.zeros(0, q.dtype)
    joint, t, gear = _joints(model), model.topology, model.actuators.gear
    if joint is not None:
        return _forces(model, gear * take(q, t.q_start[joint]), gear * take(qd, t.v_start[joint]), u)
    length, moment = transmission(model, forward_kinematics(model, q) if kin is None else kin, q)
    return _forces(model, length, matvec(moment, qd), u)


def pushed(model: Model, q: Array, qd: Array, u: Array, kin: Kinematics | None = None) -> Float[Array, " nv"]:
    """Generalised forces of the actuators, before the joints' bounds and without gravity compensation."""
    t, gear = model.topology, model.actuators.gear
    if t.nu == 0:
        return jnp.zeros(t.nv, q.dtype)
    joint = _joints(model)
    if joint is None:
        length, moment = transmission(model, forward_kinematics(model, q) if kin is None else kin, q)
        force = _forces(model, length, matvec(moment, qd), u)
        return jnp.sum(moment * force[:, None], axis=0)
    force = _forces(model, gear * take(q, t.q_start[joint]), gear * take(qd, t.v_start[joint]), u)
    return scatter_sum(gear * force, t.v_start[joint], t.nv)


def _joints(model: Model) -> np.ndarray | None:
    """The joint of every actuator; None unless all push on hinges and slides."""
    t = model.topology
    if not all(kind_of(t, a) == "straight" for a in t.actuators):
        return None
    return np.array([a.joint for a in t.actuators], dtype=INDEX)


def _forces(model: Model, length: Array, rate: Array, u: Array) -> Float[Array, " nu"]:
    t, act = model.topology, model.actuators
    inputs = jnp.clip(u, act.ctrl_range[:, 0], act.ctrl_range[:, 1])
    if t.na:
        inputs = jnp.where(np.array([a.dynamics != "none" for a in t.actuators]), u, inputs)
    if any(a.circular for a in t.actuators):
        turn = full_turns(model)
        nearest = inputs - turn * jnp.round((inputs - length) / turn)
        inputs = jnp.where(np.array([a.circular for a in t.actuators]), nearest, inputs)
    gain = act.gain
    if any(a.varying for a in t.actuators):
        gain = gain + act.gain_slope[:, 0] * length + act.gain_slope[:, 1] * rate
    force = gain * inputs + act.bias[:, 0] + act.bias[:, 1] * length + act.bias[:, 2] * rate
    if t.muscles:
        rows = np.array([i for i, a in enumerate(t.actuators) if a.muscle], dtype=INDEX)
        l, v, a = (take(x, rows) for x in (length, rate, inputs))
        force = force.at[rows].set(muscle_gain(model.muscles, l, v) * a + muscle_bias(model.muscles, l))
    if any(a.tendon is not None for a in t.actuators):
        force = force * _shares(model, force)
    return jnp.clip(force, act.force_range[:, 0], act.force_range[:, 1])


def _shares(model: Model, force: Float[Array, " nu"]) -> Float[Array, " nu"]:
    """By how much the forces of actuators on a tendon shrink where their sum exceeds the tendon's `force_range`."""
    t = model.topology
    n = len(t.tendons)
    tendon = np.array([n if a.tendon is None else a.tendon for a in t.actuators], dtype=INDEX)
    total = scatter_sum(force, tendon, n + 1)[:n]
    bounds = model.tendons.force_range
    within = jnp.clip(total, bounds[:, 0], bounds[:, 1])
    share = jnp.where(within == total, 1.0, within / jnp.where(total == 0, 1.0, total))
    return take(jnp.concatenate([share, jnp.ones(1, share.dtype)]), tendon)
