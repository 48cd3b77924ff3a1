"""MujocoSolver is MuJoCo: the same numbers as `mj_step` on the same file, behind flexor's interface."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from tests.dynamics.robots import NASTY

STEPS = 30


def stepped(m, qd, controls, push=None):
    """Coordinates and velocities of mj_step; `push` is (body, force, point in the body)."""
    d = mujoco.MjData(m)
    if m.nkey:
        mujoco.mj_resetDataKeyframe(m, d, 0)
    d.qvel[:] = qd
    rows = []
    for u in controls:
        d.ctrl[:] = u
        if push is not None:
            mujoco.mj_kinematics(m, d)
            mujoco.mj_comPos(m, d)
            d.qfrc_applied[:] = 0
            body, force = push
            mujoco.mj_applyFT(m, d, force[3:], force[:3], d.xpos[body], body, d.qfrc_applied)
        mujoco.mj_step(m, d)
        rows.append(np.concatenate([d.qpos, d.qvel]))
    return np.array(rows)


@pytest.mark.parametrize("integrator", ["Euler", "RK4", "implicitfast"])
def test_agrees_with_mj_step(integrator):
    m = mujoco.MjModel.from_xml_string(NASTY)
    m.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}")
    rng = np.random.default_rng(0)
    qd, controls = rng.normal(size=m.nv), rng.normal(size=(STEPS, m.nu))
    sim = fx.Simulator(fx.load(NASTY), fx.MujocoSolver(integrator=integrator), dt=m.opt.timestep)
    traj = sim.rollout(sim.reset(qd=qd), controls)
    wanted = stepped(m, qd, controls)
    # the model is written with 17 digits and read again: inertias are diagonalised anew, at some 10 eps
    np.testing.assert_allclose(np.hstack([traj.q[1:], traj.qd[1:]]), wanted, atol=1e-10)
    np.testing.assert_allclose(traj.time, 0.002 * np.arange(STEPS + 1), atol=1e-15)


def test_agrees_with_mj_step_in_contact():
    m = mujoco.MjModel.from_xml_path(str(fx.robots.find("cube")))
    qd = np.array([0.5, 0, -1, 2, 1, 0.5])
    sim = fx.Simulator(fx.load("cube"), fx.MujocoSolver(), dt=m.opt.timestep)
    traj = sim.rollout(sim.reset("rest", qd), steps=STEPS)
    wanted = stepped(m, qd, np.zeros((STEPS, 0)))
    # the contact solver iterates to its own tolerance of 1e-8
    np.testing.assert_allclose(np.hstack([traj.q[1:], traj.qd[1:]]), wanted, atol=1e-6)


def test_wrenches_act_at_the_body_origin():
    m = mujoco.MjModel.from_xml_string(NASTY)
    model = fx.load(NASTY)
    rng = np.random.default_rng(1)
    qd, push = rng.normal(size=m.nv), rng.normal(size=6)
    body = model.body("wrist")
    wrench = np.zeros((STEPS, m.nbody, 6))
    wrench[:, body] = push
    controls = np.zeros((STEPS, m.nu))
    sim = fx.Simulator(model, fx.MujocoSolver(), dt=0.002)
    traj = sim.rollout(sim.reset(qd=qd), fx.Control(u=controls, wrench=wrench))
    wanted = stepped(m, qd, controls, (body, push))
    np.testing.assert_allclose(np.hstack([traj.q[1:], traj.qd[1:]]), wanted, atol=1e-10)
    rigid = sim.with_solver(fx.RigidSolver(contact=None, integrator=fx.ImplicitDamping()))
    ours = rigid.rollout(rigid.reset(qd=qd), fx.Control(u=controls, wrench=wrench))
    np.testing.assert_allclose(ours.q, traj.q, atol=1e-10)


def test_parameters_may_change_between_calls():
    model = fx.load("pendulum")
    heavy = fx.replace(model, {"body.link.mass": 5.0, "joint.*.damping": 0.5})
    rigid = fx.RigidSolver(contact=None, integrator=fx.ImplicitDamping())
    for m in (model, heavy):
        ends = [(s := fx.Simulator(m, solver, dt=0.002)).rollout(s.reset([1.0]), steps=50).q[-1] for solver in
                (fx.MujocoSolver(), rigid)]  # fmt: skip
        np.testing.assert_allclose(*ends, atol=1e-11)


def test_it_says_that_it_has_no_derivatives():
    sim = fx.Simulator(fx.load("pendulum"), fx.MujocoSolver())
    with pytest.raises(NotImplementedError, match=r"MujocoSolver cannot be differentiated.*Use RigidSolver for gradients"):
        jax.grad(lambda q: sim.step(sim.reset(q)).q[0])(jnp.array([0.5]))
    with pytest.raises(ValueError, match="MuJoCo has no integrator 'verlet'; it has Euler, RK4"):
        fx.Simulator(fx.load("pendulum"), fx.MujocoSolver(integrator="verlet"))


def test_what_mujoco_refuses_is_said_at_once():
    """Inertias that no body has, which flexor takes as they are."""
    flat = fx.replace(fx.load("pendulum"), {"body.link.inertia": jnp.array([1.0, 1.0, 3.0, 0, 0, 0])})
    with pytest.raises(ValueError, match=r"MuJoCo refuses 'pendulum': .*inertia must satisfy A \+ B >= C.*'link'"):
        fx.Simulator(flat, fx.MujocoSolver())


def test_a_batch_steps_one_by_one():
    sim = fx.Simulator(fx.load("pendulum"), fx.MujocoSolver(), dt=0.002)
    angles = jnp.array([[0.1], [0.7], [1.5]])
    ends = jax.vmap(lambda q: sim.rollout(sim.reset(q), steps=5).q[-1])(angles)
    for q, end in zip(angles, ends, strict=True):
        np.testing.assert_array_equal(end, sim.rollout(sim.reset(q), steps=5).q[-1])


def test_a_state_that_runs_away_is_not_reset(tmp_path, monkeypatch):
    """MuJoCo calls a velocity above 1e10 bad, and starts anew from the reference, unless told otherwise. It also logs into
    the working directory."""
    monkeypatch.chdir(tmp_path)
    sim = fx.Simulator(fx.load("pendulum"), fx.MujocoSolver(), dt=0.002)
    assert abs(float(sim.step(sim.reset([0.5], [1e11])).qd[0])) > 1e10
