"""Actuators of every kind against MuJoCo: lengths, moments, forces, rates of activations, and the motion of 100 steps."""

import dataclasses

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.dynamics import actuator_force, actuator_forces, actuator_lengths, actuator_moment
from flexor.dynamics.activation import activated, activation_rate

# Every kind of joint, and sites on both sides of them. Damping is explicit in both.
SCENE = """<mujoco model="scene"><option timestep="0.002"><flag contact="disable" eulerdamp="disable"/></option><worldbody>
<site name="w" pos="0.3 0.1 0.2" euler="10 20 30"/>
<body name="a" pos="0 0 1"><joint name="h" axis="0 1 0"/><joint name="s" type="slide" axis="1 0 0"/><geom size="0.1" mass="1"/>
  <site name="sa" pos="0.1 0.2 0" euler="30 0 10"/>
  <body name="b" pos="0.3 0 0"><joint name="b" type="ball"/><geom size="0.1" pos="0.1 0 0.2" mass="0.5"/>
    <site name="sb" pos="0.2 0 0.1" euler="0 50 10"/>
    <body name="c" pos="0 0 0.4"><joint name="k" axis="1 0 0"/><geom size="0.05" pos="0 0.1 0.1" mass="0.3"/>
      <site name="sc" pos="0.02 0.1 0.1" euler="0 50 70"/></body></body></body>
<body name="f" pos="1 1 1"><freejoint name="f"/><geom size="0.1" mass="1"/><site name="sf" pos="0.1 0 0"/></body></worldbody>
<tendon><fixed name="t"><joint joint="h" coef="0.7"/><joint joint="k" coef="-1.2"/></fixed>
<fixed name="weak" actuatorfrcrange="-0.2 0.3" actuatorfrclimited="true"><joint joint="h" coef="1"/>
<joint joint="s" coef="0.5"/></fixed></tendon><actuator>{}</actuator></mujoco>"""

KINDS = {
    "affine gain": '<general joint="h" gaintype="affine" gainprm="1 2 3" biastype="affine" biasprm="0.1 -1 -2"/>',
    "damper": '<damper joint="h" kv="2" ctrlrange="0 1"/>',
    "dcmotor": '<dcmotor joint="h" resistance="2" motorconst="0.5 0.7" gear="3" ctrlrange="-1 1" saturation="0.4"/>',
    "damping and armature": '<motor joint="h" damping="0.3" armature="0.2" gear="3"/>',
    "ball": '<motor joint="b" gear="1 2 3"/><position joint="b" kp="3" gear="0.2 0.5 0.1"/>',
    "ball in parent": '<position jointinparent="b" kp="3" kv="0.1" gear="0.2 0.5 0.1"/>',
    "free": '<motor joint="f" gear="1 2 3 4 5 6"/>',
    "free in parent": '<motor jointinparent="f" gear="1 2 3 4 5 6"/>',
    "tendon": '<position tendon="t" kp="3" kv="0.2" gear="2" damping="0.1" armature="0.02"/><motor joint="s"/>',
    "tendon with bounds": """<motor tendon="weak" gear="2"/><position tendon="weak" kp="3"/>
       <motor joint="h" forcerange="-0.1 0.1"/><muscle tendon="t" lengthrange="-4 4" force="9"/>""",
    "site": '<motor site="sc" gear="1 2 3 4 5 6"/><motor joint="h"/><motor site="sf" gear="0 0 1 0 0 0"/>',
    "translation to a site": '<position site="sc" refsite="sa" kp="2" gear="0.1 0.2 0.3 0 0 0"/>',
    "rotation to a site": '<position site="sc" refsite="sa" kp="2" kv="0.1" gear="0 0 0 0.1 0.2 0.3"/>',
    "pose to the world": '<position site="sc" refsite="w" kp="2" kv="0.1" gear="1 2 0 0.1 0.2 0.3"/>',
    "crank": '<position cranksite="sc" slidersite="sa" cranklength="2" kp="3" gear="0.7"/>',
    "crank that does not reach": '<position cranksite="sc" slidersite="sa" cranklength="0.01" kp="3" gear="0.7"/>',
    "integrator": '<intvelocity joint="h" kp="3" actrange="-1 1"/><motor joint="s"/>',
    "filter": '<general joint="h" dyntype="filter" dynprm="0.05" gainprm="3" ctrlrange="-0.2 0.2"/>',
    "exact filter, early": """<general joint="h" dyntype="filterexact" dynprm="0.01" gainprm="3" actearly="true"/>
       <motor joint="s"/>""",
    "limited filter, early": """<general joint="h" dyntype="filter" dynprm="0.05" gainprm="3" actearly="true" actlimited="true"
       actrange="-0.05 0.05"/>""",
    "cylinder": '<cylinder joint="h" timeconst="0.3" area="2" bias="1 2 3"/>',
    "muscle": '<muscle joint="h" lengthrange="-2 2" range="0.75 1.05"/>',
    "muscles": """<muscle joint="h" lengthrange="-4 3.5" force="30" tausmooth="0.4"/><motor joint="s"/>
       <muscle cranksite="sc" slidersite="sa" cranklength="2" lengthrange="-3 1.5" scale="30"/>""",
}


