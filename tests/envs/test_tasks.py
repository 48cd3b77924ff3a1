"""Tasks and episodes: what is observed and rewarded, when episodes end, and what is said about broken tasks."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.envs import AbstractTask, Torque, advance, check, make, start

KEY = jax.random.key(3)


class Balance(AbstractTask):
    """Keeps a pole up: a task as users write it."""

    def reset(self, key):
        return self.sim.reset(jax.random.uniform(key, (2,), self.sim.model.dtype, -0.1, 0.1)), None

    def observe(self, state, goal):
        return jnp.concatenate([state.q, state.qd])

    def reward(self, step):
        return {"upright": jnp.cos(step.after.q[1]), "effort": -0.01 * jnp.sum(step.action**2)}

    def ended(self, state, goal):
        return jnp.abs(state.q[1]) > 0.5


def balance(kind=Balance, length=20, solver=None):
    sim = fx.Simulator(fx.load("cartpole"), solver or fx.solver("none"), dt=0.02)
    return kind(sim=sim, action=Torque(), length=length)


def test_a_step_of_a_task_is_a_step_of_its_simulator():
    task = balance()
    episode = start(task, KEY)
    new, t = jax.jit(lambda e, a: advance(task, e, a))(episode, jnp.array([0.3]))
    state = task.sim.step(episode.state, jnp.array([0.3]))
    np.testing.assert_allclose(t.observation, np.concatenate([state.q, state.qd]), rtol=0, atol=1e-14)
    np.testing.assert_allclose(t.reward, np.cos(state.q[1]) - 0.01 * 0.3**2, rtol=1e-12)
    assert not t.over
    assert new.steps == 1
    np.testing.assert_array_equal(new.action, [0.3])
    assert new.total == t.reward


def test_an_episode_that_is_over_starts_again():
    task = balance(length=3)
    step = jax.jit(lambda e, a: advance(task, e, a))
    episode, zero = start(task, KEY), jnp.zeros(1)
    seen = []
    for _ in range(6):
        episode, t = step(episode, zero)
        seen.append((bool(t.ended), bool(t.truncated), int(t.steps), int(episode.steps)))
    assert seen == [(False, False, 1, 1), (False, False, 2, 2), (False, True, 3, 0)] * 2
    fallen = dataclasses.replace(episode, state=task.sim.reset([0.0, 0.6]))
    new, t = step(fallen, zero)
    assert (bool(t.ended), bool(t.truncated), bool(t.diverged)) == (True, False, False)
    assert t.observation[1] > 0.5  # what was seen at the end
    assert abs(new.observation[1]) < 0.1  # what the policy sees next
    assert new.total == 0


def test_a_robot_that_diverges_is_set_back_and_counted():
    task = balance()
    begin = start(task, KEY)
    lost = dataclasses.replace(begin, state=dataclasses.replace(begin.state, qd=jnp.array([np.inf, 0.0])))
    new, t = jax.jit(lambda e, a: advance(task, e, a))(lost, jnp.zeros(1))
    assert bool(t.diverged)
    assert bool(t.ended)
    for x in (t.observation, t.reward, new.state.q, new.state.qd, new.observation, new.total):
        assert np.isfinite(x).all()


def test_the_cart_is_rewarded_as_in_nerd():
    task = make("cartpole", substeps=1)
    step = fx.envs.Step(None, task.sim.reset([0.5, 2 * np.pi + 0.3], [1.0, -2.0]), *[jnp.zeros(1)] * 2, None, None, {})
    terms = task.reward(step)
    np.testing.assert_allclose(sum(terms.values()), 5 - (0.3**2 + 0.05 * 0.25 + 0.1 * 4 + 0.1 * 1), rtol=1e-12)
    np.testing.assert_allclose(task.observe(step.after, None), [0.5, 0.3, 1.0, -2.0], atol=1e-14)
    assert bool(task.ended(task.sim.reset([0.0, 0.0], [0.0, 10.5]), None))


def test_the_ant_sees_29_numbers_and_is_rewarded_for_speed():
    task = make("ant-run")
    assert (task.observations, task.actions) == (29, 8)
    turned = np.concatenate([[0.0, 0.0, 0.6, np.cos(0.25), 0, 0, np.sin(0.25)], task.sim.model.keyframe("stand")[7:]])
    state = task.sim.reset(turned, np.concatenate([[1.5, 0.2, 0.0, 0.0, 0.3, 0.0], np.zeros(8)]))
    step = fx.envs.Step(None, state, *[jnp.zeros(8)] * 2, None, None, {})
    np.testing.assert_allclose(sum(task.reward(step).values()), 1.5 + np.cos(0.5) + 0.1, rtol=1e-12)
    seen = task.observe(state, None)
    np.testing.assert_allclose(seen[8:11], [-0.3 * np.sin(0.5), 0.3 * np.cos(0.5), 0], atol=1e-14)  # in world axes
    assert not task.ended(state, None)


def test_a_task_moves_to_other_physics():
    task = balance()
    other = task.on("mujoco")
    episode = start(task, KEY)
    mine = jax.jit(lambda e, a: advance(task, e, a))(episode, jnp.array([0.5]))[1]
    theirs = jax.jit(lambda e, a: advance(other, e, a))(start(other, KEY), jnp.array([0.5]))[1]
    # both semi-implicit Euler, except that MuJoCo treats damping implicitly: dt^2 damping / inertia
    np.testing.assert_allclose(theirs.observation, mine.observation, atol=1e-3)
    assert type(make("cartpole", solver="penalty").sim.solver.base.contact).__name__ == "Penalty"
    assert make("cartpole", solver="penalty").sim.solver.count == 5


def learned():
    return fx.nerd.load("cartpole", fx.load("cartpole")).solver()


def hybrid():
    blueprint = fx.Blueprint().add("joint.passive_force", inputs=["joint.qd"], net=fx.nets.MLP(width=4))
    return make("cartpole").sim.augment(blueprint).solver


@pytest.mark.parametrize("physics", ["rigid", hybrid, learned, "mujoco"])
def test_one_task_on_every_kind_of_physics(physics):
    """By one switch, nearly the same motion: a quarter of a second of the cart from its start, pushed to one side."""
    task = make("cartpole", solver=physics if isinstance(physics, str) else physics())
    step = fx.envs.batched(lambda t, _, each: advance(t, *each), task)
    episode = jax.tree.map(lambda x: x[None], start(task, KEY))
    for _ in range(15):
        episode, t = step(None, (episode, jnp.full((1, 1), 0.5)))
    assert int(episode.steps[0]) == 15
    # from rest, 5 N on 1.1 kg for 0.25 s move a cart without a pole by 0.14 m to 1.1 m/s; physics differ in how they integrate
    # and in what a network learned, by some parts in a hundred
    np.testing.assert_allclose(t.observation[0], reached_by_the_rigid_cart(), atol=0.1)


@cache
def reached_by_the_rigid_cart():
    task = make("cartpole")
    run = task.sim.rollout(start(task, KEY).state, jnp.full((15, 1), 0.5))
    return np.asarray(task.observe(run.final, None))


def test_substeps_in_mujoco_are_its_steps_one_by_one():
    """The ant on the floor, and with a delay of one and a half substeps."""
    task = make("ant-run", solver="mujoco")
    assert task.sim.solver == fx.MujocoSolver(substeps=4)
    short = float(task.sim.dt) / 4
    model = fx.with_delay(task.sim.model, {"actuator.*.delay": 1.5 * short}, dt=short)
    whole = fx.Simulator(model, task.sim.solver, dt=4 * short)
    parts = fx.Simulator(model, fx.MujocoSolver(), dt=short)
    u = np.random.default_rng(0).uniform(-1, 1, (3, 8))
    a = whole.rollout(whole.reset("stand"), u)
    b = parts.rollout(parts.reset("stand"), np.repeat(u, 4, axis=0))
    np.testing.assert_array_equal(a.qd, b.qd[::4])
    assert abs(a.qd[-1]).max() > 0.1


def test_what_is_said_about_names():
    with pytest.raises(KeyError, match=r"there is no task 'ant-rum'\. Did you mean 'ant-run'"):
        make("ant-rum")
    with pytest.raises(ValueError, match="there is no solver 'newton'"):
        make("cartpole", solver="newton")
    with pytest.raises(ValueError, match="must have a positive number of steps"):
        balance(length=0)


def test_a_solver_that_cannot_run_a_task_says_so():
    with pytest.raises(ValueError, match="was trained for 'cartpole', and this is 'ant'"):
        make("ant-run", solver=fx.nerd.load("cartpole", fx.load("cartpole")).solver())


@pytest.mark.parametrize(
    ("name", "function", "sentence"),
    [
        ("observe", lambda s, state, goal: jnp.zeros((2, 2)), "must return a vector"),
        ("reward", lambda s, step: jnp.zeros(()), "must return its terms by name"),
        ("reward", lambda s, step: {"speed": step.after.qd}, r"the term 'speed' of the reward of Broken must be a number"),
        ("ended", lambda s, state, goal: jnp.zeros(()), "must return one truth value"),
        ("follow", lambda s, step, key: jnp.zeros(2), "a goal of the same form"),
    ],
)
def test_a_task_that_does_not_hold_together_is_told_so(name, function, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        check(balance(type("Broken", (Balance,), {name: function})))


def test_an_observation_whose_size_changes_is_refused():
    class Growing(Balance):
        """Sees one number more once the solver has its memory."""

        def reset(self, key):
            return fx.State(jnp.zeros(2), jnp.zeros(2), jnp.zeros(())), None

        def observe(self, state, goal):
            return jnp.zeros(4 if state.memory is None else 5)

    with pytest.raises(ValueError, match="changes its size: 4 numbers after a reset, 5 after a step"):
        check(balance(Growing, solver=fx.solver("ncp")))


def test_a_servo_holds_its_joints_within_the_bounds_of_the_motors():
    model = fx.load("quadruped")
    rest = model.keyframe("stand")[7:]
    action = fx.envs.Target(kp=85.0, kd=2.0, scale=0.5, rest=rest)
    sim = action.equip(fx.Simulator(model, dt=0.002))
    q, qd = model.keyframe("stand"), jnp.linspace(-1.0, 1.0, 18)
    a = jnp.linspace(-2.0, 2.0, 12)
    u = action.control(sim.model, a).u
    force = fx.dynamics.actuator_forces(sim.model, q, qd, u)
    wanted = 85.0 * (0.5 * np.clip(a, -1, 1)) - 2.0 * np.asarray(qd[6:])
    np.testing.assert_allclose(force, np.clip(wanted, -33.5, 33.5), rtol=1e-12)


def test_a_delayed_action_acts_later():
    task = balance()
    late = dataclasses.replace(task, action=fx.envs.Delayed(Torque(), 0.04))
    step = jax.jit(lambda e, a: advance(late, e, a))
    episode = start(late, KEY)
    speeds = []
    for k in range(4):
        episode, t = step(episode, jnp.ones(1) if k == 0 else jnp.zeros(1))
        speeds.append(float(abs(t.observation[2])))
    assert max(speeds[:2]) < 0.02 < 0.1 < speeds[2]  # 10 N for 0.02 s on 1.1 kg, two steps later


def test_actions_that_a_robot_cannot_take_are_refused():
    with pytest.raises(ValueError, match="'cube' has no actuators"):
        Torque().check(fx.load("cube"))
    with pytest.raises(ValueError, match="a number for each of the 12 actuators"):
        fx.envs.Target(kp=1.0, kd=1.0, scale=1.0, rest=jnp.zeros(3)).check(fx.load("quadruped"))
