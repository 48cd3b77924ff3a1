"""`discover` on a pendulum with damping that its model does not know."""

import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.augment.networks import MLP


@pytest.fixture(scope="module")
def sim():
    model = fx.load("pendulum").astype(jnp.float64)
    return fx.Simulator(model, fx.RigidSolver(contact=None), dt=0.02, simd=False)


def recorded(sim, damping):
    true = fx.Simulator(fx.replace(sim.model, {"joint.*.damping": damping}), sim.solver, dt=sim.dt, simd=False)
    return [true.rollout(true.reset([angle], [speed]), steps=60) for angle, speed in ((0.4, 2.0), (2.0, -1.0), (-1.2, 0.5))]


def test_what_is_missing_is_a_force_that_depends_on_the_velocity(sim):
    how = {"net": MLP(width=4, depth=1), "strengths": (1.0, 0.1), "steps": 300, "rate": 3e-2}
    found = fx.discover(sim, recorded(sim, 0.4), **how)
    assert found.best.error < 0.2
    (kept,) = found.best.inputs.values()
    assert [name.startswith("joint.qd") for name in kept] == [True]
    (weights,) = found.best.after.values()
    dead = [w for name, w in weights.items() if not name.startswith("joint.qd")]
    assert len(dead) == 1
    assert np.all(dead[0] == 0)


def test_a_simulator_that_is_right_has_nothing_to_discover(sim):
    logs = [sim.rollout(sim.reset([0.4], [2.0]), steps=20), sim.rollout(sim.reset([1.4], [0.0]), steps=20)]
    with pytest.raises(ValueError, match="there is nothing to discover"):
        fx.discover(sim, logs)
