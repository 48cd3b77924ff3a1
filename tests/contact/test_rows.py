"""Rows of the joints: equalities by closed forms, against MuJoCo, by finite differences; limits and friction without contact."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.contact.equality import violation
from flexor.dynamics import forward_kinematics, kinetic_energy
from flexor.model.description import DescriptionError, ModelWarning
from tests.contact.hard import hard_accelerations
from tests.contact.scenes import WHEEL
from tests.contact.slopes import assert_returns, assert_slopes, step_accelerations

GEARS = """<mujoco model="gears"><compiler angle="radian"/><option gravity="0 0 0"/><worldbody>
  <body name="a"><joint name="a" axis="0 0 1" ref="0.2"/><inertial pos="0 0 0" mass="1" diaginertia="0.2 0.2 0.3"/></body>
  <body name="b" pos="1 0 0"><joint name="b" axis="0 0 1"/><inertial pos="0 0 0" mass="1" diaginertia="0.1 0.1 0.05"/></body>
</worldbody><equality><joint name="gear" joint1="a" joint2="b" polycoef="{}"/></equality></mujoco>"""

# Two links that hang from each other, the lower hinge a quartic of the upper one.
LINKS = """<mujoco model="links"><compiler angle="radian"/><worldbody>
  <body name="upper"><joint name="shoulder" axis="0 1 0" damping="0.05"/>
    <geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.4" mass="0.7" contype="0"/>
    <body name="lower" pos="0 0 -0.4"><joint name="elbow" axis="0 1 0" ref="0.1"/>
      <geom type="capsule" size="0.02" fromto="0 0 0 0.05 0 -0.3" mass="0.4" contype="0"/></body></body>
</worldbody><equality>
  <joint name="fold" joint1="elbow" joint2="shoulder" polycoef="0.2 -0.7 0.3 0.2 -0.1"/></equality></mujoco>"""

# A parallel gripper: two fingers that slide, the second tied to the first, and a ball between them.
GRIPPER = """<mujoco model="gripper"><compiler angle="radian"/><worldbody>
  <body name="palm"><geom type="box" size="0.05 0.02 0.02" mass="1" contype="0" conaffinity="0"/>
    <body name="left" pos="-0.04 0 -0.05"><joint name="left" type="slide" axis="1 0 0" range="0 0.04" limited="true"/>
      <geom name="left" type="box" size="0.005 0.02 0.03" mass="0.05" friction="0.8"/></body>
    <body name="right" pos="0.04 0 -0.05"><joint name="right" type="slide" axis="-1 0 0"/>
      <geom name="right" type="box" size="0.005 0.02 0.03" mass="0.05" friction="0.8"/></body></body>
  <body name="ball" pos="0 0 -0.05"><freejoint name="ball"/><geom name="ball" size="0.015" mass="0.03" friction="0.8"/></body>
</worldbody><equality><joint name="fingers" joint1="right" joint2="left"/></equality>
<contact><exclude body1="left" body2="right"/></contact>
<actuator><motor name="grip" joint="left"/></actuator></mujoco>"""


def gears(*polynomial, cfm=0.0, dtype=None):
    text = GEARS.format(" ".join(str(x) for x in (*polynomial, 0, 0, 0, 0, 0)[:5]))
    return fx.replace(fx.load(text, dtype=dtype), {"equality.*.cfm": cfm})


def rollout(model, tau, steps, *, contact=None, dt=1e-3, q=None, qd=None, record=(), simd=False):
    sim = fx.Simulator(model, fx.RigidSolver(contact), dt=dt, simd=simd)
    torque = jnp.broadcast_to(jnp.asarray(tau, model.dtype), (steps, model.nv))
    return sim.rollout(sim.reset(q, qd), fx.Control(tau=torque), record=record)


@pytest.mark.parametrize(("dtype", "simd"), [(jnp.float64, False), (jnp.float64, True), (jnp.float32, True)])
def test_a_gear_reflects_inertia(dtype, simd):
    """b and a = 0.2 - 2 b turn as one inertia I_b + 4 I_a under a torque on b; the gear transmits I_a times a's acceleration."""
    model, steps, dt = gears(0, -2, dtype=dtype), 500, 1e-3
    trajectory = rollout(model, [0.0, 0.7], steps, dt=dt, simd=simd, record=["joint.equality_force"])
    rate = 0.7 / (0.05 + 4 * 0.3)
    eps = float(jnp.finfo(dtype).eps)
    assert float(trajectory.qd[-1, 1]) == pytest.approx(rate * steps * dt, rel=steps * eps)
    assert float(trajectory.q[-1, 1]) == pytest.approx(rate * steps * (steps + 1) * dt**2 / 2, rel=steps * eps)
    np.testing.assert_allclose(trajectory.taps["joint.equality_force"][-1], np.array([-0.6, -1.2]) * rate, rtol=1e5 * eps)
    assert np.abs(np.asarray(trajectory.q[:, 0] - 0.2 + 2 * trajectory.q[:, 1])).max() < 100 * eps


