"""Legged robots as tasks see them: servos about the pose in which they stand, and where they look."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.control.legs import Legs, on_its_feet, standing
from flexor.envs.action import Target
from flexor.model.model import Model, State

__all__ = ["Legs", "heading", "on_its_feet", "servos", "standing", "turned"]


def servos(
    model: Model, stand: Float[Array, " nq"], *, scale: float, stiffness: float | None = None, damping: float
) -> Target:
    """Position servos about a standing pose. Without a `stiffness` they give their whole torque at an error of one radian, what
    the gains of small and large legged robots have in common; `damping` is then a time in s, the damping over the stiffness."""
    t, act = model.topology, model.actuators
    rest = jnp.stack([stand[t.q_start[a.joint]] for a in t.actuators])
    if stiffness is not None:
        return Target(kp=stiffness, kd=damping, scale=scale, rest=rest)
    kp = jnp.minimum(act.force_range[:, 1], act.gain * act.ctrl_range[:, 1])
    return Target(kp=kp, kd=damping * kp, scale=scale, rest=rest)


def turned(direction: Float[Array, "2"], x: Float[Array, "3"]) -> Float[Array, "3"]:
    """A vector in axes whose x axis points along a direction (cos, sin) of the level ground."""
    c, s = direction
    return jnp.stack([c * x[0] + s * x[1], c * x[1] - s * x[0], x[2]])


def heading(state: State) -> Float[Array, "2"]:
    """Where the x axis of a robot points, seen from above: (cos, sin)."""
    w, x, y, z = state.q[3:7]
    forward = jnp.stack([1 - 2 * (y * y + z * z), 2 * (x * y + w * z)])
    return forward / jnp.sqrt(jnp.sum(forward**2) + 1e-12)
