"""`fx.linearize` against finite differences and MuJoCo's own."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.solvers.mujoco import mujoco_model

BALL = """<mujoco><option gravity="0 0 -9.81"/><worldbody><body pos="0 0 1"><freejoint name="root"/>
<geom type="box" size=".1 .2 .3" mass="1"/><body pos="0 0 .3"><joint name="ball" type="ball" damping=".1"/>
<geom type="capsule" size=".05 .2" pos="0 0 .2" mass=".5"/><body pos="0 0 .4"><joint name="arm" axis="0 1 0" damping=".2"/>
<geom type="sphere" size=".1" pos=".1 0 0" mass=".3"/></body></body></body></worldbody>
<actuator><motor name="arm" joint="arm"/></actuator></mujoco>"""


@pytest.fixture(scope="module", params=[False, True], ids=["xla", "kernel"])
def case(request):
    return made(request.param)


@pytest.fixture(scope="module")
def kernel():
    return made(True)


def made(simd):
    model = fx.load(BALL)
    sim = fx.Simulator(model, fx.RigidSolver(contact=None), dt=0.005, simd=simd)
    rng = np.random.default_rng(3)
    q = np.array(model.reference)
    q[3:7] = [0.8, 0.2, -0.4, 0.4]
    q[7:11] = [0.7, 0.5, 0.1, -0.5]
    q[3:7] /= np.linalg.norm(q[3:7])
    q[7:11] /= np.linalg.norm(q[7:11])
    q[11] = 0.3
    return sim, sim.reset(q, rng.normal(size=model.nv)), jnp.asarray([0.7])


def test_matrices_are_those_of_mujoco(case):
    """`mjd_transitionFD` with centred differences of 1e-6: errors of 1e-12 by truncation, 1e-10 by rounding, times
    the curvature; MuJoCo's Euler treats damping implicitly, as `ImplicitDamping` does."""
    sim, state, u = case
    sim = fx.Simulator(sim.model, fx.RigidSolver(contact=None, integrator=fx.ImplicitDamping()), dt=sim.dt, simd=sim.simd)
    found = fx.linearize(sim, state, u)
    m = mujoco_model(sim.model)
    m.opt.timestep = float(sim.dt)
    m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    d = mujoco.MjData(m)
    d.qpos[:], d.qvel[:], d.ctrl[:] = state.q, state.qd, u
    nv = m.nv
    A, B = np.zeros((2 * nv, 2 * nv)), np.zeros((2 * nv, 1))
    mujoco.mjd_transitionFD(m, d, 1e-6, 1, A, B, None, None)
    np.testing.assert_allclose(found.A, A, atol=1e-7)
    np.testing.assert_allclose(found.B, B, atol=1e-7)


LAGGING = """<mujoco><option timestep="0.004" integrator="{}"><flag contact="disable" eulerdamp="disable"/></option><worldbody>
<body><joint name="h" axis="0 1 0" damping=".1"/><geom size=".1" pos=".1 0 .3" mass="1"/><body pos="0 0 .4">
<joint name="b" type="ball"/><geom size=".05" pos=".1 .1 0" mass=".3"/><joint name="s" type="slide" axis="1 0 0"/></body></body>
</worldbody><actuator><general joint="h" dyntype="filter" dynprm=".05" gainprm="3"/><motor joint="b" gear="1 2 3"/>
<general joint="h" dyntype="filterexact" dynprm=".003" gainprm="2" actearly="true"/><muscle joint="h" lengthrange="-2 2"
 force="9"/><intvelocity joint="s" kp="20" actrange="-1 1"/></actuator></mujoco>"""


