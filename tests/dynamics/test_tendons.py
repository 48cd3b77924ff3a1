"""Tendons: lengths, Jacobians, passive forces and armature against MuJoCo, and by closed forms."""

import equinox as eqx
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
SPATIAL = f"""<mujoco model="spatial"><compiler angle="radian"/><worldbody><site name="root" pos="0.3 0.1 0.1"/>
  {
    LINKS.replace('<body name="lower"', '<site name="bone" pos="0.05 0 -0.2"/><body name="lower"').replace(
        '<body name="tip"', '<site name="shin" pos="0.1 0.02 -0.1"/><body name="tip"'
    )
}
  </worldbody><tendon>
  <spatial name="string" stiffness="30" damping="2" springlength="0.1 0.2" armature="0.3"><site site="root"/><site site="bone"/>
    <site site="shin"/><pulley divisor="2"/><site site="bone"/><site site="shin"/><pulley divisor="3.5"/><site site="root"/>
    <site site="shin"/></spatial>
  <fixed name="sum" armature="0.05" damping="1"><joint joint="shoulder" coef="1"/><joint joint="tip" coef="3"/></fixed>
  </tendon></mujoco>"""
# Past a sphere and a cylinder, without a side site, with one outside, and with one inside.
WRAPPED = """<mujoco model="wrapped"><compiler angle="radian"/><worldbody><site name="a" pos="0.5 -0.1 0.1"/>
  <site name="above" pos="0 0.1 0.5"/><site name="middle" pos="0.02 0.03 -0.04"/>
  <geom name="post" type="cylinder" size="0.15 0.2" pos="0.02 0 0.03" euler="0.4 0.3 0.2" contype="0"/>
  <body name="ball"><joint name="x" type="slide" axis="1 0 0"/><joint name="turn" type="ball"/>
    <geom name="ball" size="0.2" mass="1" contype="0"/><site name="beside" pos="0.3 -0.2 0.1"/></body>
  <body name="end" pos="-0.5 0 0"><joint name="end" axis="0.2 1 0.5" pos="0.4 0 0"/><joint name="far" type="slide" axis="0 1 1"/>
    <geom size="0.03" mass="0.3" contype="0"/><site name="b" pos="0 0.02 0.01"/></body></worldbody><tendon>
  <spatial name="ball" stiffness="20" springlength="0.2"><site site="a"/><geom geom="ball"/><site site="b"/></spatial>
  <spatial name="side" stiffness="20" springlength="0.2"><site site="a"/><geom geom="ball" sidesite="beside"/><site site="b"/>
    <pulley divisor="2"/><site site="a"/><geom geom="post"/><site site="b"/></spatial>
  <spatial name="post" damping="3"><site site="a"/><geom geom="post" sidesite="above"/><site site="b"/></spatial>
  <spatial name="eye" stiffness="9" springlength="0.1"><site site="a"/><geom geom="post" sidesite="middle"/><site site="b"/>
    </spatial>
  </tendon></mujoco>"""
SCENES = {"fixed": FIXED, "spatial": SPATIAL, "wrapped": WRAPPED}


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
    """To rounding, for lengths and forces of order one. MuJoCo finds the point at which a string passes the inside of a geom to
    1e-6 rad, so that moments differ by as much."""
    model, m = pair
    tolerance = 1e-5 if model.topology.name == "wrapped" else 1e-11

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
            np.testing.assert_allclose(mine, other, rtol=0, atol=tolerance * max(1, np.abs(other).max()))


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

    @jax.jit
    def both():
        kin, zero = forward_kinematics(model, q), jnp.zeros(model.nv)
        M = jax.jacfwd(lambda a: rnea(model, kin, qd, a))(zero)
        derived = jax.jacfwd(length)(zero), -jax.grad(energy)(zero), M, qd @ M @ qd / 2
        spring = passive_force(model, q, 0 * qd, kin)
        return derived, (tendon_jacobian(model, kin), spring, crba(model, kin), kinetic_energy(model, kin, qd))

    for derived, direct in zip(*both(), strict=True):
        np.testing.assert_allclose(derived, direct, atol=1e-12)


@pytest.mark.parametrize("scene", ["fixed", "spatial"])
def test_free_motion_keeps_the_energy_of_armatures_and_springs(scene):
    """Without damping and friction the energy is kept to the order dt^4 of RK4."""
    model = fx.replace(fx.load(SCENES[scene], ignore=["limit", "frictionloss"]), {"tendon.*.damping": 0.0})
    sim = fx.Simulator(model, fx.RigidSolver(None, fx.RK4()), dt=1e-3, simd=False)
    start = sim.reset(model.reference, 0.5 * jnp.arange(1.0, model.nv + 1) / model.nv)
    run = sim.rollout(start, steps=200)

    def energy(q, qd):
        kin = forward_kinematics(model, q)
        return kinetic_energy(model, kin, qd) + potential_energy(model, kin, q)

    total = jax.jit(jax.vmap(energy))(run.q, run.qd)
    np.testing.assert_allclose(total, total[0], rtol=0, atol=1e-8)
    assert float(jnp.abs(run.q[-1] - run.q[0]).max()) > 1e-2


