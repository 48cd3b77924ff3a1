"""Randomised tasks: what is drawn, that it acts, the same bits with any number of threads, and sentences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.envs import Between, Pushes, Randomised, Scaled, Shifted, advance, batched, check, start
from tests.envs.test_tasks import balance

POLE = "body.pole.mass"
VARIED = {POLE: Scaled(0.5, 1.5), "joint.*.damping": Between(0.1, 0.2, together=True), "gravity": Shifted(-0.1, 0.1)}
DISTURBED = {"noise": 0.01, "latency": (0.0, 0.05), "pushes": Pushes(0.3, pause=(0.02, 0.06), joint="slider")}


@pytest.fixture(scope="module")
def task():
    return Randomised(balance(), VARIED, **DISTURBED)


@pytest.fixture(scope="module")
def robots(task):
    return batched(lambda t, _, key: start(t, key), task)(None, jax.random.split(jax.random.key(0), 256))


def test_draws_fill_the_declared_ranges(task, robots):
    drawn, own = robots.goal.parameters, fx.parameters(task.sim.model)
    factor = np.asarray(drawn[POLE]) / float(own[POLE])
    shift = np.asarray(drawn["gravity"]) - np.asarray(own["gravity"])
    delays = np.asarray(drawn["actuator.slide.delay"])
    dampings = [np.asarray(x) for name, x in drawn.items() if name.endswith(".damping")]
    # the extremes of 256 uniform draws are within 5 % of the ends, but for chances of 0.95^256 = 2e-6
    for x, low, high in ((factor, 0.5, 1.5), (dampings[0], 0.1, 0.2), (shift, -0.1, 0.1), (delays, 0.0, 0.05)):
        margin = 0.05 * (high - low)
        assert low - 1e-12 <= x.min() < low + margin
        assert high - margin < x.max() <= high + 1e-12
    assert len(dampings) == 2
    np.testing.assert_array_equal(*dampings)  # together
    assert len(np.unique(shift)) == 3 * 256  # every number of a vector by itself
    seen = np.asarray(robots.observation) - np.concatenate([robots.state.q, robots.state.qd], axis=1)
    np.testing.assert_allclose(seen.std(), 0.01, rtol=0.1)  # 1024 numbers: a deviation of 2 %


def test_a_step_is_one_of_the_robot_that_was_drawn():
    """The same step by a simulator whose parameters were replaced."""
    task = Randomised(balance(), VARIED)
    episode = start(task, jax.random.key(1))
    _, t = jax.jit(lambda e, a: advance(task, e, a))(episode, jnp.array([0.3]))
    other = fx.Simulator(fx.replace(task.sim.model, episode.goal.parameters), task.sim.solver, dt=task.sim.dt)
    state = other.step(episode.state, jnp.array([0.3]))
    np.testing.assert_allclose(t.observation, np.concatenate([state.q, state.qd]), rtol=0, atol=1e-13)
    nominal = task.sim.step(episode.state, jnp.array([0.3]))
    assert abs(t.observation[2] - nominal.qd[0]) > 1e-4


def test_the_loop_has_the_same_bits_with_any_number_of_threads_and_new_draws_in_every_episode(task, robots):
    from tests.learn.test_loop import actor_of

    actor = actor_of(task, jax.random.key(1))
    two, one = (fx.learn.Loop(task, steps=20, threads=n)(actor, robots) for n in (2, 1))
    for a, b in zip(jax.tree.leaves(two), jax.tree.leaves(one), strict=True):
        a, b = (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in (a, b))
        np.testing.assert_array_equal(a, b)
    after, lived = two
    new = np.asarray(lived.tally.episodes) > 0
    assert new.all()  # twenty steps are an episode
    assert (np.asarray(after.goal.parameters[POLE]) != np.asarray(robots.goal.parameters[POLE])).all()


def test_a_parameter_stays_for_an_episode_while_noise_changes(task):
    step = jax.jit(lambda e, a: advance(task, e, a)[0])
    first = start(task, jax.random.key(2))
    later = step(first, jnp.zeros(1))
    np.testing.assert_array_equal(later.goal.parameters[POLE], first.goal.parameters[POLE])
    assert (later.goal.noise != first.goal.noise).all()


def test_pushes_come_after_their_pauses_with_their_speed():
    task = Randomised(balance(length=1000), pushes=Pushes(0.3, pause=(0.05, 0.07), joint="slider"))
    step = jax.jit(lambda e, a: advance(task, e, a)[0])
    episode, kicks = start(task, jax.random.key(3)), []
    for _ in range(60):
        episode = step(episode, jnp.zeros(1))
        kicks.append(np.asarray(episode.goal.push.kick))
    kicks = np.array(kicks)
    times = np.flatnonzero(kicks[:, 0])
    assert 10 <= len(times) <= 21  # steps of 0.02 s: every third or fourth, anew after an episode that ended
    assert abs(kicks[:, 0]).max() <= 0.3
    assert kicks.min() < 0 < kicks.max()
    assert not kicks[:, 1].any()
    moved = task.disturbed(episode.state, episode.goal)
    np.testing.assert_array_equal(moved.qd, episode.state.qd + episode.goal.push.kick)


def test_a_free_joint_is_pushed_horizontally():
    model = fx.load("ant")
    kicks = jax.vmap(lambda k: Pushes(0.5).kick(k, model))(jax.random.split(jax.random.key(0), 64))
    assert not np.asarray(kicks)[:, 2:].any()
    assert 0.4 < np.linalg.norm(kicks, axis=1).max() <= 0.5


def test_dry_friction_that_the_robot_lacks_acts_where_it_is_drawn():
    task = Randomised(balance(solver=fx.solver("ncp")), {"joint.slider.frictionloss": Between(50.0, 60.0)})
    _, t = jax.jit(lambda e, a: advance(task, e, a))(start(task, jax.random.key(1)), jnp.array([1.0]))
    assert abs(t.observation[2]) < 1e-6  # 10 N do not move it


def test_what_is_not_randomised_is_not_computed():
    """A task that declares nothing has the step of the plain one, with keys that are split and not used."""
    plain, bare = balance(), Randomised(balance())
    counts = []
    for task in (plain, bare):
        program = jax.make_jaxpr(lambda e, a, task=task: advance(task, e, a))(start(task, jax.random.key(0)), jnp.zeros(1))
        counts.append(len(program.eqns))
    assert 0 <= counts[1] - counts[0] <= 8
    assert jax.tree.leaves(start(bare, jax.random.key(0)).goal) == []


def test_it_moves_to_other_physics_and_keeps_its_name(task):
    assert task.name == "Balance"
    other = task.on("penalty")
    assert other.parameters == task.parameters
    check(other)


def test_it_is_an_environment_of_gymnasium(task):
    import flexor.gym

    envs = flexor.gym.TaskVectorEnv(task, num_envs=4)
    first, _ = envs.reset(seed=0)
    again, _ = envs.reset(seed=0)
    np.testing.assert_array_equal(first, again)
    seen, rewards, *_ = envs.step(np.zeros((4, 1)))
    assert np.isfinite(seen).all()
    assert len(np.unique(rewards)) == 4


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        (
            ({"body.pole.mas": Scaled(0.8, 1.2)},),
            r"no parameter of 'cartpole' matches 'body\.pole\.mas'\. Did you mean 'body\.pole",
        ),
        (({POLE: Scaled(-0.8, 1.2)},), r"'body\.pole\.mass' must not be negative"),
        (({POLE: Scaled(0.8, 1.2), "*.mass": Scaled(0.8, 1.2)},), r"'body\.pole\.mass' is randomised twice"),
    ],
)
def test_what_is_said_about_parameters(declared, sentence):
    with pytest.raises((KeyError, ValueError), match=sentence):
        Randomised(balance(), *declared)


def test_what_is_said_about_other_declarations(task):
    with pytest.raises(ValueError, match="two finite bounds, the lower first"):
        Scaled(1.2, 0.8)
    with pytest.raises(ValueError, match="has no free joint: name the `joint` to push"):
        Randomised(balance(), pushes=Pushes(0.5))
    with pytest.raises(ValueError, match="one number or 4, one for each that is observed"):
        Randomised(balance(), noise=np.zeros(3))
    with pytest.raises(ValueError, match="the shorter first"):
        Randomised(balance(), latency=(0.02, 0.01))
    with pytest.raises(TypeError, match="randomised already"):
        Randomised(task, noise=0.1)
