"""Robots at the joystick: rewards by hand, commands and feet along an episode, ends, robots, and one switch for the physics."""

import dataclasses
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.envs import Step, advance, batched, make, start
from flexor.envs.joystick import Commands
from flexor.robots import example_robots

KEY = jax.random.key(5)
NEEDS_ROBOTS = pytest.mark.skipif(not example_robots(), reason="example-robot-data is not installed")
COMMAND = jnp.array([0.5, -0.2, 0.3])


@cache
def quadruped():
    return make("quadruped-joystick")


@cache
def reset():
    return quadruped().reset(KEY)


def ride(**changed):
    """What an episode carries along, with the feet on the ground."""
    given = {"command": COMMAND, "touched": jnp.ones(4, bool), "wait": jnp.array(1.0), **changed}
    return dataclasses.replace(reset()[1], **given)


def step(goal, *, quat=(1, 0, 0, 0), qd=(0,) * 6, lift=0.0, joints=0.0, action=0.0):
    """A step that ends in standing, moved so."""
    task = quadruped()
    q = np.asarray(task.stand).copy()
    q[2] += lift
    q[3:7], q[7:] = quat, q[7:] + joints
    state = task.sim.reset(q, np.concatenate([qd, np.zeros(12)]))
    a = jnp.full(12, action)
    return Step(state, state, a, goal.action, task.action.control(task.simulator(None).model, a), goal, {})


@cache
def rewards(forgiving=False):
    task = dataclasses.replace(quadruped(), forgiving=forgiving)
    return jax.jit(lambda s: task.reward(s))


