"""Sensors against MuJoCo's `sensordata`, at an instant and along steps; refusals by name; files."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.dynamics import read_sensors

SCENE = """<mujoco model="scene"><option><flag contact="disable"/></option><worldbody>
<site name="w" pos="0.3 0.1 0.2" euler="10 20 30"/>
<body name="a" pos="0 0 1"><freejoint/><geom name="ga" type="box" size="0.05 0.2 0.1" euler="10 20 30" pos="0.1 0 0"/>
  <site name="sa" pos="0.1 0.2 0" euler="30 0 10"/>
  <body name="b" pos="0.3 0 0"><joint name="h" axis="0 1 0" actuatorfrcrange="-0.5 0.5"/>
    <geom name="gb" type="box" size="0.1 0.2 0.03" pos="0.1 0 0.2" euler="0 20 0"/><geom type="sphere" size="0.1"/>
    <body name="c" pos="0.3 0 0"><joint name="ball" type="ball"/><geom type="cylinder" size="0.1 0.2" pos="0.1 0 0.2"/>
      <site name="sc" pos="0.02 0.1 0.1" euler="0 50 70"/></body></body></body></worldbody>
<tendon><fixed name="t"><joint joint="h" coef="0.7"/></fixed></tendon>
<actuator><motor name="m" tendon="t" gear="2"/><position name="p" joint="h" kp="3"/>
<general name="lag" joint="h" dyntype="filter" dynprm="0.1"/></actuator>
<sensor><jointpos name="angle" joint="h"/><jointvel joint="h" cutoff="0.1"/><jointactuatorfrc joint="h"/><ballquat joint="ball"/>
<ballangvel joint="ball"/><tendonpos tendon="t"/><tendonvel tendon="t"/><tendonactuatorfrc tendon="t"/>
<actuatorpos actuator="p"/><actuatorvel actuator="p"/><actuatorfrc actuator="m"/><actuatorfrc actuator="lag"/>
<framepos objtype="body" objname="c"/><framepos objtype="xbody" objname="c" reftype="site" refname="sa"/>
<framequat name="turn" objtype="geom" objname="gb" reftype="body" refname="a"/>
<framexaxis objtype="site" objname="sc" reftype="site" refname="w"/><frameyaxis objtype="site" objname="sc"/>
<framezaxis objtype="geom" objname="gb"/><framelinvel objtype="site" objname="sc" reftype="site" refname="sa"/>
<frameangvel objtype="site" objname="sc" reftype="site" refname="sa"/><framelinvel objtype="body" objname="c"/>
<frameangvel objtype="geom" objname="gb"/><framelinacc objtype="body" objname="c"/><frameangacc objtype="site" objname="sc"/>
<velocimeter site="sc"/><gyro name="gyro" site="sc"/><accelerometer name="imu" site="sc"/><accelerometer site="w"/>
<subtreecom body="b"/><subtreelinvel body="b"/><subtreeangmom body="a"/><clock/>
<touch name="skin" site="sc"/><rangefinder name="range" site="sc"/>
<force name="wrist" site="sc"/><torque site="sc"/><torque site="sa"/><force site="sa"/>
<gyro name="slow" site="sc" nsample="3" delay="0.01"/></sensor></mujoco>"""


@pytest.fixture(scope="module")
def model():
    return fx.load(SCENE)


def measured(m, d):
    """MuJoCo's values by name; quaternions with w >= 0."""
    values = {}
    for i in range(m.nsensor):
        name = mujoco.mj_id2name(m, mujoco.mjtObj.mjOBJ_SENSOR, i) or f"sensor{i}"
        value = d.sensordata[m.sensor_adr[i] : m.sensor_adr[i] + m.sensor_dim[i]].copy()
        turned = m.sensor_type[i] == mujoco.mjtSensor.mjSENS_FRAMEQUAT and value[0] < 0
        values[name] = -value if turned else value
    return values