@jax.jit
def quantities(model, q, qd, u):
    force = actuator_forces(model, q, qd, u)
    return actuator_lengths(model, q), actuator_moment(model, q), force, actuator_force(model, q, qd, u)


def moment(m, d):
    dense = np.zeros((m.nu, m.nv))
    mujoco.mju_sparse2dense(dense, d.actuator_moment, d.moment_rownnz, d.moment_rowadr, d.moment_colind)
    return dense


@pytest.mark.parametrize("kind", KINDS)
def test_every_quantity_is_mujocos(kind):
    text = SCENE.format(KINDS[kind])
    m, model = mujoco.MjModel.from_xml_string(text), fx.load(text)
    d, rng, largest = mujoco.MjData(m), np.random.default_rng(0), 0.0
    for _ in range(6):
        mujoco.mj_integratePos(m, d.qpos, rng.normal(size=m.nv), 1.0)
        d.qvel[:], d.ctrl[:], d.act[:] = rng.normal(size=m.nv), 2 * rng.normal(size=m.nu), rng.uniform(size=m.na)
        mujoco.mj_forward(m, d)
        u, act = jnp.asarray(d.ctrl), jnp.asarray(d.act) if m.na else None
        acting, _ = activated(model, act, fx.Control(u=u), m.opt.timestep)
        got = quantities(model, jnp.asarray(d.qpos), jnp.asarray(d.qvel), acting.u)
        want = (d.actuator_length, moment(m, d), d.actuator_force, d.qfrc_actuator)
        for mine, theirs in zip(got, want, strict=True):  # a few products and a logarithm of O(10) numbers
            np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-12)
        if m.na:
            np.testing.assert_allclose(activation_rate(model, u, act), d.act_dot, rtol=1e-12, atol=1e-12)
        largest = max(largest, np.abs(d.actuator_force).max())
    assert largest > 1e-3, "the comparison says nothing about forces"


@pytest.mark.parametrize("kind", ["exact filter, early", "pose to the world", "muscles", "damping and armature", "tendon"])
def test_a_hundred_steps_are_mujocos(kind):
    text = SCENE.format(KINDS[kind])
    m, model = mujoco.MjModel.from_xml_string(text), fx.load(text)
    d, rng = mujoco.MjData(m), np.random.default_rng(1)
    mujoco.mj_integratePos(m, d.qpos, 0.5 * rng.normal(size=m.nv), 1.0)
    d.qvel[:], inputs = 0.3 * rng.normal(size=m.nv), 0.3 * rng.normal(size=(100, m.nu))
    sim = fx.Simulator(model, dt=m.opt.timestep, simd=kind != "pose to the world")  # all but one as kernels
    traj = sim.rollout(sim.reset(d.qpos.copy(), d.qvel.copy()), inputs)
    for u in inputs:
        d.ctrl[:] = u
        mujoco.mj_step(m, d)
    # rounding grows by no more than some hundred over 0.2 s of this tree
    np.testing.assert_allclose(traj.q[-1], d.qpos, atol=1e-11)
    np.testing.assert_allclose(traj.qd[-1], d.qvel, atol=1e-10)
    if m.na:
        np.testing.assert_allclose(traj.final.act, d.act, atol=1e-13)


