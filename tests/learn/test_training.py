"""PPO, its training runs and policies: advantages by their definition, the same weights after a kill and with any threads."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.learn import PPO, Experience, Policy, Training, train, train_seeds
from flexor.learn.ppo import advantages
from tests.envs.test_tasks import Balance
from tests.learn.test_loop import balance

SMALL = PPO(sizes=(8,), activation="tanh", epochs=2, minibatches=2)
SHORT = Training(robots=16, steps=6, iterations=4, every=1)


def test_advantages_are_those_of_the_definition(any_shapes):
    rng = np.random.default_rng(0)
    n, t = 5, 7
    rewards, values, cut, last = rng.normal(size=(n, t)), rng.normal(size=(n, t)), rng.normal(size=n), rng.normal(size=n)
    ended, truncated = np.zeros((n, t), bool), np.zeros((n, t), bool)
    ended[0, 2], truncated[1, 3], ended[2, 6], truncated[3, 6] = True, True, True, True
    x = Experience(None, None, None, *map(jnp.asarray, (rewards, ended, truncated)), None, None, None)
    options = PPO()
    wanted = np.zeros((n, t))
    for i in range(n):
        later = 0.0
        for k in reversed(range(t)):
            following = values[i, k + 1] if k + 1 < t else last[i]
            following = 0.0 if ended[i, k] else cut[i] if truncated[i, k] else following
            delta = rewards[i, k] + options.discount * following - values[i, k]
            over = ended[i, k] or truncated[i, k]
            wanted[i, k] = later = delta + (0.0 if over else options.discount * options.trace * later)
    found = advantages(options, x, *map(jnp.asarray, (values, cut, last)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-14)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return train(balance(), algorithm=SMALL, options=SHORT, out=folder), folder


def same_weights(a, b):
    for x, y in zip(jax.tree.leaves(a.actor), jax.tree.leaves(b.actor), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_run_that_was_stopped_ends_with_the_same_weights(trained, tmp_path):
    class Stop(Exception):
        """In the place of a kill."""

    def stop(done, total, row):
        if done == 2:
            raise Stop

    with pytest.raises(Stop):
        train(balance(), algorithm=SMALL, options=SHORT, out=tmp_path, progress=stop)
    assert (tmp_path / "history.csv").read_text().count("\n") == 3
    same_weights(train(balance(), algorithm=SMALL, options=SHORT, out=tmp_path), trained[0])


def test_one_thread_learns_the_same_policy(trained):
    same_weights(train(balance(), algorithm=SMALL, options=SHORT, threads=1), trained[0])


def test_a_checkpoint_of_another_run_is_refused(trained):
    with pytest.raises(ValueError, match="belongs to another run"):
        train(balance(), algorithm=SMALL, options=dataclasses.replace(SHORT, seed=1), out=trained[1])


def test_training_stops_at_the_wanted_return():
    rows = []
    options = dataclasses.replace(SHORT, wanted=-1e9)
    train(balance(), algorithm=SMALL, options=options, progress=lambda done, total, row: rows.append(row))
    assert rows[-1]["return"] is not None
    assert len(rows) < 4


def test_a_policy_is_kept_and_called_with_numpy(trained, tmp_path):
    policy, _ = trained
    again = Policy.load(policy.save(tmp_path / "balance.safetensors"))
    same_weights(again, policy)
    seen = np.random.default_rng(0).normal(size=4)
    # NumPy and XLA sum products in different orders: some eps
    np.testing.assert_allclose(again(seen), policy.actor(jnp.asarray(seen)), rtol=0, atol=1e-13)
    assert again.card["seed"] == 0
    assert again.card["physics"]["robot"] == "cartpole"
    again.check(balance())
    with pytest.raises(ValueError, match="sees 4 numbers, got 3"):
        again(seen[:3])


def test_a_policy_of_another_task_is_refused(trained):
    with pytest.raises(
        ValueError, match=r"was trained for 'Balance' \(4 observations, 1 actions\), not for 'CartpoleSwingUp'"
    ):
        trained[0].check(fx.envs.make("cartpole"))


def test_what_is_said_about_files_of_policies(trained, tmp_path):
    path = trained[0].save(tmp_path / "a.safetensors")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        Policy.load(tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        Policy.load(tmp_path / "a.json")
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(ValueError, match="is corrupt"):
        Policy.load(path)
    card = tmp_path / "a.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "version": 9}))
    with pytest.raises(ValueError, match="written by a newer flexor"):
        Policy.load(path)


def test_minibatches_divide_the_robots():
    with pytest.raises(ValueError, match="16 robots do not divide into 3 minibatches"):
        train(balance(), algorithm=dataclasses.replace(SMALL, minibatches=3), options=SHORT)


def test_robots_that_diverge_are_set_back_counted_and_do_not_spread():
    class Exploding(Balance):
        """Goes to infinity where it is pushed to the right."""

        def disturbed(self, state, goal):
            far = jnp.where(state.qd[0] > 0.15, jnp.inf, 0.0)
            return eqx.tree_at(lambda s: s.qd, state, state.qd + far)

    rows = []
    policy = train(balance(Exploding), algorithm=SMALL, options=SHORT, progress=lambda done, total, row: rows.append(row))
    assert sum(row["diverged"] for row in rows) > 0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(policy.actor))


def test_pieces_of_a_minibatch_sum_to_its_gradient():
    whole = train(balance(), algorithm=SMALL, options=SHORT)
    parts = train(balance(), algorithm=dataclasses.replace(SMALL, piece=12), options=SHORT)  # two robots of six steps
    for a, b in zip(jax.tree.leaves(whole.actor), jax.tree.leaves(parts.actor), strict=True):
        # sums in another order, and Adam divides by roots of small numbers
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


def test_seeds_learn_what_each_learns_alone(trained, tmp_path):
    policies = train_seeds(balance(), [0], tmp_path, algorithm=SMALL, options=SHORT)
    same_weights(policies[0], trained[0])
    same_weights(Policy.load(tmp_path / "seed0" / "policy.safetensors"), trained[0])
    assert (tmp_path / "seed0" / "history.csv").is_file()
    with pytest.raises(ValueError, match=r"seeds must be different whole numbers, at least one, got \[1, 1\]"):
        train_seeds(balance(), [1, 1], tmp_path)
