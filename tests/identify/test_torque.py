"""Identification from torques, against the robot that made the logs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor import dynamics as dyn
from flexor.dynamics.friction import LAWS, Coulomb, Quadratic, Stribeck
from flexor.identify import Butterworth, InverseDynamics, Momentum, SavitzkyGolay, Unfiltered
from flexor.identify.base_parameters import base_parameters
from flexor.identify.excite import excite
from flexor.identify.torque import correlation_time, motors_of
from flexor.identify.torque_rows import Signals

ARM = """<mujoco model="arm"><option timestep="0.002"/><worldbody><body name="upper">
<joint name="a" axis="0 1 0" damping="0.3" frictionloss="0.4" armature="0.05"/>
<inertial pos="0.2 0 0.02" mass="2" fullinertia="0.02 0.05 0.06 0.001 0.002 0"/>
<body name="lower" pos="0.4 0 0"><joint name="b" axis="0 1 0" damping="0.1" frictionloss="0.2" armature="0.02"/>
<inertial pos="0.15 0 0" mass="1" diaginertia="0.004 0.02 0.02"/><body name="flange" pos="0.3 0 0"/></body></body></worldbody>
<actuator><motor name="ma" joint="a" gear="2"/><motor name="mb" joint="b"/></actuator></mujoco>"""
TRUTH = fx.load(ARM)
GAINS = {"actuator.ma.gain": 3.0, "actuator.mb.gain": 5.0}
COLUMNS = ("q.a", "q.b", "qd.a", "qd.b")
SLOW = 0.4
BOX = fx.Load("box", "flange", 0.7, (0.05, 0.0, 0.03), (2e-3, 2e-3, 2e-3, 0.0, 0.0, 0.0))


def motion(seed, seconds=4.0, rate=200.0):
    """A sum of sines, with its velocities and accelerations."""
    rng = np.random.default_rng(seed)
    t = np.arange(0, seconds, 1 / rate)
    w, a, phase = 2 * np.pi * rng.uniform(0.2, 1.0, (4, 2)), rng.normal(size=(4, 2)) * 0.6, rng.uniform(0, 6, (4, 2))
    x = w[None] * t[:, None, None] + phase[None]
    return t, (a * np.sin(x)).sum(1), (a * w * np.cos(x)).sum(1), (-a * w**2 * np.sin(x)).sum(1)


@jax.jit
def force(model, q, qd, qdd):
    """Inverse dynamics with the joints' own friction, the motors' torque."""

    def one(q, qd, qdd):
        kin = dyn.forward_kinematics(model, q)
        dry = model.joints.frictionloss * jnp.tanh(qd / 0.02)
        return dyn.rnea(model, kin, qd, qdd) - dyn.passive_force(model, q, qd, kin) + dry

    return jax.vmap(one)(q, qd, qdd)


def record(seed, *, model=TRUTH, sigma=0.0, gain=(3.0, 5.0), name=None, load=None):
    """A log of currents: torques over gains and gears."""
    t, q, qd, qdd = motion(seed)
    if load is not None:
        model = fx.replace(model, {"body.flange.mass": load.mass, "body.flange.com": np.array(load.com),
                                   "body.flange.inertia": np.array(load.inertia)})  # fmt: skip
    u = np.asarray(force(model, q, qd, qdd)) / (np.array(gain) * [2.0, 1.0])
    u = u + sigma * np.random.default_rng(seed + 200).normal(size=u.shape)
    return fx.Log(t, np.concatenate([q, qd], axis=1), COLUMNS, u, name=name or f"run {seed}")


def simulator(changes=None):
    start = {"body.upper.mass": 1.4, "body.lower.mass": 1.5, "joint.*.damping": 0.02, "joint.*.frictionloss": 0.1, **GAINS}
    return fx.Simulator(fx.replace(TRUTH, {**start, **(changes or {})}), fx.RigidSolver(contact=None), dt=0.005)


FREE = [*(f"body.{body}.{x}" for body in ("upper", "lower") for x in ("mass", "com", "inertia")), "joint.*.armature",
        "joint.*.damping", "joint.*.frictionloss"]  # fmt: skip


@pytest.fixture(scope="module")
def base():
    return base_parameters(TRUTH)


@pytest.fixture(scope="module")
def fit():
    """Both links, armatures and friction from noisy currents of three runs; a fourth is unseen."""
    logs = [record(k, sigma=0.02) for k in range(3)]
    method = fx.Torque(filter=Unfiltered())
    return fx.identify(simulator(), logs, FREE, method=method, prior={"*": 10.0}, held_out=[record(7, sigma=0.02)])


def test_what_motion_shows_comes_back(fit, base):
    """Base parameters within 3 % of the robot's size, friction within 5 %; every single one may be anything else."""
    wanted = base.of(TRUTH)
    np.testing.assert_allclose(base.of(fit.model), wanted, atol=0.03 * np.abs(wanted).max())
    for name in ("joint.a.damping", "joint.b.damping", "joint.a.frictionloss", "joint.b.frictionloss"):
        assert fit.values[name] == pytest.approx(float(fx.parameters(TRUTH)[name]), rel=0.1)
    assert fit.ok
    assert fit.curves.columns == ("u.ma", "u.mb")


