"""Adhesion: MuJoCo's forces, closed forms of what sticks, derivatives, files."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.contact.adhesion import pulled
from flexor.contact.contact import FreeStep, Instant
from flexor.dynamics import crba, forward_kinematics

G, DT, FRICTION = 9.81, 2e-3, 0.5
PLATE = """<mujoco><worldbody><geom name="plate" type="box" size="2 2 0.1" pos="0 0 -0.1" {plate}/>
  <body name="b" pos="0 0 {z}"><freejoint/><geom name="b" type="{shape}" size="0.1 0.1 0.1" mass="1" {own}/></body></worldbody>
  <actuator>{actuator}</actuator></mujoco>"""
SUCTION = '<adhesion name="suction" body="b" ctrlrange="0 1" gain="10"/>'


@pytest.mark.parametrize(
    ("plate", "own", "actuator"),
    [
        ('adhesion="2" gap="0.004"', 'adhesion="5" margin="0.002" gap="0.006"', ""),
        ('adhesion="3" priority="2"', 'adhesion="5" gap="0.01"', ""),
        ("", 'margin="0.002" gap="0.01"', SUCTION),
        (
            "",
            "",
            '<general name="suction" body="b" gear="2" gainprm="10" biastype="affine" biasprm="3 0 0" ctrlrange="0 1"/>',
        ),
    ],
    ids=["two", "priority", "suction", "bias"],
)
def test_forces_are_mujocos(plate, own, actuator):
    """In touch, within the gap, and beyond; of a ball with one contact and of a box with four."""
    compared = 0.0
    for shape in ("sphere", "box"):
        text = PLATE.format(plate=plate, own=own, actuator=actuator, shape=shape, z=0.1)
        model, m = fx.load(text), mujoco.MjModel.from_xml_string(text)
        d, pull = mujoco.MjData(m), jnp.asarray([7.0 + 3.0 * ("bias" in actuator)]) if actuator else None
        d.ctrl[:] = 0.7

        @jax.jit
        def force(q, model=model, pull=pull):
            now = Instant(model, forward_kinematics(model, q), q, jnp.zeros(6))
            step = FreeStep(now, jnp.zeros(6), crba(model, now.kin), jnp.asarray(DT), pull)
            return step.M @ pulled(step, fx.contact.detect(model, now.kin)).velocity / DT

        for z in (0.0995, 0.101, 0.107, 0.111, 0.125):
            d.qpos[2] = z
            mujoco.mj_forward(m, d)
            expected = d.qfrc_adhesion + d.qfrc_actuator
            np.testing.assert_allclose(force(jnp.asarray(d.qpos)), expected, atol=1e-9)
            compared = max(compared, np.abs(expected).max())
    assert compared >= 3


WALL = f"""<mujoco><option gravity="0 0 -{G}"/><worldbody><geom name="wall" type="plane" size="5 5 1" euler="0 -90 0"/>
  <body name="pad" pos="-0.1 0 0"><joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/>
  <geom name="pad" size="0.1" mass="2" friction="{FRICTION}" adhesion="1"/></body></worldbody></mujoco>"""


def test_a_pad_sticks_to_a_wall_as_far_as_friction_goes():
    """It slides with g - mu F / m, or holds where mu F is more than its weight, but for the compliance."""
    model = fx.load(WALL.replace(f'friction="{FRICTION}"', f'friction="{FRICTION}" priority="1"'))
    assert model.topology.sticky

    def speed(force):
        sim = fx.Simulator(fx.replace(model, {"pair.*.adhesion": force}), fx.RigidSolver(contact=fx.NCP()), dt=DT)
        end = sim.rollout(sim.reset(), steps=50)
        return end.qd[-1, 1], end.q[-1, 0]

    forces = jnp.asarray([5.0, 20.0, 45.0])
    (falls, away), (slope, _) = fx.simd.vmap(lambda f: jax.jvp(speed, (f,), (jnp.ones_like(f),)))(forces)
    np.testing.assert_allclose(falls, -50 * DT * np.maximum(G - FRICTION * forces / 2, 0), atol=1e-5)
    np.testing.assert_allclose(slope, 50 * DT * np.array([FRICTION / 2, FRICTION / 2, 0]), atol=1e-5)
    np.testing.assert_allclose(away, 0, atol=1e-5)


@pytest.mark.parametrize("most", [None, 4], ids=["places", "list"])
def test_suction_holds_a_load_under_a_ceiling_until_it_is_switched_off(most):
    """A ball of 2 kg hangs by more than its weight, falls by less, and is caught by a magnet from below its gap."""
    ball = '<body name="{0}" pos="{1} 0 -{2}"><freejoint/><geom name="{0}" size="0.1" mass="2" {3}/></body>'
    balls = ball.format("strong", 0, 0.1, "") + ball.format("weak", 1, 0.1, "") + ball.format("near", 2, 0.103, 'gap="0.01"')
    suction = "".join(f'<adhesion name="{n}" body="{n}" ctrlrange="0 40" gain="1"/>' for n in ("strong", "weak", "near"))
    text = f"""<mujoco><worldbody><geom name="ceiling" type="plane" size="5 5 1" euler="180 0 0"/>{balls}</worldbody>
      <actuator>{suction}</actuator></mujoco>"""
    sim = fx.Simulator(fx.load(text), fx.RigidSolver(contact=fx.NCP(most=most)), dt=DT)
    u = jnp.tile(jnp.asarray([25.0, 15.0, 40.0]), (150, 1)).at[100:, 0].set(0.0)
    height = np.asarray(sim.rollout(sim.reset(), u).q)[:, [2, 9, 16]]
    np.testing.assert_allclose(height[100, [0, 2]], -0.1, atol=1e-6)
    steps = 100 * DT
    assert height[100, 1] < -0.1 - 0.9 * (G - 7.5) * steps**2 / 2
    np.testing.assert_allclose(height[150, 0], -0.1 - G * DT**2 * 50 * 51 / 2, atol=1e-6)
    assert np.abs(height[100:, 2] + 0.1).max() < 1e-6


@pytest.mark.parametrize("suffix", [".xml", ".urdf"])
def test_files_keep_adhesion(tmp_path, suffix):
    text = PLATE.format(
        plate='adhesion="2"', own='gap="0.006"', actuator=SUCTION if suffix == ".xml" else "", shape="box", z=1
    )
    model, path = fx.load(text), tmp_path / f"plate{suffix}"
    fx.save(model, path)
    again = fx.load(path)
    assert again.topology == model.topology
    jax.tree.map(np.testing.assert_array_equal, again.pairs, model.pairs)
    assert not fx.load(text, ignore=["adhesion", "actuator"]).topology.pairs[0].sticky


def test_penalty_has_none():
    with pytest.raises(ValueError, match=r"Penalty\(\) has no adhesion, which 'robot' has: use contact=NCP"):
        fx.Simulator(fx.load(WALL), fx.RigidSolver(contact=fx.Penalty()), dt=DT)
    with pytest.raises(fx.DescriptionError, match="acts on more than a hinge"):
        fx.save(fx.load(PLATE.format(plate="", own="", actuator=SUCTION, shape="box", z=1)), "never.urdf")