def differences(m, start, h=1e-6):
    """d(x+)/d(x, u) of MuJoCo's own step by centred differences, whatever its integrator (`mjd_transitionFD` refuses RK4)."""
    nv, d, columns = m.nv, mujoco.MjData(m), []
    for i in range(2 * nv + m.na + m.nu):
        ends = []
        for sign in (h, -h):
            z = sign * np.eye(2 * nv + m.na + m.nu)[i]
            q, turn, act = start.qpos.copy(), np.zeros(nv), 2 * nv + m.na
            mujoco.mj_integratePos(m, q, z[:nv], 1.0)
            mujoco.mj_resetData(m, d)
            d.qpos[:], d.qvel[:], d.act[:] = q, start.qvel + z[nv : 2 * nv], start.act + z[2 * nv : act]
            d.ctrl[:] = start.ctrl + z[act:]
            mujoco.mj_step(m, d)
            mujoco.mj_differentiatePos(m, turn, 1.0, start.qpos, d.qpos)
            ends.append((d.qpos.copy(), np.concatenate([d.qvel, d.act])))
        mujoco.mj_differentiatePos(m, turn, 1.0, ends[1][0], ends[0][0])
        columns.append(np.concatenate([turn, ends[0][1] - ends[1][1]]) / (2 * h))
    return np.array(columns).T


@pytest.mark.parametrize("integrator", [fx.SemiImplicitEuler(), fx.SplitRK4()], ids=["Euler", "RK4"])
def test_activations_are_part_of_the_state(integrator):
    """Against MuJoCo's centred differences, as above."""
    text = LAGGING.format("RK4" if integrator.stages > 1 else "Euler")
    m, model = mujoco.MjModel.from_xml_string(text), fx.load(text)
    d, rng, nx = mujoco.MjData(m), np.random.default_rng(1), 2 * m.nv + m.na
    mujoco.mj_integratePos(m, d.qpos, rng.normal(size=m.nv), 0.3)
    d.qvel[:], d.ctrl[:], d.act[:] = rng.normal(size=m.nv), rng.uniform(size=m.nu), rng.uniform(size=m.na)
    sim = fx.Simulator(model, fx.RigidSolver(contact=None, integrator=integrator), dt=m.opt.timestep)
    state = dataclasses.replace(sim.reset(d.qpos.copy(), d.qvel.copy()), act=jnp.asarray(d.act))
    found, want = fx.linearize(sim, state, jnp.asarray(d.ctrl), parameters=["activation.*.time_constant"]), differences(m, d)
    np.testing.assert_allclose(found.A, want[:, :nx], atol=1e-7)
    np.testing.assert_allclose(found.B, want[:, nx:], atol=1e-7)
    assert np.abs(want[: 2 * m.nv, 2 * m.nv : nx]).max() > 1e-3, "the activations move nothing"
    lagging = [np.abs(c).max() > 0 for c in found.C.values()]  # all but the integrator's
    assert lagging == [True, True, True, False]


def test_parameters_against_finite_differences(kernel):
    sim, state, u = kernel
    found = fx.linearize(sim, state, u, parameters=["joint.arm.damping", "gravity"])
    assert set(found.C) == {"joint.arm.damping", "gravity"}
    assert found.C["gravity"].shape == (2 * sim.model.nv, 3)
    h, nv = 1e-5, sim.model.nv

    def qd(value):
        other = fx.Simulator(fx.replace(sim.model, {"joint.arm.damping": value}), sim.solver, dt=sim.dt, simd=False)
        return np.asarray(other.step(state, u).qd)

    slope = (qd(0.2 + h) - qd(0.2 - h)) / (2 * h)
    np.testing.assert_allclose(found.C["joint.arm.damping"][nv:], slope, atol=1e-8)  # rounding: eps |qd| / h = 1e-10
    q, qd_ = (np.asarray(x) for x in (found.next.q, found.next.qd))
    expected = sim.step(state, u)
    np.testing.assert_array_equal(q, expected.q)
    np.testing.assert_array_equal(qd_, expected.qd)


HOPPER = """<mujoco><worldbody><geom name="floor" type="plane" size="5 5 .1" friction=".6"/>
<body name="base" pos="0 0 .3"><freejoint name="root"/>
<geom name="hull" type="box" size=".08 .1 .12" mass="1" contype="0" conaffinity="0"/>
<geom name="foot" type="sphere" size=".04" pos=".03 .02 -.26" mass=".1" friction=".6"/>
<body name="arm" pos="0 0 .1"><joint name="shoulder" type="ball" damping=".05"/>
<geom name="rod" type="capsule" size=".03" fromto="0 0 0 .1 0 .2" mass=".3" contype="0" conaffinity="0"/>
<body name="hand" pos=".1 0 .2"><joint name="wrist" axis="0 1 0" damping=".02"/>
<geom name="palm" type="sphere" size=".05" pos="0 0 .1" mass=".1" contype="0" conaffinity="0"/></body></body></body></worldbody>
<actuator><motor name="wrist" joint="wrist"/></actuator></mujoco>"""


