"""Joint-space inertia by the composite-rigid-body algorithm (Featherstone 2008, table 6.2), in world axes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.kept import kept
from flexor.dynamics.kinematics import Kinematics
from flexor.dynamics.masses import node_inertias
from flexor.dynamics.recursion import accumulate_inward
from flexor.dynamics.tendons import tendon_inertia
from flexor.model.model import Model
from flexor.model.topology import INDEX
from flexor.spatial import matvec, take


def composite_momenta(model: Model, kin: Kinematics) -> Float[Array, "nv 6"]:
    """F_d = Ic S_d: momentum, at `kin.origin`, of what dof d carries when it alone moves at unit rate."""
    nodes, dofs = model.topology.nodes, model.topology.dofs
    composite = accumulate_inward(nodes.levels, nodes.parent, node_inertias(model, kin))
    return matvec(take(composite, dofs.node), kin.S)


def crba(model: Model, kin: Kinematics) -> Float[Array, "nv nv"]:
    """M(q), armature on its diagonal: M_de = S_e . Ic_d S_d where e carries d, zero where neither carries the other, and what the
    armatures of tendons add."""
    t, dofs = model.topology, model.topology.dofs
    carried, carrier = np.nonzero(np.tril(dofs.moves[dofs.node]))  # the carrier moves the node of the carried
    products = jnp.sum(take(composite_momenta(model, kin), carried) * take(kin.S, carrier), axis=-1)
    place = np.full((t.nv, t.nv), len(carried), INDEX)
    place[carried, carrier] = place[carrier, carried] = np.arange(len(carried))
    M = take(jnp.concatenate([products, jnp.zeros(1, products.dtype)]), place)
    M = M + jnp.diag(take(model.joints.armature, t.dof_joint))
    return M + tendon_inertia(model, kin) if len(t.inertial_tendons) else M


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
