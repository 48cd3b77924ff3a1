"""Gymnasium's tasks: along the same actions, without contact, what Gymnasium's own environments observe and reward."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.envs import gymnasium as tasks
from flexor.envs import make
from flexor.envs.episode import taken
from flexor.envs.gymnasium_full import FullLocomotion
from flexor.envs.gymnasium_table import TABLE

gymnasium = pytest.importorskip("gymnasium")
mujoco = pytest.importorskip("mujoco")

THEIRS = {
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
    "half-cheetah": "HalfCheetah-v5",
    "swimmer": "Swimmer-v5",
    "ant": "Ant-v5",
    "humanoid": "Humanoid-v5",
    "inverted-pendulum": "InvertedPendulum-v5",
    "inverted-double-pendulum": "InvertedDoublePendulum-v5",
}
"""Gymnasium's identifiers, with their default options: all that they observe and reward."""
AIR = {"hopper": 1, "walker2d": 1, "half-cheetah": 1, "ant": 2, "humanoid": 2}
"""Of robots that stand on the floor, the coordinate that lifts them."""


def bare(title, folder):
    """Gymnasium's description for both, in which nothing stops a motion (MuJoCo's contacts and limits are soft, and flexor's are
    not): one shape may touch, a floor 100 m below; hinges have no limits, and rails are a hundred times as long."""
    spec = mujoco.MjSpec.from_file(str(tasks.description(TABLE[title].file)))
    for joint in spec.joints:
        joint.limited = joint.limited if joint.type == mujoco.mjtJoint.mjJNT_SLIDE else 0
        joint.range *= 100
    bodily = [g for g in spec.geoms if g.type != mujoco.mjtGeom.mjGEOM_PLANE]
    for geom in spec.geoms:
        geom.contype = geom.conaffinity = int(geom is bodily[0] or geom not in bodily)
        geom.pos[2] -= 100 * (geom not in bodily)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # `settotalmass` of the cheetah
        spec.compile()
        text = spec.to_xml()
    path = folder / f"{title}.xml"
    path.write_text(text)
    return path


def in_the_air(title, env):
    """A start a metre above the floor, joints in the middle half of their ranges."""
    q, m = env.init_qpos.copy(), env.model
    if title in AIR:
        q[AIR[title]] += 1
    for j in range(m.njnt):
        if m.jnt_limited[j]:
            (low, high), at = m.jnt_range[j], m.jnt_qposadr[j]
            q[at] = np.clip(q[at], (3 * low + high) / 4, (low + 3 * high) / 4)
    return q, np.random.default_rng(1).uniform(-0.1, 0.1, m.nv)


def by_gymnasium(env, q, qd, actions):
    """Observations, rewards, infos and ends of Gymnasium's environment along actions between -1 and 1.

    MuJoCo's step leaves the kinematics of its last Runge-Kutta stage in place, and Gymnasium rewards by them. Here they are those
    of the state that was reached; `benchmarks/gymnasium_tasks.py` prints what that changes.
    """
    plain = env._step_mujoco_simulation

    def step(ctrl, frames):
        plain(ctrl, frames)
        mujoco.mj_forward(env.model, env.data)
        mujoco.mj_rnePostConstraint(env.model, env.data)

    env._step_mujoco_simulation = step
    env.set_state(q, qd)
    high = env.model.actuator_ctrlrange[:, 1]  # `env.action_space` has them in single precision
    rows = [env.step(a * high) for a in actions]
    observations, rewards, ended, _, infos = zip(*rows, strict=True)
    return np.array(observations), np.array(rewards), infos, np.array(ended)


def by_flexor(task, q, qd, actions):
    """The same of a task."""
    begin = fx.envs.start(task, jax.random.key(0))
    state = task.sim.solver.init(task.sim.model, task.sim.reset(q, qd))

    def step(episode, action):
        done = taken(task, episode, action)
        goal = task.follow(done, episode.key)
        seen = task.observe(done.after, goal), task.reward(done), task.ended(done.after, goal)
        return replace(episode, state=done.after, goal=goal, action=action), seen

    return jax.jit(lambda e, a: jax.lax.scan(step, e, a))(replace(begin, state=state), jnp.asarray(actions))[1]