def test_a_joint_alone_is_held_at_its_constant():
    text = GEARS.format("0.3 0 0 0 0").replace('joint2="b" ', "")
    model = fx.load(text)
    assert model.topology.equalities[0].second is None
    trajectory = rollout(model, [5.0, 0.7], 400, q=[0.49, 0.0])
    assert float(trajectory.q[-1, 0]) == pytest.approx(0.5, abs=1e-6)  # reference 0.2 and constant 0.3, but for cfm
    assert float(trajectory.qd[-1, 1]) == pytest.approx(0.7 / 0.05 * 0.4, rel=1e-9)


def test_a_quadratic_coupling_keeps_momentum_and_energy_and_its_violation_within_its_order():
    """a = b^2 / 2 without forces: the energy I_b b'^2 / 2 + I_a (b b')^2 / 2 is kept to O(dt). A step leaves r'' dt^2 / 2 =
    b'^2 dt^2 / 2 of violation, of which the share 0.2 is removed in each: at most 2.5 (b' dt)^2 in all."""
    model, dt, speed = gears(0, 0, 0.5), 1e-3, 1.5
    trajectory = rollout(model, 0.0, 1000, dt=dt, q=[0.2, 0.0], qd=[0.0, speed])
    q, qd = np.asarray(trajectory.q), np.asarray(trajectory.qd)
    energy = 0.3 * qd[:, 0] ** 2 / 2 + 0.05 * qd[:, 1] ** 2 / 2
    assert np.abs(energy / energy[0] - 1).max() < 20 * dt
    exact = 0.05 * speed**2 / 2
    assert energy[-1] == pytest.approx(0.05 * qd[-1, 1] ** 2 / 2 + 0.3 * (q[-1, 1] * qd[-1, 1]) ** 2 / 2, rel=20 * dt)
    assert energy[0] == pytest.approx(exact)
    assert np.abs(q[:, 0] - 0.2 - q[:, 1] ** 2 / 2).max() < 2.5 * (speed * dt) ** 2
    assert q[-1, 1] > 0.5


def test_a_violated_equality_is_removed_at_its_share_and_no_faster_than_the_push_out():
    model = gears(0, -2)
    near = rollout(model, 0.0, 20, q=[0.2 + 1e-3, 0.0])
    r = np.asarray(near.q[:, 0] - 0.2 + 2 * near.q[:, 1])
    np.testing.assert_allclose(r, 1e-3 * 0.8 ** np.arange(21), rtol=1e-9)
    far = rollout(model, 0.0, 20, q=[0.2 + 1.0, 0.0])  # 0.2 / 1e-3 rad/s would be asked for; 1 rad/s is granted
    np.testing.assert_allclose(np.diff(np.asarray(far.q[:, 0] + 2 * far.q[:, 1])), -1e-3, rtol=1e-9)