def test_terms_by_hand():
    terms = rewards()(step(ride(), qd=(0.7, 0.1, -0.4, 0.2, -0.1, 0.5), action=0.2))
    mass, torque = (
        float(fx.dynamics.total_mass(quadruped().sim.model)),
        85.0 * 0.5 * 0.2,
    )  # of servos 0.1 rad from their targets
    v = np.array([0.7, 0.1])
    # feet of a trunk that moves and turns: v + omega x r
    radius = float(quadruped().sim.model.geoms.size[quadruped().legs.feet[0], 0])
    r = np.array([[x, y, radius - float(quadruped().stand[2])] for x in (0.22, -0.22) for y in (-0.125, 0.125)])
    speed = np.sum((np.array([*v, 0]) + np.cross([0.2, -0.1, 0.5], r))[:, :2] ** 2, axis=1)
    wanted = {
        "track": np.exp(-4 * np.sum((v - [0.5, -0.2]) ** 2)), "turn": 0.5 * np.exp(-4 * 0.2**2), "pose": 0.5,
        "bounce": -0.5 * 0.16, "roll": -0.05 * 0.05, "tilt": 0, "fall": 0, "still": 0, "limits": 0, "power": 0,
        "rate": -0.01 * 12 * 0.2**2,
        "torque": -2.5e-3 * (12 + np.sqrt(12)) * torque / mass, "air": 0, "lift": 0,
    }  # fmt: skip
    for name, x in wanted.items():
        np.testing.assert_allclose(terms[name] / 0.02, x, rtol=1e-6, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(terms["slip"] / 0.02, -0.1 * speed.sum(), rtol=1e-4)
    np.testing.assert_allclose(terms["clear"] / 0.02, -2.0 * 0.1 * np.sum(speed**0.25), rtol=1e-3)


def test_what_is_taken_away_is_at_most_what_was_earned():
    hurried = step(ride(), qd=(-5.0, 0, 3.0, 3.0, 0, 0), joints=0.3, action=1.0)
    plain, kind = rewards()(hurried), rewards(True)(hurried)
    assert sum(plain.values()) < -0.01
    np.testing.assert_allclose(sum(kind.values()), 0, atol=1e-9)
    assert all(kind[name] == plain[name] for name in plain if plain[name] > 0)
    gentle = step(ride(), qd=(0.5, -0.2, 0, 0, 0, 0.3))
    np.testing.assert_allclose(sum(rewards(True)(gentle).values()), sum(rewards()(gentle).values()), rtol=1e-12)


def test_standing_is_asked_for_without_a_command():
    bent = step(ride(command=jnp.zeros(3)), joints=0.1)
    np.testing.assert_allclose(rewards()(bent)["still"] / 0.02, -12 * 0.1, rtol=1e-6)
    assert rewards()(bent)["slip"] == rewards()(bent)["air"] == 0


def test_feet_that_land_are_paid_for_their_time_in_the_air():
    air, peak = jnp.array([0.3, 0.2, 0.0, 0.0]), jnp.array([0.08, 0.12, 0.0, 0.0])
    flying = ride(air=air, peak=peak, touched=jnp.array([False, False, True, True]))
    terms = rewards()(step(flying))
    np.testing.assert_allclose(terms["air"] / 0.02, 0.1 * (0.32 + 0.22 - 2 * 0.1), rtol=1e-6)
    np.testing.assert_allclose(terms["lift"] / 0.02, -0.2 * 2 * 0.2**2, rtol=1e-6)
    follow = jax.jit(lambda s: quadruped().follow(s, KEY))
    np.testing.assert_array_equal(follow(step(flying)).air, 0)
    higher = follow(step(flying, lift=0.05))
    assert not higher.touched.any()
    np.testing.assert_allclose(higher.air, air + 0.02, rtol=1e-12)
    np.testing.assert_allclose(higher.peak, [0.08, 0.12, 0.05, 0.05], atol=1e-6)


def test_no_direction_and_no_place_is_special():
    task, c, s = quadruped(), np.cos(np.pi / 4), np.sin(np.pi / 4)
    tilted = np.array([np.cos(0.1), np.sin(0.1), 0, 0])
    here = step(ride(), quat=tilted, qd=(0.7, 0.2, 0.1, 0.1, 0.2, 0.5), action=0.2)
    turned = np.array([c * tilted[0], c * tilted[1], s * tilted[1], s * tilted[0]])
    there = step(ride(), quat=turned, qd=(-0.2, 0.7, 0.1, 0.1, 0.2, 0.5), action=0.2)
    there = eqx.tree_at(lambda z: z.after.q, there, there.after.q.at[:2].add(7.0))
    for name, x in rewards()(here).items():
        np.testing.assert_allclose(rewards()(there)[name], x, rtol=1e-9, atol=1e-12, err_msg=name)
    seen = task.observe(here.after, here.goal)
    assert seen.shape == (48,)
    np.testing.assert_allclose(task.observe(there.after, there.goal), seen, atol=1e-12)
    np.testing.assert_allclose(seen[6:9], [0, -np.sin(0.2), -np.cos(0.2)], atol=1e-12)  # down, in the trunk's axes
    np.testing.assert_array_equal(seen[-3:], COMMAND)


def test_commands_are_drawn_as_they_are_declared():
    commands = Commands((1.0, 0.5, 2.0), (0.9, 0.25, 0.5), 4.0)
    drawn, wait = jax.jit(jax.vmap(lambda k: commands.draw(k, jnp.zeros(()).dtype)))(jax.random.split(KEY, 4000))
    np.testing.assert_allclose(np.mean(drawn != 0, axis=0), [0.9, 0.25, 0.5], atol=5 * 0.5 / np.sqrt(4000))
    np.testing.assert_allclose(np.abs(drawn).max(axis=0), [1.0, 0.5, 2.0], rtol=0.01)
    np.testing.assert_allclose(np.mean(wait), 4.0, atol=5 * 4.0 / np.sqrt(4000))
    follow = jax.jit(lambda s: quadruped().follow(s, KEY))
    kept, changed = follow(step(ride())), follow(step(ride(wait=jnp.array(0.015))))
    np.testing.assert_array_equal(kept.command, COMMAND)
    np.testing.assert_allclose(kept.wait, 0.98)
    assert (changed.command != COMMAND).any()
    assert changed.wait > 0


@pytest.mark.parametrize(
    ("changed", "fallen"),
    [
        ({}, False),
        ({"lift": -0.6 * 0.3749}, True),
        ({"quat": (np.cos(0.6), np.sin(0.6), 0, 0)}, True),  # 1.2 rad, cos 0.36
        ({"quat": (np.cos(0.3), np.sin(0.3), 0, 0)}, False),
    ],
)
def test_a_quadruped_that_lies_down_or_topples_has_fallen(changed, fallen):
    one = step(ride(), **changed)
    assert bool(quadruped().ended(one.after, one.goal)) is fallen
    assert bool(rewards()(one)["fall"] < 0) is fallen


@pytest.mark.parametrize("physics", [None, "penalty", "mujoco"])
def test_one_switch_for_the_physics(physics):
    """Nearly a second with zero action, from a start without a push: it stands, whatever moves it."""
    task = dataclasses.replace(quadruped(), push=0.0, noise=0.0)
    task = task if physics is None else task.on({"name": physics, "substeps": 20 if physics == "penalty" else 4})
    go = batched(lambda t, _, each: advance(t, *each), task)
    episode = jax.tree.map(lambda x: x[None], start(task, KEY))
    for _ in range(40):
        episode, t = go(None, (episode, jnp.zeros((1, 12))))
        assert not (t.ended[0] | t.truncated[0])
    assert episode.goal.touched.all()
    # a quarter of 25 kg at a lever of 0.18 m bends a knee of 85 N m/rad by 0.13 rad, and the thigh as much: 0.18 m times 0.26 rad
    assert 0.02 < float(task.stand[2] - episode.state.q[0, 2]) < 0.06


@NEEDS_ROBOTS
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["anymal", "a1", "go1", "laikago"])
def test_quadrupeds_stand_on_four_feet(name):
    task = make(f"{name}-joystick")
    model, legs = task.sim.model, task.legs
    assert (task.observations, task.actions, len(model.topology.pairs)) == (48, 12, 4)
    kin = fx.dynamics.forward_kinematics(model, task.stand)
    np.testing.assert_allclose(legs.clearances(model, kin), 0, atol=2e-3)
    feet, com = np.asarray(legs.foot_positions(model, kin)), np.asarray(fx.dynamics.centre_of_mass(model, kin))
    # the centre of mass is over the middle of the feet, to a fifth of their distance
    away = abs(com[:2] - feet[:, :2].mean(axis=0)) / np.ptp(feet[:, :2], axis=0)
    assert (away < 0.2).all()
    assert not task.ended(task.sim.reset(task.stand), task.reset(KEY)[1])