STAGED = """<general joint="h" dyntype="filter" dynprm="0.03" gainprm="3" actlimited="true" actrange="-0.05 0.2"/>
<general joint="s" dyntype="filterexact" dynprm="0.003" gainprm="2" actearly="true"/><motor joint="b" gear="1 2 3"/>
<general joint="k" dyntype="filterexact" dynprm="0.01" gainprm="0.5"/><intvelocity joint="h" kp="3" actrange="-1 1"/>
<muscle joint="h" lengthrange="-4 3.5" force="30" tausmooth="0.4"/>"""


def test_rk4_takes_them_through_its_stages():
    """MuJoCo's RK4 step for step by `SplitRK4`, through a filter that runs into its range."""
    text = SCENE.format(STAGED).replace("<option ", '<option integrator="RK4" ')
    m, model = mujoco.MjModel.from_xml_string(text), fx.load(text)
    d, rng = mujoco.MjData(m), np.random.default_rng(1)
    inputs = rng.uniform(0.2, 1.0, size=(40, m.nu))
    sim = fx.Simulator(model, fx.RigidSolver(contact=None, integrator=fx.SplitRK4()), dt=m.opt.timestep)
    traj = sim.rollout(sim.reset(), inputs)
    for u in inputs:
        d.ctrl[:] = u
        mujoco.mj_step(m, d)
    assert d.act[0] == 0.2, "no range was reached"
    np.testing.assert_allclose(traj.final.act, d.act, atol=1e-13)
    np.testing.assert_allclose(traj.q[-1], d.qpos, atol=1e-11)
    np.testing.assert_allclose(traj.qd[-1], d.qvel, atol=1e-10)


def test_rk4_is_of_order_four_with_them():
    """Errors fall by 2^4 when the step is halved, also of the exact filter; the next term of the error makes it O(dt) less."""
    text = SCENE.format(STAGED.replace('actlimited="true" actrange="-0.05 0.2"', "").replace('actearly="true"', ""))
    model = fx.load(text.replace("0.003", "0.02"))
    start, u = jnp.asarray([0.1, 0.2, -0.1, 0.05, 0.3]), jnp.asarray([0.5, -0.3, 0.2, 0.6, 0.3, 0.8])

    @jax.jit
    def end(dt, steps):
        sim = fx.Simulator(model, fx.RigidSolver(contact=None, integrator=fx.RK4()), dt=dt, simd=False)
        state = dataclasses.replace(sim.reset(), act=start)
        last = jax.lax.fori_loop(0, steps, lambda _, state: sim.step(state, u), state)
        return jnp.concatenate([last.q, last.qd]), last.act

    (coarse, _), (fine, act), (finest, best) = (end(0.08 / n, n) for n in (16, 32, 512))
    np.testing.assert_allclose(act[1:3], best[1:3], rtol=1e-12)  # exact filters
    assert np.log2(np.linalg.norm(coarse - finest) / np.linalg.norm(fine - finest)) == pytest.approx(4, abs=0.3)