@pytest.mark.parametrize("scene", ["gears", "links"])
def test_accelerations_are_mujocos_in_the_limit_of_hard_constraints(scene):
    """States on the equality, in position and velocity. flexor's compliance is zero, and (u - qd) / dt does not depend on dt.
    Extrapolation leaves (c e)^3 of MuJoCo's softness e, c the response over MuJoCo's own estimate of it, up to 30: 1e-6."""
    model = gears(0.1, -1.5, 0.4, -0.3, 0.2) if scene == "gears" else fx.replace(fx.load(LINKS), {"equality.*.cfm": 0.0})
    accelerations = step_accelerations(model)
    e, rng = model.topology.equalities[0], np.random.default_rng(2)
    for _ in range(5):
        q, qd, tau = np.array(model.reference), np.zeros(2), rng.normal(size=2)
        q[e.second] += rng.uniform(-0.8, 0.8)
        r, J = violation(model, forward_kinematics(model, jnp.asarray(q)), jnp.asarray(q))
        q[e.first] -= float(r[0])
        qd[e.second] = rng.normal()
        qd[e.first] = -float(J[0, e.second]) * qd[e.second]
        ours = accelerations(q, qd, tau)
        theirs = hard_accelerations(model, q, qd, tau)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * np.abs(theirs).max())


def test_mujoco_solver_gets_the_equalities():
    """MuJoCo's default coupling is soft; under a steady torque both solvers turn the wheels as one, b by the same angle."""
    model, steps = gears(0, -2), 400
    ours = rollout(model, [0.0, 0.7], steps)
    sim = fx.Simulator(model, fx.MujocoSolver(), dt=1e-3)
    theirs = sim.rollout(sim.reset(), fx.Control(tau=jnp.broadcast_to(jnp.array([0.0, 0.7]), (steps, 2))))
    assert float(theirs.q[-1, 1]) == pytest.approx(float(ours.q[-1, 1]), rel=0.1)
    assert float(theirs.q[-1, 0]) == pytest.approx(float(ours.q[-1, 0]), rel=0.1)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_a_parallel_gripper_keeps_its_coupling(dtype):
    """10 s: it closes on the ball, and its grip swings between 1 and 5 N."""
    model = fx.load(GRIPPER, dtype=dtype)
    sim = fx.Simulator(model, dt=0.002, simd=True)
    force = 3 + 2 * np.sin(np.linspace(0, 60, 5000))[:, None]
    trajectory = sim.rollout(sim.reset(), force, record=["contact.normal_force"])
    r = np.asarray(trajectory.q[:, 1] - trajectory.q[:, 0])
    assert np.abs(r).max() < 1e-5
    assert trajectory.status.ok
    assert float(trajectory.q[-1, 0]) == pytest.approx(0.02, abs=1e-4), "the fingers hold the ball"
    assert float(trajectory.taps["contact.normal_force"][-1].max()) > 0.4
    assert abs(float(trajectory.q[-1, 4]) + 0.05) < 1e-2, "which does not fall once they do"


def test_a_soft_coupling_of_the_penalty_model_settles_at_force_over_stiffness():
    """A torque on wheel a with b held by a stiff spring: the gear's spring k takes it, r = tau / k."""
    text = GEARS.format("0 -2 0 0 0").replace('name="b" axis', 'name="b" stiffness="1e4" damping="10" axis')
    model = fx.load(text)
    k = float(model.equalities.stiffness[0])
    trajectory = rollout(model, [0.3, 0.0], 8000, contact=fx.Penalty(), record=["joint.equality_force"])
    r = float(trajectory.q[-1, 0] - 0.2 + 2 * trajectory.q[-1, 1])
    assert r == pytest.approx(0.3 / k, rel=1e-5)  # its oscillations fade with exp(-2 t)
    np.testing.assert_allclose(trajectory.taps["joint.equality_force"][-1], [-0.3, -0.6], rtol=1e-5)


@pytest.mark.parametrize("contact", [None, fx.Penalty()], ids=["rows", "Penalty"])
def test_derivatives_match_finite_differences(contact):
    """Of a rollout to coefficients, compliance and stabilisation, or stiffness and damping, reference, state and torque."""
    model = fx.replace(fx.load(LINKS), {"equality.*.cfm": 1e-3})
    sim = fx.Simulator(model, fx.RigidSolver(contact), dt=2e-3, simd=False)
    fields = ("coefficients", "stiffness", "damping") if contact else ("coefficients", "cfm", "baumgarte")

    def f(values):
        table, reference, q, qd, tau = values
        where = lambda m: (*(getattr(m.equalities, name) for name in fields), m.reference)  # noqa: E731
        own = eqx.tree_at(lambda s: where(s.model), sim, (*table, reference))
        trajectory = own.rollout(own.reset(q, qd), fx.Control(tau=tau))
        return jnp.sum(jnp.sin(3 * trajectory.q) * jnp.array([[1.0, 2.0]])) + jnp.sum(trajectory.qd[-1])

    table = tuple(getattr(model.equalities, name) for name in fields)
    tau = jnp.asarray(np.random.default_rng(0).normal(size=(25, 2)))
    at = (table, model.reference, jnp.array([0.3, 0.14]), jnp.array([0.5, -0.2]), tau)
    assert_slopes(f, at, atol=1e-7)


