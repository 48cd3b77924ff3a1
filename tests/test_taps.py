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
# equalities, tendons, fluids and touch are those of tests/contact/test_rows.py, tests/dynamics/test_tendons.py, test_fluid.py and
# test_force_sensors.py
ELSEWHERE = ("joint.equality_force", "link.fluid_force", "touch.force")
NAMES = [name for name in TAPS if name not in ELSEWHERE and not name.startswith("tendon.")]
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


@pytest.fixture(scope="module")
def step(sim):
    """A compiled step in which `added[name]` is added to the tapped quantity of that name."""

    @jax.jit
    def step(state, control, added):
        with listen(lambda name, value: value + added[name] if name in added else value):
            return sim.solver.step(sim.model, state, control, sim.dt)

    return step


@pytest.fixture(scope="module")
def nothing(sim):
    """Zeros to add to each quantity."""
    return {name: jnp.zeros(eval(entry.shape)) for name, entry in fx.taps(sim).items()}


def control(**given):
    return fx.Control(**{"u": jnp.zeros(1), "tau": jnp.zeros(7), "wrench": jnp.zeros((3, 6)), **given})


def test_every_name_is_computed_with_the_shape_it_says(sim, start):
    listed = fx.taps(sim)
    assert list(listed) == NAMES
    traj = sim.rollout(start, steps=3, record=NAMES)
    for name, entry in listed.items():
        assert str(traj.taps[name].shape[1:]) == entry.shape, name
        assert (entry.unit, entry.meaning) == (TAPS[name].unit, TAPS[name].meaning)
        assert jnp.isfinite(traj.taps[name]).all()
    t, sizes = sim.model.topology, {"ncon": 1}
    sizes |= {"nq": t.nq, "nv": t.nv, "nbody": len(t.bodies)}
    for name, entry in ((name, TAPS[name]) for name in NAMES):
        assert traj.taps[name].shape[1:] == tuple(sizes.get(s) or int(s) for s in entry.shape.split()), name


def test_recorded_quantities_are_what_they_mean(sim, start):
    traj = sim.rollout(start, jnp.array([[0.1], [0.2]]), record=NAMES)
    taps = traj.taps
    np.testing.assert_array_equal(taps["joint.q"], traj.q[:-1])
    np.testing.assert_array_equal(taps["joint.qd"], traj.qd[:-1])
    np.testing.assert_allclose(taps["joint.applied_force"][:, -1], [0.1, 0.2])
    np.testing.assert_allclose(taps["joint.passive_force"][0, -1], -0.51 - 0.1 * 0.2)
    np.testing.assert_allclose(taps["contact.depth"][0], 0.001, atol=1e-12)
    np.testing.assert_allclose(taps["contact.normal"][0], [[0, 0, 1]], atol=1e-15)
    np.testing.assert_allclose(taps["contact.point"][0, 0, 2], -0.001 / 2, atol=1e-12)  # between floor and lowest point
    np.testing.assert_allclose(taps["joint.gravity_force"][:, 2], 9.81 * 1.3)
    assert taps["contact.normal_force"][0, 0] > 0
    assert taps["joint.limit_force"][0, -1] < 0
    # NCP: against the velocity after the step, when the limit has thrown the arm back
    assert 0 < abs(float(taps["joint.friction_force"][0, -1])) <= 0.02 + 1e-12
    sliding = taps["contact.relative_velocity"][0, 0, 1:]
    assert float(taps["contact.friction_force"][0, 0] @ sliding) < 0


def test_a_listener_that_adds_zero_changes_nothing(sim, start, step, nothing):
    plain = jax.jit(lambda s: sim.solver.step(sim.model, s, control(), sim.dt))(start)
    with_listener = step(start, control(), nothing)
    np.testing.assert_array_equal(with_listener.q, plain.q)
    np.testing.assert_array_equal(with_listener.qd, plain.qd)


@pytest.mark.parametrize("name", FORCES)
def test_a_handler_changes_the_motion(start, step, nothing, name):
    moved = step(start, control(), {**nothing, name: nothing[name] + 1.0})
    assert float(jnp.abs(moved.qd - step(start, control(), nothing).qd).max()) > 1e-5
    assert jnp.isfinite(moved.qd).all()