@pytest.fixture(scope="module", params=[fx.NCP(iterations=100, tolerance=1e-14), fx.Penalty()], ids=["ncp", "penalty"])
def hopper(request):
    """A body with an arm by a ball joint, on a foot, and its step for many states."""
    model = fx.load(HOPPER)
    sim = fx.Simulator(model, fx.RigidSolver(contact=request.param), dt=0.002)
    return sim, jax.jit(jax.vmap(fx.Simulator(model, sim.solver, dt=sim.dt, simd=False).step, (0, 0)))


@pytest.mark.parametrize("speed", [0.0, 3.0], ids=["sticking", "sliding"])
def test_contact_against_finite_differences(hopper, speed):
    """Derivatives along the manifold of configurations by centred differences of `fx.integrate` and `fx.difference`.

    h = 1e-6. The NCP ends at a residual of 16 eps (1 + |u|) = 1e-14 m/s, which bad conditioning makes 1e-12: an error of 1e-6,
    and 1e-8 of the largest entry where q is displaced. Truncation, h^2, is below. The contact keeps its mode within h.
    """
    sim, steps = hopper
    model, nv, h = sim.model, sim.model.nv, 1e-6
    q = np.array(model.reference)
    q[2] = 0.299
    q[7:11] = np.array([0.9, 0.1, -0.3, 0.2]) / np.sqrt(0.95)
    qd = np.random.default_rng(5).normal(size=nv)
    qd[:6] = [speed, 0.3 * speed, -0.01, 0.0, 0.0, 0.2 * speed]
    state, u = sim.reset(q, qd), jnp.asarray([0.3])
    found = fx.linearize(sim, state, u)
    names = ["contact.normal_force", "contact.friction_force"]
    normal, friction = (np.asarray(sim.step(state, u, record=names)[1][n]) for n in names)
    assert (normal > 1.0).all()
    if isinstance(sim.solver.contact, fx.NCP):  # the friction of Penalty is smooth
        share = np.linalg.norm(friction, axis=1) / (0.6 * normal)
        assert (share > 0.999).all() if speed else (share < 0.9).all()

    def start(z):
        return sim.reset(fx.integrate(model, state.q, z[:nv]), state.qd + z[nv : 2 * nv])

    rows = h * jnp.concatenate([jnp.eye(2 * nv + 1), -jnp.eye(2 * nv + 1)])
    ends = steps(jax.vmap(start)(rows), u[None] + rows[:, 2 * nv :])
    x = np.hstack([jax.vmap(lambda q: fx.difference(model, found.next.q, q))(ends.q), ends.qd])
    slope = ((x[: 2 * nv + 1] - x[2 * nv + 1 :]) / (2 * h)).T
    np.testing.assert_allclose(found.A, slope[:, : 2 * nv], atol=1e-8 * np.abs(slope).max())
    np.testing.assert_allclose(found.B, slope[:, 2 * nv :], atol=1e-6)


def test_it_composes_and_refuses(kernel):
    sim, state, u = kernel
    many = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    batch = jax.vmap(lambda s: fx.linearize(sim, s, u).A)(many)
    np.testing.assert_allclose(batch[1], fx.linearize(sim, state, u).A, atol=1e-12)
    with pytest.raises(KeyError, match=r"matches 'joint\.leg"):
        fx.linearize(sim, state, parameters=["joint.leg*.damping"])
    other = sim.with_solver(fx.MujocoSolver())
    with pytest.raises(ValueError, match="MujocoSolver cannot be differentiated"):
        fx.linearize(other, state)
    assert eqx.is_array(fx.linearize(sim, state).B)
