"""SHAC: derivatives of a stretch against finite differences, where they end, the same weights after a stop and by any threads."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.envs import advance, batched
from flexor.learn import SHAC, Loop, Training, recipe, train
from flexor.learn.shac import returned, sloped
from tests.envs.test_tasks import Balance
from tests.learn.test_loop import actor_of, balance
from tests.learn.test_training import same_weights

SMALL = SHAC(sizes=(8,), activation="tanh", epochs=2, minibatches=2)
SHORT = Training(robots=16, steps=6, iterations=4, every=1)
FREE = dataclasses.replace(SMALL, steepest=1e12)

HOPPER = """
<mujoco model="hopper">
  <worldbody>
    <geom name="ground" type="plane" size="1 1 1"/>
    <body name="ball" pos="0 0 0.1">
      <joint name="up" type="slide" axis="0 0 1"/>
      <joint name="along" type="slide" axis="1 0 0"/>
      <geom type="sphere" size="0.1" mass="1"/>
    </body>
  </worldbody>
  <actuator>
    <motor joint="up" ctrlrange="-5 5" ctrllimited="true"/>
    <motor joint="along" ctrlrange="-5 5" ctrllimited="true"/>
  </actuator>
</mujoco>
"""


class Push(Balance):
    """A ball on the ground, pressed down and pushed along: it slides."""

    def reset(self, key):
        speed = jax.random.uniform(key, (2,), minval=0.5, maxval=1.0)
        return self.sim.reset(jnp.zeros(2), speed * jnp.array([0.0, 1.0])), None

    def reward(self, step):
        return {"speed": -((step.after.qd[1] - 0.7) ** 2), "effort": -0.01 * jnp.sum(step.action**2)}

    def ended(self, state, goal):
        return state.q[0] > 1.0


def push():
    sim = fx.Simulator(fx.load(HOPPER), fx.solver("ncp", substeps=2), dt=0.02)
    return Push(sim=sim, action=fx.envs.Torque(), length=12)


def stretch_of(task, options, steps, robots=5):
    """A task, what learns it, and robots in the middle of episodes."""
    learner = options.first(task, jax.random.key(3))
    actor = actor_of(task, jax.random.key(1))
    loop = Loop(task, steps=7)
    episodes = loop(actor, loop.start(jax.random.key(2), robots))[0]
    many = batched(lambda t, shared, e: sloped(t, options, *shared, e, steps), task)
    return actor, learner.critic, episodes, many((actor, learner.critic), episodes)


def differences(task, options, actor, critic, episodes, steps, eps=1e-5):
    """dJ/da by central differences, an action of a step at a time."""
    n = steps * task.actions
    nudges = eps * np.concatenate([np.eye(n), -np.eye(n)]).reshape(2 * n, steps, task.actions)

    def many(task, shared, episode):
        return jax.lax.map(lambda d: returned(task, options, *shared, episode, d, jnp.zeros(steps))[0], jnp.asarray(nudges))

    up, down = np.split(np.asarray(batched(many, task)((actor, critic), episodes)), 2, axis=1)
    return ((up - down) / (2 * eps)).reshape(-1, steps, task.actions)


@pytest.mark.parametrize("make", [balance, push], ids=["in the air", "sliding"])
def test_slopes_are_those_of_finite_differences(make):
    task, steps = make(), 6
    actor, critic, episodes, (_, lived, slopes, lengths) = stretch_of(task, FREE, steps)
    assert int(lived.truncated.sum()) > 0  # the return goes over the end of an episode
    wanted = differences(task, FREE, actor, critic, episodes, steps)
    # central differences: eps^2 times third derivatives, and rounding over eps, of numbers of order one
    np.testing.assert_allclose(slopes, wanted, rtol=0, atol=1e-7)
    assert np.abs(wanted).max() > 1e-2
    assert np.isfinite(lengths).all()


@pytest.fixture(scope="module")
def shortest():
    """A stretch whose horizons all end after a step."""
    task, options = balance(), dataclasses.replace(SMALL, steepest=0.0)
    return task, options, *stretch_of(task, options, 6)


def test_a_horizon_of_one_step_ends_in_the_critic(shortest):
    """With `steepest` below all derivatives, each action counts by its own reward and the critic at the next observation."""
    task, options, actor, critic, episodes, (_, lived, slopes, lengths) = shortest

    def one(episode, key, action):
        new, t = advance(task, eqx.tree_at(lambda e: e.key, episode, key), action)
        value = critic(actor.norm(t.observation))[0]
        return t.reward + options.discount * jnp.where(t.ended, 0, value), new

    step = jax.jit(jax.vmap(jax.grad(one, argnums=2, has_aux=True)))
    weight = np.ones(len(episodes.steps))
    for k in range(6):
        slope, episodes = step(episodes, jax.vmap(jax.random.split)(episodes.key)[:, 0], lived.actions[:, k])
        np.testing.assert_allclose(slopes[:, k], weight[:, None] * slope, rtol=0, atol=1e-12)
        weight = np.where(lived.ended[:, k] | lived.truncated[:, k], 1.0, options.discount * weight)
    assert (lengths[:, 1:] > 0).all()


def test_a_stretch_is_that_of_the_loop(shortest):
    task, _, actor, _, episodes, (after, lived, _, _) = shortest
    other, wanted = Loop(task, steps=6)(actor, episodes)
    for a, b in zip(jax.tree.leaves((lived, after.state.q)), jax.tree.leaves((wanted, other.state.q)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)  # two kernels round in different orders


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return train(balance(), algorithm=SMALL, options=SHORT, out=folder), folder


def test_a_run_that_was_stopped_ends_with_the_same_weights(trained, tmp_path):
    train(balance(), algorithm=SMALL, options=dataclasses.replace(SHORT, iterations=2), out=tmp_path)
    same_weights(train(balance(), algorithm=SMALL, options=SHORT, out=tmp_path), trained[0])
    assert trained[0].card["algorithm"]["name"] == "SHAC"


def test_one_thread_learns_the_same_policy(trained):
    same_weights(train(balance(), algorithm=SMALL, options=SHORT, threads=1), trained[0])


def test_a_small_task_is_learned():
    rows = []
    options = Training(robots=32, steps=8, iterations=60)
    algorithm = SHAC(sizes=(16,), activation="tanh", minibatches=2)
    train(push(), algorithm=algorithm, options=options, progress=lambda done, total, row: rows.append(row))
    speeds = [row["reward/speed"] for row in rows]
    assert np.mean(speeds[-10:]) > 0.5 * np.mean(speeds[:10])  # penalties: half of what they were at the start
    assert rows[-1]["dropped"] == 0


def test_robots_that_diverge_are_set_back_counted_and_teach_nothing():
    class Exploding(Balance):
        """Goes to infinity where it is pushed to the right."""

        def disturbed(self, state, goal):
            far = jnp.where(state.qd[0] > 0.15, jnp.inf, 0.0)
            return eqx.tree_at(lambda s: s.qd, state, state.qd + far)

    rows = []
    policy = train(balance(Exploding), algorithm=SMALL, options=SHORT, progress=lambda done, total, row: rows.append(row))
    assert sum(row["diverged"] for row in rows) > 0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(policy.actor))


def test_physics_without_derivatives_is_refused():
    with pytest.raises(ValueError, match=r"Mujoco.* has no derivatives, and SHAC learns by them"):
        train(balance().on("mujoco"), algorithm=SMALL, options=SHORT)


def test_minibatches_divide_the_robots():
    with pytest.raises(ValueError, match="16 robots do not divide into 3 minibatches"):
        train(balance(), algorithm=dataclasses.replace(SMALL, minibatches=3), options=SHORT)


def test_it_has_recipes_of_its_own():
    assert recipe(fx.envs.make("cartpole"), SHAC).algorithm.sizes == (64, 64)
    assert isinstance(recipe(balance(), SHAC).algorithm, SHAC)
