"""Random problems of the convex MPC, as a robot of a Laikago's size meets them when it walks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flexor.control import ForceProblem

HORIZON = 10


def problems(kind: str, count: int, dtype: Any, seed: int = 0) -> ForceProblem:
    """`count` problems in a batch: all feet on the ground, or a trot that changes feet within the horizon."""
    rng = np.random.default_rng(seed)
    made = [_problem(rng, kind) for _ in range(count)]
    return jax.tree.map(lambda *x: jnp.asarray(np.stack(x), dtype), *made)


def _problem(rng: np.random.Generator, kind: str) -> ForceProblem:
    normal = rng.normal
    mass = 22.0 * rng.uniform(0.7, 1.4)
    height = 0.42 + 0.03 * normal()
    start = [*0.1 * normal(size=2), 0, 0, 0, height, *0.4 * normal(size=3), *0.3 * normal(size=3)]
    speed, turn = rng.uniform(-1, 1, 2) * [0.6, 0.2], rng.uniform(-0.8, 0.8)
    t, one = 0.025 * np.arange(1, HORIZON + 1), np.ones(HORIZON)
    zero = 0 * one
    target = [
        zero,
        zero,
        turn * t,
        speed[0] * t,
        speed[1] * t,
        0.42 * one,
        zero,
        zero,
        turn * one,
        *speed[:, None] * one,
        zero,
    ]
    hips = np.array([[0.2, -0.13], [0.2, 0.13], [-0.2, -0.13], [-0.2, 0.13]])
    arms = np.concatenate([hips + 0.05 * normal(size=(4, 2)), np.full((4, 1), -height)], axis=1)
    contact, phase = np.ones((HORIZON, 4)), rng.integers(12)
    if kind == "trot":
        contact = np.array([[1.0, 0, 0, 1] if (k + phase) // 6 % 2 else [0, 1, 1, 0] for k in range(HORIZON)])
    weights = [5, 5, 0.2, 0, 0, 10, 0, 0, 1, 1, 1, 0]
    return ForceProblem(np.array(start), np.array(target).T, np.broadcast_to(arms, (HORIZON, 4, 3)), contact, mass,
                        np.diag([0.0734, 0.2507, 0.2545]), 0.45, 0.02 * mass * 9.81, 10 * mass * 9.81, np.array(weights), 1e-5,
                        9.81, 0.025)  # fmt: skip
