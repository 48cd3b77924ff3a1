"""Forward dynamics by the articulated-body algorithm (Featherstone 2008, table 7.1), in world axes.

Joints with several degrees of freedom are eliminated one degree at a time, which is the same factorisation as with the
joint's block, without a matrix inverse: a six-dof joint is a chain of six one-dof joints with massless links between.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.kinematics import Kinematics, node_inertias, node_velocities
from flexor.dynamics.recursion import inward, outward, scatter_sum
from flexor.dynamics.rnea import node_wrenches
from flexor.model.model import Model
from flexor.spatial import dot, force_cross, matvec


def aba(
    model: Model,
    kin: Kinematics,
    qd: Float[Array, " nv"],
    tau: Float[Array, " nv"],
    wrench: Float[Array, "nbody 6"] | None = None,
    extra_inertia: Float[Array, " nv"] | None = None,
) -> Float[Array, " nv"]:
    """Accelerations qdd = (M + diag(extra_inertia))^-1 (tau - h + J^T wrench).

    `extra_inertia` adds to the armature (h D for implicit joint damping). `wrench` as in `rnea`.
    """
    t, dofs = model.topology, model.topology.dofs
    if t.nv == 0:
        return jnp.zeros(0, qd.dtype)
    v, c = node_velocities(model, kin, qd)
    inertia = node_inertias(model, kin)
    p = force_cross(v, matvec(inertia, v))
    if wrench is not None:
        p = p - node_wrenches(model, kin, wrench)
    carried = np.flatnonzero(dofs.owner >= 0)
    IA = scatter_sum(inertia[carried], dofs.owner[carried], t.nv)
    pA = scatter_sum(p[carried], dofs.owner[carried], t.nv)
    rotor = model.joints.armature[t.dof_joint]
    rotor = rotor if extra_inertia is None else rotor + extra_inertia
    # A welded node moves with its owner, so only nodes with a joint have a velocity product, on their first dof.
    c = jnp.where(dofs.first_of_node[:, None], c[dofs.node], 0.0)

    def eliminate(below: tuple[Array, Array], own: tuple[Array, ...]) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        IA, pA, S, c, rotor, tau = own
        IA, pA = IA + below[0], pA + below[1]
        U = matvec(IA, S)
        D = dot(S, U) + rotor
        u = tau - dot(S, pA)
        inverse = 1 / D
        Ia = IA - U[:, :, None] * U[:, None, :] * inverse[:, None, None]
        pa = pA + matvec(Ia, c) + U * (u * inverse)[:, None]
        return (Ia, pa), (U, inverse, u)

    zero = (jnp.zeros((6, 6), qd.dtype), jnp.zeros(6, qd.dtype))
    U, inverse, u = inward(dofs.levels, dofs.parent, eliminate, zero, (IA, pA, kin.S, c, rotor, tau))

    def accelerate(above: tuple[Array, Array], own: tuple[Array, ...]) -> tuple[Array, Array]:
        S, c, U, inverse, u = own
        a = above[0] + c
        qdd = (u - dot(U, a)) * inverse
        return a + S * qdd[:, None], qdd

    base = jnp.concatenate([jnp.zeros(3, qd.dtype), -model.gravity])
    _, qdd = outward(dofs.levels, dofs.parent, accelerate, (base, jnp.zeros((), qd.dtype)), (kin.S, c, U, inverse, u))
    return qdd
