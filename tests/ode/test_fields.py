"""Fields of robots: the rigid one against the rigid solver, learned mechanics against their laws, for any weights."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx

# A body on a ball joint, with a hinge that turns round, a spring and a motor.
TURNING = """<mujoco model="turning"><compiler angle="radian"/><default><geom contype="0" conaffinity="0"/></default><worldbody>
<body name="base"><joint name="root" type="ball"/><geom type="box" size="0.1 0.2 0.3" mass="1"/>
  <body name="hand" pos="0.2 0 0.3"><joint name="hinge" axis="0 1 0" stiffness="1" damping="0.1"/>
    <geom type="sphere" size="0.05" mass="0.2" pos="0.1 0 0"/></body></body></worldbody>
<actuator><motor name="m" joint="hinge"/></actuator></mujoco>"""

PENDULUM = """<mujoco model="pendulum"><worldbody><body><joint name="hinge" axis="0 1 0"/>
<geom type="sphere" size="0.05" mass="0.2" pos="0.3 0 0"/></body></worldbody></mujoco>"""

FORMS = {"lagrangian": fx.ode.lagrangian, "hamiltonian": fx.ode.hamiltonian, "port-hamiltonian": fx.ode.port_hamiltonian}


@pytest.fixture(scope="module")
def model():
    return fx.load(TURNING)


def random_field(model, form, seed=0):
    """A field whose every weight is random, the damper's gains and signs too."""
    field = FORMS[form](model, width=4, depth=1, key=jax.random.key(seed))
    leaves, tree = jax.tree.flatten(field)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    return jax.tree.unflatten(tree, [jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)])


def power(model, field, state, control):
    """dE/dt along the field, by differentiating the energy in w, and v^T f."""
    w = field.enter(model, state.q, state.qd)
    v, change = field.rates(model, 0.0, state.q, w, control)

    def energy(x, w):
        q = fx.integrate(model, state.q, x)
        return field.kinetic_energy(model, q, w) + field.potential_energy(model, q)

    return jax.jvp(energy, (jnp.zeros_like(v), w), (v, change))[1], v


@pytest.mark.parametrize("form", FORMS)
def test_energy_enters_through_controls_alone_for_any_weights(model, form):
    """dE/dt = v^T f - v^T D v at random states: zero for conservative forms without input, never positive with a damper."""
    none, control = fx.Control(u=jnp.zeros(1), tau=jnp.zeros(model.nv)), fx.Control(u=jnp.ones(1), tau=jnp.ones(model.nv))

    @jax.jit
    def powers(key):
        field = random_field(model, form)
        state = fx.random_state(model, key)
        free, v = power(model, field, state, none)
        driven, _ = power(model, field, state, control)
        force = jnp.ones(model.nv).at[-1].add(1.0)
        if form == "port-hamiltonian":
            port = field.port(fx.ode.field.features(model, state.q)).reshape(model.nv, model.nv)
            force = force + port @ force
        return free, driven - free - v @ force, -v @ field.braking(model, state.q, v), jnp.abs(v) @ jnp.abs(force)

    free, left, lost, size = (np.asarray(x) for x in jax.vmap(powers)(jax.random.split(jax.random.key(5), 8)))
    np.testing.assert_allclose(left, 0, atol=1e-10 * size.max())
    np.testing.assert_allclose(free, -lost, atol=1e-9 * (1 + np.abs(lost).max() + size.max()))
    if form == "hamiltonian":
        np.testing.assert_array_equal(lost, 0)
    else:
        assert (lost > 0).any()


@pytest.mark.parametrize("form", ["lagrangian", "hamiltonian"])
def test_energy_along_rollouts_and_quaternions_of_unit_length(model, form):
    """Adaptive steps at a tolerance of 1e-9: energy is kept, or falls, to 1e-6 of its size; quaternions stay unit to rounding."""
    field = random_field(model, form, seed=3)
    sim = fx.Simulator(model, fx.ode.OdeSolver(field, fx.ode.Adaptive(rtol=1e-8, atol=1e-9)), dt=0.02)
    run = sim.rollout(sim.reset(qd=0.3 * jnp.arange(1, model.nv + 1.0)), steps=25)
    energy = np.asarray(jax.vmap(lambda q, v: field.energy(model, q, v))(run.q, run.qd))
    size = np.ptp(energy) + np.abs(energy).max()
    if form == "hamiltonian":
        np.testing.assert_allclose(energy, energy[0], atol=1e-6 * size)
    else:
        assert np.diff(energy).max() < 1e-6 * size
        assert energy[-1] < energy[0] - 1e-3 * size
    np.testing.assert_allclose(jnp.linalg.norm(run.q[:, :4], axis=1), 1, atol=1e-14)
    assert float(jnp.abs(run.q[-1] - run.q[0]).max()) > 0.1


