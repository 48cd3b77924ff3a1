"""Joint-space inertia by the composite-rigid-body algorithm (Featherstone 2008, table 6.2), in world axes."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.dynamics.kinematics import Kinematics, node_inertias
from flexor.dynamics.recursion import accumulate_inward
from flexor.model.model import Model
from flexor.spatial import matvec


def composite_momenta(model: Model, kin: Kinematics) -> Float[Array, "nv 6"]:
    """F_d = Ic S_d: momentum, at `kin.origin`, of what dof d carries when it alone moves at unit rate."""
    nodes, dofs = model.topology.nodes, model.topology.dofs
    composite = accumulate_inward(nodes.levels, nodes.parent, node_inertias(model, kin))
    return matvec(composite[dofs.node], kin.S)


def crba(model: Model, kin: Kinematics) -> Float[Array, "nv nv"]:
    """M(q), armature on its diagonal: M_de = S_e . Ic_d S_d where e carries d, zero where neither carries the other."""
    dofs = model.topology.dofs
    products = composite_momenta(model, kin) @ kin.S.T
    carries = dofs.moves[dofs.node]  # [d, e]: e moves the node of d
    M = jnp.where(carries, products, products.T)
    armature = model.joints.armature[model.topology.dof_joint]
    return jnp.where(dofs.coupled, M, 0.0) + jnp.diag(armature)
