"""Delays from logs: of MuJoCo's own delay, with noise, jointly with damping; and the inputs before a segment."""

import dataclasses
import importlib

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.identify import chain
from flexor.identify.segments import cut
from tests.identify.test_chain import PENDULUM, two_links

DT, DELAY, DAMPING = 0.002, 0.023, 0.12  # 11.5 steps
SERVO = """<mujoco model="servo"><option timestep="0.002"><flag eulerdamp="disable"/></option><worldbody><body name="arm">
<joint name="hinge" axis="0 1 0" damping="{damping}"/><geom size="0.03" mass="0.5" pos="0 0 -0.2"/></body></worldbody>
<actuator><position name="servo" joint="hinge" kp="8" kv="0.3" {delay}/></actuator></mujoco>"""
COLUMNS, NOISE = ("q.hinge", "qd.hinge"), {"q.hinge": 2e-3, "qd.hinge": 2e-2}


@pytest.fixture(scope="module")
def log():
    """Three seconds at 100 Hz of a servo that follows a chirp with two jumps, as MuJoCo simulates it, with noise."""
    text = SERVO.format(damping=DAMPING, delay=f'delay="{DELAY}" nsample="20" interp="linear"')
    m = mujoco.MjModel.from_xml_string(text)
    d, rng = mujoco.MjData(m), np.random.default_rng(0)
    time = 0.01 * np.arange(301)
    u = 0.6 * np.sin(2 * np.pi * (0.4 + 0.5 * time) * time) + 0.3 * (time > 1) - 0.5 * (time > 2.1)
    values = []
    for command in u:
        values.append([d.qpos[0], d.qvel[0]])
        d.ctrl[0] = command
        for _ in range(5):
            mujoco.mj_step(m, d)
    noisy = np.array(values) + rng.normal(size=(301, 2)) * list(NOISE.values())
    return fx.Log(time, noisy, COLUMNS, u[:, None], NOISE, before=np.zeros(1), name="chirp")


def guess(longest=0.06, dt=DT, solver=None):
    model = fx.with_delay(
        fx.load(SERVO.format(damping=0.05, delay="")), {"actuator.servo.delay": 0.0}, dt=dt, longest=longest
    )
    return fx.Simulator(model, solver, dt=DT, simd=True)


@pytest.mark.parametrize("shooting", [fx.Shooting(free_start=True), fx.Shooting(horizon=0.25, free_start=True)],
                         ids=["whole", "segments"])  # fmt: skip
def test_delay_and_damping_are_found_together(log, shooting):
    fit = fx.identify(guess(), log, free=["actuator.*.delay", "joint.*.damping"], shooting=shooting)
    assert fit.ok, fit.message
    assert abs(fit.values["actuator.servo.delay"] - DELAY) < 1e-3
    assert abs(fit.values["joint.hinge.damping"] - DAMPING) < 2e-3
    for name, truth in (("actuator.servo.delay", DELAY), ("joint.hinge.damping", DAMPING)):
        low, high = fit.posterior.intervals(0.99)[name]  # two numbers at 0.99: the seed is fixed, and the noise is stated
        assert low < truth < high
        assert high - low < 0.1 * truth
    assert fit.training.weighted < 1.1


def test_segments_that_forget_the_inputs_before_them_are_wrong(log, monkeypatch):
    """What the test above rests on: with zeros in the place of the log's inputs the delay is missed by far."""
    module = importlib.import_module("flexor.identify.segments")  # the name in the package is a function's
    monkeypatch.setattr(module, "_past", lambda log, sim, row: np.zeros((sim.model.topology.samples, 1)))
    fit = fx.identify(guess(), log, free=["actuator.*.delay"], shooting=fx.Shooting(horizon=0.1))
    assert abs(fit.values["actuator.servo.delay"] - DELAY) > 1e-3


def test_the_chain_of_steps_knows_delays(monkeypatch):
    late = fx.with_delay(PENDULUM, {"actuator.elbow.delay": 0.013}, dt=0.01, longest=0.03)
    links = two_links(free=("body.*.com", "actuator.elbow.delay"), model=late)
    z, d = jnp.asarray(links.start), 0.1 * jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)))
    assert links.chained
    by_chain = jax.jit(links.normal)(z, d)
    monkeypatch.setattr(chain, "WORTH", 1000)
    by_forward = jax.jit(lambda z, d: links.normal(z, d))(z, d)
    assert abs(float(by_forward.g[-1])) > 1
    for a, b in zip(by_chain, by_forward, strict=True):  # other orders of sums of about a hundred products
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-11 * np.abs(b).max())


@pytest.mark.parametrize("count", [1, 2], ids=["steps", "substeps"])
def test_inputs_before_a_segment_are_those_of_the_log(count):
    """Rows at 100 Hz, steps of 2 ms: the input k / 100 s holds for five steps; the first segment looks beyond the log."""
    solver = fx.RigidSolver() if count == 1 else fx.Substeps(fx.RigidSolver(), count)
    sim = guess(longest=0.03, dt=DT / count, solver=solver)
    time = 5.0 + 0.01 * np.arange(11)
    run = fx.Log(time, np.zeros((11, 2)), COLUMNS, 100.0 + np.arange(11.0)[:, None])
    segments, _ = cut(sim, [run], fx.Shooting(horizon=0.02), np.ones(2))
    assert segments.past.shape == (5, 15 * count, 1)
    np.testing.assert_array_equal(segments.past[0], 100.0)
    np.testing.assert_array_equal(segments.past[2, :, 0], np.repeat([103.0, 102.0, 101.0], 5 * count))
    told = dataclasses.replace(run, before=[7.0])
    np.testing.assert_array_equal(cut(sim, [told], fx.Shooting(horizon=0.02), np.ones(2))[0].past[0], 7.0)
    part = told.between(3, 10)
    np.testing.assert_array_equal(part.before, [102.0])
    plain = fx.Simulator(fx.load(SERVO.format(damping=0.05, delay="")), dt=DT)
    assert cut(plain, [run], fx.Shooting(), np.ones(2))[0].past is None


def test_simulated_trajectories_begin_without_inputs():
    sim = guess()
    run = sim.rollout(sim.reset(), np.ones((5, 1)))
    np.testing.assert_array_equal(fx.Log.of(run).before, [0.0])


def test_sentences(log):
    plain = fx.Simulator(fx.load(SERVO.format(damping=0.05, delay="")), dt=DT)
    with pytest.raises(ValueError, match=r"actuator 'servo' keeps no past inputs"):
        fx.identify(plain, log, free=["actuator.*.delay"])
    with pytest.raises(
        ValueError, match=r"bounds of 'actuator.servo.delay' reach 0.5 s, but past inputs are kept for 0.06 s"
    ):
        fx.identify(guess(), log, free=["actuator.*.delay"], bounds={"*.delay": (0.0, 0.5)})
    with pytest.raises(ValueError, match=r"`before` needs a number for each of the 1 controls, got \(2,\)"):
        dataclasses.replace(log, before=[0.0, 1.0])
