"""Gradients against differences, leaf by leaf, and accelerations of one step: what tests of rows share."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx


def assert_slopes(f: Callable[[Any], jax.Array], at: Any, *, step: float = 1e-5, atol: float = 1e-6) -> None:
    """The gradient of f along a random direction of each leaf, of the leaf's size, is the central difference's, and not zero."""
    rng = np.random.default_rng(1)
    value, gradient = jax.jit(f), jax.tree.leaves(jax.jit(jax.grad(f))(at))
    leaves, tree = jax.tree.flatten(at)
    for k, x in enumerate(leaves):
        way = jnp.asarray(rng.normal(size=x.shape)) * jnp.maximum(jnp.max(jnp.abs(x)), 1e-3)
        ends = [value(jax.tree.unflatten(tree, [*leaves[:k], x + s * step * way, *leaves[k + 1 :]])) for s in (1, -1)]
        exact = float(jnp.vdot(gradient[k], way))
        assert exact == pytest.approx(float(ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=atol), k
        assert exact != 0, k


def step_accelerations(model: fx.Model, dt: float = 1e-3) -> Callable[..., np.ndarray]:
    """(u - qd) / dt of a step without contact, of coordinates, velocities and generalised forces."""
    sim = fx.Simulator(model, fx.RigidSolver(contact=None), dt=dt, simd=False)
    step = jax.jit(lambda q, qd, tau: sim.step(sim.reset(q, qd), fx.Control(tau=tau)).qd)
    return lambda q, qd, tau: (np.asarray(step(*map(jnp.asarray, (q, qd, tau)))) - qd) / dt


def assert_returns(model: fx.Model, path: Any) -> None:
    """The model is exactly the same after it was saved."""
    fx.save(model, path)
    again = fx.load(path)
    assert again.topology == model.topology
    jax.tree.map(np.testing.assert_array_equal, again, model)
