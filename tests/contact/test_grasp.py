"""A hand that holds a box: equality, tendon, actuator on the tendon, and contact of boxes at once."""

import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx

G, MASS, GRIP, FRICTION, DT = 9.81, 0.5, 20.0, 0.6, 2e-3
MOVED = 0.73 + 2 * 0.015 + 1.2 + MASS  # kg: hand, fingers, wrist, box

# Masses, travel and drive of Franka Emika's hand: two fingers on slides, coupled, driven by the mean of their travels. Pads of
# 18 x 15 mm close along y on a box of 4 cm. The arm is a wrist on two slides with motors.
HAND = f"""<mujoco model="hand"><compiler angle="radian"/><option gravity="0 0 -{G}"/><default>
  <geom contype="0" conaffinity="0"/><default class="pad"><geom type="box" size="0.009 0.004 0.0075" pos="0 0.004 0" mass="0"
  contype="1" conaffinity="0" friction="{FRICTION} 0.005 0.0001"/></default></default><worldbody>
  <body name="wrist" pos="0 0 0.5"><joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/>
    <geom type="capsule" size="0.04 0.05" pos="0 0 0.1" mass="1.2"/>
    <body name="hand"><geom type="box" size="0.032 0.1 0.035" mass="0.73"/>
      <body name="left" pos="0 0 -0.1034"><joint name="left" type="slide" axis="0 1 0" range="0 0.04" damping="3" armature="0.1"/>
        <geom type="box" size="0.01 0.01 0.02" pos="0 0.02 0.03" mass="0.015"/><geom name="left" class="pad"/></body>
      <body name="right" pos="0 0 -0.1034" quat="0 0 0 1"><joint name="right" type="slide" axis="0 1 0" range="0 0.04" damping="3"
        armature="0.1"/>
        <geom type="box" size="0.01 0.01 0.02" pos="0 0.02 0.03" mass="0.015"/><geom name="right" class="pad"/></body>
    </body></body>
  <body name="box" pos="0 0 0.3966"><freejoint name="box"/><geom name="box" type="box" size="0.02 0.02 0.03" mass="{MASS}"
    contype="0" conaffinity="1" friction="{FRICTION} 0.005 0.0001"/></body></worldbody>
  <tendon><fixed name="split"><joint joint="left" coef="0.5"/><joint joint="right" coef="0.5"/></fixed></tendon>
  <equality><joint name="coupling" joint1="left" joint2="right"/></equality>
  <actuator><motor name="x" joint="x"/><motor name="z" joint="z"/><motor name="fingers" tendon="split"/></actuator>
  <keyframe><key name="grasp" qpos="0 0 0.02 0.02 0 0 0.3966 1 0 0 0"/></keyframe></mujoco>"""


@pytest.fixture(scope="module")
def hand():
    return fx.Simulator(fx.load(HAND), dt=DT)


def shaken(sim, share, seconds=1.0):
    """Up and down at 5 Hz with the amplitude at which the box needs this share of the friction that the pads have, and to and
    fro with a tenth of it: m (g + a) = share 2 mu F, F the force of a finger. The motors push as if the box were fixed; also
    returns the accelerations that they then give."""
    a = share * 2 * FRICTION * GRIP / MASS - G
    t, w = DT * np.arange(round(seconds / DT)), 2 * np.pi * 5
    push = np.stack([MOVED * 0.1 * a * np.cos(w * t), MOVED * (G + a * np.cos(w * t)), np.full_like(t, -2 * GRIP)], axis=-1)
    run = sim.rollout(sim.reset("grasp"), push, record=["contact.normal_force"])
    return run, a * np.cos(w * t)


def test_a_hand_holds_a_box_of_half_a_kilogram_while_the_arm_shakes(hand):
    """Below the limit of friction box and hand move as one mass, whose motion is the double sum of its accelerations, and the
    box creeps by what the compliance of the contacts lets it: less than 10 um in a second."""
    run, up = shaken(hand, 0.9)
    q = np.asarray(run.q)
    assert run.status.ok
    slip = q[:, 4:7] - q[0, 4:7] - np.stack([q[:, 0], 0 * q[:, 0], q[:, 1]], axis=-1)
    assert np.abs(slip).max() < 1e-5
    assert np.abs(q[:, 8:]).max() < 1e-4, "it does not turn"
    assert np.abs(q[:, 2] - q[:, 3]).max() < 1e-6, "the fingers stay coupled"
    assert up.max() > 3 * G
    np.testing.assert_allclose(q[1:, 1], DT**2 * np.cumsum(np.cumsum(up)), atol=1e-5)


def test_the_hand_loses_the_box_where_friction_does_not_reach(hand):
    run, _ = shaken(hand, 1.1)
    q = np.asarray(run.q)
    assert np.abs(q[-1, 6] - q[0, 6] - q[-1, 1]) > 1e-3


def test_the_fingers_press_by_their_share_of_the_tendon(hand):
    """The tendon is the mean of the two travels, so each finger has half of its force; four points of each pad share it."""
    run, _ = shaken(hand, 0.9, seconds=0.1)
    force = np.asarray(run.taps["contact.normal_force"])
    np.testing.assert_allclose(force.reshape(len(force), 2, -1).sum(-1)[5:], GRIP, rtol=1e-3)


def test_single_precision_holds_it_too():
    sim = fx.Simulator(fx.load(HAND, dtype=jnp.float32), dt=DT)
    run, _ = shaken(sim, 0.9)
    q = np.asarray(run.q)
    assert np.abs(q[:, 6] - q[0, 6] - q[:, 1]).max() < 1e-4


def test_the_stiffness_of_the_coupling_is_identified():
    """One finger is pushed, the other follows by a coupling as soft as its `solref`; the log tells how soft."""
    soft = HAND.replace('"coupling"', '"coupling" solref="-900 -40" solimp="0.5 0.5 0.1"')
    truth = fx.load(soft.replace('tendon="split"', 'joint="left"'), ignore=["box-box"])
    name = "compliance.equality.coupling.stiffness"
    stiffness = float(fx.parameters(truth, name)[name])
    sim = fx.Simulator(truth, dt=DT)
    push = np.zeros((100, 3))
    push[:, 2] = 0.5 * np.sin(0.2 * np.arange(100))
    log = fx.Log.of(sim.rollout(sim.reset("grasp"), push))
    fit = fx.identify(fx.Simulator(fx.replace(truth, {name: 0.3 * stiffness}), dt=DT), log, free=[name])
    assert float(fx.parameters(fit.model, name)[name]) == pytest.approx(stiffness, rel=1e-3)
