"""Loops (connect, weld) and equalities of tendons: rows against MuJoCo's, closed forms, drift, derivatives, files."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from benchmarks._scenes import LEG as STANDING_LEG
from flexor.contact.contact import Instant
from flexor.contact.equality import tie_count, ties
from flexor.contact.rows import joint_rows
from flexor.dynamics import forward_kinematics
from flexor.model.description import DescriptionError
from flexor.solvers.mujoco import mujoco_model
from tests.contact.hard import hard_accelerations
from tests.contact.loops import FOUR_BAR, LEG
from tests.contact.slopes import assert_returns, assert_slopes, step_accelerations

# Every kind at once: between bodies, sites, a body and the world, and tendons.
MANY = """<mujoco model="many"><compiler angle="radian"/><worldbody>
  <body name="a" pos="0 0 1"><freejoint/><geom size="0.1 0.05 0.07" type="box" mass="1" contype="0"/>
    <site name="sa" pos="0.1 0.05 0.02" euler="0.3 0.2 0.1"/></body>
  <body name="b" pos="0.3 0 1" euler="0.1 0.3 0.2"><freejoint/><geom size="0.1 0.05 0.07" type="box" mass="0.5" contype="0"/>
    <site name="sb" pos="-0.1 0 0.03" euler="-0.3 0.1 0"/>
    <body name="c" pos="0.2 0 0"><joint name="j" axis="0 1 0"/><geom size="0.05" mass="0.3" contype="0"/></body></body>
  <body name="d" pos="-0.3 0 1"><joint name="k" axis="0 0 1"/><joint name="l" axis="0 1 1"/>
    <geom size="0.05" pos="0.1 0 0" mass="0.3" contype="0"/></body></worldbody>
  <tendon><fixed name="t"><joint joint="j" coef="2"/></fixed>
    <fixed name="u"><joint joint="k" coef="1"/><joint joint="l" coef="0.4"/></fixed></tendon>
  <equality><connect name="points" body1="a" body2="b" anchor="0.1 0.02 0.03"/>
    <weld name="frames" body1="a" body2="c" anchor="0.1 0 0.2" relpose="0.3 0.1 0 0.9 0.1 0.2 0.1" torquescale="0.7"/>
    <connect name="sites" site1="sa" site2="sb"/><weld name="turned" site1="sa" site2="sb" torquescale="2"/>
    <tendon name="lengths" tendon1="t" tendon2="u" polycoef="0.1 0.5 0.3 0 0.2"/><tendon name="constant" tendon1="t"/>
    <weld name="world" body1="d" torquescale="1.5"/><joint name="held" joint1="k" polycoef="0.3 0 0 0 0"/>
    <connect name="off" body1="a" body2="d" anchor="0 0 0" active="false"/></equality></mujoco>"""


def tied(model, q, qd=None):
    return ties(Instant(model, forward_kinematics(model, q), q, jnp.zeros(model.nv) if qd is None else qd))


def mujoco_rows(m, d):
    """Violation and Jacobian of every equality by name."""
    J, start, found = np.reshape(d.efc_J, (-1, m.nv)), 0, {}
    for e in np.flatnonzero(m.eq_active0):
        size = {0: 3, 1: 6}.get(int(m.eq_type[e]), 1)
        name = mujoco.mj_id2name(m, mujoco.mjtObj.mjOBJ_EQUALITY, int(e))
        found[name] = d.efc_pos[start : start + size], J[start : start + size]
        start += size
    return found


@pytest.mark.parametrize("saved", [False, True], ids=["as read", "as saved"])
def test_rows_are_mujocos(saved):
    """To rounding. Our rotations are twice MuJoCo's, which are sines of half the angle; those of sites are in a body's axes."""
    model = fx.load(MANY)
    m = mujoco_model(model) if saved else mujoco.MjModel.from_xml_string(MANY)
    m.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    d, rng = mujoco.MjData(m), np.random.default_rng(0)
    mujoco.mj_integratePos(m, d.qpos, rng.normal(size=m.nv), 0.6)
    mujoco.mj_forward(m, d)
    rows, t = tied(model, jnp.asarray(d.qpos)), model.topology
    theirs, neq, loops = mujoco_rows(m, d), len(t.equalities), [x.name for x in t.loops]
    assert len(rows.gap) == tie_count(t) == sum(len(gap) for gap, _ in theirs.values())
    for i, e in enumerate(t.equalities):
        np.testing.assert_allclose(rows.gap[i], theirs[e.name][0][0], atol=1e-14)
        np.testing.assert_allclose(rows.J[i], theirs[e.name][1][0], atol=1e-14)
    for i, name in enumerate(loops):
        own = slice(neq + 3 * i, neq + 3 * i + 3)
        np.testing.assert_allclose(rows.gap[own], theirs[name][0][:3], atol=1e-14)
        np.testing.assert_allclose(rows.J[own], theirs[name][1][:3], atol=1e-14)
    for i, name in enumerate([x.name for x in t.loops if x.weld]):
        own = slice(neq + 3 * len(loops) + 3 * i, neq + 3 * len(loops) + 3 * i + 3)
        gap, J = 2 * theirs[name][0][3:], 2 * theirs[name][1][3:]
        if name == "turned" and not saved:
            np.testing.assert_allclose(np.linalg.norm(rows.gap[own]), np.linalg.norm(gap), rtol=1e-12)
            np.testing.assert_allclose(rows.J[own].T @ rows.gap[own], J.T @ gap, atol=1e-12)
        else:
            np.testing.assert_allclose(rows.gap[own], gap, atol=1e-14)
            np.testing.assert_allclose(rows.J[own], J, atol=1e-14)


def test_jacobians_are_derivatives_of_violations():
    model, rng = fx.load(MANY), np.random.default_rng(3)
    q = fx.integrate(model, model.reference, jnp.asarray(0.7 * rng.normal(size=model.nv)))
    derived, direct = jax.jit(
        lambda: (
            jax.jacfwd(lambda v: tied(model, fx.integrate(model, q, v)).gap)(jnp.zeros(model.nv)),
            tied(model, q).J,
        )
    )()
    np.testing.assert_allclose(derived, direct, atol=1e-13)


WELDED = """<mujoco model="welded"><compiler angle="radian"/><worldbody>
  <body name="arm"><joint name="shoulder" axis="0 1 0"/>
    <geom type="capsule" size="0.03" fromto="0 0 0 0.4 0 0" mass="1" contype="0"/>
    <body name="hand" pos="0.4 0 0"><joint name="wrist" axis="1 0 0.2"/><geom type="box" size="0.05 0.02 0.03" mass="0.3"
      contype="0"/></body></body>
  <body name="load" pos="0.55 0.02 0.01" euler="0.2 0.1 0.4"><freejoint name="load"/>
    <geom type="box" size="0.06 0.04 0.05" mass="0.8" contype="0"/></body></worldbody>
  <equality><weld name="grip" body1="hand" body2="load"/></equality></mujoco>"""


@pytest.mark.parametrize("scene", ["four_bar", "welded"])
def test_accelerations_are_mujocos_in_the_limit_of_hard_constraints(scene):
    """States on the manifold, in position and velocity; flexor's compliance is 1e-9 of the default, since the loop in the plane
    has a row that is none. MuJoCo's extrapolation leaves 1e-5."""
    model = fx.load(FOUR_BAR if scene == "four_bar" else WELDED)
    model = fx.replace(model, {"loop.*.cfm": 1e-12, "loop.*.rotation_cfm": 1e-12})
    accelerations = step_accelerations(model)
    row, rng = jax.jit(lambda q: tied(model, q)), np.random.default_rng(2)
    drift = jax.jit(
        lambda q, qd: jax.jvp(lambda v: tied(model, fx.integrate(model, q, v)).J @ qd, (jnp.zeros(model.nv),), (qd,))[1]
    )
    for _ in range(3):
        q = fx.integrate(model, model.reference, jnp.asarray(0.3 * rng.normal(size=model.nv)))
        for _ in range(10):
            q = fx.integrate(model, q, -np.linalg.pinv(row(q).J, rcond=1e-9) @ row(q).gap)
        J = np.asarray(row(q).J)
        qd, tau = rng.normal(size=model.nv), rng.normal(size=model.nv)
        qd = qd - np.linalg.pinv(J, rcond=1e-9) @ J @ qd
        qd = 2 * qd / np.linalg.norm(qd)
        ours = accelerations(q, qd, tau)
        # a step solves J u = 0 at its start; MuJoCo's accelerations have J a = -J' qd, of which flexor's come a step later
        bias = np.asarray(drift(q, jnp.asarray(qd)))
        assert np.abs(bias).max() > 1e-2
        theirs = hard_accelerations(model, np.asarray(q), qd, tau)
        M = np.asarray(fx.dynamics.crba(model, forward_kinematics(model, q)))
        Y = np.linalg.solve(M, J.T)
        later = Y @ np.linalg.pinv(J @ Y, rcond=1e-9) @ bias
        np.testing.assert_allclose(ours - later, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


# loops stay closed


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_a_four_bar_linkage_stays_closed_and_turns_as_its_geometry_says(dtype):
    """10 s at up to 11 rad/s. A step leaves r'' dt^2 / 2 of violation, of which 0.2 are removed in each: r = 2.5 r'' dt^2, with
    r'' = 0.2 m 11^2 rad^2/s^2 at most 6e-5 m. The angle of the rocker by the cosine rule from that of the crank."""
    model = fx.load(FOUR_BAR, dtype=dtype)
    sim = fx.Simulator(model, dt=1e-3, simd=True)
    run = sim.rollout(sim.reset(), jnp.full((10_000, 1), 0.15, dtype))
    assert run.status.ok
    gap = jax.jit(jax.vmap(lambda q: tied(model, q).gap))(run.q)
    assert float(jnp.abs(gap).max()) < 1e-4
    q = np.asarray(run.q, float)
    assert np.ptp(q[:, 0]) > 2, "the crank moves"
    B = 0.2 * np.stack([-np.sin(q[:, 0]), np.cos(q[:, 0])], axis=1)  # from upright
    D, rocker, coupler = np.array([0.5, 0]), np.hypot(0.136808, 0.375877), np.hypot(0.363192, 0.175877)
    far = np.linalg.norm(B - D, axis=1)
    angle = np.arctan2(*(B - D).T[::-1]) - np.arccos((far**2 + rocker**2 - coupler**2) / (2 * far * rocker))
    started = np.arctan2(0.375877, -0.136808)
    error = (q[:, 2] + started - angle + np.pi) % (2 * np.pi) - np.pi
    assert np.abs(error).max() < 1e-4 / 0.3


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_a_leg_with_two_loops_stays_closed(dtype):
    """10 s of swinging, driven at hip, knee and ankle."""
    model, T = fx.load(LEG, dtype=dtype), np.arange(10_000) * 1e-3
    sim = fx.Simulator(model, dt=1e-3, simd=True)
    run = sim.rollout(sim.reset(), jnp.asarray(0.5 * np.stack([np.sin((2 + i) * T) for i in range(3)], 1), dtype))
    assert run.status.ok
    gap = jax.jit(jax.vmap(lambda q: tied(model, q).gap))(run.q)
    assert float(jnp.abs(gap).max()) < 1e-4
    assert float(jnp.ptp(run.q[:, 5])) > 0.2, "the knee moves"


def test_redundant_loops_converge_in_single_precision():
    """A leg that stands, 0.2 s. Its loops close in a plane by points in space, so Newton's system is singular but for the
    compliance that it lends to rows, `laws.soft`; with that of double precision a third of the steps end at ten times this
    residual, after up to six iterations. Steps end at 16 eps times one plus the free velocity, which hardly changes in a step."""
    model = fx.load(STANDING_LEG, dtype=jnp.float32)
    sim = fx.Simulator(model, dt=2e-3, simd=False)

    def step(state, _):
        state = sim.step(state)
        return state, (state.memory.residual, state.memory.iterations, jnp.abs(state.qd).max())

    run = fx.simd.jit(lambda state: jax.lax.scan(step, state, None, length=100)[1])
    residual, iterations, speed = run(sim.reset(model.keyframe("stand")))
    assert np.all(residual <= 32 * np.finfo(np.float32).eps * (1 + speed))
    assert np.max(iterations) <= 2


def test_a_row_that_nothing_moves_needs_no_compliance():
    """The row across the plane of the linkage, without its own compliance."""
    model = fx.replace(fx.load(FOUR_BAR, dtype=jnp.float32), {"loop.*.cfm": 0.0})
    sim = fx.Simulator(model, dt=1e-3, simd=True)
    run = sim.rollout(sim.reset(), jnp.full((100, 1), 0.15, jnp.float32))
    assert run.status.ok
    gap = jax.jit(jax.vmap(lambda q: tied(model, q).gap))(run.q)
    assert float(jnp.abs(gap).max()) < 1e-4


# closed forms


def test_a_weld_makes_one_body_of_two():
    """Two free boxes welded fall and turn as their union: momentum about the common centre is kept, and both turn alike."""
    text = """<mujoco><option gravity="0 0 0"/><worldbody>
      <body name="a"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="1" contype="0"/></body>
      <body name="b" pos="0.5 0 0"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="1" contype="0"/></body></worldbody>
      <equality><weld name="w" body1="a" body2="b"/></equality></mujoco>"""
    model = fx.replace(fx.load(text), {"loop.*.cfm": 0.0, "loop.*.rotation_cfm": 0.0})
    sim = fx.Simulator(model, dt=1e-3, simd=False)
    tau = jnp.zeros((1000, 12)).at[:, 5].set(0.1)  # about z, on one of the two
    run = sim.rollout(sim.reset(), fx.Control(tau=tau))
    inertia = 2 * (1 / 6 * 0.2**2 + 0.25**2)
    np.testing.assert_allclose(run.qd[-1, [5, 11]], 0.1 / inertia, rtol=1e-4)
    centre = np.asarray(run.q[-1, :3] + run.q[-1, 7:10]) / 2
    np.testing.assert_allclose(centre, [0.25, 0, 0], atol=1e-9)


def test_lengths_of_tendons_are_tied_by_their_polynomial():
    """t = 0.1 + 0.5 u + 0.3 u^2 from violated to held: what is left is the order of the step."""
    text = (
        MANY[: MANY.index("<equality>")]
        + """<equality><tendon name="lengths" tendon1="t" tendon2="u"
      polycoef="0.1 0.5 0.3 0 0"/></equality></mujoco>"""
    )
    model = fx.load(text)
    sim = fx.Simulator(model, dt=1e-3, simd=False)
    run = sim.rollout(sim.reset(), steps=300, record=["tendon.length"])
    t, u = np.asarray(run.taps["tendon.length"][-1])
    assert t == pytest.approx(0.1 + 0.5 * u + 0.3 * u**2, abs=1e-5)
    assert abs(u) > 1e-2


def test_a_soft_loop_of_the_penalty_model_settles_at_weight_over_stiffness():
    """A box that hangs by a point: the spring k gives way by m g / k; its weld holds it level."""
    text = """<mujoco><worldbody><body name="a" pos="0 0 1"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="1" contype="0"/>
      </body></worldbody><equality><weld name="w" body1="a"/></equality></mujoco>"""
    model = fx.load(text)
    sim = fx.Simulator(model, fx.RigidSolver(fx.Penalty()), dt=1e-3, simd=False)
    run = sim.rollout(sim.reset(), steps=1500, record=["joint.equality_force"])
    assert float(1 - run.q[-1, 2]) == pytest.approx(9.81 / float(model.loops.stiffness[0]), rel=1e-6)
    np.testing.assert_allclose(run.taps["joint.equality_force"][-1, 2], 9.81, rtol=1e-6)


# derivatives, files


@pytest.mark.parametrize("contact", [None, fx.Penalty()], ids=["rows", "Penalty"])
def test_derivatives_match_finite_differences(contact):
    """Of a rollout to anchors, rotation, torquescale and the parameters of the rows."""
    model = fx.replace(fx.load(WELDED), {"loop.*.cfm": 1e-3, "loop.*.rotation_cfm": 1e-2})
    sim = fx.Simulator(model, fx.RigidSolver(contact), dt=2e-3, simd=False)
    rows = ("stiffness", "damping", "rotation_stiffness") if contact else ("cfm", "baumgarte", "rotation_cfm")
    fields = ("anchor_a", "anchor_b", "quat", "torquescale", *rows)
    start = jnp.asarray(0.3 * np.random.default_rng(0).normal(size=model.nv))

    def f(table):
        own = eqx.tree_at(lambda s: tuple(getattr(s.model.loops, name) for name in fields), sim, table)
        run = own.rollout(own.reset(model.reference, start), steps=15)
        return jnp.sum(jnp.sin(3 * run.q[-1]) * jnp.arange(1.0, model.nq + 1)) + jnp.sum(run.qd[-1])

    assert_slopes(f, tuple(getattr(model.loops, name) for name in fields))


def test_loops_return_exactly_from_files(tmp_path):
    model = fx.replace(fx.load(MANY), {"loop.points.anchor_b": [0.1, 0.2, 0.3], "loop.frames.baumgarte": 0.37})
    assert_returns(model, tmp_path / "many.xml")


def test_what_urdf_has_no_place_for_is_refused_by_name(tmp_path):
    with pytest.raises(
        DescriptionError, match="cannot be saved as URDF: it has the loop 'pin', for which URDF has no place"
    ):
        fx.save(fx.load(FOUR_BAR), tmp_path / "bar.urdf")
    with pytest.raises(DescriptionError, match="it has the tendon 't'"):
        fx.save(fx.load(MANY), tmp_path / "many.urdf")
    assert not fx.load(MANY, ignore=["equality"]).topology.loops
    assert [e.name for e in fx.load(MANY, ignore=["tendon"]).topology.equalities] == ["held"]


# limits of ball joints

BALL = """<mujoco model="ball"><compiler angle="radian"/><worldbody><body name="arm"><joint name="j" type="ball" range="0 {}"
  limited="true" margin="0.1"/><geom type="capsule" size="0.03" fromto="0 0 0 0.4 0 0" mass="1" contype="0"/></body></worldbody>
  </mujoco>"""


def test_rows_of_ball_limits_are_mujocos():
    """The row along the axis of the rotation, and its angle; MuJoCo has it where the limit is passed."""
    model, m = fx.load(BALL.format(0.6)), mujoco.MjModel.from_xml_string(BALL.format(0.6))
    m.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    for turn in ([0.5, 0.3, 0.2], [-0.2, 0.9, 0.1], [3.0, 1.0, 1.0]):
        d = mujoco.MjData(m)
        mujoco.mj_integratePos(m, d.qpos, np.array(turn), 1.0)
        mujoco.mj_forward(m, d)
        rows = joint_rows(
            Instant(model, forward_kinematics(model, jnp.asarray(d.qpos)), jnp.asarray(d.qpos), jnp.zeros(3)), 1e-3
        )
        np.testing.assert_allclose(rows.gap, d.efc_pos - 0.1, atol=1e-13)
        np.testing.assert_allclose(rows.J, np.reshape(d.efc_J, (-1, 3)), atol=1e-13)


@pytest.mark.parametrize("contact", [fx.NCP(), fx.Penalty()], ids=["NCP", "Penalty"])
def test_a_ball_joint_hangs_at_its_largest_angle(contact):
    """The arm falls from level to 0.5 rad, where the limit carries the moment m g l cos(0.5) / 2."""
    model = fx.replace(fx.load(BALL.format(0.6)), {"joint.*.damping": 0.02, "joint.*.armature": 0.01})
    sim = fx.Simulator(model, fx.RigidSolver(contact), dt=1e-3, simd=False)
    run = sim.rollout(sim.reset(), steps=6000, record=["joint.limit_force"])
    angle = 2 * float(jnp.arccos(jnp.abs(run.q[-1, 0])))
    moment = 9.81 * 0.2 * np.cos(angle)
    soft = moment / float(model.joints.limit_stiffness[0]) if isinstance(contact, fx.Penalty) else 0.0
    assert angle == pytest.approx(0.5 + soft, abs=1e-4)
    assert float(jnp.linalg.norm(run.taps["joint.limit_force"][-1])) == pytest.approx(moment, rel=1e-2)


def test_limits_of_balls_return_from_files(tmp_path):
    assert_returns(fx.load(BALL.format(0.6)), tmp_path / "ball.xml")
    assert not fx.load(BALL.format(0.6), ignore=["ball-limit"]).topology.joints[0].limited


# the certificate, identification and networks


def test_the_certificate_covers_loops_and_tendons():
    """A four-bar linkage with a string and a fixed tendon: every kind of their parameters, against finite differences."""
    text = (
        FOUR_BAR.replace("</worldbody>", '<site name="wall" pos="0.2 0 0.6"/></worldbody>')
        .replace('<body name="coupler"', '<site name="end" pos="0 0.01 0.2"/><body name="coupler"')
        .replace(
            "<equality>",
            """<tendon><spatial name="string" stiffness="40" damping="1" springlength="0.1" armature="0.2"
      frictionloss="0.1"><site site="wall"/><site site="end"/></spatial>
      <fixed name="sum" stiffness="1" springlength="-0.2 -0.1"><joint
      joint="crank" coef="1"/><joint joint="rocker" coef="-0.4"/></fixed></tendon><equality><tendon name="tie" tendon1="sum"
      polycoef="0 0 0 0 0" active="false"/>""",
        )
    )
    certificate = fx.certify(fx.load(text), steps=6)
    assert certificate.ok, str(certificate)
    found = {row.what for row in certificate.rows if row.influence}
    assert {"loop anchor of the first body", "loop anchor of the second body", "loop CFM", "loop Baumgarte", "loop stiffness",
            "loop damping", "tendon coefficients", "tendon stiffness", "tendon damping", "tendon armature", "tendon dry friction",
            "tendon slack range", "site position"} <= found  # fmt: skip


FINGER = """<mujoco model="finger"><compiler angle="radian"/><worldbody><body name="proximal"><joint name="proximal" axis="0 1 0"
  damping="0.002"/><geom type="capsule" size="0.01" fromto="0 0 0 0.05 0 0" mass="0.05" contype="0"/>
  <body name="distal" pos="0.05 0 0"><joint name="distal" axis="0 1 0" damping="0.002"/>
  <geom type="capsule" size="0.008" fromto="0 0 0 0.03 0 0" mass="0.02" contype="0"/></body></body></worldbody>
  <tendon><fixed name="coupling" stiffness="{}" springlength="0"><joint joint="distal" coef="1"/>
  <joint joint="proximal" coef="-0.8"/></fixed></tendon><actuator><motor name="pull" joint="proximal"/></actuator></mujoco>"""


def test_the_stiffness_of_a_fingers_coupling_is_identified():
    truth = fx.Simulator(fx.load(FINGER.format(0.2)), dt=2e-3, simd=False)
    log = fx.Log.of(truth.rollout(truth.reset([0.2, -0.1]), 0.05 * np.sin(np.arange(200) * 0.05)[:, None]))
    guess = fx.Simulator(fx.load(FINGER.format(0.05)), dt=2e-3, simd=False)
    fit = fx.identify(guess, log, free=["tendon.coupling.stiffness"])
    assert float(fit.model.tendons.stiffness[0]) == pytest.approx(0.2, rel=1e-3)


def test_a_network_at_the_force_of_a_tendon_takes_part_and_has_gradients():
    sim = fx.Simulator(fx.load(FINGER.format(0.2)), dt=2e-3, simd=False)
    blueprint = fx.Blueprint()
    blueprint.add("tendon.force", inputs=["tendon.length", "tendon.velocity"], net=fx.nets.Dissipative(width=4))
    hybrid = sim.augment(blueprint)
    start = hybrid.reset([0.2, -0.1], [0.5, 0.3])
    assert hybrid.rollout(start, steps=100).status.ok
    gradient = eqx.filter_grad(lambda s: jnp.sum(s.rollout(start, steps=5).q ** 2))(hybrid)
    weights = jax.tree.leaves(eqx.filter(gradient.solver, eqx.is_inexact_array))
    assert sum(float(jnp.abs(w).sum()) for w in weights) > 0
