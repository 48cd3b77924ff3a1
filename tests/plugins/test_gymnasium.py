"""Gymnasium's environments as they are registered, under flexor's physics."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import flexor as fx
from flexor.plugins.gymnasium import Exchanged


def falling(env, steps):
    """Observations along a few random actions, from a seeded start."""
    observation, _ = env.reset(seed=3)
    env.action_space.seed(3)
    return np.array([observation, *(env.step(env.action_space.sample())[0] for _ in range(steps))])


def test_the_pendulum_moves_as_in_mujoco():
    """Before the pole reaches its limit flexor's split RK4 is MuJoCo's RK4, to rounding."""
    plain, ours = (gymnasium.make("InvertedPendulum-v5") for _ in range(2))
    exchanged = Exchanged(ours, {"name": "ncp", "integrator": "split-rk4"})
    np.testing.assert_allclose(falling(exchanged, 10), falling(plain, 10), atol=1e-9)


@pytest.mark.parametrize("name", ["InvertedPendulum-v5", "Ant-v5"])
def test_gymnasium_checks_pass(name):
    env = Exchanged(gymnasium.make(name), "ncp")
    check_env(env.unwrapped, skip_render_check=True)
    states = falling(env, 5)
    assert np.isfinite(states).all()
    np.testing.assert_array_equal(states, falling(env, 5))  # the same seed, the same bits


def test_environments_of_other_simulators_are_refused():
    with pytest.raises(TypeError, match="CartPoleEnv is not an environment of MuJoCo's"):
        Exchanged(gymnasium.make("CartPole-v1"))


def test_whole_steps_are_for_solvers_of_that_time():
    env = gymnasium.make("InvertedPendulum-v5")
    exchanged = Exchanged(env, {"name": "ncp", "substeps": 2}, whole=True)
    assert float(exchanged.physics.guest.sim.dt) == pytest.approx(0.04)
    other = Exchanged(gymnasium.make("InvertedPendulum-v5"), fx.solver("ncp"))
    np.testing.assert_allclose(falling(exchanged, 5), falling(other, 5), atol=1e-12)
