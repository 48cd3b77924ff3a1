"""flexor's solvers inside MuJoCo's data: states are those of flexor's own rollouts, and everything else follows the state."""

import jax.numpy as jnp
import mujoco
import mujoco.batch
import numpy as np
import pytest

import flexor as fx
from flexor.plugins.mujoco import Physics, step

ARM = """
<mujoco model="arm">
  <option timestep="0.005"/>
  <worldbody>
    <geom name="floor" type="plane" size="2 2 0.1"/>
    <body name="upper" pos="0 0 0.5">
      <joint name="shoulder" axis="0 1 0" damping="0.05"/>
      <geom type="capsule" size="0.03" fromto="0 0 0 0.3 0 0" mass="0.7"/>
      <body name="lower" pos="0.3 0 0">
        <joint name="elbow" axis="0 1 0" damping="0.05"/>
        <geom name="fore" type="capsule" size="0.03" fromto="0 0 0 0.3 0 0" mass="0.4"/>
        <site name="tip" pos="0.3 0 0"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="shoulder" joint="shoulder" gear="2"/>
    <general name="elbow" joint="elbow" dyntype="filter" dynprm="0.05"/>
  </actuator>
  <sensor><framepos name="tip" objtype="site" objname="tip"/><jointvel name="speed" joint="elbow"/></sensor>
</mujoco>
"""
STEPS = 60  # the arm falls onto the floor within them


@pytest.fixture(scope="module")
def robot():
    m = mujoco.MjModel.from_xml_string(ARM)
    return m, fx.load(m)


@pytest.fixture(scope="module")
def expected(robot):
    _, model = robot
    sim = fx.Simulator(model, dt=0.005)
    return sim.rollout(sim.reset([0.3, -0.2]), jnp.tile(jnp.array([0.1, 0.4]), (STEPS, 1)))


def started(m):
    d = mujoco.MjData(m)
    d.qpos[:], d.ctrl[:] = [0.3, -0.2], [0.1, 0.4]
    return d


def test_states_are_those_of_a_rollout(robot, expected):
    m, _ = robot
    d = started(m)
    for k in range(STEPS):
        step(m, d, "ncp")
        # the same kernel, but for lanes: rounding only
        np.testing.assert_allclose(d.qpos, expected.q[k + 1], atol=1e-12)
    np.testing.assert_allclose(d.qvel, expected.qd[-1], atol=1e-11)
    np.testing.assert_allclose(d.act, expected.final.act, atol=1e-12)
    assert d.time == pytest.approx(STEPS * 0.005)


def test_sensors_are_those_of_the_new_state(robot):
    m, _ = robot
    d = started(m)
    step(m, d, "ncp", steps=5)
    fresh = mujoco.MjData(m)
    fresh.qpos[:], fresh.qvel[:] = d.qpos, d.qvel
    mujoco.mj_forward(m, fresh)
    assert np.array_equal(d.sensor("tip").data, fresh.sensor("tip").data)
    assert d.sensor("speed").data[0] == d.qvel[1]
    assert np.array_equal(d.xpos, fresh.xpos)


def test_a_changed_state_is_taken_over(robot):
    """A program that sets the state gets what a fresh start from there gives."""
    m, _ = robot
    d, other = started(m), started(m)
    physics = Physics(m, d, "ncp")
    physics.step(20)
    d.qpos[:], d.qvel[:], d.act[:], d.time = other.qpos, other.qvel, other.act, 0.0
    physics.step(7)
    Physics(m, other, "ncp").step(7)
    assert np.array_equal(d.qpos, other.qpos)
    assert np.array_equal(d.qvel, other.qvel)


def test_wrenches_act_at_the_centre_of_mass(robot):
    """A force and moment as MuJoCo means them: the first step in the air is MuJoCo's."""
    m, _ = robot
    d, peer = started(m), started(m)
    for data in (d, peer):
        mujoco.mj_forward(m, data)
        data.xfrc_applied[2] = [1.0, 0.5, -2.0, 0.1, -0.7, 0.2]
        data.qfrc_applied[:] = [0.2, -0.1]
    step(m, d, fx.solver("ncp", integrator="implicit"))  # MuJoCo's Euler takes damping implicitly
    mujoco.mj_step(m, peer)
    np.testing.assert_allclose(d.qvel, peer.qvel, rtol=1e-10)
    np.testing.assert_allclose(d.qpos, peer.qpos, rtol=1e-10)


