"""The simulator: what it returns, how it goes on, its gradients, and how it refuses bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx


@pytest.fixture(scope="module")
def sim():
    return fx.Simulator(fx.load("double_pendulum"), dt=0.005)


@pytest.fixture(scope="module")
def cube():
    return fx.Simulator(fx.load("cube"), dt=0.002)


def test_a_rollout_is_its_steps(sim):
    controls = np.random.default_rng(0).normal(size=(10, 2))
    traj = sim.rollout(sim.reset([0.3, 0.4]), controls)
    state = sim.reset([0.3, 0.4])
    for k, u in enumerate(controls):
        np.testing.assert_allclose(traj.q[k], state.q, atol=1e-14)
        state = sim.step(state, u)
    np.testing.assert_allclose(traj.qd[-1], state.qd, atol=1e-14)
    assert len(traj) == 10
    np.testing.assert_array_equal(traj.u, controls)
    np.testing.assert_allclose(traj.time, 0.005 * np.arange(11), atol=1e-15)


def test_a_rollout_goes_on_where_another_ended(cube):
    """The final state carries the warm start, so that two halves are the whole, bit for bit."""
    state = cube.reset("rest", [0.3, 0, 0, 0, 0, 1.0])
    whole = cube.rollout(state, steps=40)
    first = cube.rollout(state, steps=20)
    second = cube.rollout(first.final, steps=20)
    np.testing.assert_array_equal(jnp.concatenate([first.q, second.q[1:]]), whole.q)
    assert float(jnp.abs(first.final.memory.contact).max()) > 0


def test_policies_see_the_state(sim):
    gain = jnp.array([2.0, 1.0])
    traj = sim.rollout(sim.reset([0.3, 0.4]), lambda state: -gain * state.q, steps=5)
    np.testing.assert_allclose(traj.u, -gain[None] * traj.q[:-1], atol=1e-14)
    with_forces = sim.rollout(sim.reset([0.3, 0.4]), lambda state: fx.Control(tau=-gain * state.q), steps=5)
    np.testing.assert_allclose(with_forces.q, traj.q, atol=1e-13)


def test_the_gradient_of_a_rollout_is_a_finite_difference(sim):
    """Central differences with step h err by h^2 + eps / h, 1e-9 at h = 1e-5 for numbers of order one; times 100."""

    @jax.jit
    def end(q, mass, u):
        heavy = fx.Simulator(fx.replace(sim.model, {"body.lower.mass": mass}), dt=sim.dt)
        return heavy.rollout(heavy.reset(q), jnp.broadcast_to(u, (40, 2))).q[-1, 1]

    at = (jnp.array([0.5, -0.2]), jnp.asarray(0.5), jnp.array([0.1, 0.2]))
    gradient = jax.jit(jax.grad(end, (0, 1, 2)))(*at)
    h = 1e-5
    for which, value in enumerate(at):
        for i in range(value.size):

            def moved(sign, which=which, value=value, i=i):
                changed = (value.reshape(-1).at[i].add(sign * h)).reshape(value.shape)
                return end(*(changed if k == which else x for k, x in enumerate(at)))

            difference = (moved(1) - moved(-1)) / (2 * h)
            assert float(gradient[which].reshape(-1)[i]) == pytest.approx(float(difference), abs=1e-7)


def test_the_gradient_of_a_long_rollout_keeps_one_state_a_step():
    """Reverse mode through 20,000 steps. What is kept for a step must be the state alone, q, qd and time, and not what a
    step computes in between, which is a hundred times as much."""
    sim = fx.Simulator(fx.load("pendulum"), fx.RigidSolver(contact=None), dt=1e-3)
    steps = 20_000

    def end(q):
        return sim.rollout(sim.reset(q), steps=steps).q[-1, 0]

    compiled = jax.jit(jax.value_and_grad(end)).lower(jnp.array([0.5])).compile()
    value, gradient = compiled(jnp.array([0.5]))
    assert jnp.isfinite(value)
    assert jnp.isfinite(gradient).all()
    # the trajectory itself, the states kept for reverse mode, and what XLA doubles: some ten numbers a step
    assert compiled.memory_analysis().temp_size_in_bytes < 20 * 8 * steps


def test_resetting(sim, cube):
    np.testing.assert_allclose(sim.reset("level").q, [np.pi / 2, 0])
    np.testing.assert_array_equal(sim.reset().q, sim.model.reference)
    np.testing.assert_array_equal(cube.reset(qd=np.ones(6)).qd, np.ones(6))
    assert float(sim.reset().time) == 0


BAD_STATES = {
    "q": ([1.0], None, r"`q` of 'double_pendulum' must have shape \(2,\), got \(1,\)"),
    "qd": (None, [1.0, 2.0, 3.0], r"`qd` of 'double_pendulum' must have shape \(2,\), got \(3,\)"),
    "NaN": ([0.0, np.nan], None, r"`q` of 'double_pendulum' is nan at index 1 \(elbow\)"),
    "infinity": (None, [np.inf, 0.0], r"`qd` of 'double_pendulum' is inf at index 0 \(shoulder\)"),
}


@pytest.mark.parametrize("case", BAD_STATES)
def test_bad_states(sim, case):
    q, qd, sentence = BAD_STATES[case]
    with pytest.raises(ValueError, match=sentence):
        sim.reset(q, qd)
    state = sim.reset()
    wrong = (old if new is None else jnp.array(new) for old, new in ((state.q, q), (state.qd, qd)))
    bad = fx.State(*wrong, state.time, state.memory)
    with pytest.raises(ValueError, match=sentence):
        sim.step(bad)
    with pytest.raises(ValueError, match=sentence):
        sim.rollout(bad, steps=3)


def test_quaternions_are_explained(cube):
    with pytest.raises(ValueError, match=r"must have shape \(7,\), got \(6,\); a ball joint uses 4 .* a free joint 7 and 6"):
        cube.reset(np.zeros(6))
    with pytest.raises(ValueError, match=r"`q` of 'cube' is nan at index 4 \(root.qx\)"):
        cube.reset([0, 0, 1, 1, np.nan, 0, 0])


def test_bad_controls(sim, any_shapes):
    state = sim.reset()
    with pytest.raises(ValueError, match=r"control `u` of 'double_pendulum' must have shape \(2,\), got \(3,\)"):
        sim.step(state, np.zeros(3))
    with pytest.raises(ValueError, match=r"control `tau` of 'double_pendulum' must have shape \(2,\), got \(1,\)"):
        sim.step(state, fx.Control(tau=np.zeros(1)))
    with pytest.raises(ValueError, match=r"control `wrench` of 'double_pendulum' must have shape \(3, 6\), got \(2, 6\)"):
        sim.step(state, fx.Control(wrench=np.zeros((2, 6))))
    with pytest.raises(ValueError, match=r"control `u` .* must have shape \(2,\), got \(3,\)"):
        sim.rollout(state, np.zeros((5, 3)))
    with pytest.raises(ValueError, match=r"control `u` .* must have shape \(2,\), got \(\)"):
        sim.rollout(state, np.zeros(5))
    with pytest.raises(ValueError, match="need a leading time axis of one length"):
        sim.rollout(state, fx.Control(u=np.zeros((5, 2)), tau=np.zeros((4, 2))))
    with pytest.raises(ValueError, match="have no time steps"):
        sim.rollout(state, np.zeros((0, 2)))
    with pytest.raises(ValueError, match="`steps` is 4, but the controls have 5 rows"):
        sim.rollout(state, np.zeros((5, 2)), steps=4)
    with pytest.raises(ValueError, match=r"`steps` must be a positive number .* got None"):
        sim.rollout(state)
    with pytest.raises(ValueError, match=r"`steps` must be a positive number .* got 0"):
        sim.rollout(state, steps=0)


@pytest.mark.parametrize("dt", [0.0, -0.01, np.nan, np.inf])
def test_bad_time_steps(sim, dt):
    with pytest.raises(ValueError, match="`dt` must be a positive number of seconds, got"):
        fx.Simulator(sim.model, dt=dt)
    with pytest.raises(ValueError, match=r"`dt` must be a number of seconds, got an array of shape \(2,\)"):
        fx.Simulator(sim.model, dt=[0.1, 0.1])


def test_unknown_names(sim):
    with pytest.raises(KeyError, match="'double_pendulum' has no keyframe named 'down'; it has 'level', 'upright'"):
        sim.reset("down")
    with pytest.raises(KeyError, match="'double_pendulum' has no body named 'middle'; it has 'world', 'upper', 'lower'"):
        sim.model.body("middle")
    with pytest.raises(KeyError, match="'double_pendulum' has no joint named 'knee'; it has 'shoulder', 'elbow'"):
        sim.model.joint("knee")
    with pytest.raises(KeyError, match="has no actuator named 'knee'"):
        sim.model.actuator("knee")
    with pytest.raises(KeyError, match="has no geom named 'knee'"):
        sim.model.geom("knee")
    with pytest.raises(KeyError, match=r"no parameter of 'double_pendulum' matches 'body.*.weight'"):
        fx.replace(sim.model, {"body.*.weight": 1.0})
    with pytest.raises(KeyError, match=r"'joint.torque' is not a tap; the names are joint.q, joint.qd"):
        sim.rollout(sim.reset(), steps=2, record=["joint.torque"])
    with pytest.raises(ValueError, match=r"RigidSolver does not compute 'contact.depth' for this model"):
        sim.rollout(sim.reset(), steps=2, record=["contact.depth"])


def test_impulses_have_no_place_in_rk4(sim):
    with pytest.raises(ValueError, match=r"NCP works with impulses .*, which RK4 does not support: use contact=Penalty"):
        fx.Simulator(fx.load("cube"), fx.RigidSolver(integrator=fx.RK4()))
    fx.Simulator(sim.model, fx.RigidSolver(integrator=fx.RK4()))  # nothing to touch, no limits: no impulses


def test_values_no_robot_can_have(sim):
    with pytest.raises(ValueError, match=r"'body.upper.mass' must not be negative, got -1.0"):
        fx.replace(sim.model, {"body.upper.mass": -1.0})
    with pytest.raises(ValueError, match=r"'joint.elbow.damping' is not a number"):
        fx.replace(sim.model, {"joint.elbow.damping": np.nan})
    with pytest.raises(ValueError, match=r"'body.upper.com' must have shape \(3,\), got \(2,\)"):
        fx.replace(sim.model, {"body.upper.com": np.zeros(2)})


def test_states_that_diverge(sim):
    """A spring that pulls the wrong way: the status names the first bad step and a body, the trajectory stays readable."""
    model = fx.replace(sim.model, {"gravity": jnp.array([0.0, 0.0, -1e300])})
    wild = fx.Simulator(model, fx.RigidSolver(contact=None), dt=0.1)
    traj = wild.rollout(wild.reset([0.1, 0.0]), steps=20)
    status = traj.status
    assert not status.ok
    assert status.body in ("upper", "lower")
    assert 0 < status.step <= 20
    assert np.isfinite(np.asarray(traj.q[: status.step])).all()
    assert not (np.isfinite(traj.q[status.step]).all() and np.isfinite(traj.qd[status.step]).all())
    assert f"step {status.step} is not finite, first at body '{status.body}'" in status.message
    with pytest.raises(FloatingPointError, match="'double_pendulum' diverged: step"):
        traj.raise_if_bad()
    assert sim.rollout(sim.reset(), steps=2).raise_if_bad().status.ok
