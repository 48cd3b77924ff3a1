"""Force, torque and touch sensors against MuJoCo's: in flight, pushed, at rest on the ground; zones against MuJoCo's rays."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.contact.sums import meets
from flexor.dynamics import read_sensors

# A tool welded to the last link, as force sensors of robots are; a motor holds the elbow.
ARM = """<mujoco model="arm"><option timestep="0.001"><flag contact="disable" eulerdamp="disable"/></option><worldbody>
<body name="upper" pos="0 0 1"><joint name="shoulder" axis="0 1 0" damping="0.1" armature="0.05"/>
 <geom type="capsule" size="0.05" fromto="0 0 0 0.4 0 0" mass="1"/><site name="at_shoulder" euler="10 20 30"/>
 <body name="lower" pos="0.4 0 0"><joint name="elbow" axis="0 1 0.3" stiffness="2"/><joint name="twist" axis="1 0 0"/>
  <geom type="capsule" size="0.04" fromto="0 0 0 0.3 0 0" mass="0.6"/>
  <body name="tool" pos="0.3 0 0.02" euler="0 30 10"><geom type="box" size="0.05 0.02 0.03" pos="0.06 0.01 0" mass="0.3"/>
   <site name="wrist" pos="0.01 0 0" euler="0 50 70"/></body></body></body></worldbody>
<actuator><motor name="m" joint="elbow"/></actuator>
<sensor><force name="f" site="wrist"/><torque name="t" site="wrist"/><force name="f0" site="at_shoulder"/>
<torque name="t0" site="at_shoulder"/><force name="small" site="wrist" cutoff="0.5"/></sensor></mujoco>"""


def test_forces_in_motion_are_mujocos():
    """Along 30 steps in which a hand pushes the tool; rounding of some eps of numbers of O(100)."""
    m, model = mujoco.MjModel.from_xml_string(ARM), fx.load(ARM)
    d, rng, tool = mujoco.MjData(m), np.random.default_rng(0), model.body("tool")
    sim = fx.Simulator(model, dt=m.opt.timestep)
    d.qvel[:] = rng.normal(size=3)
    names = [f"sensor.{n}" for n in ("f", "t", "f0", "t0", "small")]
    push = np.zeros((30, len(model.topology.bodies), 6))
    push[:, tool, 3:] = rng.normal(size=(30, 3))
    control = fx.Control(u=rng.normal(size=(30, 1)), wrench=push)
    traj = sim.rollout(sim.reset(qd=d.qvel.copy()), control, record=names)
    for k in range(30):
        mujoco.mj_kinematics(m, d)
        d.ctrl[:], d.xfrc_applied[tool, :3] = control.u[k], push[k, tool, 3:]
        d.xfrc_applied[tool, 3:] = -np.cross(d.xipos[tool] - d.xpos[tool], push[k, tool, 3:])  # the push acts at the origin
        mujoco.mj_step(m, d)
        for name in names:
            want = d.sensor(name.removeprefix("sensor.")).data
            np.testing.assert_allclose(traj.taps[name][k], want, atol=1e-11, err_msg=name)
    assert np.abs(traj.taps["sensor.t0"]).max() > 3


# A stool on three balls, which statics determines: zones at a foot, below it, above it, around two feet, on the base.
STANDING = """<mujoco model="standing"><option timestep="0.002"/><worldbody><geom name="floor" type="plane" size="1 1 1"/>
<body name="base" pos="0 0 0.3"><freejoint/><geom name="base" type="box" size="0.1 0.05 0.05" mass="2" pos="0.02 0 0"/>
 <site name="belly" type="box" size="1 1 1"/>
 <body name="left" pos="-0.1 0 0"><geom name="left" size="0.02" pos="0 0 -0.28" mass="0.2"/>
  <site name="ankle" pos="0 0 -0.25" euler="0 20 0"/><site name="sole" type="{zone}" size="0.06 0.06 0.06" pos="0 0 -0.3"/>
  <site name="deep" type="box" size="0.05 0.06 0.01" pos="0 0 -0.4"/><site name="heel" size="0.01" pos="0 0 -0.25"/></body>
 <body name="right" pos="0.1 0 0"><geom name="right" size="0.02" pos="0 0.1 -0.28" mass="0.15"/>
  <geom name="rear" size="0.02" pos="0 -0.1 -0.28" mass="0.15"/>
  <site name="other" type="ellipsoid" size="0.05 0.17 0.03" pos="0 0 -0.3"/></body></body></worldbody>