def test_values_are_mujocos(model):
    m = mujoco.MjModel.from_xml_string(SCENE)
    d, rng = mujoco.MjData(m), np.random.default_rng(0)
    read = jax.jit(lambda q, qd, qdd, u, time: read_sensors(model, q, qd, qdd, u, time=time))
    for _ in range(4):
        mujoco.mj_integratePos(m, d.qpos, rng.normal(size=m.nv), 1.0)
        d.qvel[:], d.ctrl[:], d.act[:], d.time = rng.normal(size=m.nv), rng.normal(size=m.nu), rng.normal(), rng.uniform()
        mujoco.mj_forward(m, d)
        u = np.concatenate([d.ctrl[:2], d.act])
        got = read(*(jnp.asarray(x) for x in (d.qpos, d.qvel, d.qacc, u, d.time)))
        want = measured(m, d)
        assert set(want) - set(got) == {"range", "slow"}
        for name, value in got.items():
            np.testing.assert_allclose(value, want[name], rtol=1e-11, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("simd", [False, True], ids=["XLA", "kernel"])
def test_steps_record_them(model, simd):
    m = mujoco.MjModel.from_xml_string(SCENE)
    d, names = mujoco.MjData(m), ["sensor.imu", "sensor.gyro", "sensor.turn", "sensor.sensor11", "joint.qd"]
    sim = fx.Simulator(model, dt=m.opt.timestep, simd=simd)
    d.qvel[:] = 0.5
    state, u = sim.reset(qd=d.qvel.copy()), jnp.array([0.2, -0.1, 0.3])
    traj = sim.rollout(state, jnp.tile(u, (20, 1)), record=names)
    for k in range(20):
        d.ctrl[:] = u
        mujoco.mj_step(m, d)  # leaves the sensors of the state at the start of the step
        want = measured(m, d)
        for name in names[:-1]:
            np.testing.assert_allclose(traj.taps[name][k], want[name.removeprefix("sensor.")], atol=1e-10, err_msg=name)
    _, recorded = sim.step(state, u, record=names)
    np.testing.assert_allclose(recorded["sensor.imu"], traj.taps["sensor.imu"][0], atol=1e-12)


def test_what_lies_on_the_ground_feels_its_weight():
    text = """<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 0.1"><freejoint/><geom size="0.1" mass="1"/>
    <site name="s" euler="90 0 0"/></body></worldbody><sensor><accelerometer name="imu" site="s"/></sensor></mujoco>"""
    sim = fx.Simulator(fx.load(text), dt=0.002)
    traj = sim.rollout(sim.reset(), steps=50, record=["sensor.imu"])
    np.testing.assert_allclose(
        traj.taps["sensor.imu"][-1], [0, 9.81, 0], atol=1e-3
    )  # at rest but for the contact's softness


def test_names_and_refusals(model):
    found = fx.sensors(model)
    assert found["imu"] == "accelerometer"
    assert "range" not in found
    sim = fx.Simulator(model)
    for name, why in (("range", "measures rangefinder"), ("slow", "has a delay")):
        with pytest.raises(ValueError, match=f"sensor '{name}' of 'scene' {why}"):
            sim.step(sim.reset(), record=[f"sensor.{name}"])
    with pytest.raises(KeyError, match="has no sensor named 'nose'"):
        sim.rollout(sim.reset(), steps=1, record=["sensor.nose"])
    with pytest.raises(KeyError, match="is not a tap"):
        sim.step(sim.reset(), record=["joint.nose"])


def test_gradients_reach_the_pose_of_a_sensor(model):
    def reading(angle):
        own = fx.replace(model, {"site.sc.pos": jnp.stack([angle, 0.1, 0.1])})
        qd = jnp.linspace(0.0, 1.0, model.nv)
        return read_sensors(own, model.reference, qd, jnp.ones(model.nv), names=["imu"])["imu"][0]

    slope, step = jax.jit(jax.grad(reading))(0.02), 1e-5
    own = jax.jit(reading)
    np.testing.assert_allclose(slope, (own(0.02 + step) - own(0.02 - step)) / (2 * step), rtol=1e-8)


def test_files_keep_them(model, tmp_path):
    fx.save(model, tmp_path / "scene.xml")
    again = fx.load(tmp_path / "scene.xml")
    assert again.topology == model.topology
    assert again.topology.sensors == model.topology.sensors
    assert not again.topology.refused_sensors
    for mine, theirs in zip(jax.tree.leaves(model), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(mine, theirs)
