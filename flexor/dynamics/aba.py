"""Forward dynamics by the articulated-body algorithm (Featherstone 2008, table 7.1), in world axes.

Joints with several degrees of freedom are eliminated one degree at a time, which is the same factorisation as with the
joint's block, without a matrix inverse: a six-dof joint is a chain of six one-dof joints with massless links between.

The derivative is that of the equation it solves, M qdd + h = tau: dqdd = M^-1 (dtau - d(M qdd + h) at fixed qdd), by inverse
dynamics differentiated and the same factorisation once more (Carpentier & Mansard 2018). That is less work than
differentiating the algorithm, and reverse mode has to keep only the accelerations.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from flexor.dynamics.crba import crba, factor_inertia, solve_inertia
from flexor.dynamics.kept import kept
from flexor.dynamics.kinematics import Kinematics, node_velocities
from flexor.dynamics.masses import node_inertias
from flexor.dynamics.recursion import inward, outward, scatter_sum
from flexor.dynamics.rnea import node_wrenches, rnea
from flexor.model.model import Model
from flexor.spatial import dot, force_cross, matvec, take


def aba(
    model: Model,
    kin: Kinematics,
    qd: Float[Array, " nv"],
    tau: Float[Array, " nv"],
    wrench: Float[Array, "nbody 6"] | None = None,
    extra_inertia: Float[Array, " nv"] | None = None,
) -> Float[Array, " nv"]:
    """Accelerations qdd = (M + diag(extra_inertia))^-1 (tau - h + J^T wrench).

    `extra_inertia` adds to the armature (h D for implicit joint damping). `wrench` as in `rnea`. Armatures of tendons couple
    joints that do not carry each other: then M is built and factored as it is.
    """
    if len(model.topology.inertial_tendons):
        M = crba(model, kin) if extra_inertia is None else crba(model, kin) + jnp.diag(extra_inertia)
        return solve_inertia(M, factor_inertia(M), tau - rnea(model, kin, qd, jnp.zeros_like(qd), wrench))
    return qd if model.nv == 0 else _aba(model, kin, qd, tau, wrench, extra_inertia)


@jax.custom_jvp
def _aba(
    model: Model, kin: Kinematics, qd: Array | None, tau: Array, wrench: Array | None, extra_inertia: Array | None
) -> Float[Array, " nv"]:
    """As `aba`; if qd is None, M^-1 tau: at rest and without gravity."""
    t, dofs = model.topology, model.topology.dofs
    inertia = node_inertias(model, kin)
    carried = np.flatnonzero(dofs.owner >= 0)
    IA = scatter_sum(take(inertia, carried), dofs.owner[carried], t.nv)
    rotor = take(model.joints.armature, t.dof_joint)
    rotor = rotor if extra_inertia is None else rotor + extra_inertia
    pA = c = jnp.zeros((t.nv, 6), tau.dtype)
    base = jnp.zeros(6, tau.dtype)
    if qd is not None:
        v, product = node_velocities(model, kin, qd)
        p = force_cross(v, matvec(inertia, v))
        p = p if wrench is None else p - node_wrenches(model, kin, wrench)
        pA = scatter_sum(take(p, carried), dofs.owner[carried], t.nv)
        # A welded node moves with its owner, so only nodes with a joint have a velocity product, on their first dof.
        c = jnp.where(dofs.first_of_node[:, None], take(product, dofs.node), 0.0)
        base = jnp.concatenate([base[:3], -model.gravity])

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

    zero = (jnp.zeros((6, 6), tau.dtype), jnp.zeros(6, tau.dtype))
    U, inverse, u = inward(dofs.levels, dofs.parent, eliminate, zero, (IA, pA, kin.S, c, rotor, tau))

    def accelerate(above: tuple[Array, Array], own: tuple[Array, ...]) -> tuple[Array, Array]:
        S, c, U, inverse, u = own
        a = above[0] + c
        qdd = (u - dot(U, a)) * inverse
        return a + S * qdd[:, None], qdd

    _, qdd = outward(dofs.levels, dofs.parent, accelerate, (base, jnp.zeros((), tau.dtype)), (kin.S, c, U, inverse, u))
    return qdd


@partial(_aba.defjvp, symbolic_zeros=True)
def _aba_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    model, kin, _, _, _, extra_inertia = primals
    qdd = kept(_aba(*primals))
    given, tree = jax.tree.flatten(primals)
    moves = jax.tree.leaves(tangents)
    moving = [k for k, dx in enumerate(moves) if not isinstance(dx, SymbolicZero)]

    def residual(*xs: Array) -> Array:
        """tau - M qdd - h, at fixed qdd, as a function of the inputs that have tangents."""
        inputs = dict(zip(moving, xs, strict=True))
        model, kin, qd, tau, wrench, extra = jax.tree.unflatten(tree, [inputs.get(k, x) for k, x in enumerate(given)])
        needed = rnea(model, kin, qd, qdd, wrench)
        return tau - needed if extra is None else tau - needed - extra * qdd

    _, lacking = jax.jvp(residual, tuple(given[k] for k in moving), tuple(moves[k] for k in moving))
    return qdd, _aba(model, kin, None, lacking, None, extra_inertia)
