"""The solver of the convex MPC against three solvers of general QPs, differences and identities."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

import flexor as fx
from flexor.control import DenseQP, ForceProblem, InteriorPoint, dense
from flexor.control.force_problem import gradient, scaled
from tests.control.problems import HORIZON, problems

COUNT = 12
KINDS = ("trot", "stance")
SHARE = 1e-3  # of the robot's weight: what is asked of forces, and what its tolerance is set for


def osqp(qp: DenseQP) -> np.ndarray:
    import osqp

    solver = osqp.OSQP()
    solver.setup(scipy.sparse.csc_matrix(np.triu(qp.H)), qp.g, scipy.sparse.csc_matrix(qp.C), qp.low, qp.high, verbose=False,
                 eps_abs=1e-7, eps_rel=1e-7, max_iter=100000)  # fmt: skip
    return solver.solve().x


def daqp(qp: DenseQP) -> np.ndarray:
    import daqp

    high = np.where(np.isinf(qp.high), 1e30, qp.high)
    return daqp.solve(qp.H, qp.g, qp.C, high, qp.low.copy(), np.zeros(len(high), np.int32))[0]


def proxqp(qp: DenseQP) -> np.ndarray:
    import proxsuite

    solver = proxsuite.proxqp.dense.QP(len(qp.g), 0, len(qp.low))
    solver.settings.eps_abs = 1e-7
    solver.init(qp.H, qp.g, None, None, qp.C, qp.low, qp.high)
    solver.solve()
    return solver.results.x


@pytest.fixture(scope="module", params=[jnp.float32, jnp.float64], ids=["float32", "float64"])
def solved(request):
    """Problems of both kinds, and their solutions from one kernel."""
    dtype = request.param
    solve = fx.simd.vmap(InteriorPoint())
    batches = {kind: problems(kind, COUNT, dtype) for kind in KINDS}
    return {kind: (p, solve(p, jnp.zeros((COUNT, HORIZON, 4, 3), dtype)), solve) for kind, p in batches.items()}


@pytest.mark.parametrize("oracle", [osqp, daqp, proxqp])
@pytest.mark.parametrize("kind", KINDS)
def test_forces_are_those_of_general_solvers(solved, kind, oracle):
    batch, solution, _ = solved[kind]
    assert bool(solution.converged.all())
    assert int(solution.iterations.max()) <= 15
    for k in range(COUNT):
        problem = jax.tree.map(lambda x, k=k: x[k], batch)
        assert problem.fault() == ""
        qp = dense(problem)
        expected = np.zeros(HORIZON * 12)
        expected[qp.columns] = oracle(qp)
        weight = float(problem.mass * problem.gravity)
        np.testing.assert_allclose(np.asarray(solution.forces[k]).ravel() / weight, expected / weight, atol=SHARE)


@pytest.mark.parametrize("kind", KINDS)
def test_forces_obey_their_bounds(solved, kind):
    batch, solution, _ = solved[kind]
    x, y, z = np.moveaxis(np.asarray(solution.forces, float), -1, 0)
    standing, eps = np.asarray(batch.contact) > 0, 1e-5 * 220
    assert np.all(np.asarray(solution.forces)[~standing] == 0)
    low, high = (np.asarray(b, float)[:, None, None] for b in (batch.low, batch.high))
    assert np.all((z >= low - eps)[standing])
    assert np.all((z <= high + eps)[standing])
    assert np.all((np.maximum(abs(x), abs(y)) <= 0.45 * z + eps)[standing])


def test_kernel_and_xla_agree():
    batch = problems("trot", 2, jnp.float64)
    one = fx.simd.vmap(InteriorPoint())(batch)
    other = jax.jit(jax.vmap(InteriorPoint()))(batch)
    np.testing.assert_allclose(one.forces, other.forces, atol=1e-8)
    np.testing.assert_array_equal(one.iterations, other.iterations)


def test_a_start_that_is_the_solution_takes_fewer_iterations_and_changes_nothing(solved):
    batch, solution, solve = solved["trot"]
    again = solve(batch, solution.forces)
    assert int(again.iterations.sum()) < int(solution.iterations.sum())
    weight = np.asarray(batch.mass * batch.gravity)[:, None, None, None]
    np.testing.assert_allclose(again.forces / weight, solution.forces / weight, atol=SHARE)


def test_a_robot_in_the_air_pushes_nothing():
    batch = problems("stance", 2, jnp.float64)
    flying = eqx.tree_at(lambda p: p.contact, batch, jnp.zeros_like(batch.contact))
    assert float(jnp.abs(fx.simd.vmap(InteriorPoint())(flying).forces).max()) == 0


def test_dense_form_is_the_thirteen_states_by_matrix_exponentials():
    """The discretisation against scipy's matrix exponential, and the gradient by the adjoint against the dense one."""
    p = jax.tree.map(lambda x: x[0], problems("trot", 1, jnp.float64))
    qp, rng = dense(p), np.random.default_rng(1)
    forces = np.zeros(HORIZON * 12)
    forces[qp.columns] = rng.normal(size=len(qp.columns)) * 50
    f = forces.reshape(HORIZON, 4, 3)
    x, cost = np.append(np.asarray(p.start), -9.81), 0.0
    for k in range(HORIZON):
        A = np.zeros((13 + 12, 25))
        A[:6, 6:12], A[11, 12] = np.eye(6), 1
        for i in range(4):
            r = np.asarray(p.arms[k, i])
            A[6:9, 13 + 3 * i : 16 + 3 * i] = np.linalg.inv(p.inertia) @ np.cross(r, np.eye(3)).T
            A[9:12, 13 + 3 * i : 16 + 3 * i] = np.eye(3) / float(p.mass)
        x = (scipy.linalg.expm(0.025 * A) @ np.append(x, f[k].ravel()))[:13]
        cost += 0.5 * np.sum(np.asarray(p.weights) * (x[:12] - np.asarray(p.target[k])) ** 2) + 0.5e-5 * np.sum(f[k] ** 2)
    u = forces[qp.columns]
    at_zero = _cost(p, np.zeros_like(f))
    np.testing.assert_allclose(0.5 * u @ qp.H @ u + qp.g @ u, cost - at_zero, rtol=1e-9)
    weight = float(p.mass * p.gravity)
    found = np.asarray(gradient(scaled(p), jnp.asarray(f) / weight)).ravel()[qp.columns] / weight
    np.testing.assert_allclose(found, qp.H @ u + qp.g, rtol=1e-9, atol=1e-12)