@pytest.mark.parametrize("kind", KINDS)
def test_files_keep_them(kind, tmp_path):
    model = fx.load(SCENE.format(KINDS[kind]))
    fx.save(model, tmp_path / "scene.xml")
    again = fx.load(tmp_path / "scene.xml")
    assert again.topology == model.topology
    for mine, theirs in zip(jax.tree.leaves(model), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_moments_are_derivatives_of_lengths():
    """l' = J qd, by differentiating the length along the motion; a site without a reference has no length."""
    kinds = ("ball", "translation to a site", "rotation to a site", "pose to the world", "crank")
    model = fx.load(SCENE.format("".join(KINDS[k] for k in kinds)))
    rng = np.random.default_rng(2)
    q = fx.integrate(model, model.reference, jnp.asarray(0.4 * rng.normal(size=model.nv)))
    qd = jnp.asarray(rng.normal(size=model.nv))
    _, rate = jax.jit(lambda qd: jax.jvp(lambda s: actuator_lengths(model, fx.integrate(model, q, s * qd)), (0.0,), (1.0,)))(
        qd
    )
    # of a rotation vector only that along itself is the angular velocity: servos of MuJoCo's take J for it all the same
    straight = np.array([a.joint is None and not np.any(model.transmissions.direction[i, 3:]) for i, a in
                         enumerate(model.topology.transmissions)])  # fmt: skip
    np.testing.assert_allclose((jax.jit(actuator_moment)(model, q) @ qd)[straight], rate[straight], rtol=1e-10, atol=1e-12)
    assert straight.sum() == 2


def test_gradients_reach_the_numbers_of_muscles_and_filters():
    text = SCENE.format(
        KINDS["muscles"] + '<general name="lag" joint="k" dyntype="filterexact" dynprm="0.03" gainprm="0.5"/>'
    )
    model = fx.load(text)
    names = ["activation.lag.time_constant", "muscle.h.peak_force", "activation.h.release_time"]
    names.append(f"transmission.{model.topology.actuators[2].name}.crank_length")
    values = jnp.array([float(fx.parameters(model, n)[n]) for n in names])
    sim = fx.Simulator(model, dt=0.002)
    start = dataclasses.replace(sim.reset(), act=jnp.array([0.6, 0.3, 0.2]))

    @jax.jit
    def final(values):
        own = fx.Simulator(fx.replace(model, dict(zip(names, values, strict=True))), dt=0.002, simd=True)
        traj = own.rollout(start, jnp.tile(jnp.array([[0.2, 0.1, 0.8, 0.5]]), (10, 1)))
        return jnp.sum(traj.qd[-1] * jnp.arange(1.0, model.nv + 1))

    slope, step = jax.grad(final)(values), 1e-6
    for i in range(len(names)):
        move = step * values[i] * jnp.eye(len(names))[i]
        difference = (final(values + move) - final(values - move)) / (2 * step * values[i])
        np.testing.assert_allclose(slope[i], difference, rtol=1e-6, err_msg=names[i])  # eps / step = 1e-10 of the value


def test_states_without_activations_are_refused():
    model = fx.load(SCENE.format(KINDS["filter"]))
    sim = fx.Simulator(model)
    state = sim.reset()
    assert state.act.shape == (1,)
    with pytest.raises(ValueError, match="so its states carry 1 of them; this state has none"):
        sim.step(dataclasses.replace(state, act=None))
    with pytest.raises(ValueError, match="learned solvers do not support activations"):
        fx.nerd.Frames(model.topology, 0.002)
    assert sim.rollout(state, jnp.full((3, 1), 0.1)).status.ok


def test_mujocos_solver_has_the_activations():
    sim = fx.Simulator(fx.load(SCENE.format(KINDS["exact filter, early"])), dt=0.002)
    theirs = sim.with_solver(fx.MujocoSolver())
    u = jnp.tile(jnp.array([[0.3, -0.2]]), (5, 1))
    mine, other = sim.rollout(sim.reset(), u), theirs.rollout(theirs.reset(), u)
    np.testing.assert_allclose(mine.q, other.q, atol=1e-13)
    np.testing.assert_allclose(mine.final.act, other.final.act, rtol=1e-13)


def test_damping_of_the_actuators_that_are_kept_stays():
    text = SCENE.format('<motor joint="h" damping="0.3" gear="2"/><general joint="h" gaintype="user"/>')
    model = fx.load(text, ignore=["actuator"])
    assert model.nu == 1
    assert float(model.joints.damping[model.joint("h")]) == pytest.approx(1.2)
