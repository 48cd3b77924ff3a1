"""Tendons: lengths, Jacobians, passive forces and armature against MuJoCo, and by closed forms."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.dynamics import (
    aba,
    bias_force,
    crba,
    forward_kinematics,
    kinetic_energy,
    passive_force,
    potential_energy,
    rnea,
    tendon_jacobian,
    tendon_lengths,
)
from flexor.taps import listen

LINKS = """<body name="upper"><joint name="shoulder" axis="0 1 0" ref="0.2"/>
  <geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.4" mass="0.7" contype="0"/>
  <body name="lower" pos="0 0 -0.4"><joint name="elbow" axis="0.1 1 0"/>
    <geom type="capsule" size="0.02" fromto="0 0 0 0.05 0 -0.3" mass="0.4" contype="0"/>
    <body name="tip" pos="0 0 -0.3"><joint name="tip" type="slide" axis="0 1 1"/>
      <geom size="0.02" mass="0.4" contype="0"/></body></body></body>"""
FIXED = f"""<mujoco model="fixed"><compiler angle="radian"/><worldbody>{LINKS}</worldbody><tendon>
  <fixed name="couple" stiffness="3" damping="0.4" springlength="-0.1 0.2" armature="0.3">
    <joint joint="shoulder" coef="0.5"/><joint joint="elbow" coef="-1.5"/></fixed>
  <fixed name="travel" stiffness="2" range="-0.2 0.3" limited="true" margin="0.01" frictionloss="0.3">
    <joint joint="tip" coef="2"/></fixed></tendon></mujoco>"""
SCENES = {"fixed": FIXED}


@pytest.fixture(scope="module", params=SCENES)
def pair(request):
    """A model and MuJoCo's of the same file, without constraints."""
    m = mujoco.MjModel.from_xml_string(SCENES[request.param])
    m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    return fx.load(SCENES[request.param]), m


def states(m, count=6):
    rng = np.random.default_rng(0)
    for _ in range(count):
        d = mujoco.MjData(m)
        mujoco.mj_integratePos(m, d.qpos, rng.normal(size=m.nv), 0.7)
        d.qvel[:] = rng.normal(size=m.nv)
        mujoco.mj_forward(m, d)
        yield d


def dense_jacobian(m, d):
    """MuJoCo's own, whose rows are sparse."""
    J = np.zeros((m.ntendon, m.nv))
    for i in range(m.ntendon):
        at = slice(m.ten_J_rowadr[i], m.ten_J_rowadr[i] + m.ten_J_rownnz[i])
        J[i, m.ten_J_colind[at]] = np.ravel(d.ten_J)[at]
    return J


def test_lengths_jacobians_forces_and_accelerations_are_mujocos(pair):
    """To rounding, for lengths and forces of order one."""
    model, m = pair

    @jax.jit
    def ours(q, qd):
        kin = forward_kinematics(model, q)
        force = passive_force(model, q, qd, kin)
        J = tendon_jacobian(model, kin)
        return tendon_lengths(model, kin, q), J, J @ qd, force, bias_force(model, kin, qd), aba(model, kin, qd, force)

    for d in states(m):
        found = ours(jnp.asarray(d.qpos), jnp.asarray(d.qvel))
        theirs = (d.ten_length, dense_jacobian(m, d), d.ten_velocity, d.qfrc_passive, d.qfrc_bias, d.qacc)
        for mine, other in zip(found, theirs, strict=True):
            np.testing.assert_allclose(mine, other, rtol=0, atol=1e-11 * max(1, np.abs(other).max()))


def test_jacobian_is_the_derivative_of_the_length_and_armature_is_inertia(pair):
    """Identities: J = dL/dq, M = d(rnea)/dqdd, T = qd M qd / 2, and the passive force of springs is -dV/dq."""
    model, m = pair
    model = fx.replace(model, {"tendon.*.damping": 0.0, "gravity": 0.0})
    d = next(states(m, 1))
    q, qd = jnp.asarray(d.qpos), jnp.asarray(d.qvel)

    def length(v):
        moved = fx.integrate(model, q, v)
        return tendon_lengths(model, forward_kinematics(model, moved), moved)

    def energy(v):
        moved = fx.integrate(model, q, v)
        return potential_energy(model, forward_kinematics(model, moved), moved)

    kin, zero = forward_kinematics(model, q), jnp.zeros(model.nv)
    np.testing.assert_allclose(jax.jacfwd(length)(zero), tendon_jacobian(model, kin), atol=1e-12)
    np.testing.assert_allclose(-jax.grad(energy)(zero), passive_force(model, q, 0 * qd, kin), atol=1e-12)
    M = jax.jacfwd(lambda a: rnea(model, kin, qd, a))(zero)
    np.testing.assert_allclose(M, crba(model, kin), atol=1e-12)
    assert float(kinetic_energy(model, kin, qd)) == pytest.approx(float(qd @ M @ qd / 2), rel=1e-12)


def test_free_motion_keeps_the_energy_of_armatures_and_springs(pair):
    """Without damping and friction the energy is kept to the order dt^4 of RK4."""
    model, _ = pair
    model = fx.replace(fx.load(SCENES[model.topology.name], ignore=["limit", "frictionloss"]), {"tendon.*.damping": 0.0})
    sim = fx.Simulator(model, fx.RigidSolver(None, fx.RK4()), dt=1e-3, simd=False)
    start = sim.reset(model.reference, 0.5 * jnp.arange(1.0, model.nv + 1) / model.nv)
    run = sim.rollout(start, steps=200)

    def energy(q, qd):
        kin = forward_kinematics(model, q)
        return kinetic_energy(model, kin, qd) + potential_energy(model, kin, q)

    total = jax.vmap(energy)(run.q, run.qd)
    np.testing.assert_allclose(total, total[0], atol=1e-8)
    assert float(jnp.abs(run.q[-1] - run.q[0]).max()) > 1e-2