def compare(task, env, q, qd, actions):
    """Both are the same Runge-Kutta (or Euler) method in double precision: 1e-6, also after many steps."""
    observed, rewarded, infos, over = by_gymnasium(env, q, qd, actions)
    seen, terms, ended = by_flexor(task, q, qd, actions)
    np.testing.assert_allclose(float(task.sim.dt), env.dt, rtol=1e-12)
    assert seen.shape == observed.shape
    np.testing.assert_allclose(seen, observed, rtol=0, atol=1e-6)
    np.testing.assert_allclose(sum(terms.values()), rewarded, rtol=0, atol=1e-6)
    for name in set(terms) & {"forward", "ctrl", "survive", "contact"}:
        theirs = [info[f"reward_{name}"] for info in infos]
        np.testing.assert_allclose(terms[name], theirs, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(ended, over)


@pytest.mark.parametrize("title", TABLE)
def test_without_contact_steps_are_gymnasiums(title, tmp_path):
    """Gymnasium's default observations and rewards, all of them, over ten steps of any actions."""
    path = bare(title, tmp_path)
    env = gymnasium.make(THEIRS[title], xml_file=str(path)).unwrapped
    env.reset(seed=0)
    task = make(tasks.PREFIX + title, full=True)
    task = replace(task, sim=fx.Simulator(fx.load(path), task.sim.solver, dt=task.sim.dt))
    assert task.actions == env.action_space.shape[0]
    actions = np.random.default_rng(2).uniform(-1, 1, (10, task.actions))
    compare(task, env, *in_the_air(title, env), actions)


def test_in_flight_steps_are_gymnasiums():
    """With all contacts and limits of the description, none of which acts; the benchmark has all robots."""
    env = gymnasium.make("Hopper-v5").unwrapped
    env.reset(seed=0)
    actions = np.random.default_rng(2).uniform(-0.1, 0.1, (3, 3))
    compare(make("gymnasium/hopper"), env, *in_the_air("hopper", env), actions)
    assert env.data.ncon == env.data.nefc == 0


def test_contact_forces_change_the_momentum():
    """m (v+ - v) = dt (sum of contact forces - m g), of a hopper that lands, but for what RK4 leaves of its momentum."""
    entry = TABLE["hopper"]
    task = FullLocomotion.build("hopper", entry.file, **entry.numbers, contact_share=1e-4)
    model, dt = task.sim.model, float(task.sim.dt)

    def speed(state):
        return fx.dynamics.centroidal_momentum(model, fx.dynamics.forward_kinematics(model, state.q), state.qd)[3:]

    state = task.sim.solver.init(model, task.sim.reset(model.reference, jnp.zeros(6).at[1].set(-1.0)))
    begin = replace(fx.envs.start(task, jax.random.key(0)), state=state)

    def step(episode, _):
        done = taken(task, episode, jnp.zeros(3))
        felt = task.follow(done, episode.key)
        change = speed(done.after) - speed(done.before)
        seen = felt.contact, change, task.reward(done)["contact"], task.observe(done.after, felt)
        return replace(episode, state=done.after), seen

    contact, change, cost, seen = jax.jit(lambda e: jax.lax.scan(step, e, length=8))(begin)[1]
    force, weight = np.sum(np.asarray(contact)[:, :, 3:], axis=1), float(fx.dynamics.total_mass(model)) * 9.81
    assert force[:, 2].max() > 3 * weight
    np.testing.assert_allclose(dt * (force - np.array([0, 0, weight])), change, rtol=0, atol=1e-3 * weight * dt)
    np.testing.assert_allclose(cost, -1e-4 * np.sum(contact**2, axis=(1, 2)), rtol=1e-12)
    np.testing.assert_array_equal(seen[:, 11:], np.reshape(contact[:, 1:], (8, -1)))


@pytest.mark.parametrize("title", TABLE)
def test_episodes_start_as_gymnasiums_do(title):
    env = gymnasium.make(THEIRS[title]).unwrapped
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
    assert task.length == gymnasium.spec(THEIRS[title]).max_episode_steps


def test_without_gymnasium_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(tasks, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"'hopper\.xml' is a description of Gymnasium.*flexor\[gym\]"):
        make("gymnasium/hopper")
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError, match=r"no description 'horse\.xml'"):
        tasks.description("horse.xml")


def test_physics_without_contact_forces_cannot_show_them():
    with pytest.raises(ValueError, match=r"MujocoSolver does not compute 'link\.contact_force'"):
        make("gymnasium/ant", full=True, solver="mujoco")


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