def test_a_batch_in_a_kernel_is_each_alone_by_xla():
    model = fx.load(LINKS)
    sim = fx.Simulator(model, dt=2e-3, simd=False)
    q = jnp.asarray(np.random.default_rng(3).uniform(-0.5, 0.5, (5, 2)))
    run = lambda q: sim.rollout(sim.solver.init(model, fx.State(q, 0 * q, jnp.zeros(()))), steps=50).q[-1]  # noqa: E731
    np.testing.assert_allclose(fx.simd.vmap(run)(q), jax.jit(jax.vmap(run))(q), atol=1e-12)


# limits and dry friction are not contact


def test_limits_and_dry_friction_hold_without_contact():
    model = fx.load(WHEEL)
    torque, steps = 0.1, 200
    held = rollout(model, torque, steps, record=["joint.friction_force"])  # friction 0.2 N m holds it
    assert float(jnp.abs(held.q).max()) == 0
    np.testing.assert_allclose(held.taps["joint.friction_force"], -torque, rtol=1e-9)
    stopped = rollout(model, 1.0, 2000, q=[2.9], record=["joint.limit_force"])
    assert float(stopped.q[-1, 0]) == pytest.approx(3.0, abs=1e-4)
    assert float(stopped.taps["joint.limit_force"][-1, 0]) == pytest.approx(-1.0 + 0.2, abs=0.2)
    same = rollout(model, 1.0, 2000, q=[2.9], contact=fx.NCP())
    np.testing.assert_array_equal(stopped.q, same.q)


def test_without_rows_no_contact_remembers_nothing_and_needs_no_impulses():
    model = fx.load(WHEEL, ignore=["limit", "frictionloss"])
    assert not model.topology.joints[0].limited
    assert not model.topology.joints[0].dry_friction
    sim = fx.Simulator(model, fx.RigidSolver(contact=None, integrator=fx.RK4()))
    assert sim.reset().memory is None
    assert float(sim.step(sim.reset(), fx.Control(tau=np.array([0.1]))).qd[0]) == pytest.approx(0.1 / 0.1 * 0.002)


def test_shapes_pass_through_each_other_without_contact():
    sim = fx.Simulator(fx.load("cube"), fx.RigidSolver(contact=None), dt=0.01)
    assert float(sim.rollout(sim.reset(), steps=200).q[-1, 2]) < -10


def test_rows_are_refused_where_the_integrator_has_no_place_for_them():
    what = r"NoContact works with impulses .* RK4 does not support: use contact=Penalty\(\) .* "
    with pytest.raises(
        ValueError, match=what + "'wheel' has limits of joint 'axle', dry friction in joint 'axle'; `load` with `ignore`"
    ):
        fx.Simulator(fx.load(WHEEL), fx.RigidSolver(contact=None, integrator=fx.RK4()))
    with pytest.raises(ValueError, match="'gears' has equality 'gear'; `load`"):
        fx.Simulator(gears(0, 1), fx.RigidSolver(integrator=fx.RK4()))
    fx.Simulator(gears(0, 1), fx.RigidSolver(fx.Penalty(), fx.RK4()))


# what files say


@pytest.mark.parametrize("suffix", [".xml", ".urdf"])
def test_equalities_return_exactly_from_files(tmp_path, suffix):
    model = fx.replace(gears(0.1, -1.5, 0.4, -0.3, 0.2), {"equality.gear.baumgarte": 0.37, "equality.gear.stiffness": 12.3})
    assert_returns(model, tmp_path / f"gears{suffix}")


