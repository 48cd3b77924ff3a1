"""Surfaces that move where their shapes stay: MuJoCo's velocities, closed forms of belts and turntables, derivatives, files."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx

G, DT, FRICTION, BELT = 9.81, 1e-3, 0.4, 0.6
SCENE = """<mujoco><option gravity="0 0 -{g}"/><worldbody>
  <geom name="belt" type="box" size="5 5 0.1" pos="0 0 -0.1" {belt}/>
  <body name="parcel" pos="0 0 {z}"><freejoint/><geom name="parcel" {parcel} mass="2"/></body></worldbody></mujoco>"""
BOX = f'type="box" size="0.1 0.1 0.1" friction="{FRICTION}"'


def scene(belt="", parcel=BOX, z=0.1):
    return SCENE.format(g=G, belt=belt, parcel=parcel, z=z)


def along(speed):
    return f'surfacevel="{speed} 0 0 0 0 0" friction="{FRICTION}"'


def test_velocities_of_surfaces_are_mujocos():
    """Of two moving shapes in random poses, along the tangents and about the normal; MuJoCo's frames are turned about it."""
    both = 'type="{}" size="0.1 0.12 0.14" condim="4" surfacevel="{}"'
    numbers = np.random.default_rng(0).normal(size=(2, 6))
    texts = [" ".join(map(str, x)) for x in numbers]
    text = f"""<mujoco><worldbody><body name="a"><freejoint/><geom name="a" {both.format("sphere", texts[0])}/></body>
      <body name="b"><freejoint/><geom name="b" pos="0.1 0 0" euler="20 30 0" {both.format("box", texts[1])}/></body>
      </worldbody></mujoco>"""
    m, model = mujoco.MjModel.from_xml_string(text), fx.load(text)
    d = mujoco.MjData(m)

    @jax.jit
    def carried(q):
        found = fx.contact.detect(model, fx.dynamics.forward_kinematics(model, q))
        return found.normal, found.carry(4), found.point, found.surface

    compared = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        d.qpos[:3], d.qpos[7:10] = 0, [0.05, 0.05, 0.05]
        d.qpos[3:7], d.qpos[10:] = (x / np.linalg.norm(x) for x in rng.normal(size=(2, 4)))
        mujoco.mj_forward(m, d)
        if d.ncon != 1:
            continue
        normal, carry, point, surface = map(np.asarray, carried(d.qpos))
        c, frame = d.contact[0], d.contact[0].frame.reshape(3, 3)
        np.testing.assert_allclose(normal[0], frame[0], atol=1e-9)
        np.testing.assert_allclose(point[0], c.pos, atol=1e-9)
        np.testing.assert_allclose(frame[1:] @ surface[0, 3:], c.surfacevel[:2], atol=1e-8)
        np.testing.assert_allclose(np.linalg.norm(carry[0, 1:3]), np.linalg.norm(c.surfacevel[:2]), atol=1e-8)
        np.testing.assert_allclose([carry[0, 0], carry[0, 3]], [0, c.surfacevel[2]], atol=1e-8)
        compared += 1
    assert compared > 10


@pytest.mark.parametrize("most", [None, 4], ids=["places", "list"])
def test_a_belt_takes_a_parcel_along(most):
    """It slides with the acceleration mu g until it has the belt's speed; Euler's steps add v h / 2 to the way. Where there are
    more candidates than places in the list, those of a ball that falls elsewhere are among them."""
    ball = '<body pos="2 0 3"><freejoint/><geom size="0.1"/></body></worldbody>' if most else "</worldbody>"
    model = fx.load(scene(along(BELT)).replace("</worldbody>", ball))
    sim = fx.Simulator(model, fx.RigidSolver(contact=fx.NCP(tolerance=1e-12, most=most)), dt=DT)
    run = sim.rollout(sim.reset(), steps=400)
    slides = BELT / (FRICTION * G)
    np.testing.assert_allclose(run.qd[100, 0], 0.1 * FRICTION * G, rtol=1e-6)
    np.testing.assert_allclose(run.qd[-1, :6], [BELT, 0, 0, 0, 0, 0], atol=1e-8)
    np.testing.assert_allclose(run.q[-1, 0], BELT * (0.4 - slides / 2), atol=BELT * DT)
    assert np.asarray(run.final.memory.residual) < 1e-9


