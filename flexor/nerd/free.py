"""The free step: what a robot would do if nothing touched it, no joint met its stop, and nothing stuck."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.dynamics import aba, forward_kinematics, integrate, passive_force
from flexor.model.model import Model


def free_velocity(
    model: Model, q: Float[Array, " nq"], qd: Float[Array, " nv"], torque: Float[Array, " nv"], dt: float
) -> Float[Array, " nv"]:
    """Velocities after a step by the midpoint rule, the joints' damping D taken at the middle: stable for any damping.

    (M(q) + h D) a = f(q, qd),  (M(q_h) + h D) a_h = f(q_h, qd + h a),  qd' = qd + dt a_h,    h = dt / 2
    """
    t = model.topology
    h, v, at = dt / 2, qd, q
    damping = h * model.joints.damping[t.dof_joint]
    a = jnp.zeros_like(qd)
    for _ in range(2):
        a = aba(model, forward_kinematics(model, at), v, torque + passive_force(model, at, qd), extra_inertia=damping)
        v = qd + h * a
        at = integrate(model, q, h * (qd + v) / 2)
    return qd + dt * a
