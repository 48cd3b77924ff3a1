"""Names for quantities: complete, true to their shapes, free of effect until used, and effective when used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.taps import TAPS, collect, listen, tap

# A body on the ground, with a limit, dry friction, a spring, an actuator: every quantity there is.
FULL = """<mujoco model="full"><compiler angle="radian"/><worldbody><geom name="floor" type="plane" size="1 1 1"/>
<body name="box" pos="0 0 0.099"><freejoint name="root"/><geom name="box" type="sphere" size="0.1" mass="1"/>
  <body name="arm" pos="0 0 0.1"><joint name="j" axis="0 1 0" damping="0.1" stiffness="1" frictionloss="0.02"
    range="-0.5 0.5" limited="true"/><geom type="capsule" size="0.02" fromto="0 0 0 0.2 0 0.3" mass="0.3" contype="0"
    conaffinity="0"/></body></body></worldbody>
<actuator><motor name="m" joint="j"/></actuator></mujoco>"""
CONTACTS = {"NCP": fx.NCP(), "Penalty": fx.Penalty()}
FORCES = ["joint.applied_force", "joint.passive_force", "joint.limit_force", "joint.friction_force", "joint.gravity_force",
          "joint.bias_force", "link.external_force", "contact.normal_force", "contact.friction_force"]  # fmt: skip


@pytest.fixture(scope="module", params=CONTACTS)
def sim(request):
    return fx.Simulator(fx.load(FULL), fx.RigidSolver(contact=CONTACTS[request.param]), dt=0.001)


@pytest.fixture(scope="module")
def start(sim):
    """On the ground and sliding, the arm beyond its limit and moving."""
    q = sim.model.reference.at[-1].set(0.51)
    return sim.reset(q, [0.3, 0.1, 0, 0, 0, 0, 0.2])


def changed(sim, name, change):
    """A step in which a tapped quantity is changed."""
    def handler(tapped, value):
        return change(value) if tapped == name else value

    def step(state, control):
        with listen(handler):
            return sim.step(state, control)

    return step


def test_every_name_is_computed_with_the_shape_it_says(sim, start):
    listed = fx.taps(sim)
    assert list(listed) == list(TAPS)
    traj = sim.rollout(start, steps=3, record=list(TAPS))
    for name, entry in listed.items():
        assert str(traj.taps[name].shape[1:]) == entry.shape, name
        assert (entry.unit, entry.meaning) == (TAPS[name].unit, TAPS[name].meaning)
        assert jnp.isfinite(traj.taps[name]).all()
    t, sizes = sim.model.topology, {"ncon": 1}
    sizes |= {"nq": t.nq, "nv": t.nv, "nbody": len(t.bodies)}
    for name, entry in TAPS.items():
        assert traj.taps[name].shape[1:] == tuple(sizes.get(s) or int(s) for s in entry.shape.split()), name


def test_recorded_quantities_are_what_they_mean(sim, start):
    traj = sim.rollout(start, jnp.array([[0.1], [0.2]]), record=list(TAPS))
    taps = traj.taps
    np.testing.assert_array_equal(taps["joint.q"], traj.q[:-1])
    np.testing.assert_array_equal(taps["joint.qd"], traj.qd[:-1])
    np.testing.assert_allclose(taps["joint.applied_force"][:, -1], [0.1, 0.2])
    np.testing.assert_allclose(taps["joint.passive_force"][0, -1], -0.51 - 0.1 * 0.2)
    np.testing.assert_allclose(taps["contact.depth"][0], 0.001, atol=1e-12)
    np.testing.assert_allclose(taps["contact.normal"][0], [[0, 0, 1]], atol=1e-15)
    np.testing.assert_allclose(taps["joint.gravity_force"][:, 2], 9.81 * 1.3)
    assert (taps["contact.normal_force"] > 0).all()
    assert (taps["joint.limit_force"][:, -1] < 0).all()
    np.testing.assert_array_equal(np.sign(taps["joint.friction_force"][:, -1]), -np.sign(traj.qd[:-1, -1]))
    sliding = taps["contact.relative_velocity"][0, 0, 1:]
    assert float(taps["contact.friction_force"][0, 0] @ sliding) < 0


def test_a_listener_that_adds_zero_changes_nothing(sim, start):
    """Bit for bit, for a step that is compiled the same way."""
    plain = jax.jit(lambda s: sim.solver.step(sim.model, s, fx.Control(jnp.zeros(1), jnp.zeros(7), jnp.zeros((3, 6))), sim.dt))

    def zero(state):
        with listen(lambda name, value: value + 0):
            return sim.solver.step(sim.model, state, fx.Control(jnp.zeros(1), jnp.zeros(7), jnp.zeros((3, 6))), sim.dt)

    a, b = plain(start), jax.jit(zero)(start)
    np.testing.assert_allclose(a.q, b.q, rtol=0, atol=0)
    np.testing.assert_allclose(a.qd, b.qd, rtol=0, atol=0)


@pytest.mark.parametrize("name", FORCES)
def test_a_handler_changes_the_motion(sim, start, name):
    moved = changed(sim, name, lambda x: x + 1.0)(start, None)
    assert float(jnp.abs(moved.qd - sim.step(start).qd).max()) > 1e-5
    assert jnp.isfinite(moved.qd).all()


def test_a_force_by_tap_is_a_force_by_control(sim, start):
    f = jnp.array([0.5, 0, 0, 0, 0.1, 0, 0.2])
    by_control = sim.step(start, fx.Control(tau=f))
    by_tap = changed(sim, "joint.applied_force", lambda x: x + f)(start, None)
    np.testing.assert_allclose(by_tap.qd, by_control.qd, atol=1e-12)
    wrench = jnp.zeros((3, 6)).at[2].set(jnp.array([0.1, 0.2, 0.3, 1.0, 2.0, 3.0]))
    by_control = sim.step(start, fx.Control(wrench=wrench))
    by_tap = changed(sim, "link.external_force", lambda x: x + wrench)(start, None)
    np.testing.assert_allclose(by_tap.qd, by_control.qd, atol=1e-12)
    # the bias force acts against the motion
    by_tap = changed(sim, "joint.bias_force", lambda x: x - f)(start, None)
    np.testing.assert_allclose(by_tap.qd, sim.step(start, fx.Control(tau=f)).qd, atol=1e-12)


def test_accelerations_and_states_can_be_changed(sim, start):
    moved = changed(sim, "joint.acceleration", lambda x: x.at[0].add(2.0))(start, None)
    assert float(moved.qd[0] - sim.step(start).qd[0]) == pytest.approx(0.002, rel=0.2)
    moved = changed(sim, "joint.qd", lambda x: 0 * x)(start, None)
    assert float(jnp.abs(moved.qd).max()) < 0.1


def test_a_cached_program_does_not_hide_a_listener(sim, start):
    before = sim.step(start)
    heard = []

    def note(name, value):
        heard.append(name)
        return value

    with listen(note):
        sim.step(start)
        first = len(heard)
        sim.step(start)
        assert len(heard) == 2 * first > 0
        heard.clear()
        sim.rollout(start, steps=2)
        assert set(heard) == set(TAPS)
    heard.clear()
    np.testing.assert_array_equal(sim.step(start).q, before.q)
    assert not heard


def test_listeners_nest_and_names_are_checked():
    order = []

    def listener(label):
        def note(name, value):
            order.append(label)
            return value + 1

        return note

    with listen(listener("outer")), listen(listener("inner")):
        assert float(tap("joint.q", jnp.zeros(1))[0]) == 2
    assert order == ["inner", "outer"]
    x = jnp.zeros(2)
    assert tap("joint.q", x) is x
    assert tap("no such name", x) is x
    with listen(lambda name, value: value), pytest.raises(KeyError, match="'no such name' is not a tap; the names are joint.q"):
        tap("no such name", x)
    with listen(lambda name, value: value[:1]), pytest.raises(ValueError, match=r"tap 'joint.q' must keep its shape \(2,\)"):
        tap("joint.q", x)
    out, heard = collect(lambda y: tap("joint.qd", 2 * y))(x + 3)
    assert list(heard) == ["joint.qd"]
    np.testing.assert_array_equal(out, heard["joint.qd"])


def test_nobody_listening_leaves_no_trace(sim, start):
    """The program with taps is the program without: names cost nothing."""
    control = fx.Control(jnp.zeros(1), jnp.zeros(7), jnp.zeros((3, 6)))
    quiet = jax.make_jaxpr(lambda s: sim.solver.step(sim.model, s, control, sim.dt))(start)
    heard = jax.make_jaxpr(lambda s: collect(sim.solver.step)(sim.model, s, control, sim.dt)[0])(start)
    assert len(quiet.eqns) <= len(heard.eqns)
    assert "gravity" not in str(quiet.jaxpr.debug_info)