def _cost(p: ForceProblem, f: np.ndarray) -> float:
    """The cost without forces: the trunk falls."""
    assert not f.any()
    x, total = np.asarray(p.start, float), 0.0
    fall = np.zeros(6)
    fall[5] = -9.81
    for k in range(HORIZON):
        x = np.concatenate([x[:6] + 0.025 * x[6:] + 0.025**2 / 2 * fall, x[6:] + 0.025 * fall])
        total += 0.5 * np.sum(np.asarray(p.weights) * (x - np.asarray(p.target[k])) ** 2)
    return total


def test_derivatives_of_forces_are_those_of_differences():
    """Forward and reverse mode, with respect to the state, arms, mass and friction; both in a kernel. A tight tolerance makes the
    smoothing of active bounds, of the order of the tolerance, small beside the differences' own error."""
    p = jax.tree.map(lambda x: x[0], problems("trot", 1, jnp.float64, seed=3))
    rng = np.random.default_rng(2)
    direction = {
        "start": rng.normal(size=12) * 0.1,
        "arms": rng.normal(size=(HORIZON, 4, 3)) * 0.01,
        "mass": 0.3,
        "friction": 0.01,
    }
    method, h = InteriorPoint(tolerance=1e-11), 1e-4

    def forces(t):
        moved = ForceProblem(**{**vars(p), **{k: getattr(p, k) + t * v for k, v in direction.items()}})
        return method(moved).forces[:3]

    both = fx.simd.vmap(lambda t: jax.jvp(forces, (t,), (jnp.ones_like(t),)))(jnp.array([0.0, h, -h]))
    values, rates = (np.asarray(x) for x in both)
    difference = (values[1] - values[2]) / (2 * h)
    np.testing.assert_allclose(rates[0], difference, atol=1e-4 * np.abs(difference).max())
    weights = jnp.asarray(rng.normal(size=values[0].shape))
    backwards = fx.simd.jit(jax.grad(lambda t: jnp.sum(weights * forces(t))))(jnp.zeros(()))
    # slopes of 1 / tolerance in the Newton matrix leave eps / tolerance of the digits
    np.testing.assert_allclose(backwards, np.sum(np.asarray(weights) * rates[0]), rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"low": 300.0, "high": 200.0}, "infeasible: no normal force lies between 300 and 200 N"),
        ({"low": -1.0}, "feet cannot pull"),
        ({"mass": 0.0}, "mass and inertia must be positive, got 0 kg"),
        ({"effort": 0.0}, "weight of the effort must be positive"),
        ({"start": jnp.full(12, jnp.nan)}, "numbers that are not finite"),
    ],
)
def test_faults_are_sentences(changes, sentence):
    p = jax.tree.map(lambda x: x[0], problems("stance", 1, jnp.float64))
    assert sentence in ForceProblem(**{**vars(p), **{k: jnp.asarray(v) for k, v in changes.items()}}).fault()
