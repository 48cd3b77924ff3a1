"""Joint-space inertia by the composite-rigid-body algorithm (Featherstone 2008, table 6.2), in world axes."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.dynamics.kept import kept
from flexor.dynamics.kinematics import Kinematics
from flexor.dynamics.masses import node_inertias
from flexor.dynamics.recursion import accumulate_inward
from flexor.dynamics.tendons import tendon_inertia
from flexor.model.model import Model
from flexor.spatial import matvec, take


def composite_momenta(model: Model, kin: Kinematics) -> Float[Array, "nv 6"]:
    """F_d = Ic S_d: momentum, at `kin.origin`, of what dof d carries when it alone moves at unit rate."""
    nodes, dofs = model.topology.nodes, model.topology.dofs
    composite = accumulate_inward(nodes.levels, nodes.parent, node_inertias(model, kin))
    return matvec(take(composite, dofs.node), kin.S)


def crba(model: Model, kin: Kinematics) -> Float[Array, "nv nv"]:
    """M(q), armature on its diagonal: M_de = S_e . Ic_d S_d where e carries d, zero where neither carries the other, and what the
    armatures of tendons add."""
    dofs = model.topology.dofs
    products = composite_momenta(model, kin) @ kin.S.T
    carries = dofs.moves[dofs.node]  # [d, e]: e moves the node of d
    M = jnp.where(carries, products, products.T)
    armature = take(model.joints.armature, model.topology.dof_joint)
    M = jnp.where(dofs.coupled, M, 0.0) + jnp.diag(armature)
    return M + tendon_inertia(model, kin) if len(model.topology.inertial_tendons) else M


def factor_inertia(M: Float[Array, "nv nv"]) -> Float[Array, "nv nv"]:
    """Cholesky factor of M with its rows and columns reversed: leaves first, so that branches bring no fill-in. It has no
    derivative; what is solved with it has."""
    return jnp.linalg.cholesky(jax.lax.stop_gradient(M)[::-1, ::-1])


def inverse_times(chol: Float[Array, "nv nv"], b: Float[Array, " nv *n"]) -> Float[Array, " nv *n"]:
    """M^-1 b with the factor of `factor_inertia`; as a function of b alone."""
    return jax.scipy.linalg.cho_solve((chol, True), b[::-1])[::-1]


@jax.custom_jvp
def solve_inertia(M: Float[Array, "nv nv"], chol: Float[Array, "nv nv"], b: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """x = M^-1 b, with dx = M^-1 (db - dM x): no derivative of the factor is needed."""
    return inverse_times(chol, b)


@solve_inertia.defjvp
def _solve_inertia_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (M, chol, _), (dM, _, db) = primals, tangents
    x = kept(solve_inertia(*primals))
    return x, solve_inertia(M, chol, db - matvec(dM, x))