def test_the_rigid_field_moves_as_the_rigid_solver_and_adaptive_steps_agree(model):
    rigid = fx.Simulator(model, fx.RigidSolver(None, fx.RK4()), dt=0.01)
    start, u = rigid.reset(qd=jnp.linspace(-1, 1, model.nv)), jnp.full((10, 1), 0.2)
    wanted = rigid.rollout(start, u)
    run = rigid.with_solver(fx.ode.OdeSolver()).rollout(start, u)
    np.testing.assert_allclose(run.q, wanted.q, atol=1e-9)  # the two differ in the fifth order of a displacement of 0.01
    np.testing.assert_allclose(run.qd, wanted.qd, atol=1e-9)
    fine = fx.Simulator(model, fx.ode.OdeSolver(stepping=fx.ode.Adaptive(rtol=1e-10, atol=1e-11)), dt=0.01).rollout(start, u)
    np.testing.assert_allclose(run.q, fine.q, atol=1e-4)  # the spring turns by 0.2 rad a step: 0.2^5 / 120 of a swing, each


@pytest.mark.parametrize("adjoint", ["checkpoint", "backsolve", "forward"])
def test_adjoints_agree_with_the_closed_form(adjoint):
    """y' = -a y: dy(1)/da = -y(1), through what the rate closes over; backsolve is right to its tolerance."""
    stepping = fx.ode.Adaptive(rtol=1e-8, atol=1e-10, adjoint=adjoint)

    def end(a):
        return stepping.advance(lambda t, y: -a * y, 0.0, 1.0, jnp.array([2.0]))[0]

    slope = (jax.jacfwd if adjoint == "forward" else jax.grad)(end)(jnp.array(0.7))
    np.testing.assert_allclose(slope, -2 * np.exp(-0.7), rtol=1e-6)


def test_runge_kutta_is_of_order_four_and_reads_the_time():
    """y' = y cos t, y = exp(sin t)."""

    def error(n):
        return abs(
            float(fx.ode.RungeKutta4(n).advance(lambda t, y: y * jnp.cos(t), 0.0, 1.0, jnp.array(1.0))) - np.exp(np.sin(1))
        )

    assert 3.7 < np.log2(error(8) / error(16)) < 4.3


def test_black_boxes_read_a_clock_and_check_the_robot(model):
    field = fx.ode.black_box(model, width=4, depth=1, frequencies=(0.5,))
    sim = fx.Simulator(model, fx.ode.OdeSolver(field), dt=0.01)
    early = sim.step(sim.reset())
    late = sim.step(eqx.tree_at(lambda s: s.time, sim.reset(), jnp.array(0.7)))
    assert float(jnp.abs(early.qd - late.qd).max()) > 1e-4
    assert early.q.shape == (model.nq,)
    with pytest.raises(
        ValueError, match=r"made for a robot with \d+ features and 4 velocities, and 'double_pendulum' has 4 and 2"
    ):
        fx.Simulator(fx.load("double_pendulum"), fx.ode.OdeSolver(field), dt=0.01)


def test_what_is_not_supported_is_said(model):
    with pytest.raises(ValueError, match="HamiltonianField knows generalised forces only"):
        fx.Simulator(model, fx.ode.OdeSolver(fx.ode.hamiltonian(model, width=2)), dt=0.01).step(
            fx.State(model.reference, jnp.zeros(model.nv), jnp.zeros(())), fx.Control(wrench=jnp.zeros((3, 6)))
        )
    with pytest.raises(ValueError, match="Adaptive has no adjoint 'magic'; there are checkpoint, direct"):
        fx.ode.Adaptive(adjoint="magic")
    with pytest.raises(ValueError, match="positive number of steps, got 0"):
        fx.ode.RungeKutta4(0)


def test_adaptive_steps_record_and_go_through_files(tmp_path):
    """What loops inside a step is recorded at its start, and files keep the method."""
    model = fx.load(PENDULUM)
    sim = fx.Simulator(model, fx.ode.OdeSolver(stepping=fx.ode.Adaptive(method="dopri5")), dt=0.01)
    start = sim.reset(jnp.array([0.5]))
    new, recorded = sim.step(start, record=["joint.q", "joint.acceleration"])
    np.testing.assert_array_equal(recorded["joint.q"], start.q)
    np.testing.assert_allclose(new.qd / 0.01, recorded["joint.acceleration"], rtol=0.05)
    again = fx.open(sim.save(tmp_path / "sim"))
    assert again.solver.stepping == sim.solver.stepping
    np.testing.assert_array_equal(again.step(start).q, sim.step(start).q)
