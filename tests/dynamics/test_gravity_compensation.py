"""Gravity compensation against MuJoCo's `qfrc_gravcomp`, on the side of the joints and on that of their actuators."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.dynamics import actuator_force, forward_kinematics, gravity_compensation, passive_force

SCENE = """<mujoco model="arm"><worldbody>
<body name="upper" gravcomp="0.7" pos="0 1 0"><joint name="shoulder" axis="0 1 0" actuatorgravcomp="{motors}"
   actuatorfrcrange="-2 2"/><geom size="0.1" pos="0.2 0.1 0" mass="2"/>
  <body name="lower" gravcomp="1.2" pos="0.4 0 0"><joint name="elbow" type="ball" damping="0.1"/><geom size="0.1" pos="0.2 0.1 0"
     mass="1"/></body></body>
<body name="balloon" gravcomp="1.1"><freejoint/><geom size="0.1" mass="0.3" pos="0.1 0 0"/></body></worldbody>
<actuator><motor joint="shoulder"/></actuator></mujoco>"""


@pytest.mark.parametrize("motors", ["false", "true"])
def test_forces_are_mujocos(motors):
    text = SCENE.format(motors=motors)
    m, model = mujoco.MjModel.from_xml_string(text), fx.load(text)
    d, rng = mujoco.MjData(m), np.random.default_rng(0)
    forces = jax.jit(
        lambda model, q, qd, u: (
            gravity_compensation(model, forward_kinematics(model, q)),
            actuator_force(model, q, qd, u),
            passive_force(model, q, qd),
        )
    )
    for _ in range(5):
        mujoco.mj_integratePos(m, d.qpos, rng.normal(size=m.nv), 1.0)
        d.qvel[:], d.ctrl[:] = rng.normal(size=m.nv), rng.normal()
        mujoco.mj_forward(m, d)
        got = forces(model, jnp.asarray(d.qpos), jnp.asarray(d.qvel), jnp.asarray(d.ctrl))
        for mine, theirs in zip(got, (d.qfrc_gravcomp, d.qfrc_actuator, d.qfrc_passive), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-13)
    sim = fx.Simulator(model, dt=m.opt.timestep)
    m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_EULERDAMP)
    state = sim.reset(d.qpos.copy(), d.qvel.copy())
    traj = sim.rollout(state, jnp.full((100, 1), 0.3))
    d.ctrl[:] = 0.3
    for _ in range(100):
        mujoco.mj_step(m, d)
    np.testing.assert_allclose(traj.q[-1], d.qpos, atol=1e-10)  # 100 steps of a chaotic arm, from 1e-16


def test_it_is_a_parameter_that_can_be_switched_on(tmp_path):
    model = fx.load(SCENE.replace('gravcomp="0.7"', "").format(motors="true"))
    assert model.topology.compensated == (2, 3)
    more = fx.replace(model, {"body.upper.gravcomp": 0.7})
    assert more.topology.compensated == (1, 2, 3)
    none = fx.replace(more, {"body.*.gravcomp": 0.0})
    assert none.topology.compensated == (1, 2, 3), "what may be free keeps its place"
    for robot in (more, none):
        fx.save(robot, tmp_path / "arm.xml")
        again = fx.load(tmp_path / "arm.xml")
        assert again.topology == robot.topology
        np.testing.assert_array_equal(again.bodies.gravcomp, robot.bodies.gravcomp)
    assert fx.load(SCENE.format(motors="true"), ignore=["gravcomp"]).topology.compensated == ()


def test_a_limit_margin_narrows_the_range():
    text = """<mujoco><compiler angle="radian"/><worldbody><body><joint name="j" axis="0 1 0" range="-1 2" margin="{margin}"/>
    <geom size="0.1" pos="0.3 0 0"/></body></worldbody></mujoco>"""
    np.testing.assert_allclose(fx.load(text.format(margin=0.1)).joints.range[0], [-0.9, 1.9])
    with pytest.raises(ValueError, match="joint 'j' has a limit margin"):
        fx.load(text.format(margin=1.6))