def test_unseen_torques_are_predicted_to_their_noise(fit):
    """Noise of 0.02, of which nothing has been filtered out."""
    assert max(fit.held_out.columns.values()) < 0.021
    assert fit.held_out.weighted < 1.1 < fit.held_out_before.weighted


def test_inertias_are_those_of_bodies(fit):
    for body in ("upper", "lower"):
        I = np.asarray(fx.spatial.inertia_matrix(fit.values[f"body.{body}.inertia"]))
        assert np.linalg.eigvalsh(np.trace(I) / 2 * np.eye(3) - I).min() > 0
        assert fit.values[f"body.{body}.mass"] > 0


def test_intervals_hold_what_the_logs_determine(fit):
    """Friction is determined by itself, and no filter rounds it where a joint turns back; at this level chance fails once in some
    hundreds."""
    intervals = fit.posterior.intervals(0.999)
    for name in ("joint.a.damping", "joint.b.damping", "joint.a.frictionloss", "joint.b.frictionloss"):
        low, high = intervals[name]
        assert low <= float(fx.parameters(TRUTH)[name]) <= high


def test_a_fit_is_saved_and_predicts_again(fit, tmp_path):
    fit.save(tmp_path / "fit")
    again = fx.Fit.load(tmp_path / "fit")
    t, q, qd, qdd = motion(9)
    signals = Signals(t, q, qd, qdd, np.zeros_like(q))
    method = fx.Torque()
    found = method.predict(again, signals)
    np.testing.assert_allclose(found, method.predict(fit, signals), rtol=1e-12)
    np.testing.assert_allclose(found, record(9).controls, atol=0.02 * np.abs(record(9).controls).max())


def test_momentum_needs_no_accelerations():
    """Exact data, no filter: what is left is the trapezoidal rule's error, (window step)^2."""
    method = fx.Torque(filter=Unfiltered(), equations=Momentum(window=0.1, stride=0.05))
    free = ["body.lower.mass", "joint.*.armature", "joint.*.damping", "joint.*.frictionloss"]
    sim = simulator({"body.upper.mass": 2.0})
    fit = fx.identify(sim, [record(k) for k in range(2)], free, method=method, held_out=0.0)
    for name in ("body.lower.mass", "joint.a.armature", "joint.b.armature", "joint.a.damping"):
        assert fit.values[name] == pytest.approx(float(fx.parameters(TRUTH)[name]), rel=2e-2)


def test_a_known_load_gives_the_gains_and_the_gains_a_load():
    """Gains and masses can only be told apart by something weighed."""
    method = fx.Torque(filter=Unfiltered(), loads={"loaded*": BOX})
    logs = [record(0), record(1, load=BOX, name="loaded 1"), record(2)]
    free = [
        "actuator.*.gain",
        "body.upper.mass",
        "body.lower.mass",
        "joint.*.damping",
        "joint.*.frictionloss",
        "joint.*.armature",
    ]
    start = {"actuator.*.gain": 4.0, "body.upper.mass": 1.4}
    fit = fx.identify(simulator(start), logs, free, method=method, held_out=0.0)
    for name, gain in GAINS.items():
        assert fit.values[name] == pytest.approx(gain, rel=1e-3)
    assert fit.values["body.lower.mass"] == pytest.approx(1.0, rel=1e-3)

    unknown = dataclasses.replace(BOX, mass=0.2, com=(0.0, 0.0, 0.0))
    method = fx.Torque(filter=Unfiltered(), loads={"*": unknown})
    truth = fx.Simulator(fx.replace(TRUTH, GAINS), fx.RigidSolver(contact=None), dt=0.005)
    found = fx.identify(
        truth, record(3, load=BOX), ["load.box.mass", "load.box.com"], method=method, prior={"*": 10.0}, held_out=0.0
    )
    assert found.extra["load.box.mass"] == pytest.approx(0.7, rel=1e-3)


