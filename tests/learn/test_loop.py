"""The loop in the kernel: the same as steps one by one, the same bits for any number of threads; rewards that are nan."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.envs import advance
from flexor.learn import Actor, Loop, Norm, Perceptron
from flexor.learn.loop import check_terms
from tests.envs.test_tasks import Balance


def balance(kind=Balance, simd=True):
    sim = fx.Simulator(fx.load("cartpole"), fx.solver("none"), dt=0.02, simd=simd)
    return kind(sim=sim, action=fx.envs.Torque(), length=12)


def actor_of(task, key):
    net = Perceptron.build([task.observations, 8, task.actions], key, activation="tanh", last=0.5, dtype=jnp.float64)
    return Actor(Norm.fresh(task.observations, jnp.float64), net, jnp.full(task.actions, -0.5))


@pytest.fixture(scope="module")
def lived():
    task = balance()
    loop, actor = Loop(task, steps=12), actor_of(task, jax.random.key(1))
    episodes = loop.start(jax.random.key(2), 40)
    return task, actor, episodes, *loop(actor, episodes)


def test_a_stretch_is_its_steps_one_by_one(lived):
    task, actor, episodes, after, x = lived
    assert int(x.tally.episodes.sum()) > 0
    step = jax.jit(jax.vmap(lambda e, a: advance(task, e, a)))
    for k in range(12):
        np.testing.assert_allclose(x.observations[:, k], episodes.observation, rtol=0, atol=1e-12)
        mean = jax.vmap(actor)(episodes.observation)
        np.testing.assert_allclose(x.actions[:, k], mean + np.exp(-0.5) * x.noise[:, k], rtol=0, atol=1e-12)
        drawn = jax.vmap(jax.random.split)(episodes.key)
        episodes, t = step(eqx.tree_at(lambda e: e.key, episodes, drawn[:, 0]), x.actions[:, k])
        np.testing.assert_allclose(x.rewards[:, k], t.reward, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(x.ended[:, k], t.ended)
        np.testing.assert_array_equal(x.truncated[:, k], t.truncated)
        cut = np.asarray(t.truncated)
        np.testing.assert_allclose(x.cut[cut], t.observation[cut], rtol=0, atol=1e-12)
    np.testing.assert_allclose(x.last, episodes.observation, rtol=0, atol=1e-12)
    np.testing.assert_allclose(after.state.q, episodes.state.q, rtol=0, atol=1e-12)


def test_any_number_of_threads_gives_the_same_bits(lived):
    task, actor, episodes, _, x = lived
    one = Loop(task, steps=12, threads=1)(actor, episodes)[1]
    for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(one), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_reward_that_is_no_number_is_named():
    class Broken(Balance):
        """Divides by zero."""

        def reward(self, step):
            return {"upright": jnp.cos(step.after.q[1]), "share": 0.0 / (step.action[0] * 0.0)}

    task = balance(Broken, simd=False)
    loop = Loop(task, steps=2)
    tally = loop(actor_of(task, jax.random.key(1)), loop.start(jax.random.key(0), 3))[1].tally
    with pytest.raises(FloatingPointError, match="the term 'share' of the reward of Broken is not finite for 3 of 3 robots"):
        check_terms(task, tally)


def test_a_stretch_is_no_longer_than_an_episode():
    with pytest.raises(ValueError, match="between 1 and 12 steps, got 13"):
        Loop(balance(), steps=13)
