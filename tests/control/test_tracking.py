"""Controllers that follow a motion, in rollouts and loops, with models that are right, wrong and learnt."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor import control
from flexor import dynamics as dyn
from flexor.control.adaptive import free_of

ARM = """<mujoco model="arm"><worldbody><body name="upper">
<joint name="a" axis="0 1 0" damping="0.3" frictionloss="0.2" armature="0.05"/>
<inertial pos="0.2 0 0.02" mass="2" fullinertia="0.02 0.05 0.06 0.001 0.002 0"/>
<body name="lower" pos="0.4 0 0"><joint name="b" axis="0 1 0" damping="0.1" armature="0.02"/>
<inertial pos="0.15 0 0" mass="1" diaginertia="0.004 0.02 0.02"/></body></body></worldbody>
<actuator><motor name="mb" joint="b" gear="2"/><motor name="ma" joint="a"/></actuator></mujoco>"""
DT, STEPS = 0.001, 1500
FREE = ["body.lower.mass", "body.lower.com", "body.lower.inertia", "joint.b.damping"]


@pytest.fixture(scope="module")
def model():
    return fx.load(ARM)


@pytest.fixture(scope="module")
def heavy(model):
    """The same arm with 2 kg in its hand, and worn."""
    return fx.replace(model, {"body.lower.mass": 3.0, "body.lower.com": np.array([0.25, 0.0, 0.0]), "joint.b.damping": 0.6})


@pytest.fixture(scope="module")
def goal():
    arrays = (np.array(x) for x in ([-0.5, 0.6], [0.5, 0.7], [0.8, 1.1], [0.0, 1.0]))
    return control.Sines(*map(jnp.asarray, arrays))


def policy_of(name, model, goal):
    gains = jnp.array([300.0, 100.0]), jnp.array([40.0, 8.0])
    free = free_of(model, FREE)
    size = jnp.asarray(free.sizes(model, 3.0, 0.2))
    return {
        "pd": lambda: control.PD(model, goal, *gains),
        "frozen": lambda: control.ComputedTorque(model, goal),
        "slotine-li": lambda: control.SlotineLi(model, goal, free, DT, gains[1], size**2 * 0.5),
        "least squares": lambda: control.LeastSquaresTorque(model, goal, free, DT, size),
    }[name]()


@pytest.fixture(scope="module")
def tracked(model, heavy, goal):
    """Errors in rad of rollouts on a robot, (steps, joints)."""
    done = {}

    def run(name, on):
        if (name, on) not in done:
            robot = heavy if on == "heavy" else model
            sim = fx.Simulator(robot, fx.RigidSolver(contact=None), dt=DT)
            path = sim.rollout(sim.reset(goal.middle), policy_of(name, model, goal), steps=STEPS)
            done[name, on] = np.asarray(path.q) - np.asarray(positions(goal, path.time)), path
        return done[name, on]

    return run


@jax.jit
def positions(goal, times):
    return jax.vmap(lambda t: goal(t)[0])(times)


def rms(errors):
    return float(np.sqrt(np.mean(errors[len(errors) // 2 :] ** 2)))


def test_goals_are_their_own_derivatives(goal):
    t, h = 0.7, 1e-4
    found = [np.asarray(x) for x in jax.jit(jax.vmap(goal))(t + h * jnp.arange(-1.0, 2.0))]
    (behind, q, ahead), qd, qdd = found[0], found[1][1], found[2][1]
    np.testing.assert_allclose((ahead - behind) / (2 * h), qd, rtol=1e-5)
    np.testing.assert_allclose((ahead - 2 * q + behind) / h**2, qdd, rtol=1e-4, atol=1e-5)


def test_computed_torque_with_the_right_model_follows_and_with_the_wrong_one_does_not(tracked):
    # a step of the simulator is semi-implicit: 1 ms of a motion of 5 rad/s and 30 rad/s^2
    assert rms(tracked("frozen", "light")[0]) < 1e-3
    assert rms(tracked("frozen", "heavy")[0]) > 20 * rms(tracked("frozen", "light")[0])


@pytest.mark.parametrize("name", ["slotine-li", "least squares"])
def test_controllers_that_learn_beat_the_frozen_model(tracked, name):
    assert rms(tracked(name, "heavy")[0]) < rms(tracked("frozen", "heavy")[0]) / 3


def test_least_squares_learn_what_the_robot_carries(tracked, heavy):
    theta = np.asarray(tracked("least squares", "heavy")[1].policy_memory.theta)
    mass, moment = theta[0], theta[1]
    np.testing.assert_allclose([mass, moment], [3.0, 0.75], rtol=4e-3)
    np.testing.assert_allclose(theta[10], 0.6, rtol=0.03)


def test_the_filters_of_both_sides_are_the_same():
    """2 kg under a steady 4 N at 100 Hz: filtered force is mass times filtered acceleration, from the first interval."""
    slide = fx.load("""<mujoco><worldbody><body name="b"><joint name="x" type="slide" axis="1 0 0"/>
    <inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/></body></worldbody><actuator><motor joint="x"/></actuator></mujoco>""")
    free, dt, goal = free_of(slide, ["body.b.mass"]), 0.01, control.Sines(*jnp.zeros((4, 1)))
    policy = control.LeastSquaresTorque(slide, goal, free, dt, jnp.asarray(free.sizes(slide, 3.0, 0.2)))
    memory, call = policy.init(None), jax.jit(lambda state, memory: policy(state, memory, None)[1])
    for t in dt * jnp.arange(30.0):
        memory = call(fx.State(t[None] ** 2 + 1.0, 2 * t[None], t), memory)
        memory = memory._replace(u=jnp.array([4.0]))
        if t > 2.5 * dt:
            np.testing.assert_allclose(memory.theta[0], 2.0, rtol=0.02)
    np.testing.assert_allclose(memory.theta[0], 2.0, rtol=1e-3)


def test_slotine_lis_regressor_is_inverse_dynamics_and_bilinear(model, goal):
    policy, rng = policy_of("slotine-li", model, goal), np.random.default_rng(0)
    q, v, w, a = (jnp.asarray(rng.normal(size=2)) for _ in range(4))
    theta = policy.init(None)

    @jax.jit
    def force(qd, qd_r, qdd_r):
        Y, known = policy.regressor(q, qd, qd_r, qdd_r, jnp.zeros(2))
        return Y @ theta + known

    damping = model.joints.damping[model.topology.dof_joint]
    expected = dyn.rnea(model, dyn.forward_kinematics(model, q), v, a) + damping * v
    np.testing.assert_allclose(force(v, v, a), expected, rtol=1e-9, atol=1e-9)
    still = force(v, jnp.zeros(2), a)
    one, two = (force(v, k * w, a) - still for k in (1.0, 2.0))
    np.testing.assert_allclose(two, 2 * one, rtol=1e-9, atol=1e-9)
    coriolis = [force(x, y, a) - force(x, jnp.zeros(2), a) - damping * y for x, y in ((v, w), (w, v))]
    np.testing.assert_allclose(*coriolis, rtol=1e-8, atol=1e-9)  # Christoffel's C is symmetric: C(q, v) w = C(q, w) v
    bias = jax.jit(lambda v: dyn.bias_force(model, dyn.forward_kinematics(model, q), v))
    polarised = 0.5 * (bias(v + w) - bias(v) - bias(w) + bias(0 * v))
    np.testing.assert_allclose(coriolis[0], polarised, rtol=1e-8, atol=1e-9)


def test_a_loop_is_the_policy_and_takes_an_estimate(model, goal):
    place = fx.adapt.Adapter(fx.Simulator(model), ["body.lower.mass"]).place
    policy = control.ComputedTorque(model, goal, place=place)
    loop, q, qd = policy.compile(), np.array([0.1, -0.2]), np.array([0.5, 1.0])
    state = fx.State(jnp.asarray(q), jnp.asarray(qd), jnp.asarray(0.4))
    u, _ = policy(state, policy.init(None), None)
    np.testing.assert_allclose(loop(0.4, q, qd), u.u, rtol=1e-12)
    loop.memory[...] = place.start + 0.7
    robot = place.apply(model, place.start + 0.7)[0]
    changed, _ = eqx.tree_at(lambda p: p.model, control.ComputedTorque(model, goal), robot)(state, jnp.zeros(0), None)
    np.testing.assert_allclose(loop(0.4, q, qd), changed.u, rtol=1e-12)


def test_sentences(goal):
    free = fx.load('<mujoco model="box"><worldbody><body><freejoint/><geom size="1"/></body></worldbody></mujoco>')
    with pytest.raises(ValueError, match="'box' has degrees of freedom without a motor of their own"):
        control.PD(free, goal, jnp.ones(6), jnp.ones(6))
    with pytest.raises(ValueError, match=r"'body.x.pos' is no inertia or friction"):
        free_of(free, ["body.x.pos"])
