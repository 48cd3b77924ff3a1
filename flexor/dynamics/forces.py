"""Forces that the robot's own parts exert: actuators, springs and dampers."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.energy import spring_stretch
from flexor.dynamics.recursion import scatter_sum
from flexor.model.model import Model
from flexor.spatial import take


def actuator_force(
    model: Model, q: Float[Array, " nq"], qd: Float[Array, " nv"], u: Float[Array, " nu"]
) -> Float[Array, " nv"]:
    """Generalised force of the actuators at inputs u: gear clip(gain clip(u) + bias . (1, length, velocity))."""
    t, act = model.topology, model.actuators
    if t.nu == 0:
        return jnp.zeros(t.nv, q.dtype)
    joint = np.array([a.joint for a in t.actuators], dtype=int)
    length, rate = act.gear * take(q, t.q_start[joint]), act.gear * take(qd, t.v_start[joint])
    u = jnp.clip(u, act.ctrl_range[:, 0], act.ctrl_range[:, 1])
    force = act.gain * u + act.bias[:, 0] + act.bias[:, 1] * length + act.bias[:, 2] * rate
    force = act.gear * jnp.clip(force, act.force_range[:, 0], act.force_range[:, 1])
    total = scatter_sum(force, t.v_start[joint], t.nv)
    bounds = take(model.joints.force_range, t.dof_joint)
    return jnp.clip(total, bounds[:, 0], bounds[:, 1])


def passive_force(model: Model, q: Float[Array, " nq"], qd: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """-k (q - rest) - d qd of every joint."""
    joint = model.topology.dof_joint
    return -take(model.joints.stiffness, joint) * spring_stretch(model, q) - take(model.joints.damping, joint) * qd
