"""Tasks of quadrupeds and arms: rewards by hand, what must not matter, when episodes end, on two kinds of physics."""

import dataclasses
import sys
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.envs import Step, advance, batched, make, start
from flexor.robots import example_robots

KEY = jax.random.key(5)
NEEDS_ROBOTS = pytest.mark.skipif(not example_robots(), reason="example-robot-data is not installed")
QUARTER = np.array([np.cos(np.pi / 4), 0, 0, np.sin(np.pi / 4)])  # a quarter of a turn to the left


@cache
def walk(name="quadruped-forward"):
    return make(name)


def moving(task, quat, velocity, spin=0.0, action=0.0):
    """A step that ends in standing, at a velocity, with servos that want the joints `action` away from there."""
    q = np.asarray(task.stand).copy()
    q[3:7] = quat
    state = task.sim.reset(q, np.concatenate([velocity, [0.0, 0.0, spin], np.zeros(12)]))
    a = jnp.full(12, action)
    control = task.action.control(task.simulator(None).model, a)
    return lambda goal: Step(state, state, a, a, control, jnp.array(goal), {})


@pytest.mark.parametrize(("name", "velocity"), [("quadruped-forward", [0.7, 0.2]), ("quadruped-side", [0.2, 0.7])])
def test_walking_is_rewarded_as_in_nerd(name, velocity):
    task = walk(name)
    step = moving(task, [1, 0, 0, 0], [*velocity, 0.4], spin=0.5, action=0.2)([1.0, 0.0])
    # each of twelve servos is 0.5 * 0.2 rad from its target: 8.5 N m
    wanted = np.exp(-(0.3**2) - 0.2**2) + 0.5 * np.exp(-(0.5**2)) - 2.5e-5 * 12 * 8.5**2
    np.testing.assert_allclose(sum(task.reward(step).values()), wanted, rtol=1e-12)


def test_the_reward_of_walking_is_never_negative():
    task = walk()
    terms = task.reward(moving(task, [1, 0, 0, 0], [-5.0, 0, 0], spin=5.0, action=1.0)([1.0, 0.0]))
    np.testing.assert_allclose(sum(terms.values()), 0, atol=1e-15)
    assert terms["effort"] < 0


def test_no_direction_and_no_place_is_special():
    """The same robot, turned by a quarter about the vertical, elsewhere, on a floor half a metre higher."""
    task = walk()
    here = moving(task, [1, 0, 0, 0], [0.7, 0.2, 0.1], spin=0.5, action=0.2)([1.0, 0.0])
    there = moving(task, QUARTER, [-0.2, 0.7, 0.1], spin=0.5, action=0.2)([0.0, 1.0])
    raised = eqx.tree_at(lambda t: t.sim.model.geoms.pos, task, task.sim.model.geoms.pos.at[task.legs.ground, 2].add(0.5))
    shift = jnp.zeros(19).at[:3].set(jnp.array([3.0, -2.0, 0.5]))
    there = eqx.tree_at(lambda s: s.after.q, there, there.after.q + shift)
    for name, term in task.reward(here).items():
        np.testing.assert_allclose(raised.reward(there)[name], term, rtol=1e-12, atol=1e-15)
    seen, other = task.observe(here.after, here.goal), raised.observe(there.after, there.goal)
    assert seen.shape == (37,)
    np.testing.assert_allclose(other, seen, atol=1e-14)
    assert bool(raised.ended(there.after, there.goal)) == bool(task.ended(here.after, here.goal)) is False
    assert bool(raised.ended(here.after, here.goal))  # half a metre below that floor


@pytest.mark.parametrize(
    ("changed", "fallen"),
    [
        ({}, False),
        ({2: 0.68 * 0.3749}, False),
        ({2: 0.65 * 0.3749}, True),  # the trunk
        ({3: np.cos(0.6), 4: np.sin(0.6)}, False),  # rolled by 1.2 rad: hips 0.085 sin 1.2 = 0.08 m lower, at 0.30 m
        ({3: np.cos(0.6), 5: np.sin(0.6)}, False),  # pitched by 1.2 rad: hips 0.22 sin 1.2 = 0.205 m lower, at 0.17 m
        ({2: 0.3, 3: np.cos(0.6), 5: np.sin(0.6)}, True),  # at 0.095 m, below a third of the height
        ({2: 0.29, 8: 0.0}, True),  # a knee 0.25 m below its hip, at 0.04 m
        ({2: 0.30, 8: 0.0}, False),  # at 0.05 m; 0.12 of the height is 0.045 m
    ],
)
def test_a_quadruped_that_lies_down_tilts_or_kneels_has_fallen(changed, fallen):
    task = walk()
    q = np.asarray(task.stand).copy()
    for k, x in changed.items():
        q[k] = x
    assert bool(task.ended(task.sim.reset(q), jnp.array([1.0, 0.0]))) is fallen


def test_a_walk_in_a_batch_and_alone_is_the_same_to_the_bit():
    task = walk()
    go = batched(lambda t, _, key: start(t, key), task)
    step = batched(lambda t, _, each: advance(t, *each), task)
    keys, actions = jax.random.split(KEY, 9), jax.random.uniform(KEY, (9, 12), minval=-1.0, maxval=1.0)
    episodes, alone = go(None, keys), go(None, keys[4:5])
    for _ in range(3):
        episodes, t = step(None, (episodes, actions))
        alone, own = step(None, (alone, actions[4:5]))
    for a, b in zip(jax.tree.leaves(t), jax.tree.leaves(own), strict=True):
        np.testing.assert_array_equal(a[4], b[0])


