"""The loss of several steps: the network goes on from its own predictions, as in use, and is compared with what happened.

    e_k = [difference(q_k, q*_k) / dt, qd_k - qd*_k] / std(qd),    loss = mean huber(e_k / sqrt(k)), k = 1 ... horizon

Errors of positions count as the velocities that would have made them in one step, and those of step k by 1 / sqrt(k), for they
add up.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor import simd
from flexor.model.model import Model
from flexor.nerd.frames import Ahead, Frames, Scene
from flexor.nerd.network import Transformer


def unrolled_errors(
    network: Transformer,
    frames: Frames,
    model: Model,
    q: Float[Array, "T+1 nq"],
    qd: Float[Array, "T+1 nv"],
    torque: Float[Array, "T n"],
) -> Float[Array, "T 2nv"]:
    """Errors e_k / sqrt(k) along one recording, from its first state and an empty window."""
    q, qd, torque = (z.astype(model.dtype) for z in (q, qd, torque))
    scale = network.norms.x_std[np.flatnonzero([name.startswith("velocity ") for name in frames.labels])]

    @simd.jit
    def see(q: Array, qd: Array, torque: Array) -> tuple[Scene, Ahead, Array]:
        scene = frames.look(model, q, qd, torque)
        ahead = frames.foresee(model, scene)
        return scene, ahead, frames.features(scene, ahead)

    def step(
        carry: tuple[Array, Array, object], row: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array, object], Array]:
        here, speed, cache = carry
        true_q, true_qd, push = row
        scene, ahead, x = see(here, speed, push)
        y, cache = network.step(x.astype(network.embed.dtype), cache)  # type: ignore[arg-type]
        here, speed = frames.decode(model, scene, ahead, y.astype(here.dtype))
        error = jnp.concatenate([frames.difference(true_q, here) / frames.dt / scale, (speed - true_qd) / scale])
        return (here, speed, cache), error

    _, errors = jax.lax.scan(jax.checkpoint(step), (q[0], qd[0], network.begin()), (q[1:], qd[1:], torque))
    return errors / jnp.sqrt(1 + np.arange(len(torque), dtype=np.float32))[:, None]