def test_laws_of_friction_are_fitted():
    """A Stribeck law beside the joints' own friction, which is switched off."""
    law = Stribeck(viscous=0.1, base=0.3, stribeck=0.5, speed=0.3, exponent=1.5)
    bare = fx.replace(TRUTH, {"joint.*.damping": 0.0, "joint.*.frictionloss": 0.0})
    logs = []
    for k in range(2):
        log = record(k, model=bare)
        qd = log.values[:, 2:]
        friction = np.asarray(law.torque(jnp.asarray(qd), jnp.zeros(2), jnp.zeros(2)))
        logs.append(dataclasses.replace(log, controls=log.controls + friction / (np.array([3.0, 5.0]) * [2, 1])))
    sim = fx.Simulator(fx.replace(bare, GAINS), fx.RigidSolver(contact=None), dt=0.005)
    start = Stribeck(viscous=0.2, base=0.1, stribeck=0.2, speed=0.2, exponent=1.2)
    method = fx.Torque(filter=Unfiltered(), friction=start)
    fit = fx.identify(sim, logs, ["friction.*"], method=method, held_out=0.0)
    for name, value in (("viscous", 0.1), ("base", 0.3), ("stribeck", 0.5), ("speed", 0.3), ("exponent", 1.5)):
        for joint in "ab":
            assert fit.extra[f"friction.{joint}.{name}"] == pytest.approx(value, rel=2e-2)


@pytest.mark.parametrize("name", LAWS)
def test_laws_dissipate_and_have_derivatives(name):
    """Friction opposes motion at any load, and its slopes are finite at rest and equal to differences elsewhere."""
    law, rng = LAWS[name](), np.random.default_rng(0)
    qd, motor, load = (jnp.asarray(x) for x in rng.normal(size=(3, 50)))
    assert float(jnp.min(law.torque(qd, motor, load) * qd)) >= 0
    slope = jax.vmap(jax.grad(law.torque, argnums=(0, 1, 2)))
    assert all(bool(jnp.isfinite(x).all()) for x in slope(jnp.zeros(3), jnp.zeros(3), jnp.ones(3)))
    h = 1e-6  # differences: h^2 and rounding eps / h
    numeric = (law.torque(qd + h, motor, load) - law.torque(qd - h, motor, load)) / (2 * h)
    np.testing.assert_allclose(slope(qd, motor, load)[0], numeric, atol=1e-6)


def test_the_sixth_law_by_hand():
    """At rest with a motor of 2 against a load of -1: the motor drives, so the load's square counts."""
    law = Quadratic(viscous=0.3, base=0.1, stribeck=0.2, motor_share=0.05, load_share=0.1, motor_stribeck=0.5,
                    load_stribeck=0.25, motor_square=7.0, load_square=0.03)  # fmt: skip
    at_rest = law.limit(jnp.zeros(()), jnp.asarray(2.0), jnp.asarray(-1.0))
    assert float(at_rest) == pytest.approx(0.1 + 0.2 + 0.2 + 1.25 + 0.03, rel=1e-5)
    together = law.limit(jnp.zeros(()), jnp.asarray(2.0), jnp.asarray(1.0))
    assert float(together) == pytest.approx(0.1 + 0.2 + 0.0 + 0.75, rel=1e-5)
    assert float(Coulomb(base=0.4, viscous=1.0).stopping(jnp.asarray(9.0), jnp.asarray(2.0), 0.0, 0.0)) == pytest.approx(2.4)


def test_base_parameters_carry_all_torques(base):
    """Seven of the twenty-two: a plane arm shows two moments and one inertia a link, and the second motor's; gravity pulls
    along x and z."""
    assert base.names[0] == "upper.mx + 0.4 lower.m + 0.4 flange.m"
    assert len(base.names) == 7
    _, q, qd, qdd = motion(5)
    kin = dyn.forward_kinematics(TRUTH, jnp.asarray(q[40]))
    Y = np.concatenate([np.asarray(dyn.torque_regressor(TRUTH, kin, qd[40], qdd[40])), np.diag(qdd[40])], axis=1)
    wanted = np.asarray(dyn.rnea(TRUTH, kin, qd[40], qdd[40]))
    np.testing.assert_allclose(Y[:, base.independent] @ base.of(TRUTH), wanted, rtol=1e-9)


def test_excitation_stays_within_limits_and_shows_more():
    pendulum = fx.load("pendulum")
    found = excite(pendulum, duration=3.0, harmonics=3, velocity=2.0, acceleration=8.0, instants=30, starts=1, iterations=15)
    assert np.abs(found.qd).max() <= 2.0
    assert np.abs(found.qdd).max() <= 8.0
    np.testing.assert_allclose(found.qd[[0, -1]], 0, atol=1e-9)
    np.testing.assert_allclose(np.gradient(found.q[:, 0], found.time)[1:-1], found.qd[1:-1, 0], atol=5e-3)
    assert found.information > found.first_information
    with pytest.raises(ValueError, match="ball or free joints"):
        excite(fx.load("cube"))


