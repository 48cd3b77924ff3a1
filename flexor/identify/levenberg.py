"""Levenberg-Marquardt, with the starts of the segments eliminated from every step.

    [A + l D_A   B      ] [dz]      [g]
    [B^T         C + l D_C] [dd] = - [h]          D = diagonal of the block (Marquardt 1963)

C is block diagonal (a start touches only its own segment), so the step costs one p x p system, the Schur complement
A + l D_A - sum_s B_s (C_s + l D_s)^-1 B_s^T, whatever the number of segments. Written here, because optimistix solves the
whole Jacobian densely; one iteration is one pure function, so that a population of them runs under `vmap`.

Charts are flat near their ends (a damping near zero), where a Gauss-Newton step means nothing: a number goes at most `REACH` in a
step, and never beyond `FAR`, from where there would be no way back.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flexor.identify.problem import Normal, Problem

DAMPING, LEAST, MOST = 1e-3, 1e-12, 1e12
REACH, FAR = 3.0, 12.0


class Point(NamedTuple):
    """Where the iteration stands, with the normal equations there. `gain` is the relative decrease of the cost in the last
    step that was taken; `done` counts the evaluations."""

    z: Float[Array, " p"]
    d: Float[Array, "s k"]
    normal: Normal
    damping: Float[Array, ""]
    gain: Float[Array, ""]
    done: Int[Array, ""]


def begin(problem: Problem, z: Array) -> Point:
    """The start, not evaluated yet: its cost is infinite and its gradient zero, so that the first iteration evaluates it."""
    s, p, k = problem.segments.number, problem.p, problem.k
    r = jnp.zeros(problem.segments.measured.shape)
    eye = jnp.broadcast_to(jnp.eye(k), (s, k, k))
    nothing = Normal(jnp.asarray(jnp.inf), r, jnp.eye(p), jnp.zeros(p), jnp.zeros((s, p, k)), eye, jnp.zeros((s, k)))
    return Point(z, jnp.zeros((s, k)), nothing, jnp.asarray(DAMPING), jnp.asarray(jnp.inf), jnp.zeros((), int))


def iterate(problem: Problem, point: Point) -> Point:
    """One damped Gauss-Newton step, taken if it lowers the cost. One evaluation of the errors and their Jacobian."""
    dz, dd = solve(point.normal, point.damping, lambda dz: _within_reach(problem, point.z, dz))
    z, d = point.z + dz, point.d + dd
    normal = problem.normal(z, d)
    old, new = point.normal.cost, normal.cost
    first = point.done == 0
    better = (new < old) & jnp.isfinite(normal.A).all()  # false where the cost is not a number
    gain = jnp.where(better & ~first, (old - new) / jnp.maximum(old, 1e-300), point.gain)
    damping = jnp.clip(jnp.where(better, point.damping / 10, point.damping * 8), LEAST, MOST)
    kept = jax.tree.map(lambda a, b: jnp.where(better, a, b), (z, d, normal), (point.z, point.d, point.normal))
    z, d, normal = kept
    return Point(z, d, normal, jnp.where(first, point.damping, damping), gain, point.done + 1)


def _within_reach(problem: Problem, z: Array, dz: Array) -> Array:
    """The part of a step that a chart can be trusted with. A positive number that is large may double, or vanish."""
    reach = jnp.where(problem.linear, jnp.inf, REACH + problem.positive * jnp.maximum(z, 0.0))
    low = jnp.where(problem.positive | problem.bounded, jnp.minimum(-FAR, z), -jnp.inf)
    high = jnp.where(problem.bounded, jnp.maximum(FAR, z), jnp.inf)
    return jnp.clip(z + jnp.clip(dz, -reach, reach), low, high) - z


def solve(normal: Normal, damping: Array, limit: Callable[[Array], Array] = lambda dz: dz) -> tuple[Array, Array]:
    """The step (dz, dd); `limit` shortens dz, and dd follows."""
    C = normal.C + damping * _diagonal(normal.C)
    inverse = jnp.linalg.inv(C)
    own = -jnp.einsum("skl,sl->sk", inverse, normal.h)
    S, rhs = schur(normal, inverse, normal.A + damping * _diagonal(normal.A))
    scale = jax.lax.rsqrt(jnp.maximum(jnp.diagonal(S), 1e-300))
    dz = -scale * jnp.linalg.solve(S * scale[:, None] * scale + 1e-14 * jnp.eye(len(S)), scale * rhs)
    dz = limit(dz)
    return dz, own - jnp.einsum("skl,spl,p->sk", inverse, normal.B, dz)


def schur(normal: Normal, inverse: Array, A: Array) -> tuple[Array, Array]:
    """A and g after the starts have been eliminated."""
    BC = jnp.einsum("spk,skl->spl", normal.B, inverse)
    return A - jnp.einsum("spk,sqk->pq", BC, normal.B), normal.g - jnp.einsum("spk,sk->p", BC, normal.h)


def _diagonal(blocks: Array) -> Array:
    d = jnp.diagonal(blocks, axis1=-2, axis2=-1)
    floor = 1e-12 * jnp.max(d, axis=-1, keepdims=True, initial=0.0) + 1e-300
    return jnp.maximum(d, floor)[..., None] * jnp.eye(blocks.shape[-1])