def test_penalty_and_a_crawler():
    """A parcel that carries itself goes the other way, as a crawler does."""
    model = fx.load(scene(parcel=BOX + f' surfacevel="{-BELT} 0 0 0 0 0"'))
    soft = fx.Simulator(fx.load(scene(along(BELT))), fx.RigidSolver(contact=fx.Penalty()), dt=2e-4)
    crawler = fx.Simulator(model, fx.RigidSolver(contact=fx.NCP(tolerance=1e-12)), dt=DT)
    assert float(soft.rollout(soft.reset(), steps=2000).qd[-1, 0]) == pytest.approx(BELT, rel=0.02)
    assert float(crawler.rollout(crawler.reset(), steps=300).qd[-1, 0]) == pytest.approx(BELT, abs=1e-8)


def test_a_turntable_spins_a_ball():
    """At its middle a ball gains w' = torsion m g / I until it turns with the table, on the spot."""
    table, torsion, radius = 'surfacevel="0 0 0 0 0 3" condim="4" friction="0.5 0.02 0"', 0.02, 0.1
    ball = f'size="{radius}" condim="4" friction="0.5 {torsion} 0"'
    sim = fx.Simulator(fx.load(scene(table, ball)), fx.RigidSolver(contact=fx.NCP(tolerance=1e-12)), dt=DT)
    run = sim.rollout(sim.reset(), steps=100)
    gain = torsion * G / (0.4 * radius**2)
    np.testing.assert_allclose(run.qd[40, 5], 0.04 * gain, rtol=1e-8)
    np.testing.assert_allclose(run.qd[-1], [0, 0, 0, 0, 0, 3], atol=1e-8)


def test_derivatives_and_the_name_of_a_belts_speed():
    """Where it goes along at the end, x = v (T - v / 2 mu g): dx/dv = T - v / mu g, and dx/dmu = v^2 / 2 mu^2 g; to a step."""
    model = fx.load(scene(along(1e-9)))
    assert model.topology.carried
    plain = fx.load(scene())
    assert not plain.topology.carried
    assert fx.replace(plain, {"geom.belt.surface_velocity": [1.0, 0, 0, 0, 0, 0]}).topology.carried

    def way(x):
        speed, friction = x
        values = {"geom.belt.surface_velocity": speed * jnp.eye(6)[0], "pair.*.friction": friction}
        sim = fx.Simulator(fx.replace(model, values), fx.RigidSolver(contact=fx.NCP(tolerance=1e-13)), dt=DT)
        return sim.rollout(sim.reset(), steps=250).q[-1, 0]

    at = jnp.asarray([BELT, FRICTION])
    slope = np.asarray(fx.simd.jit(jax.jacfwd(way))(at))
    value = fx.simd.jit(way)
    step = 1e-5 * np.eye(2)
    differences = [(value(at + s) - value(at - s)) / 2e-5 for s in step]
    np.testing.assert_allclose(slope, differences, atol=1e-6)
    np.testing.assert_allclose(slope, [0.25 - BELT / (FRICTION * G), BELT**2 / (2 * FRICTION**2 * G)], atol=2 * DT)


@pytest.mark.parametrize("suffix", [".xml", ".urdf"])
def test_files_keep_moving_surfaces(tmp_path, suffix):
    model, path = fx.load(scene(along(BELT))), tmp_path / f"belt{suffix}"
    fx.save(model, path)
    again = fx.load(path)
    assert again.topology == model.topology
    np.testing.assert_array_equal(again.geoms.surface_velocity, model.geoms.surface_velocity)
    ignoring = fx.load(scene(along(BELT)), ignore=["surfacevel"])
    assert not ignoring.topology.carried
