"""`Osqp`: the forces by OSQP (Stellato et al. 2020), as in NeuralSim's controller, on the host."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.control.force_problem import ForceProblem, dense
from flexor.control.forces import AbstractForces, ForceSolution


class Osqp(AbstractForces):
    """OSQP on the dense problem, built anew each time, with the tolerance and polishing of the paper. Extra `control`.

    Neither compiled nor differentiable: for simulators that are not kernels (`MujocoSolver`, `simd=False`), and to compare with.
    """

    tolerance: float = eqx.field(static=True, default=1e-3)

    def __call__(self, problem: ForceProblem, start: Float[Array, "horizon foot 3"] | None = None) -> ForceSolution:
        given = jnp.zeros_like(problem.arms) if start is None else start
        flag, count = jnp.zeros((), bool), jnp.zeros((), int)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (problem.arms, flag, count))
        solve = partial(_host_solve, self.tolerance)
        return ForceSolution(*jax.pure_callback(solve, shapes, problem, given, vmap_method="sequential"))


def osqp_forces(problem: ForceProblem, start: np.ndarray, tolerance: float) -> tuple[np.ndarray, bool, int]:
    """Forces in NumPy, whether OSQP calls them solved, and its iterations; without a solution `start` comes back."""
    import osqp
    import scipy.sparse as sparse

    qp = dense(problem)
    forces = np.zeros(np.asarray(problem.arms).size)
    if not len(qp.columns):
        return forces.reshape(start.shape), True, 0
    solver = osqp.OSQP()
    solver.setup(sparse.csc_matrix(np.triu(qp.H)), qp.g, sparse.csc_matrix(qp.C), qp.low, qp.high, verbose=False,
                 eps_abs=tolerance, eps_rel=tolerance, polishing=True)  # fmt: skip
    solver.warm_start(x=np.asarray(start, float).ravel()[qp.columns])
    found = solver.solve(raise_error=False)
    if found.info.status_val not in (1, 2):  # solved, solved inaccurately
        return np.asarray(start), False, int(found.info.iter)
    forces[qp.columns] = found.x
    return forces.reshape(start.shape), True, int(found.info.iter)


def _host_solve(tolerance: float, problem: Any, start: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    start = np.asarray(start)
    forces, good, iterations = osqp_forces(problem, start, tolerance)
    return forces.astype(start.dtype), np.asarray(good), np.asarray(iterations, jnp.zeros((), int).dtype)