def test_a_force_by_tap_is_a_force_by_control(start, step, nothing):
    f = jnp.array([0.5, 0, 0, 0, 0.1, 0, 0.2])
    wanted = step(start, control(tau=f), nothing)
    for name, added in (("joint.applied_force", f), ("joint.passive_force", f), ("joint.bias_force", -f)):
        np.testing.assert_allclose(step(start, control(), {**nothing, name: added}).qd, wanted.qd, atol=1e-12)
    wrench = jnp.zeros((3, 6)).at[2].set(jnp.array([0.1, 0.2, 0.3, 1.0, 2.0, 3.0]))
    wanted = step(start, control(wrench=wrench), nothing)
    by_tap = step(start, control(), {**nothing, "link.external_force": wrench})
    np.testing.assert_allclose(by_tap.qd, wanted.qd, atol=1e-12)


def test_accelerations_and_states_can_be_changed(sim, step, nothing):
    """In the air, within the limits: what is added to the acceleration arrives dt times in the velocity."""
    state = sim.reset(sim.model.reference.at[2].set(1.0), [0.3, 0.1, 0, 0, 0, 0, 0.2])
    plain = step(state, control(), nothing)
    push = jnp.array([2.0, 0, 0, 0, 0, 0, 0])
    moved = step(state, control(), {**nothing, "joint.acceleration": push})
    np.testing.assert_allclose(moved.qd - plain.qd, 0.001 * push, atol=1e-12)
    moved = step(state, control(), {**nothing, "joint.qd": push})
    assert float(moved.qd[0] - plain.qd[0]) == pytest.approx(2, rel=1e-2)
    moved = step(state, control(), {**nothing, "joint.q": nothing["joint.q"].at[0].set(0.5)})
    assert float(moved.q[0] - plain.q[0]) == pytest.approx(0.5, rel=1e-12)


def test_a_cached_program_does_not_hide_a_listener():
    sim = fx.Simulator(fx.load("pendulum"), fx.RigidSolver(contact=None))
    start = sim.reset([0.5])
    before, rolled = sim.step(start), sim.rollout(start, steps=2)
    tapped_names = []

    def note(name, value):
        tapped_names.append(name)
        return value + 1 if name == "joint.applied_force" else value

    with listen(note):
        first = sim.step(start)
        names = list(tapped_names)
        second = sim.step(start)
        assert tapped_names == 2 * names
        assert names
        run = sim.rollout(start, steps=2)
    assert float(first.qd[0]) == float(second.qd[0]) != float(before.qd[0])
    np.testing.assert_allclose(run.qd[1], first.qd, rtol=1e-14)
    tapped_names.clear()
    np.testing.assert_array_equal(sim.step(start).qd, before.qd)
    np.testing.assert_array_equal(sim.rollout(start, steps=2).qd, rolled.qd)
    assert not tapped_names


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
    with (
        listen(lambda name, value: value),
        pytest.raises(KeyError, match="'no such name' is not a tap; the names are"),
    ):
        tap("no such name", x)
    with listen(lambda name, value: value[:1]), pytest.raises(ValueError, match=r"tap 'joint.q' must keep its shape \(2,\)"):
        tap("joint.q", x)
    out, recorded_taps = collect(lambda y: tap("joint.qd", 2 * y))(x + 3)
    assert list(recorded_taps) == ["joint.qd"]
    np.testing.assert_array_equal(out, recorded_taps["joint.qd"])


def test_without_listeners_nothing_is_computed_for_them(sim, start):
    """A program without listeners has fewer operations: none for what only listeners need."""
    quiet = jax.make_jaxpr(lambda s: sim.solver.step(sim.model, s, control(), sim.dt))(start)
    with_listener = jax.make_jaxpr(lambda s: collect(sim.solver.step)(sim.model, s, control(), sim.dt)[0])(start)
    assert len(quiet.eqns) < len(with_listener.eqns)