def test_many_robots_of_a_batch(robot, expected):
    m, _ = robot
    batch = mujoco.batch.Batch(m, nsim=3, nthread=1)
    tip = batch.bind("sensordata")
    batch.bind("qpos")[:] = [[0.3, -0.2], [0.0, 0.5], [0.3, -0.2]]
    batch.bind("ctrl")[:] = [0.1, 0.4]
    physics = Physics(m, batch, "ncp", threads=1)
    for _ in range(STEPS):
        physics.step()
    qpos = batch.bind("qpos")
    np.testing.assert_allclose(qpos[0], expected.q[-1], atol=1e-12)
    assert np.array_equal(qpos[0], qpos[2])
    assert not np.allclose(qpos[0], qpos[1])
    np.testing.assert_allclose(tip[0, -1], expected.qd[-1, 1], atol=1e-11)
    np.testing.assert_allclose(batch.bind("time"), STEPS * 0.005)


def test_a_learned_solver_moves_the_data():
    """The pretrained cartpole in an MjModel of the same description."""
    nerd = fx.nerd.load("cartpole")
    m = mujoco.MjModel.from_xml_path(str(fx.robots.find("cartpole")))
    d = mujoco.MjData(m)
    d.qpos[:] = [0.1, 0.5]
    physics = Physics(m, d, nerd.solver(), dt=nerd.dt)
    sim = fx.Simulator(fx.load(m), nerd.solver(), dt=nerd.dt)
    trajectory = sim.rollout(sim.reset([0.1, 0.5]), steps=10)
    physics.step(10)
    np.testing.assert_allclose(d.qpos, trajectory.q[-1], atol=1e-10)


def test_a_learned_solver_is_refused_for_other_robots_and_times(robot):
    nerd = fx.nerd.load("cartpole")
    m, _ = robot
    with pytest.raises(ValueError, match="trained for 'cartpole', and this is 'arm'"):
        Physics(m, mujoco.MjData(m), nerd.solver())
    m = mujoco.MjModel.from_xml_path(str(fx.robots.find("cartpole")))
    with pytest.raises(ValueError, match=r"time steps of 0\.0166667 s\s+and cannot step by"):
        Physics(m, mujoco.MjData(m), nerd.solver())


def test_wrenches_that_a_solver_cannot_apply_are_named():
    nerd = fx.nerd.load("cartpole")
    m = mujoco.MjModel.from_xml_path(str(fx.robots.find("cartpole")))
    d = mujoco.MjData(m)
    physics = Physics(m, d, nerd.solver(), dt=nerd.dt)
    d.xfrc_applied[1, 0] = 1.0
    with pytest.raises(ValueError, match="reads joint torques only"):
        physics.step()


def test_a_changed_model_is_named():
    m = mujoco.MjModel.from_xml_string(ARM)
    d = started(m)
    physics = Physics(m, d, "ncp")
    m.body_mass[1] *= 2
    with pytest.raises(RuntimeError, match="`body_mass` of the MjModel changed"):
        physics.step()
    m.body_mass[1] /= 2
    physics.step()


def test_per_robot_models_are_named(robot):
    m, _ = robot
    batch = mujoco.batch.Batch(m, nsim=2, nthread=1)
    physics = Physics(m, batch, "ncp", threads=1)
    batch.expand("body_mass")[1] *= 2
    with pytest.raises(RuntimeError, match="`body_mass` of the MjModel changed"):
        physics.step()


def test_a_solver_without_a_kernel_is_refused(robot):
    m, _ = robot
    with pytest.raises(ValueError, match="MujocoSolver does not compile to a kernel"):
        Physics(m, mujoco.MjData(m), "mujoco")