def test_strings_wrap_as_mujocos_do():
    """Lengths in 300 configurations, wrapped and not. They are minimal at the point inside, so that its error enters squared."""
    model, m = fx.load(WRAPPED), mujoco.MjModel.from_xml_string(WRAPPED)
    run, wrapped = jax.jit(lambda q: tendon_lengths(model, forward_kinematics(model, q), q)), []
    for d in states(m, 300):
        np.testing.assert_allclose(run(jnp.asarray(d.qpos)), d.ten_length, atol=1e-10)
        wrapped.append(d.ten_wrapnum.copy())
    assert ((np.max(wrapped, 0) - np.min(wrapped, 0)) >= 2).all(), "each has wrapped and not"


def test_derivatives_of_lengths_by_geometry_are_differences():
    """By sites, geoms, radii, body frames and divisors; central differences of step 1e-6 leave 1e-9 of rounding."""
    model = fx.load(WRAPPED)
    d = next(states(mujoco.MjModel.from_xml_string(WRAPPED), 1))
    q, qd = jnp.asarray(d.qpos), jnp.asarray(d.qvel)
    places = lambda m: (m.sites.pos, m.geoms.pos, m.geoms.quat, m.geoms.size, m.bodies.pos, m.tendons.coefficients)  # noqa: E731

    @jax.jit
    def f(parts):
        own = eqx.tree_at(places, model, parts)
        kin = forward_kinematics(own, q)
        return jnp.arange(1.0, 5) @ tendon_lengths(own, kin, q) + jnp.arange(3.0, 7) @ (tendon_jacobian(own, kin) @ qd)

    at, rng = places(model), np.random.default_rng(1)
    gradient = jax.jit(jax.grad(f))(at)
    for k, x in enumerate(at):
        way = jnp.asarray(rng.normal(size=x.shape))
        ends = [f((*at[:k], x + h * way, *at[k + 1 :])) for h in (1e-6, -1e-6)]
        exact = float(jnp.vdot(gradient[k], way))
        assert exact == pytest.approx(float(ends[0] - ends[1]) / 2e-6, rel=1e-6, abs=1e-7), k
        assert exact != 0, k


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_ten_thousand_configurations_have_finite_lengths_and_derivatives(dtype):
    """In kernels; among them points within the geoms and on their axes."""
    model = fx.load(WRAPPED, dtype=dtype)

    def f(q):
        total = lambda q: jnp.sum(tendon_lengths(model, forward_kinematics(model, q), q))  # noqa: E731
        return jax.value_and_grad(total)(q)

    keys = jax.random.split(jax.random.key(0), 10_000)
    q = jax.vmap(lambda key: fx.random_state(model, key, distance=0.6).q)(keys)
    q = q.at[:20].set(model.reference[None])
    value, gradient = fx.simd.vmap(f)(q)
    assert bool(jnp.isfinite(value).all())
    assert bool(jnp.isfinite(gradient).all())
    if dtype == jnp.float64:
        np.testing.assert_allclose(value[:50], jax.jit(jax.vmap(f))(q[:50])[0], rtol=1e-12)


PULLEY = """<mujoco model="pulley"><worldbody><site name="top" pos="0 0 0"/><site name="top2" pos="1 0 0"/>
  <body name="a" pos="0 0 -1"><joint name="a" type="slide" axis="0 0 -1"/><geom size="0.1" mass="2"/><site name="a"/></body>
  <body name="b" pos="1 0 -1"><joint name="b" type="slide" axis="0 0 -1"/><geom size="0.1" mass="{}"/><site name="b"/></body>
  </worldbody><tendon><spatial name="rope" limited="true" range="0 1.5"><site site="top"/><site site="a"/><pulley divisor="2"/>
  <site site="top2"/><site site="b"/></spatial></tendon></mujoco>"""


@pytest.mark.parametrize("mass", [1.0, 2.0])
def test_a_pulley_halves_the_force(mass):
    """A rope of l1 + l2 / 2 that cannot stretch: its tension T pulls weight a, T / 2 pulls weight b. Half the weight balances it,
    and otherwise T = 1.5 g / (1 / m1 + 1 / (4 m2)), from l1'' + l2'' / 2 = 0."""
    model = fx.replace(fx.load(PULLEY.format(mass)), {"tendon.*.limit_cfm": 0.0})
    sim = fx.Simulator(model, dt=1e-3, simd=False)
    run = sim.rollout(sim.reset(), steps=300, record=["joint.limit_force"])
    T = 1.5 * 9.81 / (1 / 2 + 1 / (4 * mass))
    np.testing.assert_allclose(run.taps["joint.limit_force"][-1], [-T, -T / 2], rtol=1e-9)
    rate = (9.81 - T / np.array([2, 2 * mass])) * 0.3
    np.testing.assert_allclose(run.qd[-1], rate, atol=1e-9)
    assert (np.abs(rate).max() < 1e-12) == (mass == 1)


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
