"""Fluid forces against MuJoCo's `qfrc_fluid`, its motion, and differences; files; a closed form."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.dynamics import fluid_wrenches, forward_kinematics
from flexor.dynamics.rnea import from_nodes, node_wrenches

SCENE = """<mujoco model="swimmer"><option {medium}><flag contact="disable"/></option><worldbody>
<body name="wall"><geom name="wall" size="0.1"/></body>
<body name="a" pos="0 0 1"><freejoint/><geom type="capsule" size="0.05 0.2" euler="10 20 30" pos="0.1 0 0" {shape}/>
  <body name="b" pos="0.3 0 0"><joint name="h" axis="0 1 0"/><geom name="c" type="box" size="0.1 0.2 0.03" pos="0.1 0 0.2"
    {shape}/><geom type="sphere" size="0.1" {shape}/>
    <body name="c" pos="0.3 0 0"><joint type="ball"/><geom type="cylinder" size="0.1 0.2" pos="0.1 0 0.2" quat="1 2 3 4"/></body>
  </body></body></worldbody></mujoco>"""
ELLIPSOID = 'fluidshape="ellipsoid" fluidcoef="0.5 0.25 1.5 1.0 0.8"'
MEDIA = {
    "water and wind": 'density="1000" viscosity="0.3" wind="0.5 -1 0.3"',
    "honey": 'viscosity="2"',
    "air": 'density="1.2"',
}


@pytest.fixture(scope="module", params=["boxes", "ellipsoids"])
def shape(request):
    return ELLIPSOID if request.param == "ellipsoids" else ""


@jax.jit
def generalised(model, q, qd):
    kin = forward_kinematics(model, q)
    return from_nodes(model, kin, node_wrenches(model, kin, fluid_wrenches(model, kin, qd)))


@pytest.mark.parametrize("medium", MEDIA)
def test_forces_are_mujocos(shape, medium):
    text = SCENE.format(medium=MEDIA[medium], shape=shape)
    m, model = mujoco.MjModel.from_xml_string(text), fx.load(text)
    d, rng = mujoco.MjData(m), np.random.default_rng(0)
    for _ in range(4):
        mujoco.mj_integratePos(m, d.qpos, rng.normal(size=m.nv), 1.0)
        d.qvel[:] = rng.normal(size=m.nv)
        mujoco.mj_forward(m, d)
        got = generalised(model, jnp.asarray(d.qpos), jnp.asarray(d.qvel))
        np.testing.assert_allclose(got, d.qfrc_fluid, rtol=1e-12, atol=1e-13 * np.abs(d.qfrc_fluid).max())
        assert np.abs(d.qfrc_fluid).max() > 1e-2


@pytest.mark.parametrize("simd", [False, True], ids=["XLA", "kernel"])
def test_motion_is_mujocos(shape, simd):
    text = SCENE.format(medium='density="20" viscosity="0.1" wind="0.5 0 0"', shape=shape)
    m, model = mujoco.MjModel.from_xml_string(text), fx.load(text)
    d, rng = mujoco.MjData(m), np.random.default_rng(1)
    d.qvel[:] = rng.normal(size=m.nv)
    sim = fx.Simulator(model, dt=m.opt.timestep, simd=simd)
    traj = sim.rollout(sim.reset(d.qpos.copy(), d.qvel.copy()), steps=100, record=["link.fluid_force"])
    for _ in range(100):
        mujoco.mj_step(m, d)
    np.testing.assert_allclose(traj.q[-1], d.qpos, atol=1e-11)  # rounding, damped by the fluid
    np.testing.assert_allclose(traj.taps["link.fluid_force"][:, :2], 0.0)  # the world, and a wall that no joint moves


def test_a_sphere_falls_with_stokes_velocity():
    """m g = 6 pi beta r v."""
    model = fx.load("""<mujoco><option viscosity="50"/><worldbody><body name="ball"><joint type="slide" axis="0 0 1"/>
    <geom size="0.1" mass="1" fluidshape="ellipsoid"/></body></worldbody></mujoco>""")
    sim = fx.Simulator(model, dt=1e-3)
    speed = -9.81 / (6 * np.pi * 50 * 0.1)
    # the speed is reached with a time constant of m / (6 pi beta r) = 11 ms; after 0.5 s nothing is left of it
    np.testing.assert_allclose(sim.rollout(sim.reset(), steps=500).qd[-1], speed, rtol=1e-9)


def test_derivatives_are_finite_at_rest_and_right_in_motion(shape):
    model = fx.load(SCENE.format(medium=MEDIA["water and wind"].replace("0.5 -1 0.3", "0 0 0"), shape=shape))
    rng = np.random.default_rng(2)
    names = ["medium.fluid.density", "medium.fluid.viscosity", f"fluid.{model.topology.fluid_shapes[0].name}.size"]

    @jax.jit
    def total(values, qd):
        own = fx.replace(model, dict(zip(names, (values[0], values[1], values[2:]), strict=True)))
        return jnp.sum(generalised(own, model.reference, qd) * jnp.arange(1.0, model.nv + 1))

    values = jnp.concatenate([jnp.array([900.0, 0.2]), fx.parameters(model)[names[2]]])
    slope = jax.jit(jax.grad(total, argnums=(0, 1)))
    at_rest = slope(values, jnp.zeros(model.nv))
    assert all(np.isfinite(x).all() for x in at_rest)
    qd = jnp.asarray(rng.normal(size=model.nv))
    by_values, by_qd = slope(values, qd)
    step = 1e-6
    for got, at, which in ((by_values, values, 0), (by_qd, qd, 1)):
        for i in range(len(at)):
            move = step * jnp.eye(len(at))[i] * (at[i] if which == 0 else 1.0)
            ends = [total(values + s * move, qd) if which == 0 else total(values, qd + s * move) for s in (1, -1)]
            difference = (ends[0] - ends[1]) / (2 * jnp.sum(move))
            np.testing.assert_allclose(got[i], difference, rtol=1e-5, atol=1e-5 * np.abs(got).max())


def test_files_keep_the_fluid(shape, tmp_path):
    model = fx.load(SCENE.format(medium=MEDIA["water and wind"], shape=shape))
    thinner = fx.replace(model, {"medium.fluid.density": 800.0, "fluid.*.size": np.array([0.1, 0.2, 0.3])})
    for robot in (model, thinner):
        fx.save(robot, tmp_path / "swimmer.xml")
        again = fx.load(tmp_path / "swimmer.xml")
        assert again.topology == robot.topology
        for mine, theirs in zip(jax.tree.leaves(robot), jax.tree.leaves(again), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert not fx.load(SCENE.format(medium=MEDIA["air"], shape=shape), ignore=["fluid"]).topology.media
    with pytest.raises(ValueError, match="there is a fluid around it"):
        fx.save(model, tmp_path / "swimmer.urdf")