<sensor><force name="f" site="ankle"/><torque name="t" site="ankle"/><touch name="sole" site="sole"/>
<touch name="deep" site="deep"/><touch name="heel" site="heel"/><touch name="other" site="other"/>
<touch name="belly" site="belly"/></sensor></mujoco>"""
NAMES = ["f", "t", "sole", "deep", "heel", "other", "belly"]


@pytest.mark.parametrize(
    ("zone", "solver"),
    [
        ("capsule", fx.RigidSolver()),
        ("cylinder", fx.RigidSolver(contact=fx.NCP(most=8))),
        ("sphere", fx.RigidSolver(integrator=fx.SplitRK4())),
        ("box", fx.Substeps(fx.RigidSolver(contact=fx.Mixed()), count=4)),
    ],
    ids=["NCP", "list of contacts", "SplitRK4", "Mixed"],
)
def test_at_rest_they_feel_the_weight_as_mujocos_do(zone, solver):
    """Both robots stand after a while. What still moves, in MuJoCo's soft contact and in ours, is below 1e-3 of the weight.
    `Mixed` has penalty forces on the floor: the stool sinks in by some mm, and tilts, which shifts 5e-3 of the weight."""
    text = STANDING.format(zone=zone)
    m, model = mujoco.MjModel.from_xml_string(text), fx.load(text)
    d = mujoco.MjData(m)
    soft = isinstance(solver, fx.Substeps)
    sim = fx.Simulator(fx.replace(model, {"pair.*.damping": 20.0}), solver, dt=m.opt.timestep)
    traj = sim.rollout(sim.reset(), steps=600, record=[f"sensor.{n}" for n in NAMES])
    for _ in range(1000):
        mujoco.mj_step(m, d)
    weight, got = 2.5 * 9.81, {n: traj.taps[f"sensor.{n}"][-1] for n in NAMES}
    for name in NAMES:
        np.testing.assert_allclose(got[name], d.sensor(name).data, atol=(5e-3 if soft else 1e-3) * weight, err_msg=name)
    np.testing.assert_allclose(got["sole"] + got["other"], weight, rtol=1e-3)
    np.testing.assert_allclose(got["deep"], got["sole"], rtol=1e-12)  # the ray goes on below the floor
    assert float(got["heel"][0]) == float(got["belly"][0]) == 0
    assert float(got["sole"][0]) > 5
    np.testing.assert_allclose(np.linalg.norm(got["f"]), got["sole"][0] - 0.2 * 9.81, rtol=2e-3)


def test_rays_are_mujocos():
    rng = np.random.default_rng(3)
    start, ray = rng.uniform(-0.6, 0.6, size=(400, 3)), rng.normal(size=(400, 3))
    ray /= np.linalg.norm(ray, axis=1, keepdims=True)
    size = np.array([0.25, 0.35, 0.15])
    for kind in ("sphere", "capsule", "ellipsoid", "cylinder", "box"):
        shape = getattr(mujoco.mjtGeom, f"mjGEOM_{kind.upper()}")
        want = [
            mujoco.mju_rayGeom(np.zeros(3), np.eye(3).ravel(), size, p, v, shape, None) >= 0
            for p, v in zip(start, ray, strict=True)
        ]
        got = jax.jit(meets, static_argnums=0)(kind, jnp.asarray(size), jnp.asarray(start), jnp.asarray(ray))
        np.testing.assert_array_equal(got, want, err_msg=kind)
        assert 30 < np.sum(want) < 370


def test_gradients_and_files(tmp_path):
    text = STANDING.format(zone="capsule")
    model = fx.load(text)
    fx.save(model, tmp_path / "standing.xml")
    again = fx.load(tmp_path / "standing.xml")
    assert again.topology.sensors == model.topology.sensors
    np.testing.assert_array_equal(again.sites.size, model.sites.size)

    def weight(mass):  # hanging in the air: m g, of which MuJoCo's force sensor shows the tool's share
        own = fx.replace(fx.load(ARM), {"body.tool.mass": mass})
        return jnp.linalg.norm(read_sensors(own, own.reference, jnp.zeros(3), names=["f"])["f"])

    value, slope = jax.value_and_grad(weight)(0.3)
    np.testing.assert_allclose([value, slope], [0.3 * 9.81, 9.81], rtol=1e-12)


LOOPED = ARM.replace(
    "</worldbody>", """</worldbody><equality><connect name="hold" body1="tool" anchor="0 0 0"/></equality>"""
)


def test_refusals_name_the_reason():
    sim = fx.Simulator(fx.load(LOOPED))
    with pytest.raises(ValueError, match="sensor 'f' of 'arm' measures between bodies that loop 'hold' joins a second time"):
        sim.step(sim.reset(), record=["sensor.f"])
    standing = fx.Simulator(fx.load(STANDING.format(zone="box")), fx.MujocoSolver())
    with pytest.raises(ValueError, match=r"MujocoSolver does not compute 'touch\.force', which 'sensor\.sole' needs"):
        standing.step(standing.reset(), record=["sensor.sole"])
