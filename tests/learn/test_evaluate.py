"""What policies are worth: the returns of `evaluate` are those of episodes played one by one, under any physics."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.envs import advance, start
from flexor.learn import evaluate, play, summary
from flexor.learn.policy import policy_of
from tests.envs.test_tasks import Balance
from tests.learn.test_loop import actor_of, balance


@pytest.fixture(scope="module")
def judged():
    task = balance()
    policy = policy_of(actor_of(task, jax.random.key(4)), task)
    return task, policy, evaluate(policy, task, seeds=[0, 5], episodes=9)


def test_returns_are_those_of_first_episodes(judged):
    task, policy, found = judged
    step = jax.jit(jax.vmap(lambda e, a: advance(task, e, a)))
    episodes = jax.vmap(lambda k: start(task, k))(jax.random.split(jax.random.key(5), 9))
    total, length, over = np.zeros(9), np.zeros(9), np.zeros(9, bool)
    for _ in range(task.length):
        episodes, t = step(episodes, jax.vmap(policy.actor)(episodes.observation))
        total += np.where(over, 0, t.reward)
        length += ~over
        over |= np.asarray(t.ended | t.truncated)
    assert found[1].seed == 5
    np.testing.assert_allclose(found[1].returns, total, rtol=0, atol=1e-11)  # sums of 12 rewards in kernels and in XLA
    np.testing.assert_array_equal(found[1].lengths, length)
    np.testing.assert_allclose(sum(found[1].terms.values()), total, rtol=0, atol=1e-11)
    assert found[0].mean != found[1].mean


def test_an_episode_to_watch_is_the_one_that_is_judged(judged):
    task, policy, _ = judged
    motion, terms = play(policy, task, seed=3)
    alone = jax.random.key(3)
    episode = start(task, alone)
    np.testing.assert_array_equal(motion.q[0], episode.state.q)
    step = jax.jit(lambda e: advance(task, e, policy.actor(e.observation)))
    for k in range(len(motion)):
        episode, t = step(episode)
        np.testing.assert_allclose(motion.q[k + 1], t.observation[:2], rtol=0, atol=1e-12)
        np.testing.assert_allclose(sum(x[k] for x in terms.values()), t.reward, rtol=0, atol=1e-12)
        assert bool(t.over) == (k == len(motion) - 1)


def test_a_table_has_a_row_for_each_policy_and_physics(judged):
    task, policy, found = judged
    rows = summary(found)
    assert [(r["policy"], r["physics"], r["episodes"]) for r in rows] == [("policy", "own", 18)]
    assert rows[0]["between seeds"] == pytest.approx(abs(found[0].mean - found[1].mean) / 2)
    other = evaluate({"a": policy}, task, solvers=[{"name": "none", "substeps": 2}, "ncp"], episodes=3)
    assert [e.physics for e in other] == ["none substeps=2", "ncp"]
    assert other[0].row()["episodes"] == 3


def test_what_is_refused(judged):
    task, policy, _ = judged
    with pytest.raises(ValueError, match="was trained for 'Balance'"):
        evaluate(policy, fx.envs.make("cartpole"))
    with pytest.raises(ValueError, match="two of the solvers are called 'ncp'"):
        evaluate(policy, task, solvers=["ncp", "ncp"])
    with pytest.raises(ValueError, match="`episodes` must be positive, got 0"):
        evaluate(policy, task, episodes=0)


def test_a_reward_that_is_no_number_is_named():
    class Broken(Balance):
        """Divides by zero."""

        def reward(self, step):
            return {"upright": jnp.cos(step.after.q[1]), "share": 0.0 / (step.action[0] * 0.0)}

    task = balance(Broken, simd=False)
    policy = policy_of(actor_of(task, jax.random.key(1)), task)
    with pytest.raises(FloatingPointError, match="the term 'share' of the reward of Broken is not finite for 2 of 2 robots"):
        evaluate(policy, task, episodes=2)


def test_pieces_have_the_bits_of_the_whole_and_are_kept(judged, monkeypatch, tmp_path):
    from flexor.cluster import AbstractExecutor, Local
    from flexor.learn import evaluate as module

    class Counted(AbstractExecutor):
        done = 0

        def stream(self, work, tasks):
            for arrays in Local().stream(work, tasks):
                self.done += 1
                yield arrays

    task, policy, found = judged
    monkeypatch.setattr(sys.modules[module.__module__], "PIECE", 4)
    who = Counted()
    again = evaluate(policy, task, seeds=[0, 5], episodes=9, executor=who, keep=tmp_path)
    assert who.done == 6
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(a.returns, b.returns)
        np.testing.assert_array_equal(a.lengths, b.lengths)
    (tmp_path / "1-4.safetensors").unlink()
    seen = []
    third = evaluate(policy, task, seeds=[0, 5], episodes=9, executor=who, keep=tmp_path, progress=lambda *x: seen.append(x))
    assert who.done == 7
    assert seen == [(1, 2), (2, 2)]
    np.testing.assert_array_equal(third[1].returns, found[1].returns)
    with pytest.raises(ValueError, match="is a result of other work"):
        evaluate(policy, task, seeds=[0, 6], episodes=9, keep=tmp_path)