def test_a_straight_line_is_written_as_a_mimic_joint(tmp_path):
    fx.save(gears(0.1, -2), tmp_path / "gears.urdf")
    assert (
        '<mimic joint="b" multiplier="-2.0" offset="0.3' in (tmp_path / "gears.urdf").read_text()
    )  # 0.1 and the reference 0.2
    fx.save(gears(0.1, -2, 1), tmp_path / "bent.urdf")
    assert "mimic" not in (tmp_path / "bent.urdf").read_text()


MIMIC = """<robot name="pair"><link name="world"/>
  <link name="a"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <link name="b"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="ja" type="continuous"><parent link="world"/><child link="a"/>{}</joint>
  <joint name="jb" type="{}"><parent link="world"/><child link="b"/></joint></robot>"""


def test_a_mimic_joint_is_coupled_and_has_no_motor():
    model = fx.load(MIMIC.format('<mimic joint="jb" multiplier="3" offset="0.5"/>', "continuous"))
    assert [(e.name, e.first, e.second) for e in model.topology.equalities] == [("ja", 0, 1)]
    np.testing.assert_array_equal(fx.parameters(model)["equality.ja.coefficients"], [0.5, 3, 0, 0, 0])
    assert [a.name for a in model.topology.actuators] == ["jb"]
    held = fx.load(MIMIC.format('<mimic joint="jb" multiplier="3" offset="0.5"/>', "fixed"))
    assert held.topology.equalities[0].second is None
    np.testing.assert_array_equal(held.equalities.coefficients, [[0.5, 0, 0, 0, 0]])
    with pytest.warns(ModelWarning, match="joint 'ja' mimics joint 'jx', which does not exist; it is opened as a joint"):
        alone = fx.load(MIMIC.format('<mimic joint="jx"/>', "continuous"))
    assert not alone.topology.equalities
    assert alone.nu == 2
    free = fx.load(MIMIC.format('<mimic joint="jb"/>', "continuous"), ignore=["equality"])
    assert not free.topology.equalities
    assert [a.name for a in free.topology.actuators] == ["ja", "jb"]


BAD = {
    "joint 'ja' mimics joint 'jb', but only revolute and prismatic": MIMIC.format('<mimic joint="jb"/>', "floating"),
    "equality 'ja' ties joint 'ja' to itself": MIMIC.format('<mimic joint="ja"/>', "continuous"),
    "joint 'ja': attribute multiplier='x' should be 1 finite number": MIMIC.format(
        '<mimic joint="jb" multiplier="x"/>', "continuous"
    ),
    "unknown .*'c'": GEARS.format("0 1 0 0 0").replace('joint2="b"', 'joint2="c"'),
    "'a' is repeated in equality .* 'gear'": GEARS.format("0 1 0 0 0").replace('joint2="b"', 'joint2="a"'),
    "(?i)only .*(hinge|slide)": GEARS.format("0 1 0 0 0").replace('name="b" axis="0 0 1"', 'name="b" type="ball"'),
    "joint2='c' of <equality name='gear'> does not exist": MIMIC.format("", "continuous").replace(
        "</robot>", '<flexor><equality name="gear" joint1="ja" joint2="c" coefficients="0 1 0 0 0"/></flexor></robot>'
    ),
    r"equality 'gear' needs five finite coefficients, got \[0\. 1\.\]": MIMIC.format("", "continuous").replace(
        "</robot>", '<flexor><equality name="gear" joint1="ja" joint2="jb" coefficients="0 1"/></flexor></robot>'
    ),
    "equality 'gear' names the free joint 'jb'; it can tie hinge and slide joints only": MIMIC.format(
        "", "floating"
    ).replace(
        "</robot>", '<flexor><equality name="gear" joint1="ja" joint2="jb" coefficients="0 1 0 0 0"/></flexor></robot>'
    ),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_equalities_are_refused_by_name(sentence):
    with pytest.raises(DescriptionError, match=sentence):
        fx.load(BAD[sentence])


def test_kinetic_energy_is_what_the_torque_put_in():
    """A gear does no work: power tau b' sums up to the energy, but for O(dt)."""
    model = gears(0, -2)
    trajectory = rollout(model, [0.0, 0.7], 500)
    energy = kinetic_energy(model, forward_kinematics(model, trajectory.q[-1]), trajectory.qd[-1])
    assert float(energy) == pytest.approx(0.7 * float(trajectory.q[-1, 1]), rel=2 / 500)
