"""Identities among the dynamics' own quantities, and derivatives by JAX as oracle."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flexor import dynamics as dyn
from flexor.robots import load
from tests.dynamics.robots import NASTY

EPS = np.finfo(float).eps
TOLERANCE = 1e4 * EPS  # relative: chains of ten joints, and a condition number of M of some hundreds


def close(a, b, factor=1.0):
    np.testing.assert_allclose(a, b, rtol=0, atol=factor * TOLERANCE * max(1.0, float(jnp.abs(b).max())))


@jax.jit
def forces(model, at):
    kin = dyn.forward_kinematics(model, at.q)
    qdd = dyn.aba(model, kin, at.qd, at.tau, at.wrench)
    zero = jnp.zeros_like(at.qd)
    return {
        "qdd": qdd,
        "rnea of aba": dyn.rnea(model, kin, at.qd, qdd, at.wrench),
        "bias": dyn.bias_force(model, kin, at.qd),
        "gravity": dyn.gravity_force(model, kin),
        "rnea at rest": dyn.rnea(model, kin, zero, zero),
        "columns": jax.vmap(lambda e: dyn.rnea(model, kin, zero, e))(jnp.eye(model.nv)),
        "M": dyn.crba(model, kin),
        "T": dyn.kinetic_energy(model, kin, at.qd),
        "A": dyn.centroidal_momentum_matrix(model, kin),
        "h": dyn.centroidal_momentum(model, kin, at.qd),
        "implicit": dyn.aba(model, kin, at.qd, at.tau, at.wrench, jnp.abs(at.qdd)),
    }


@pytest.fixture(scope="module")
def results(model, at):
    return forces(model, at)


def test_aba_inverts_rnea(results, at):
    close(results["rnea of aba"], at.tau, 100)


def test_columns_of_rnea_are_the_inertia(results):
    M = np.asarray(results["M"])
    close(results["columns"] - results["gravity"][None], results["M"])
    np.testing.assert_allclose(M, M.T, atol=TOLERANCE)
    assert np.linalg.eigvalsh(M).min() > 0


def test_rnea_at_rest_is_gravity(results):
    close(results["rnea at rest"], results["gravity"])


def test_kinetic_energy_is_half_the_square_of_the_velocity(results, at):
    close(results["T"], at.qd @ results["M"] @ at.qd / 2)


def test_extra_inertia_adds_to_the_diagonal(results, at):
    M = results["M"] + jnp.diag(jnp.abs(at.qdd))
    close(M @ results["implicit"], results["M"] @ results["qdd"], 100)


def test_the_centroidal_matrix_moves_the_centre_of_mass(model, at, results):
    """Its linear rows are the total mass times the Jacobian of the centre of mass."""

    def com(displacement):
        return dyn.centre_of_mass(model, dyn.forward_kinematics(model, dyn.integrate(model, at.q, displacement)))

    J = jax.jit(jax.jacfwd(com))(jnp.zeros(model.nv))
    close(results["A"][3:], dyn.total_mass(model) * J)
    close(results["h"], results["A"] @ at.qd)


def test_jacobians_are_derivatives_of_poses(model, at):
    """J = d pose / d displacement, by JAX through `integrate`: linear rows of positions, angular of R' R^T."""
    offset = jnp.array([0.1, -0.2, 0.3])
    bodies = np.arange(len(model.topology.bodies))

    def poses(displacement):
        pos, rot = dyn.body_poses(model, dyn.forward_kinematics(model, dyn.integrate(model, at.q, displacement)))
        return pos, rot, pos + rot @ offset

    @jax.jit
    def both(zero):
        kin = dyn.forward_kinematics(model, at.q)
        _, _, where = poses(zero)
        frames = dyn.body_jacobian(model, kin, bodies)
        return frames, dyn.point_jacobian(model, kin, bodies, where), jax.jacfwd(poses)(zero), dyn.body_poses(model, kin)[1]

    frames, points, (dpos, drot, dwhere), rot = both(jnp.zeros(model.nv))
    close(frames[:, 3:], dpos)
    close(points, dwhere)
    spin = jnp.einsum("bijv,bkj->bikv", drot, rot)
    close(frames[:, :3], jnp.stack([spin[:, 2, 1], spin[:, 0, 2], spin[:, 1, 0]], axis=1))
    one = dyn.body_jacobian(model, dyn.forward_kinematics(model, at.q), model.body("wrist"))
    close(one, frames[model.body("wrist")])


