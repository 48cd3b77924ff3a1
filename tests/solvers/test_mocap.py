"""Mocap bodies: where a step takes them from, against MuJoCo's motion; what they carry and what they push."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.model.description import ModelWarning

# A handle that carries a shelf and a pendulum, and a second handle that the description leaves alone.
SCENE = """<mujoco model="handles"><worldbody>
<body name="handle" mocap="true" pos="0 0 1" quat="0.9 0.1 0.3 0.2"><geom size="0.05" contype="0" conaffinity="0"/>
  <body name="shelf" pos="0.1 0 0"><site name="edge" pos="0 0.2 0"/>
    <body name="bob" pos="0.1 0 0"><joint name="swing" type="ball"/><geom size="0.05" pos="0.1 0 -0.2" contype="0"
      conaffinity="0"/></body></body></body>
<body name="still" mocap="true" pos="1 0 0"/></worldbody>
<keyframe><key name="home" qpos="1 0 0 0"/></keyframe></mujoco>"""


def poses(k):
    """Both handles at step k: the first moves and turns."""
    return np.array([[0.02 * k, 0.1, 1], [1.0, 0, 0]]), np.array([[1, 0.02 * k, 0, 0.1], [1.0, 0, 0, 0]])


@pytest.fixture(scope="module")
def sim():
    return fx.Simulator(fx.load(SCENE), dt=0.002)


@pytest.mark.parametrize("simd", [False, True], ids=["XLA", "kernel"])
def test_motion_is_mujocos(sim, simd):
    m = mujoco.MjModel.from_xml_string(SCENE)
    d = mujoco.MjData(m)
    start, moved = sim.reset(qd=[1.0, 2.0, -1.0]), [poses(k) for k in range(100)]
    controls = fx.Control(mocap_pos=jnp.stack([p for p, _ in moved]), mocap_quat=jnp.stack([r for _, r in moved]))
    traj = fx.Simulator(sim.model, dt=0.002, simd=simd).rollout(start, controls)
    d.qvel[:] = start.qd
    for k, (pos, quat) in enumerate(moved):
        d.mocap_pos[:], d.mocap_quat[:] = pos, quat
        mujoco.mj_step(m, d)
        # both round at 1e-16 in each of 100 steps; the pendulum is regular
        np.testing.assert_allclose(traj.q[k + 1], d.qpos, atol=1e-12)
        np.testing.assert_allclose(traj.qd[k + 1], d.qvel, atol=1e-11)


def test_left_out_they_stay_where_the_description_has_them(sim):
    pos, quat = sim.model.bodies.pos[jnp.array([1, 4])], sim.model.bodies.quat[jnp.array([1, 4])]
    given = sim.step(sim.reset(), fx.Control(mocap_pos=pos, mocap_quat=quat))
    for part in (None, fx.Control(mocap_pos=pos), fx.Control(mocap_quat=quat)):
        np.testing.assert_array_equal(sim.step(sim.reset(), part).qd, given.qd)


def test_a_lifted_plate_carries_a_ball():
    """A ball on a plate that rises by 0.1 mm a step: after one second it is 0.1 m x 500 / 1000 higher, and in contact."""
    text = """<mujoco><worldbody><body name="plate" mocap="true"><geom name="p" type="plane" size="1 1 1"/></body>
    <body name="ball" pos="0 0 0.1"><freejoint/><geom size="0.1" mass="1"/></body></worldbody></mujoco>"""
    sim = fx.Simulator(fx.load(text), dt=0.002)
    height = 1e-4 * jnp.arange(1.0, 501)
    place = jnp.zeros((500, 1, 3)).at[:, 0, 2].set(height)
    traj = sim.rollout(sim.reset(), fx.Control(mocap_pos=place))
    # MuJoCo's mocap bodies have no velocity: the plate pushes by its overlap alone, of which a fifth goes in a step
    assert abs(float(traj.q[-1, 2]) - 0.1 - float(height[-1])) < 5 * 1e-4


def test_gradients_reach_the_poses(sim):
    def final(x):
        pos = jnp.zeros((20, 2, 3)).at[:, 0, 0].set(x * jnp.arange(20.0) ** 2)
        return sim.rollout(sim.reset(), fx.Control(mocap_pos=pos)).qd[-1, 1]

    # the handle has no velocity: the pendulum hangs from a point that is elsewhere in every step, so that places do not matter
    assert float(jax.grad(final)(0.01)) == pytest.approx(0.0, abs=1e-12)

    def turned(x):
        quat = jnp.tile(jnp.array([[1.0, 0, 0, 0]]), (20, 2, 1)).at[:, 0, 1].set(x)
        return sim.rollout(sim.reset(), fx.Control(mocap_quat=quat)).qd[-1, 0]

    slope, eps = jax.grad(turned)(0.2), 1e-6
    np.testing.assert_allclose(slope, (turned(0.2 + eps) - turned(0.2 - eps)) / (2 * eps), rtol=1e-7)


def test_the_stepper_and_mujocos_solver_have_them(sim):
    pos, quat = poses(30)
    control = fx.Control(mocap_pos=pos, mocap_quat=quat)
    want = sim.step(sim.reset(), control)
    theirs = sim.with_solver(fx.MujocoSolver())
    np.testing.assert_allclose(theirs.step(theirs.reset(), control).qd, want.qd, rtol=1e-12)
    stepper = sim.compile(controls=("mocap_pos", "mocap_quat"))
    np.testing.assert_array_equal(stepper.mocap_pos, [[0, 0, 1], [1, 0, 0]])
    stepper.mocap_pos[:], stepper.mocap_quat[:] = pos, quat
    stepper.step()
    np.testing.assert_allclose(stepper.qd, want.qd, rtol=1e-13)


def test_wrong_poses_are_refused(sim):
    with pytest.raises(ValueError, match=r"`mocap_pos` of 'handles' must have shape \(2, 3\)"):
        sim.step(sim.reset(), fx.Control(mocap_pos=np.zeros((1, 3))))
    with pytest.raises(ValueError, match="learned solvers do not support mocap bodies"):
        fx.nerd.Frames(sim.model.topology, 0.002)


def test_files_keep_them(sim, tmp_path):
    fx.save(sim.model, tmp_path / "handles.xml")
    again = fx.load(tmp_path / "handles.xml")
    assert again.topology == sim.model.topology
    assert again.topology.mocap == (1, 4)
    assert fx.load(SCENE, ignore=["mocap"]).topology.mocap == ()


def test_keyframes_that_move_them_are_remarked():
    moved = SCENE.replace('qpos="1 0 0 0"', 'qpos="1 0 0 0" mpos="0 0 2 1 0 0"')
    with pytest.warns(ModelWarning, match="keyframe 'home' moves mocap bodies"):
        fx.load(moved)
