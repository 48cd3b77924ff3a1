"""Tasks as Gymnasium environments: Gymnasium's own checks, seeds, resets within a step, images, and sentences."""

import subprocess
import sys

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import flexor as fx
import flexor.gym
from flexor.viz.video import GraphicsError

IDENTIFIER = "flexor/Cartpole-v0"


@pytest.fixture(scope="module")
def cart():
    return gymnasium.make(IDENTIFIER, length=5)


@pytest.fixture(scope="module")
def carts():
    return gymnasium.make_vec(IDENTIFIER, num_envs=8, length=5)


def pushes(steps, robots=8):
    return np.random.default_rng(0).uniform(-1, 1, (steps, robots, 1)).astype(float)


@pytest.mark.filterwarnings("ignore:.*Box observation space m.*value is.*infinity")
def test_the_environment_passes_gymnasiums_checks(cart):
    check_env(cart.unwrapped, skip_render_check=True)


def test_every_task_is_registered():
    made = {flexor.gym.identifier(name) for name in fx.envs.TASKS}
    assert "flexor/AntRun-v0" in made
    assert made <= set(gymnasium.registry)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", fx.envs.TASKS)
def test_every_environment_passes_gymnasiums_checks(name):
    """On MuJoCo's physics, for which nothing is compiled; without contact, where MuJoCo refuses the inertias of a description."""
    try:
        env = flexor.gym.TaskEnv(name, solver="mujoco", length=3)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    except ValueError as refused:
        assert "MuJoCo refuses" in str(refused)  # noqa: PT017 (the other way is to go on)
        assert "inertia must" in str(refused)  # noqa: PT017
        env = flexor.gym.TaskEnv(name, solver="none", length=3)
    check_env(env, skip_render_check=True)
    assert gymnasium.spec(flexor.gym.identifier(name)).kwargs == {"task": name}


def test_gymnasium_imported_first_knows_the_tasks():
    code = "import gymnasium, flexor; print('flexor/AntRun-v0' in gymnasium.registry)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_a_step_is_a_step_of_the_task(cart):
    task = cart.unwrapped.task
    seen, _ = cart.reset(seed=3)
    episode = fx.envs.start(task, jax.random.key(3))
    np.testing.assert_allclose(seen, episode.observation, rtol=0, atol=1e-12)
    for action in pushes(3, 1)[:, 0]:
        seen, reward, ended, truncated, info = cart.step(action)
        episode, t = fx.envs.advance(task, episode, action)
        np.testing.assert_allclose(seen, t.observation, rtol=1e-9, atol=1e-9)  # a kernel's roundings, over three steps
        assert (ended, truncated, info["diverged"]) == (False, False, False)
        np.testing.assert_allclose(reward, t.reward, rtol=1e-9)
        np.testing.assert_allclose(sum(info[f"reward_{name}"] for name in t.terms), reward, rtol=1e-9)


def test_robots_of_a_vector_are_single_ones(cart, carts):
    many, _ = carts.reset(seed=11)
    for i in (0, 7):
        one, _ = cart.reset(seed=11 + i)
        np.testing.assert_array_equal(one, many[i])
    u = pushes(4)
    rewards = [carts.step(a)[1] for a in u]
    cart.reset(seed=11 + 2)
    for a, expected in zip(u, rewards, strict=True):
        np.testing.assert_array_equal(cart.step(a[2])[1], expected[2])


def test_episodes_begin_again_in_the_step_in_which_they_are_over(carts):
    assert carts.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    carts.reset(seed=0)
    for i, action in enumerate(pushes(5)):
        seen, _, ended, truncated, infos = carts.step(action)
        over = ended | truncated
        assert over.all() == (i == 4)
        assert ("final_obs" in infos) == over.any()
    assert truncated.all()
    for now, last in zip(seen, infos["final_obs"], strict=True):
        assert not np.allclose(now, last)
        assert abs(abs(now[1]) - np.pi) < 0.2  # hanging again
    assert infos["_final_obs"].all()
    assert infos["final_info"]["_diverged"].all()
    assert not infos["_diverged"].any()


def test_seeds(carts):
    first, _ = carts.reset(seed=5)
    again, _ = carts.reset(seed=5)
    np.testing.assert_array_equal(first, again)
    drawn, _ = carts.reset()
    assert not np.allclose(drawn, first)
    own, _ = carts.reset(seed=[5, None, 7, *[None] * 5])
    np.testing.assert_array_equal(own[[0, 2]], first[[0, 2]])
    assert not np.allclose(own[1], first[1])
    with pytest.raises(ValueError, match="an entry for each of 8 robots, got 2"):
        carts.reset(seed=[1, 2])


def test_other_physics_by_one_argument():
    cart = gymnasium.make(IDENTIFIER, length=5, solver="penalty")
    assert cart.unwrapped.task.sim.solver != gymnasium.make(IDENTIFIER, length=5).unwrapped.task.sim.solver
    cart.reset(seed=1)
    assert np.isfinite(cart.step(np.zeros(1))[0]).all()


def test_images(cart):
    with pytest.raises(ValueError, match="no render mode 'human'; there is 'rgb_array'"):
        flexor.gym.TaskEnv("cartpole", render_mode="human")
    drawn = flexor.gym.TaskEnv("cartpole", render_mode="rgb_array", length=5)
    assert cart.render() is None
    with pytest.raises(gymnasium.error.ResetNeeded, match="call `reset` before `render`"):
        drawn.render()
    drawn.reset(seed=1)
    try:
        before = drawn.render()
    except GraphicsError:
        pytest.skip("no graphics library")
    for _ in range(3):
        drawn.step(np.ones(1))
    after = drawn.render()
    assert before.shape == after.shape == (480, 480, 3)
    assert before.std() > 10
    assert (before != after).any()
    drawn.close()


def test_a_reward_that_is_not_a_number_is_named_by_its_term(cart):
    def reward(self, step):
        return {"angle": step.after.q[1], "root": jax.numpy.sqrt(-1 - step.action[0] ** 2)}

    broken = type("Broken", (fx.envs.CartpoleSwingUp,), {"reward": reward})
    task = cart.unwrapped.task
    envs = flexor.gym.TaskVectorEnv(broken(sim=task.sim, action=task.action, length=5), num_envs=2)
    envs.reset(seed=0)
    with pytest.raises(FloatingPointError, match="the term 'root' of the reward of Broken is not finite for 2 of 2 robots"):
        envs.step(np.zeros((2, 1)))


def test_sentences(carts):
    with pytest.raises(KeyError, match="Did you mean 'ant-run'"):
        flexor.gym.TaskEnv("ant-runs")
    with pytest.raises(TypeError, match="options go with the name of a task"):
        flexor.gym.TaskEnv(fx.envs.make("cartpole"), length=3)
    with pytest.raises(ValueError, match="num_envs` must be positive"):
        flexor.gym.TaskVectorEnv("cartpole", num_envs=0)
    with pytest.raises(gymnasium.error.ResetNeeded, match="before the first `step`"):
        flexor.gym.TaskVectorEnv("cartpole", num_envs=2).step(np.zeros((2, 1)))
    carts.reset(seed=0)
    with pytest.raises(ValueError, match=r"must have shape \(8, 1\), got \(3, 1\)"):
        carts.step(np.zeros((3, 1)))
    with pytest.raises(ValueError, match="not finite"):
        carts.step(np.full((8, 1), np.nan))
