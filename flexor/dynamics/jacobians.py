"""Jacobians of points and frames: velocity in the world = J qd."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.kinematics import Kinematics
from flexor.model.model import Model
from flexor.spatial import cross


def point_jacobian(
    model: Model, kin: Kinematics, bodies: np.ndarray | int, points: Float[Array, "... 3"]
) -> Float[Array, "... 3 nv"]:
    """Jacobian of the velocity of world points fixed to the given bodies (one index, or one for each point)."""
    last = model.topology.nodes.of_body[np.asarray(bodies)]
    moves = model.topology.dofs.moves[last]
    arm = points[..., None, :] - kin.origin[model.topology.dofs.node]
    columns = kin.S[:, 3:] + cross(jnp.broadcast_to(kin.S[:, :3], arm.shape), arm)
    return jnp.swapaxes(jnp.where(moves[..., None], columns, 0.0), -1, -2)


def frame_jacobian(model: Model, kin: Kinematics, bodies: np.ndarray | int) -> Float[Array, "... 6 nv"]:
    """Jacobian of the angular velocity and of the velocity of the frame's origin, world axes, of one body or several."""
    last = model.topology.nodes.of_body[np.asarray(bodies)]
    moves = model.topology.dofs.moves[last]
    angular = jnp.swapaxes(jnp.where(moves[..., None], kin.S[:, :3], 0.0), -1, -2)
    return jnp.concatenate([angular, point_jacobian(model, kin, bodies, kin.pos[last])], axis=-2)