def test_residuals_that_hang_together_count_less():
    rng = np.random.default_rng(0)
    white = rng.normal(size=(20, 400))
    assert correlation_time(white) == pytest.approx(1, abs=0.3)
    smooth = np.stack([np.convolve(row, np.ones(10), "same") for row in white])
    assert correlation_time(smooth) == pytest.approx(10, rel=0.3)


def test_filters_say_what_they_cannot_do():
    with pytest.raises(ValueError, match="needs more than 100 samples/s, got 60"):
        Butterworth(cutoff=50.0)(np.zeros((100, 1)), 60.0)
    with pytest.raises(ValueError, match="too few"):
        Butterworth(cutoff=5.0)(np.zeros((10, 1)), 60.0)
    with pytest.raises(ValueError, match="does not suit a polynomial of degree 3"):
        SavitzkyGolay(window=0.02)(np.zeros((100, 1)), 60.0)
    line = np.linspace(0, 1, 200)[:, None]
    for low_pass in (Butterworth(cutoff=5.0), SavitzkyGolay()):
        np.testing.assert_allclose(low_pass(line, 100.0)[60:-60], line[60:-60], atol=1e-3)


@pytest.mark.parametrize(
    ("words", "options", "match"),
    [
        (["geom.*.size"], {}, "no parameter of 'arm' matches"),
        (["body.lower.pos"], {}, "'body.lower.pos' of 'arm' cannot be identified from torques"),
        (["body.lower.mass"], {"loads": {"*": fx.Load("box", "nowhere", 1.0)}}, "which 'arm' does not have"),
        (["body.lower.mass"], {"equations": Momentum(window=60.0)}, "longer than the log"),
        (["body.lower.mass"], {"filter": Butterworth(cutoff=0.3)}, "too short for the filter"),
    ],
)
def test_sentences(words, options, match):
    with pytest.raises((ValueError, KeyError), match=match):
        fx.identify(simulator(), record(0), words, method=fx.Torque(**options))


def test_what_belongs_to_simulation_is_refused():
    with pytest.raises(ValueError, match="`shooting` belongs to the simulation"):
        fx.identify(simulator(), record(0), FREE, method=fx.Torque(), shooting=fx.Shooting(horizon=1.0))
    log = record(0)
    with pytest.raises(ValueError, match=r"does not measure 'q\.b'"):
        fx.identify(simulator(), dataclasses.replace(log, values=log.values[:, [0, 2, 3]], columns=("q.a", "qd.a", "qd.b")),
                    FREE, method=fx.Torque())  # fmt: skip
    with pytest.raises(ValueError, match="has no controls"):
        fx.identify(simulator(), dataclasses.replace(log, controls=None), FREE, method=fx.Torque())


def test_actuators_that_are_no_motors_are_named():
    servo = fx.load(ARM.replace('<motor name="mb" joint="b"/>', '<position name="mb" joint="b" kp="5"/>'))
    with pytest.raises(ValueError, match="actuator 'mb' is no motor"):
        motors_of(servo)
    twice = fx.load(ARM.replace('<motor name="mb" joint="b"/>', '<motor name="mb" joint="a"/>'))
    with pytest.raises(ValueError, match="'mb' and 'ma' push on the same joint"):
        motors_of(twice)


def test_a_joint_without_a_motor_has_no_force():
    """The second joint swings freely: what it needs is zero, which tells the masses' ratios."""
    passive = fx.load(ARM.replace('<motor name="mb" joint="b"/>', ""))
    assert motors_of(passive).columns(passive) == ("u.ma", "force.b")


def test_velocities_may_be_slopes():
    log = record(0)
    plain = dataclasses.replace(log, values=log.values[:, :2], columns=("q.a", "q.b"))
    method = fx.Torque(filter=Butterworth(cutoff=15.0), equations=InverseDynamics(every=2), slow=SLOW)
    sim = simulator({"body.upper.mass": 2.0, "joint.*.damping": 0.3, "joint.*.frictionloss": 0.4})
    fit = fx.identify(
        sim, plain, ["body.lower.mass", "joint.*.damping", "joint.*.frictionloss"], method=method, held_out=0.0
    )
    assert fit.values["body.lower.mass"] == pytest.approx(1.0, rel=0.03)