def test_gravity_and_springs_are_gradients_of_the_potential_energy(model, at):
    slack = eqx.tree_at(lambda m: m.joints.stiffness, model, 0 * model.joints.stiffness)
    still = eqx.tree_at(lambda m: m.joints.damping, model, 0 * model.joints.damping)

    @jax.jit
    def gradient(model, q):
        def energy(displacement):
            moved = dyn.integrate(model, q, displacement)
            return dyn.potential_energy(model, dyn.forward_kinematics(model, moved), moved)

        kin = dyn.forward_kinematics(model, q)
        return jax.grad(energy)(jnp.zeros(model.nv)), dyn.gravity_force(model, kin), dyn.passive_force(model, q, at.qd)

    slope, gravity, _ = gradient(slack, at.q)
    close(slope, gravity)
    slope, gravity, passive = gradient(still, at.q)
    close(slope, gravity - passive)


def test_the_power_of_all_forces_is_the_rate_of_energy(model, at):
    """d(T + V)/dt along the motion that ABA gives = qd . (tau + J^T wrench), with springs in V and no dampers."""
    still = eqx.tree_at(lambda m: m.joints.damping, model, 0 * model.joints.damping)

    @jax.jit
    def rates(model, at):
        kin = dyn.forward_kinematics(model, at.q)
        tau = at.tau + dyn.passive_force(model, at.q, at.qd)
        qdd = dyn.aba(model, kin, at.qd, tau, at.wrench)

        def energy(t):
            q, qd = dyn.integrate(model, at.q, t * at.qd), at.qd + t * qdd
            kin = dyn.forward_kinematics(model, q)
            return dyn.kinetic_energy(model, kin, qd) + dyn.potential_energy(model, kin, q)

        power = at.qd @ at.tau + jnp.sum(at.wrench * dyn.body_velocities(model, kin, at.qd))
        return jax.jvp(energy, (0.0,), (1.0,))[1], power

    rate, power = rates(still, at)
    close(rate, power, 100)


def test_moving_and_moving_back(model, at):
    step = 0.3 * at.qd
    there = dyn.integrate(model, at.q, step)
    # one-parameter subgroups: moving on by the same body displacement and back ends where it began
    close(dyn.integrate(model, there, -step), at.q)
    assert float(jnp.linalg.norm(there[model.topology.q_start[5] + 3 :][:4])) == pytest.approx(1, abs=10 * EPS)


def test_a_robot_without_joints_and_one_without_inertia_below_a_weld():
    model = load('<mujoco><worldbody><body name="b"><geom size="0.1"/></body></worldbody></mujoco>')
    kin = dyn.forward_kinematics(model, jnp.zeros(0))
    none = jnp.zeros(0)
    for value in (dyn.rnea(model, kin, none, none), dyn.aba(model, kin, none, none), dyn.gravity_force(model, kin)):
        assert value.shape == (0,)
    assert dyn.crba(model, kin).shape == (0, 0)
    assert float(dyn.kinetic_energy(model, kin, none)) == float(dyn.potential_energy(model, kin, none)) == 0


@pytest.mark.parametrize("transform", [jax.jacfwd, jax.jacrev], ids=["forward", "reverse"])
def test_derivatives_of_accelerations_are_finite_differences(transform):
    """ABA at the reference pose (quaternions at the identity) to position, against central differences.

    With a step h the truncation error is h^2 and the rounding error eps kappa / h: 1e-10 at h = 1e-5, times a margin."""
    model = load(NASTY)
    rng = np.random.default_rng(0)
    qd, tau = jnp.asarray(rng.normal(size=model.nv)), jnp.asarray(rng.normal(size=model.nv))

    @jax.jit
    def acceleration(displacement):
        q = dyn.integrate(model, model.reference, displacement)
        return dyn.aba(model, dyn.forward_kinematics(model, q), qd, tau)

    got = jax.jit(transform(acceleration))(jnp.zeros(model.nv))
    h = 1e-5
    rows = h * jnp.eye(model.nv)
    wanted = ((jax.vmap(acceleration)(rows) - jax.vmap(acceleration)(-rows)) / (2 * h)).T
    np.testing.assert_allclose(got, wanted, atol=1e-6 * float(jnp.abs(wanted).max()))
