"""Delay of actuators: against MuJoCo's own history, closed forms and finite differences; kernels, batches, files, sentences."""

import warnings

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.model.delay import delayed, empty_history
from flexor.model.model import Control

DT = 0.002
ARM = """<mujoco model="arm"><option timestep="0.002"><flag eulerdamp="disable"/></option><worldbody>
<body name="upper"><joint name="j" axis="0 1 0" damping="0.1"/><geom size="0.1" mass="1" pos="0 0 -0.3"/>
<body name="lower" pos="0 0 -0.5"><joint name="k" axis="0 1 0"/><geom size="0.1" mass="0.4" pos="0 0 -0.3"/></body></body>
</worldbody><actuator>
<position name="a" joint="j" kp="20" kv="1" ctrlrange="-1 1" {a}/><motor name="b" joint="k"/><motor name="c" joint="j" {c}/>
</actuator></mujoco>"""
PLAIN = ARM.format(a="", c="")
BOTH = ARM.format(a='delay="0.005" nsample="6" interp="linear"', c='delay="0.0033" nsample="2" interp="linear"')


def inputs(steps=150, seed=0):
    return np.random.default_rng(seed).normal(size=(steps, 3))


def mujoco_positions(text, u):
    m = mujoco.MjModel.from_xml_string(text)
    d, q = mujoco.MjData(m), []
    for row in u:
        d.ctrl[:] = row
        mujoco.mj_step(m, d)
        q.append(d.qpos.copy())
    return np.array(q)