@pytest.mark.parametrize("physics", [None, "mujoco"])
def test_a_quadruped_stands_by_its_servos(physics):
    """Half a second with zero action: it stays within reach of its start on rigid physics and on MuJoCo."""
    task = make("quadruped-forward", solver=physics)
    step = batched(lambda t, _, each: advance(t, *each), task)
    episode = jax.tree.map(lambda x: x[None], start(task, KEY))
    for _ in range(30):
        episode, t = step(None, (episode, jnp.zeros((1, 12))))
        assert not (t.ended[0] | t.truncated[0])
    # a quarter of 25 kg at a lever of 0.18 m bends a knee of 85 N m/rad by 0.13 rad, and the thigh gives way as much: 0.18 m
    # times 0.26 rad
    sunk = float(task.stand[2] - episode.state.q[0, 2])
    assert 0.02 < sunk < 0.06


@NEEDS_ROBOTS
@pytest.mark.filterwarnings("ignore")
def test_anymal_stands_on_four_feet():
    task = walk("anymal-side")
    model, legs = task.sim.model, task.legs
    assert (task.observations, task.actions, len(model.topology.pairs)) == (37, 12, 4)
    kin = fx.dynamics.forward_kinematics(model, task.stand)
    np.testing.assert_allclose(
        legs.clearances(model, kin), 0, atol=1e-3
    )  # its legs are mirror images, to the description's digits
    assert len(set(legs.hips)) == len(set(legs.knees)) == 4
    qd = jnp.linspace(-1.0, 1.0, model.nv)
    feet = lambda q: legs.foot_positions(model, fx.dynamics.forward_kinematics(model, q))  # noqa: E731
    h = 1e-6
    ahead, behind = (feet(fx.integrate(model, task.stand, s * h * qd)) for s in (1, -1))
    # differences: h^2 and eps / h
    np.testing.assert_allclose(legs.foot_velocities(model, kin, qd), (ahead - behind) / (2 * h), atol=1e-8)


def test_what_is_said_of_robots_without_feet():
    with pytest.raises(ValueError, match="'cartpole' has no feet"):
        fx.envs.on_its_feet(fx.load("cartpole"))


def test_a_missing_robot_names_its_package(monkeypatch):
    monkeypatch.setattr(sys.modules["flexor.robots.find"], "example_robots", dict)
    for name in ("anymal-forward", "franka-reach"):
        with pytest.raises(FileNotFoundError, match="pip install example-robot-data"):
            make(name)


@cache
def reach(name="franka-reach"):
    return make(name)


@NEEDS_ROBOTS
def test_reaching_is_rewarded_as_in_nerd():
    task = reach()
    assert (task.observations, task.actions) == (13, 7)
    assert make("franka-reach-torque").observations == 20
    state = task.sim.reset(np.array(fx.envs.franka.HOME))
    hand = np.asarray(fx.frame_pose(task.sim.model, state.q, "panda_hand")[0])
    np.testing.assert_allclose(task.observe(state, jnp.ones(3)), [*fx.envs.franka.HOME, *hand, 1, 1, 1], atol=1e-14)
    for d in (0.004, 0.05, 0.9):
        goal = hand + d * np.array([0.6, 0.0, 0.8])
        terms = task.reward(Step(state, state, jnp.zeros(7), jnp.zeros(7), None, jnp.asarray(goal), {}))
        wanted = -d + sum(1 / (np.exp(k * d) + 1e-4 + np.exp(-k * d)) for k in (50, 300))
        np.testing.assert_allclose(sum(terms.values()), wanted, rtol=1e-7)  # the root of d^2 + 1e-12, times 300
    assert not task.ended(state, jnp.zeros(3))


@NEEDS_ROBOTS
@pytest.mark.parametrize("physics", [None, "mujoco"])
def test_an_arm_follows_shifts_of_its_joints(physics):
    """Constant actions move the joints on steadily, whatever their angles are."""
    task = make("franka-reach", solver=physics)
    step = batched(lambda t, _, each: advance(t, *each), task)
    episode = jax.tree.map(lambda x: x[None], start(task, KEY))
    begin = np.asarray(episode.state.q[0])
    action = jnp.zeros((1, 7)).at[0, 0].set(0.25)
    for _ in range(60):
        episode, t = step(None, (episode, action))
    assert not (t.ended[0] | t.truncated[0])
    # the force is 0.25 of the bound less bound / 4 qd, less what the target is left behind in a step: 32 bound qd dt / 2, so
    # that 1 rad/s is reached but for a factor 1 / (1 + 4 * 32 / 240); half a second of it
    moved = np.asarray(episode.state.q[0]) - begin
    assert 0.2 < moved[0] < 0.5
    np.testing.assert_allclose(moved[2], 0, atol=0.1)


def test_a_shift_is_a_target_about_where_the_joints_are():
    model = fx.load("quadruped")
    shift = fx.envs.Shift(kp=85.0, kd=2.0, scale=0.5)
    sim = shift.equip(fx.Simulator(model, dt=0.002))
    state, a = sim.reset("stand"), jnp.linspace(-1.0, 1.0, 12)
    same = fx.envs.Target(kp=85.0, kd=2.0, scale=0.5, rest=state.q[7:]).control(sim.model, a).u
    np.testing.assert_array_equal(shift.control_from(sim.model, state, a).u, same)
    late = fx.envs.Delayed(shift, 0.01)
    np.testing.assert_array_equal(late.control_from(sim.model, state, a).u, same)
    task = dataclasses.replace(walk(), action=shift)
    new, _ = jax.jit(lambda e, a: advance(task, e, a))(start(task, KEY), jnp.zeros(12))
    assert np.isfinite(new.state.q).all()