# limits, friction, taps


@pytest.mark.parametrize("contact", [None, fx.Penalty()], ids=["rows", "Penalty"])
def test_a_limit_of_a_tendon_holds_a_weight(contact):
    """The slide falls until the tendon, 2 q, is at its end less the margin; its limit carries the weight m g, less what its
    spring takes, and half of that along the tendon."""
    text = FIXED.replace(
        LINKS,
        """<body name="weight"><joint name="tip" type="slide" axis="0 0 1"/><geom size="0.02" mass="0.4"
        contype="0"/></body>""",
    ).replace('frictionloss="0.3"', "")
    text = text.replace(text[text.index('<fixed name="couple"') : text.index('<fixed name="travel"')], "")
    model = fx.load(text)
    sim = fx.Simulator(model, fx.RigidSolver(contact), dt=1e-3, simd=False)
    run = sim.rollout(sim.reset(), steps=3000, record=["joint.limit_force", "tendon.force", "tendon.length"])
    spring = 2 * 0.19 * 2  # stiffness 2 at the length -0.19, and twice that at the slide
    assert float(run.taps["joint.limit_force"][-1, 0]) == pytest.approx(0.4 * 9.81 - spring, rel=2e-2)
    deep = float(-0.19 - run.taps["tendon.length"][-1, 0])
    k = float(model.tendons.limit_stiffness[0])
    wanted = (0.4 * 9.81 - spring) / 2 / k if contact else 0.0
    assert deep == pytest.approx(wanted, rel=1e-2, abs=1e-5)


@pytest.mark.parametrize("simd", [False, True])
def test_dry_friction_of_a_tendon_holds_up_to_its_loss(simd):
    """A differential: the tendon q1 - q2 with friction 0.3 holds torques apart below 0.3, and passes common ones on."""
    text = """<mujoco><worldbody><body name="a"><joint name="a" axis="0 0 1"/><geom size="0.1" mass="1"/></body>
    <body name="b" pos="1 0 0"><joint name="b" axis="0 0 1"/><geom size="0.1" mass="1"/></body></worldbody>
    <tendon><fixed name="t" frictionloss="0.3"><joint joint="a" coef="1"/><joint joint="b" coef="-1"/></fixed></tendon>
    </mujoco>"""
    model = fx.load(text)
    sim, I = fx.Simulator(model, dt=1e-3, simd=simd), 0.4 * 1 * 0.1**2
    push = lambda a, b: sim.rollout(  # noqa: E731
        sim.reset(), fx.Control(tau=jnp.broadcast_to(jnp.array([a, b]), (100, 2))), record=["joint.friction_force"]
    )
    held = push(0.25, -0.25)
    assert float(jnp.abs(held.q).max()) < 1e-12
    np.testing.assert_allclose(held.taps["joint.friction_force"][-1], [-0.25, 0.25], rtol=1e-9)
    together = push(0.25, 0.25)
    np.testing.assert_allclose(together.qd[-1], 0.25 / I * 0.1, rtol=1e-9)
    apart = push(0.5, -0.5)
    np.testing.assert_allclose(apart.qd[-1], np.array([0.2, -0.2]) / I * 0.1, rtol=1e-9)


def test_a_listener_at_the_force_of_a_tendon_pushes_along_it():
    model = fx.load(FIXED)
    sim = fx.Simulator(model, fx.RigidSolver(fx.Penalty()), dt=1e-3, simd=False)
    start = sim.reset([0.1, 0.2, 0.0])
    plain, J = sim.step(start), tendon_jacobian(model, forward_kinematics(model, start.q))
    with listen(lambda name, x: x + jnp.array([0.5, 0.0]) if name == "tendon.force" else x):
        pushed = sim.step(start)
    same = sim.step(start, fx.Control(tau=0.5 * J[0]))
    np.testing.assert_allclose(pushed.qd, same.qd, atol=1e-14)
    assert float(jnp.abs(pushed.qd - plain.qd).max()) > 1e-5


# files


def test_tendons_return_exactly_from_files(tmp_path, pair):
    model, _ = pair
    model = fx.replace(model, {"tendon.*.limit_cfm": 1e-5, "tendon.*.reference": 0.37, "tendon.*.frictionloss": 0.0})
    fx.save(model, tmp_path / "robot.xml")
    again = fx.load(tmp_path / "robot.xml")
    assert again.topology == model.topology
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), again, model))


def test_mujoco_solver_gets_the_tendons():
    """Smooth forces alone: the same semi-implicit step, to rounding."""
    model = fx.load(FIXED, ignore=["limit", "frictionloss"])
    ours = fx.Simulator(model, fx.RigidSolver(None), dt=1e-3, simd=False)
    theirs = fx.Simulator(model, fx.MujocoSolver(), dt=1e-3)
    q, qd = [0.5, 0.2, 0.1], [0.3, -1.0, 0.2]
    a, b = ours.rollout(ours.reset(q, qd), steps=50), theirs.rollout(theirs.reset(q, qd), steps=50)
    np.testing.assert_allclose(a.q, b.q, atol=1e-11)


def test_wrong_tendons_are_refused():
    from flexor.model.description import DescriptionError

    with pytest.raises(DescriptionError, match=r"margin 0\.3 m of tendon 'travel' leaves nothing of its range"):
        fx.load(FIXED.replace('margin="0.01"', 'margin="0.3"'))
    assert not fx.load(FIXED, ignore=["tendon"]).topology.tendons