@NEEDS_ROBOTS
@pytest.mark.filterwarnings("ignore")
def test_a_g1_has_two_feet_of_four_spheres_and_a_clock():
    task = make("g1-joystick")
    assert (task.observations, task.actions) == (3 * 3 + 3 * 29 + 3 + 2, 29)
    assert [len(sole) for sole in task.legs.soles(task.sim.model)] == [4, 4]
    state, goal = task.sim.reset(task.stand), dataclasses.replace(task.reset(KEY)[1], phase=jnp.array(0.0), command=COMMAND)
    assert not task.ended(state, goal)
    t = task.sim.model.topology
    rolls = [int(t.q_start[j]) for j, x in enumerate(t.joints) if x.name in ("left_hip_roll_joint", "right_hip_roll_joint")]
    crossed = state.q.at[jnp.array(rolls)].set(jnp.array([-0.2, 0.2]))
    assert task.ended(task.sim.reset(crossed), goal)  # feet within 0.1 m
    zero = jnp.zeros(29)
    control = task.action.control(task.simulator(None).model, zero)
    terms = task.reward(Step(state, state, zero, zero, control, goal, {}))
    # at phase 0 the left foot is to be at 0.15 m, and the right one on the ground
    np.testing.assert_allclose(terms["clock"] / 0.02, np.exp(-100 * 0.15**2), rtol=1e-2)
    np.testing.assert_allclose(terms["bend"], 0, atol=1e-9)
    later = task.follow(Step(state, state, zero, zero, control, goal, {}), KEY)
    assert 1.25 <= later.phase / (2 * np.pi * 0.02) <= 1.5


def test_a_robot_with_a_joint_that_nothing_drives_is_refused():
    model = fx.load("quadruped")
    free = dataclasses.replace(model.topology, actuators=model.topology.actuators[:-1])
    short = dataclasses.replace(model, topology=free, actuators=jax.tree.map(lambda x: x[:-1], model.actuators))
    with pytest.raises(ValueError, match="has 12 joints and 11 actuators"):
        fx.envs.Joystick.build(
            model=short, stand=model.keyframe("stand"), weights={}, stiff=jnp.zeros(11), loose=jnp.zeros(11), damping=0.1
        )
