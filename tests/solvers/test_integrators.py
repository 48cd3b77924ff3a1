"""Motion without contact: MuJoCo's Euler step for step, orders of accuracy, conservation laws."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor import dynamics as dyn
from flexor.contact import detect
from tests.dynamics.robots import NASTY

SPIN = """<mujoco><option gravity="0 0 -9.81"/><worldbody><body name="b"><freejoint/>
<inertial pos="0.1 0.05 -0.02" mass="2" diaginertia="0.02 0.05 0.06"/></body></worldbody></mujoco>"""


FLYER = """<mujoco><option gravity="0.3 0 -9.81"/><worldbody><body name="b"><freejoint/>
<inertial pos="0.1 0.05 -0.02" mass="2" diaginertia="0.02 0.05 0.06"/>
<body name="leg" pos="0.2 0 0"><joint axis="0 1 0" stiffness="2" damping="0.05"/>
  <inertial pos="0 0 -0.1" mass="0.5" diaginertia="0.01 0.01 0.01"/></body>
<body name="head" pos="0 0 0.2"><joint type="ball" damping="0.02"/>
  <inertial pos="0 0 0.1" mass="0.4" diaginertia="0.01 0.02 0.02"/></body></body></worldbody></mujoco>"""


def without_contact(integrator):
    return fx.RigidSolver(contact=None, integrator=integrator)


@pytest.mark.parametrize("robot", ["nasty", "quadruped"])
def test_implicit_damping_is_mujocos_euler(robot):
    """100 steps under changing controls. A step rounds at some 10 eps, and errors grow by 1 + O(dt) in each."""
    text = NASTY if robot == "nasty" else fx.robots.find(robot).read_text()
    m = mujoco.MjModel.from_xml_string(text)
    m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    model = fx.load(m)
    rng = np.random.default_rng(0)
    d = mujoco.MjData(m)
    d.qvel[:] = rng.normal(size=m.nv)
    sim = fx.Simulator(model, without_contact(fx.ImplicitDamping()), dt=m.opt.timestep)
    controls = rng.normal(size=(100, m.nu))
    traj = sim.rollout(sim.reset(qd=d.qvel.copy()), controls)
    q, qd = [], []
    for u in controls:
        d.ctrl[:] = u
        mujoco.mj_step(m, d)
        q.append(d.qpos.copy())
        qd.append(d.qvel.copy())
    np.testing.assert_allclose(traj.q[1:], q, rtol=0, atol=1e-12 * np.abs(q).max())
    np.testing.assert_allclose(traj.qd[1:], qd, rtol=0, atol=1e-12 * np.abs(qd).max())
    np.testing.assert_allclose(traj.time[-1], d.time, rtol=1e-13)


def chain():
    """Two undamped hinges, and a fast start."""
    model = fx.replace(fx.load("double_pendulum"), {"joint.*.damping": 0.0})
    return model, jnp.array([1.0, -0.5]), jnp.array([2.0, -1.0])


def tumbler():
    """A free body with three different moments of inertia, off its origin, spinning about no principal axis."""
    model = fx.load(SPIN)
    return model, model.reference, jnp.array([0.3, -0.2, 1.0, 4.0, 3.0, -5.0])


@pytest.mark.parametrize("robot", [chain, tumbler])
@pytest.mark.parametrize(("integrator", "order"), [(fx.RK4(), 4), (fx.SemiImplicitEuler(), 1)], ids=["RK4", "Euler"])
def test_order_of_accuracy(robot, integrator, order):
    """Errors at one time against a run with much smaller steps fall by 2^order when the step is halved.

    The next term of the error expansion is one power of dt higher, so the measured order is off by O(dt): within 0.15."""
    model, q, qd = robot()

    @jax.jit
    def end(dt, steps):
        sim = fx.Simulator(model, without_contact(integrator), dt=dt)
        last = jax.lax.fori_loop(0, steps, lambda _, state: sim.step(state), sim.reset(q, qd))
        return jnp.concatenate([last.q, last.qd])

    n = 20 if order == 4 else 80
    coarse, fine, finest = (end(0.2 / (n * k), n * k) for k in (1, 2, 32))
    errors = [float(jnp.linalg.norm(x - finest)) for x in (coarse, fine)]
    # the finest run's own error, 32^-order, shifts the quotient by 2^-order of that: nothing for RK4, 1/32 for Euler
    assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.15)


def energies(model, traj, elastic=False):
    """Kinetic and potential energy at every step, and that of the overlaps, k d^2.5 / 2.5, if asked for."""

    def energy(q, qd):
        kin = dyn.forward_kinematics(model, q)
        total = dyn.kinetic_energy(model, kin, qd) + dyn.potential_energy(model, kin, q)
        if not elastic:
            return total
        contacts = detect(model, kin)
        return total + jnp.sum(contacts.pairs.stiffness * jnp.maximum(-contacts.distance, 0.0) ** 2.5) / 2.5

    return np.asarray(jax.jit(jax.vmap(energy))(traj.q, traj.qd))


def momenta(model, traj):
    """Angular momentum about the centre of mass and linear momentum, at every step."""

    def momentum(q, qd):
        return dyn.centroidal_momentum(model, dyn.forward_kinematics(model, q), qd)

    return np.asarray(jax.jit(jax.vmap(momentum))(traj.q, traj.qd))


def test_rk4_keeps_the_energy():
    """500 steps: a relative error of (rate dt)^5 each, with rates of 10 1/s at dt = 1e-3, is 5e-8."""
    model, q, qd = tumbler()
    sim = fx.Simulator(model, without_contact(fx.RK4()), dt=1e-3)
    E = energies(model, sim.rollout(sim.reset(q, qd), steps=500))
    assert np.ptp(E) < 5e-8 * max(1.0, np.abs(E).max())


def test_euler_keeps_the_energy_within_its_order():
    """Symplectic: the energy error stays O(dt) and does not drift, over 5 s."""
    model, q, qd = chain()
    sim = fx.Simulator(model, without_contact(fx.SemiImplicitEuler()), dt=1e-3)
    E = energies(model, sim.rollout(sim.reset(q, qd), steps=5000))
    spread = np.ptp(E[:1000])
    assert spread < 0.02 * (E.max() - float(energies(model, sim.rollout(sim.reset(), steps=1))[0]))
    assert np.ptp(E[4000:]) < 3 * spread


def test_momentum_in_free_flight():
    """Three bodies that move against each other under forces of their own: angular momentum about the centre of mass stays,
    linear momentum changes by m g t. RK4 errs by (rate dt)^5 a step, 1e-10 at 10 1/s and 1e-3 s, 2e-8 in 200 steps."""
    model = fx.load(FLYER)
    sim = fx.Simulator(model, without_contact(fx.RK4()), dt=1e-3)
    rng = np.random.default_rng(2)
    torques = np.zeros((200, model.nv))
    torques[:, 6:] = np.sin(np.linspace(0, 6, 200))[:, None] * rng.normal(size=4)
    h = momenta(model, traj := sim.rollout(sim.reset(qd=rng.normal(size=model.nv)), fx.Control(tau=torques)))
    np.testing.assert_allclose(h[:, :3], np.broadcast_to(h[0, :3], h[:, :3].shape), atol=2e-8)
    fall = np.outer(traj.time, float(dyn.total_mass(model)) * np.asarray(model.gravity))
    np.testing.assert_allclose(h[:, 3:], h[0, 3:] + fall, atol=2e-8)
    assert np.abs(np.asarray(traj.qd[-1] - traj.qd[0]))[6:].max() > 1, "the joints did move"


DROPS = [("cube", "tossed"), ("pendulum5", "level"), ("pusher", None)]


@pytest.mark.parametrize(("name", "key"), DROPS)
@pytest.mark.parametrize("contact", [fx.NCP(), fx.Penalty()], ids=["NCP", "Penalty"])
def test_a_passive_robot_gains_no_energy(name, key, contact):
    """Dropped on the ground, damped, without actuators. Semi-implicit Euler errs by O(dt) of the energy that is exchanged
    between kinetic and potential, here dt times a rate of 10 1/s; beyond that nothing may be gained over any earlier
    time."""
    model = fx.load(name)
    dt = 1e-3 if isinstance(contact, fx.NCP) else 2e-4
    sim = fx.Simulator(model, fx.RigidSolver(contact=contact), dt=dt)
    state = sim.reset(key)
    if name == "pusher":
        state = sim.reset(qd=jnp.array([0.3, 0.1, 0.0, 0.0, 0.0]))
    traj = sim.rollout(state, steps=round(0.8 / dt)).raise_if_bad()
    E = energies(model, traj, elastic=isinstance(contact, fx.Penalty))
    exchanged = E[0] - E.min()
    assert exchanged > 1e-4, "something was dissipated"
    gained = (E - np.minimum.accumulate(E)).max()
    assert gained < 10 * dt * exchanged + 1e-9


def test_damping_of_any_size_is_stable():
    model = fx.replace(fx.load("double_pendulum"), {"joint.*.damping": 1e4})
    stiff, explicit = (
        fx.Simulator(model, without_contact(i), dt=0.01) for i in (fx.ImplicitDamping(), fx.SemiImplicitEuler())
    )
    assert float(jnp.abs(stiff.rollout(stiff.reset([1.0, 1.0], [1.0, 1.0]), steps=200).qd[-1]).max()) < 1e-2
    status = explicit.rollout(explicit.reset([1.0, 1.0], [1.0, 1.0]), steps=200).status
    assert not status.ok


def test_single_precision_follows_double():
    """Same run in both precisions: an error of some eps a step, growing no faster than e^t over 0.4 s."""
    model, q, qd = chain()
    ends = []
    for dtype in (jnp.float64, jnp.float32):
        sim = fx.Simulator(model.astype(dtype), without_contact(fx.SemiImplicitEuler()), dt=2e-3)
        traj = sim.rollout(sim.reset(q, qd), steps=200)
        assert traj.q.dtype == traj.qd.dtype == traj.time.dtype == dtype
        ends.append(np.asarray(traj.q[-1], float))
    np.testing.assert_allclose(*ends, atol=200 * 10 * np.finfo(np.float32).eps)


def test_a_batch_is_many_robots():
    model, q, qd = chain()
    sim = fx.Simulator(model, without_contact(fx.SemiImplicitEuler()), dt=2e-3)
    starts = q[None] + jnp.array([[0.0], [0.1], [-0.4]])

    def run(q, scale):
        heavier = eqx.tree_at(lambda s: s.model.bodies.mass, sim, sim.model.bodies.mass * scale)
        return heavier.rollout(heavier.reset(q, qd), steps=20).q

    scales = jnp.array([1.0, 2.0, 0.5])
    together = jax.jit(jax.vmap(run))(starts, scales)
    for k in range(3):
        np.testing.assert_allclose(together[k], run(starts[k], scales[k]), atol=1e-12)
