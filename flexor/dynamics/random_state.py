"""`random_state`: a random configuration and velocity."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from flexor.dynamics.integrate import coordinate_rows
from flexor.model.model import Model, State


def random_state(
    model: Model, key: PRNGKeyArray, *, velocity: ArrayLike = 1.0, distance: ArrayLike = 1.0, angle: ArrayLike = np.pi
) -> State:
    """A state at time zero with random coordinates and velocities, without a solver's memory: `sim.reset(state.q, state.qd)`.

    Hinges and slides are uniform within their limits. Without limits, hinges are uniform within +- `angle` of the reference
    configuration (rad), slides and free bodies within +- `distance` of it (m). Orientations of ball and free joints are uniform
    over all rotations. Velocities are normal with the standard deviation `velocity` (rad/s and m/s): a number, or one for each
    degree of freedom. Bodies may overlap: contact is not checked.
    """
    for_place, for_turn, for_speed = jax.random.split(key, 3)
    scalars, quats, _, _ = coordinate_rows(model)
    q = jnp.zeros(model.nq, model.dtype)
    low, high = _bounds(model, scalars, jnp.asarray(distance, model.dtype), jnp.asarray(angle, model.dtype))
    share = jax.random.uniform(for_place, (len(scalars),), model.dtype)
    q = q.at[scalars].set(jnp.clip(low + share * (high - low), low, high))
    if len(quats):
        direction = jax.random.normal(for_turn, quats.shape, model.dtype)
        q = q.at[quats].set(direction / jnp.linalg.norm(direction, axis=-1, keepdims=True))
    qd = jnp.asarray(velocity, model.dtype) * jax.random.normal(for_speed, (model.nv,), model.dtype)
    return State(q, qd, jnp.zeros((), model.dtype))


def _bounds(model: Model, rows: np.ndarray, distance: Array, angle: Array) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Lowest and highest values of the coordinates that are angles or lengths."""
    t = model.topology
    joint = np.searchsorted(t.q_start, rows, side="right") - 1
    turning = np.array([t.joints[j].kind == "hinge" for j in joint], bool)
    limited = np.array([t.joints[j].limited for j in joint], bool)
    reach = jnp.where(turning, angle, distance)
    middle = model.reference[rows]
    low, high = (
        jnp.where(limited, model.joints.range[joint, side], middle + sign * reach) for side, sign in ((0, -1), (1, 1))
    )
    return low, high
