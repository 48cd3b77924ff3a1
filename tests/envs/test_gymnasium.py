"""Gymnasium's tasks: along the same actions, without contact, what Gymnasium's own environments observe and reward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.envs import gymnasium as tasks
from flexor.envs import make

gymnasium = pytest.importorskip("gymnasium")
mujoco = pytest.importorskip("mujoco")

STEPS = 3
BARE = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}
THEIRS = {  # identifier, and its options where it sees more than the state
    "hopper": ("Hopper-v5", {}),
    "walker2d": ("Walker2d-v5", {}),
    "half-cheetah": ("HalfCheetah-v5", {}),
    "swimmer": ("Swimmer-v5", {}),
    "ant": ("Ant-v5", BARE),
    "humanoid": (
        "Humanoid-v5",
        BARE | dict.fromkeys([f"include_{x}_in_observation" for x in ("cinert", "cvel", "qfrc_actuator")], False),
    ),
    "inverted-pendulum": ("InvertedPendulum-v5", {}),
    "inverted-double-pendulum": ("InvertedDoublePendulum-v5", {}),
}
FREE = {"hopper": (1, 1.0), "walker2d": (1, 1.0), "half-cheetah": (1, 1.0), "ant": (2, 1.0), "humanoid": (2, 1.0)}


def theirs_and_start(title):
    """Gymnasium's environment, and a state in the air with all joints within their limits."""
    identifier, options = THEIRS[title]
    env = gymnasium.make(identifier, **options).unwrapped
    env.reset(seed=0)
    m, rng = env.model, np.random.default_rng(1)
    q, qd = env.init_qpos.copy(), rng.uniform(-0.1, 0.1, m.nv)
    if title in FREE:
        row, up = FREE[title]
        q[row] += up
    for j in range(m.njnt):
        if m.jnt_limited[j]:
            low, high = m.jnt_range[j]
            middle, room = (low + high) / 2, (high - low) / 4
            at = q[m.jnt_qposadr[j]]
            q[m.jnt_qposadr[j]] = np.clip(at, middle - room, middle + room)
    return env, q, qd


def refreshed(env):
    """The environment, its kinematics taken at the state that a step reached: MuJoCo leaves those of the last stage of the last
    step in place, and Gymnasium reads them."""
    plain = env._step_mujoco_simulation

    def step(ctrl, frames):
        plain(ctrl, frames)
        mujoco.mj_forward(env.model, env.data)

    env._step_mujoco_simulation = step
    return env


@pytest.mark.parametrize("title", tasks.TABLE)
def test_without_contact_a_step_is_gymnasiums(title):
    """Within 1e-6 over three steps: both are the same Runge-Kutta (or Euler) method in double precision."""
    env, q, qd = theirs_and_start(title)
    env = refreshed(env)
    env.set_state(q, qd)
    task = make(tasks.PREFIX + title)
    dt = env.dt
    np.testing.assert_allclose(float(task.sim.dt), dt, rtol=1e-12)
    assert task.actions == env.action_space.shape[0]
    seen = env._get_obs()
    state = task.sim.reset(q, qd)
    np.testing.assert_allclose(task.observe(state, None), seen[: task.observations], rtol=0, atol=1e-12)
    high = env.action_space.high.astype(float)
    rng = np.random.default_rng(2)
    for _ in range(STEPS):
        share = rng.uniform(-0.1, 0.1, task.actions)
        seen, reward, ended, _, info = env.step(share * high)
        assert env.data.ncon == 0
        assert not np.any(env.data.qfrc_constraint)
        control = task.action.control(task.sim.model, jnp.asarray(share))
        after = task.sim.step(state, control)
        step = fx.envs.Step(state, after, share, share, control, None, {})
        np.testing.assert_allclose(task.observe(after, None), seen[: task.observations], rtol=0, atol=1e-6)
        terms = task.reward(step)
        np.testing.assert_allclose(sum(terms.values()), reward, rtol=0, atol=1e-6)
        for name in set(terms) & {"forward", "ctrl", "survive"}:
            np.testing.assert_allclose(terms[name], info[f"reward_{name}"], rtol=0, atol=1e-6)
        assert bool(task.ended(after, None)) == ended
        state = after
    # of what Gymnasium sees beyond, the force at the double pendulum's cart is the one thing, and it is zero without contact
    assert not np.any(seen[task.observations :])


@pytest.mark.parametrize("title", tasks.TABLE)
def test_episodes_start_as_gymnasiums_do(title):
    env, _, _ = theirs_and_start(title)
    task = make(tasks.PREFIX + title)
    first = np.asarray([env.reset(seed=k)[0][: task.observations] for k in range(200)])
    if task.sim.model.topology.joints[0].kind == "free":  # Gymnasium shows the quaternion as drawn, which is no rotation yet
        first[:, 1:5] /= np.linalg.norm(first[:, 1:5], axis=1, keepdims=True)
    start = jax.jit(jax.vmap(lambda k: task.observe(*task.reset(k))))
    mine = np.asarray(start(jax.random.split(jax.random.key(0), 200)))
    # means and deviations of 200 draws: within five deviations of a mean, and a third of a deviation of the deviation
    spread = np.std(first, axis=0)
    np.testing.assert_array_less(abs(np.mean(mine, axis=0) - np.mean(first, axis=0)), 7 * spread / np.sqrt(200) + 1e-2)
    np.testing.assert_array_less(abs(np.std(mine, axis=0) - spread), 0.34 * spread + 1e-2)
    assert task.length == gymnasium.spec(THEIRS[title][0]).max_episode_steps


def test_without_gymnasium_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(tasks, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"'hopper\.xml' is a description of Gymnasium.*flexor\[gym\]"):
        make("gymnasium/hopper")
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError, match=r"no description 'horse\.xml'"):
        tasks.description("horse.xml")


def test_a_hopper_falls_and_its_episode_ends():
    task = make("gymnasium/hopper")
    step = fx.envs.batched(lambda t, _, each: fx.envs.advance(t, *each), task)
    episode = jax.tree.map(lambda x: x[None], fx.envs.start(task, jax.random.key(0)))
    lengths = []
    for _ in range(150):
        episode, t = step(None, (episode, jnp.zeros((1, 3))))
        assert not t.diverged[0]
        if t.ended[0]:
            lengths.append(int(t.steps[0]))
    # without torques it topples within a second; 0.008 s a step
    assert lengths
    assert 10 < lengths[0] < 125
