"""Actuators: every kind and range against MuJoCo's generalised actuator forces."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.dynamics import actuator_force

BODY = """<mujoco><worldbody><body name="a"><joint name="j" axis="0 1 0" {joint}/><joint name="s" type="slide" axis="1 0 0"/>
<geom size="0.1" mass="1"/></body></worldbody><actuator>{actuators}</actuator></mujoco>"""

KINDS = {
    "motor": '<motor joint="j"/>',
    "gear": '<motor joint="j" gear="-7"/>',
    "control range": '<motor joint="j" gear="2" ctrlrange="-0.3 0.2"/>',
    "force range": '<motor joint="j" gear="2" forcerange="-0.3 0.2"/>',
    "position": '<position joint="j" kp="20"/>',
    "position with damping": '<position joint="s" kp="20" kv="3" gear="2" ctrlrange="-1 1" forcerange="-9 8"/>',
    "velocity": '<velocity joint="j" kv="4" gear="3"/>',
    "general": '<general joint="s" gainprm="3" biastype="affine" biasprm="0.5 -2 -1" gear="-2"/>',
    "two on one joint": '<motor joint="j" gear="2"/><position joint="j" kp="5"/><velocity joint="s" kv="1"/>',
}


@pytest.mark.parametrize("joint", ["", 'actuatorfrcrange="-1 0.5"'], ids=["free", "bounded"])
@pytest.mark.parametrize("kind", KINDS)
def test_forces_are_mujocos(kind, joint):
    text = BODY.format(joint=joint, actuators=KINDS[kind])
    m = mujoco.MjModel.from_xml_string(text)
    model, d = fx.load(text), mujoco.MjData(m)
    rng = np.random.default_rng(0)
    force = jax.jit(actuator_force)
    for _ in range(8):
        d.qpos[:], d.qvel[:], d.ctrl[:] = rng.normal(size=2), rng.normal(size=2), rng.normal(size=m.nu)
        mujoco.mj_forward(m, d)
        got = force(model, jnp.asarray(d.qpos), jnp.asarray(d.qvel), jnp.asarray(d.ctrl))
        np.testing.assert_allclose(got, d.qfrc_actuator, rtol=1e-13, atol=1e-13)


def test_gradients_stop_at_the_ends_of_a_range():
    model = fx.load(BODY.format(joint="", actuators=KINDS["control range"]))

    def torque(u):
        return actuator_force(model, jnp.zeros(2), jnp.zeros(2), u)[0]

    assert float(jax.grad(torque)(jnp.array([0.1]))[0]) == 2
    assert float(jax.grad(torque)(jnp.array([0.5]))[0]) == 0
