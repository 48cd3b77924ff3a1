"""Several steps: the network goes on from its own predictions, as in use, and is compared with what happened.

    e_k = [difference(q_k, q*_k) / dt, qd_k - qd*_k] / std(qd),    loss = mean huber(e_k / sqrt(k)), k = 1 ... horizon

Errors of positions count as the velocities that would have made them in one step, and those of step k by 1 / sqrt(k), for they
add up. `path_errors` are those of positions alone, for recordings whose velocities are smeared by impacts.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor import simd
from flexor.model.model import Model
from flexor.nerd.frames import Frames, dof_kinds
from flexor.nerd.network import AbstractNetwork
from flexor.nerd.scene import Ahead, Scene


def unrolled_errors(
    network: AbstractNetwork,
    frames: Frames,
    model: Model,
    q: Float[Array, "instants nq"],
    qd: Float[Array, "instants nv"],
    torque: Float[Array, "T n"],
) -> Float[Array, "T columns"]:
    """Errors e_k / sqrt(k) along one recording, from its first state and an empty window."""
    q, qd, torque = (z.astype(model.dtype) for z in (q, qd, torque))
    velocities = np.flatnonzero([name.startswith("velocity ") for name in frames.labels])
    scale = network.norms.x_std[velocities].astype(model.dtype)[None]
    here, speed = _unrolled(network, frames, model, q[0], qd[0], torque, np.inf)
    errors = jnp.concatenate(
        [jax.vmap(frames.difference)(q[1:], here) / frames.dt / scale, (speed - qd[1:]) / scale], axis=1
    )
    return errors / np.sqrt(1 + np.arange(len(torque), dtype=np.float32)).astype(errors.dtype)[:, None]


def path_errors(
    network: AbstractNetwork,
    frames: Frames,
    model: Model,
    q: Float[Array, "instants nq"],
    qd: Float[Array, "instants nv"],
    torque: Float[Array, "T n"],
    limit: float = np.inf,
) -> Float[Array, "T kinds"]:
    """How far positions are off along one recording: for each kind of coordinate that the robot has (`dof_kinds`) the norm.

    Gradients by the state are cut to norm `limit` at every step back, for impacts make some of them explode.
    """
    q, qd, torque = (z.astype(model.dtype) for z in (q, qd, torque))
    here, _ = _unrolled(network, frames, model, q[0], qd[0], torque, limit)
    delta, kinds = jax.vmap(frames.difference)(q[1:], here), dof_kinds(frames.topology)
    return jnp.stack([jnp.sqrt(jnp.sum(delta[:, kinds == k] ** 2, axis=1) + 1e-8) for k in np.unique(kinds)], axis=1)


def _unrolled(
    network: AbstractNetwork, frames: Frames, model: Model, q: Array, qd: Array, torque: Array, limit: float
) -> tuple[Float[Array, "T nq"], Float[Array, "T nv"]]:
    """States after every step from (q, qd)."""

    @simd.jit
    def observe(q: Array, qd: Array, torque: Array) -> tuple[Scene, Ahead, Array]:
        scene = frames.look(model, q, qd, torque)
        ahead = frames.foresee(model, scene)
        return scene, ahead, frames.features(scene, ahead)

    def step(carry: tuple[Array, Array, object], push: Array) -> tuple[tuple[Array, Array, object], tuple[Array, Array]]:
        here, speed, cache = carry
        here, speed = _cut((here, speed), limit) if np.isfinite(limit) else (here, speed)
        scene, ahead, x = observe(here, speed, push)
        y, cache = network.step(x.astype(network.dtype), cache)  # type: ignore[arg-type]
        here, speed = frames.decode(model, scene, ahead, y.astype(here.dtype))
        return (here, speed, cache), (here, speed)

    return jax.lax.scan(jax.checkpoint(step), (q, qd, network.begin()), torque)[1]


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _cut(state: tuple[Array, Array], limit: float) -> tuple[Array, Array]:
    """The state itself, whose gradient is cut to norm `limit`, and to zero where it is not finite."""
    return state


def _cut_back(limit: float, _: None, gradient: tuple[Array, Array]) -> tuple[tuple[Array, Array]]:
    size = jnp.sqrt(sum(jnp.sum(g**2) for g in gradient))
    scale = jnp.minimum(1.0, limit / jnp.maximum(size, 1e-30))
    return (tuple(jnp.where(jnp.isfinite(g * scale), g * scale, 0.0) for g in gradient),)  # type: ignore[return-value]


_cut.defvjp(lambda state, limit: (state, None), _cut_back)