WHOLE = {
    "linear": BOTH,
    "one step": ARM.format(a='delay="0.002" nsample="1" interp="linear"', c=""),
    "all samples": ARM.format(a='delay="0.006" nsample="3" interp="linear"', c=""),
    "zoh, whole": ARM.format(a='delay="0.004" nsample="5"', c=""),
    "cubic, whole": ARM.format(a='delay="0.004" nsample="5" interp="cubic"', c=""),
    "no delay": ARM.format(a='delay="0" nsample="5" interp="linear"', c=""),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_motion_is_that_of_mujocos_own_history(kind):
    u = inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("error", fx.ModelWarning)
        sim = fx.Simulator(fx.load(WHOLE[kind]), dt=DT)
    q = sim.rollout(sim.reset(), u).q[1:]
    # the same sums in another order, over 150 steps of a smooth motion
    np.testing.assert_allclose(q, mujoco_positions(WHOLE[kind], u), atol=1e-12)


@pytest.mark.parametrize("solver", [fx.RigidSolver(contact=fx.Penalty()), fx.MujocoSolver()], ids=["penalty", "mujoco"])
def test_every_solver_delays_alike(solver):
    u = inputs()
    sim = fx.Simulator(fx.load(BOTH), solver, dt=DT)
    # MujocoSolver's Euler takes damping implicitly, MuJoCo's default
    text = BOTH if isinstance(solver, fx.RigidSolver) else BOTH.replace('<flag eulerdamp="disable"/>', "")
    np.testing.assert_allclose(sim.rollout(sim.reset(), u).q[1:], mujoco_positions(text, u), atol=1e-12)


def test_it_is_the_mean_over_a_step_of_the_exactly_delayed_input():
    """By quadrature of the held input, for a delay of 4.37 steps."""
    model = fx.load(BOTH)
    model = fx.replace(model, {"actuator.a.delay": 4.37 * DT, "actuator.c.delay": 0.61 * DT})
    u, history, found = inputs(40), empty_history(model), []
    for row in u:
        control, history = delayed(model, history, Control(u=jnp.asarray(row)), DT)
        found.append(control.u)
    fine = 100
    held = np.concatenate([np.zeros((10 * fine, 3)), np.repeat(u, fine, axis=0)])
    late = np.stack([np.roll(held[:, i], s) for i, s in enumerate((437, 0, 61))], axis=1)
    mean = late[10 * fine :].reshape(len(u), fine, 3).mean(1)
    np.testing.assert_allclose(found, mean, atol=1e-13)


def test_delay_counts_substeps():
    """A delay of 1.5 steps is one of 6 substeps of a quarter: the same motion as single steps of that length."""
    u = inputs(40)
    model = fx.with_delay(fx.load(PLAIN), {"actuator.a.delay": 1.5 * DT}, dt=DT / 4)
    coarse = fx.Simulator(model, fx.Substeps(fx.RigidSolver(), 4), dt=DT)
    fine = fx.Simulator(model, dt=DT / 4)
    a, b = coarse.rollout(coarse.reset(), u), fine.rollout(fine.reset(), np.repeat(u, 4, axis=0))
    np.testing.assert_allclose(a.q, b.q[::4], atol=1e-13)
    with pytest.raises(ValueError, match=r"has a delay of 0.003 s, but 2 past inputs are kept, which at steps of 0.0005 s"):
        fx.Simulator(
            fx.with_delay(fx.load(PLAIN), {"actuator.a.delay": 1.5 * DT}, dt=DT), fx.Substeps(fx.RigidSolver(), 4), dt=DT
        )


@pytest.mark.parametrize("simd", [False, True], ids=["xla", "kernel"])
def test_derivative_is_that_of_finite_differences(simd):
    u, model = inputs(30), fx.load(BOTH)

    def final(delay):
        sim = fx.Simulator(fx.replace(model, {"actuator.[ac].delay": delay}), dt=DT, simd=simd)
        return sim.rollout(sim.reset(), u).q[-1].sum()

    h = 1e-6  # within one step the motion is smooth in the delay: the error is h^2 and rounding 1e-16 / h
    for delay in (0.3 * DT, 1.4 * DT) if simd else (1.4 * DT,):
        slope = (final(delay + h) - final(delay - h)) / (2 * h)
        np.testing.assert_allclose([jax.grad(final)(delay), jax.jacfwd(final)(delay)], slope, rtol=1e-7)


def test_derivative_to_inputs_reaches_as_far_as_the_delay():
    model = fx.replace(fx.load(BOTH), {"actuator.a.delay": 2 * DT, "actuator.c.delay": 2 * DT})
    sim = fx.Simulator(model, dt=DT, simd=False)
    slope = jax.grad(lambda u: sim.rollout(sim.reset(), u).qd[-1].sum())(0.1 * inputs(5))
    used = np.abs(np.asarray(slope)) > 0
    np.testing.assert_array_equal(used[:, 0], [True, True, True, False, False])
    np.testing.assert_array_equal(used[:, 1], True)


def test_slope_at_no_delay_is_the_one_towards_longer_delays():
    model = fx.load(BOTH)

    def acting(delay):
        late = fx.replace(model, {"actuator.a.delay": delay})
        history = jnp.asarray([[3.0, 0.0]] * 6)
        return delayed(late, history, Control(u=jnp.ones(3)), DT)[0].u[0]

    np.testing.assert_allclose(jax.grad(acting)(0.0), (3.0 - 1.0) / DT, rtol=1e-13)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_kernels_and_batches_agree_with_xla(dtype):
    model = fx.load(BOTH, dtype=dtype)
    xla, kernel = (fx.Simulator(model, dt=DT, simd=s) for s in (False, True))
    u = jnp.asarray(np.stack([inputs(50, seed) for seed in range(3)]), dtype)
    delays = jnp.asarray([0.0, 1.7 * DT, 2 * DT], dtype)

    def final(sim, delay, u):
        sim = fx.Simulator(fx.replace(sim.model, {"actuator.c.delay": delay}), dt=sim.dt, simd=sim.simd)
        return sim.rollout(sim.reset(), u).final

    one = [final(xla, d, x) for d, x in zip(delays, u, strict=True)]
    expected = jax.tree.map(lambda *x: jnp.stack(x), *one)
    tolerance = 1e3 * float(jnp.finfo(dtype).eps)
    for sim in (xla, kernel):
        found = jax.vmap(lambda d, x, sim=sim: final(sim, d, x))(delays, u)
        assert found.history.dtype == found.q.dtype == dtype
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_rollouts_go_on_where_they_ended_and_reset_forgets():
    sim, u = fx.Simulator(fx.load(BOTH), dt=DT), inputs(60)
    whole = sim.rollout(sim.reset(), u)
    first = sim.rollout(sim.reset(), u[:23])
    second = sim.rollout(first.final, u[23:])
    np.testing.assert_array_equal(whole.q[23:], second.q)
    np.testing.assert_array_equal(first.final.history[:, 0], u[22:16:-1, 0])
    np.testing.assert_array_equal(whole.u, u)
    stepped = sim.reset()
    for row in u[:23]:
        stepped = sim.step(stepped, row)
    np.testing.assert_allclose(stepped.q, first.q[-1], atol=1e-14)
    assert not np.any(sim.reset().history)


def test_policies_see_the_history():
    sim = fx.Simulator(fx.load(BOTH), dt=DT)
    run = sim.rollout(sim.reset(), lambda state: jnp.zeros(3).at[0].set(1 + state.history[0, 0]), steps=5)
    np.testing.assert_array_equal(run.u[:, 0], [1, 2, 3, 4, 5])


def test_without_room_for_a_delay_nothing_is_kept():
    sim = fx.Simulator(fx.load(PLAIN), dt=DT)
    assert sim.reset().history is None
    assert sim.rollout(sim.reset(), inputs(3)).final.history is None
    program = jax.make_jaxpr(lambda state, u: sim.solver.step(sim.model, state, Control(u=u), sim.dt))
    assert "floor" not in str(program(sim.reset(), jnp.zeros(3)))


def test_hybrid_solvers_keep_the_history():
    sim = fx.Simulator(fx.load(BOTH), dt=DT)
    blueprint = fx.Blueprint()
    blueprint.add("joint.passive_force", inputs=["joint.qd"], net=fx.nets.MLP(width=4))
    hybrid, u = sim.augment(blueprint), inputs(20)
    np.testing.assert_allclose(hybrid.rollout(hybrid.reset(), u).q, sim.rollout(sim.reset(), u).q, atol=1e-14)


def test_sentences():
    model = fx.load(PLAIN)
    with pytest.raises(
        ValueError, match=r"actuator 'a' keeps no past inputs, so it cannot have a delay yet: `fx.with_delay"
    ):
        fx.replace(model, {"actuator.a.delay": 0.01})
    assert fx.replace(model, {"actuator.*.delay": 0.0}).topology == model.topology
    late = fx.with_delay(model, {"actuator.a.delay": 0.01}, dt=DT, longest=0.02)
    assert late.topology.actuators[0].samples == 10
    assert late.topology.delayed.tolist() == [0]
    with pytest.raises(ValueError, match=r"'actuator.a.delay' must not be negative"):
        fx.replace(late, {"actuator.a.delay": -0.01})
    with pytest.raises(ValueError, match=r"actuator 'a' has a delay of 0.05 s, but 10 past inputs .* longest=0.05\)"):
        fx.Simulator(fx.replace(late, {"actuator.a.delay": 0.05}), dt=DT)
    with pytest.raises(KeyError, match=r"no actuator of 'arm' matches 'actuator.z.\*'; its delays are actuator.a.delay"):
        fx.with_delay(model, {"actuator.z.*": 0.01}, dt=DT)
    with pytest.raises(ValueError, match=r"`longest` is 0.005 s, but it must be at least the longest of the delays, 0.01 s"):
        fx.with_delay(model, {"actuator.a.delay": 0.01}, dt=DT, longest=0.005)
    sim = fx.Simulator(late, dt=DT)
    with pytest.raises(ValueError, match=r"history of past inputs of shape \(10, 1\); this state has none"):
        sim.step(fx.State(jnp.zeros(2), jnp.zeros(2), jnp.zeros(())))
    with pytest.raises(ValueError, match=r"learned solvers do not support delays, and actuator 'a' of 'arm' may have one"):
        fx.nerd.Frames(late.topology, DT)


def test_steppers_and_saved_simulators_delay_alike(tmp_path):
    sim, u = fx.Simulator(fx.load(BOTH), dt=DT), inputs(30)
    run = sim.rollout(sim.reset(), u)
    stepper = sim.compile()
    for row in u:
        stepper.step(row)
    np.testing.assert_allclose(stepper.q, run.q[-1], atol=1e-13)
    np.testing.assert_array_equal(stepper.state.history, run.final.history)
    sim.save(tmp_path / "sim")
    again = fx.open(tmp_path / "sim")
    np.testing.assert_array_equal(again.rollout(again.reset(), u).q, run.q)
