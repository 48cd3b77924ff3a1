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
    batch, nv = points.shape[:-1], model.nv
    moves = np.broadcast_to(model.topology.dofs.moves[last], (*batch, nv))
    S = jnp.broadcast_to(kin.S, (*batch, nv, 6))
    arm = points[..., None, :] - jnp.broadcast_to(kin.origin[model.topology.dofs.node], (*batch, nv, 3))
    columns = S[..., 3:] + cross(S[..., :3], arm)
    return jnp.swapaxes(jnp.where(moves[..., None], columns, 0.0), -1, -2)


def body_jacobian(model: Model, kin: Kinematics, bodies: np.ndarray | int) -> Float[Array, "... 6 nv"]:
    """Jacobian of the angular velocity and of the velocity of the frame's origin, world axes, of one body or several."""
    last = model.topology.nodes.of_body[np.asarray(bodies)]
    moves = model.topology.dofs.moves[last]
    angular = jnp.broadcast_to(kin.S[:, :3], (*moves.shape, 3))
    angular = jnp.swapaxes(jnp.where(moves[..., None], angular, 0.0), -1, -2)
    return jnp.concatenate([angular, point_jacobian(model, kin, bodies, kin.pos[last])], axis=-2)
