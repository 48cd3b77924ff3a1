"""Levenberg-Marquardt, with the starts of the segments eliminated from every step.

    [A + D   B      ] [dz]      [g]          D = l diag(A) + e U^2    or    D = 100 l e U^2
    [B^T     C + l D_C] [dd] = - [h]          e = (mean square of the weighted errors) / TRUST^2

C is block diagonal (a start touches only its own segment), so the step costs one p x p system, the Schur complement
A + D - sum_s B_s (C_s + l D_s)^-1 B_s^T, whatever the number of segments. Written here, because optimistix solves the
whole Jacobian densely; one iteration is one pure function, so that a population of them runs under `vmap`.

l diag(A) is Marquardt's (1963). e U^2 holds what the data do not tell where it is: a damping that falls with the square of the
errors keeps the convergence quadratic though A be singular (Fan & Yuan 2005). U are the slopes of the charts, for a step is meant
in the parameters themselves: charts are flat near their ends (a damping near zero, a mass at its bound), where a step
in z means nothing. So a step is taken in shares of the range or the size and then put back into z (`_moved`). Numbers that it
would take beyond their bounds stop there, and the others are solved for again.

Errors alone cost a hundredth of errors and Jacobian, and lanes are free: `iterate` tries a ladder of l in both forms of D at
once and takes the Jacobian at the best.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flexor.identify.problem import START_RIDGE, Normal, Problem

DAMPING, LEAST, MOST = 1e-3, 1e-9, 1e12
REACH, FAR = 1.0, 9.2  # largest step in a chart that is neither bounded nor positive nor linear; farthest z of the others
FENCE = 1.5  # farthest that such a chart goes below its start: a factor of 4.5 in the lengths of an inertia
SETTLING = 15  # iterations for the starts of held-out segments
TRUST = 0.3  # of a range or size: how far a step goes in what the data do not tell
PASSES = 4  # rounds in which numbers stop at their bounds
FLOOR = 1e-3  # of the second damping that always stays
LADDER = 10.0 ** np.arange(-3, 4)
"""Dampings that are tried at once, in units of the last one that was good."""


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
    full: Callable[..., Any] = np.full  # known numbers, which cost no compilation
    r = full((len(problem.derived), *problem.segments.measured.shape[1:]), 0.0)
    A, C = full((p, p), np.eye(p)), full((s, k, k), np.eye(k))
    nothing = Normal(full((), np.inf), r, A, full(p, 0.0), full((s, p, k), 0.0), C, full((s, k), 0.0))
    return Point(z, full((s, k), 0.0), nothing, full((), DAMPING), full((), np.inf), full((), 0))


class Proposal(NamedTuple):
    """Where a step would lead, and the damping it was made with."""

    z: Float[Array, " p"]
    d: Float[Array, "s k"]
    damping: Float[Array, ""]


def iterate(problem: Problem, point: Point, ladder: np.ndarray | None = None) -> Point:
    """One damped Gauss-Newton step, taken if it lowers the cost: the best of a ladder of dampings, or that of a single one."""
    return accept(problem, point, propose(problem, point, ladder), ladder)


def propose(problem: Problem, point: Point, ladder: np.ndarray | None = None) -> Proposal:
    """The step of the lowest cost among those of a ladder of dampings."""
    dampings = point.damping * jnp.asarray([1.0] if ladder is None else ladder)
    forms = jnp.ones(1) if ladder is None else jnp.repeat(jnp.asarray([1.0, 0.0]), len(ladder))
    dampings = jnp.tile(dampings, len(forms) // len(dampings))
    z, d = jax.vmap(lambda form, damping: _candidate(problem, point, form, damping))(forms, dampings)
    best = jnp.zeros((), int) if ladder is None else _lowest(jax.vmap(problem.cost)(z, d))
    return Proposal(z[best], d[best], dampings[best])


def accept(problem: Problem, point: Point, proposal: Proposal, ladder: np.ndarray | None = None) -> Point:
    """The point with the normal equations there, if its cost is lower than the last one's."""
    z, d = proposal.z, proposal.d
    normal = problem.normal(z, d)
    old, new = point.normal.cost, normal.cost
    first = point.done == 0
    better = (new < old) & jnp.isfinite(normal.A).all()  # false where the cost is not a number
    gain = jnp.where(better & ~first, (old - new) / jnp.maximum(old, 1e-300), point.gain)
    easier, harder = (0.1, 8.0) if ladder is None else (1.0, 10 * ladder[-1])
    damping = jnp.clip(jnp.where(better, proposal.damping * easier, point.damping * harder), LEAST, MOST)
    kept = jax.tree.map(lambda a, b: jnp.where(better, a, b), (z, d, normal), (point.z, point.d, point.normal))
    z, d, normal = kept
    return Point(z, d, normal, jnp.where(first, point.damping, damping), gain, point.done + 1)


def settle(problem: Problem, z: Array, d: Array) -> Array:
    """The starts, with those of held-out segments estimated from their own data at fixed z: Levenberg-Marquardt for each."""
    apart = problem.held_out[:, None]

    def costs(normal: Normal, d: Array) -> Array:
        return 0.5 * jnp.sum(normal.r**2, axis=(1, 2)) + 0.5 * START_RIDGE * jnp.sum(d**2, axis=1)

    def step(_: int, carry: tuple[Array, Normal, Array]) -> tuple[Array, Normal, Array]:
        d, old, damping = carry
        C = old.C + damping[:, None, None] * _diagonal(old.C)
        trial = jnp.where(apart, d - jnp.linalg.solve(C, old.h[..., None])[..., 0], d)
        new = problem.normal(z, trial)
        better = costs(new, trial) < costs(old, d)
        r, C, h = (
            jnp.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b)
            for a, b in ((new.r, old.r), (new.C, old.C), (new.h, old.h))
        )
        damping = jnp.clip(jnp.where(better, damping / 10, damping * 8), LEAST, MOST)
        return jnp.where(better[:, None], trial, d), old._replace(r=r, C=C, h=h), damping

    d = jnp.where(apart, 0.0, d)
    begin = (d, problem.normal(z, d), jnp.full(len(d), DAMPING))
    return jax.lax.fori_loop(0, SETTLING, step, begin)[0]


def _lowest(costs: Array) -> Int[Array, ""]:
    return jnp.argmin(jnp.where(jnp.isfinite(costs), costs, jnp.inf))


def _candidate(problem: Problem, point: Point, form: Array, damping: Array) -> tuple[Array, Array]:
    """z and d after a step with this damping, of the first form of D (1) or the second (0)."""
    normal, slopes = point.normal, _slopes(problem, point.z)
    cost = jnp.where(jnp.isfinite(normal.cost), normal.cost, 0.0)
    added = 2 * cost / max(problem.count, 1) / TRUST**2 * slopes**2
    added = jnp.where(form > 0, added, (100 * damping + FLOOR) * added)
    dz, dd = solve(normal, damping, added, form, _limits(problem, point.z), lambda dz: _moved(problem, point.z, dz))
    return point.z + dz, point.d + jnp.where(problem.held_out[:, None], 0.0, dd)


def _slopes(problem: Problem, z: Array) -> Array:
    """Change of a parameter with its z, in units of its range or size."""
    share = jax.nn.sigmoid(z)
    return jnp.where(problem.bounded, share * (1 - share), jnp.where(problem.positive, share, 1.0))


def _limits(problem: Problem, z: Array) -> tuple[Array, Array]:
    """The least and the largest step: to the bounds, to a twentieth of a size, and as far as a curved chart can be trusted.

    Curved charts end `FENCE` below where the search started: an inertia that has become that of a rod or a disc has no
    derivative by which it could leave that again.
    """
    slopes, edge, share, size = _slopes(problem, z), np.exp(-FAR), jax.nn.sigmoid(z), jax.nn.softplus(z)
    low = jnp.where(problem.linear, -jnp.inf, jnp.maximum(-REACH, problem.start - FENCE - z))
    high = jnp.where(problem.linear, jnp.inf, REACH)
    low = jnp.where(problem.positive, (jnp.maximum(edge, 0.05 * size) - size) / slopes, low)
    low = jnp.where(problem.bounded, (edge - share) / slopes, low)
    high = jnp.where(problem.bounded, (1 - edge - share) / slopes, jnp.where(problem.positive, jnp.inf, high))
    return jnp.minimum(low, 0.0), jnp.maximum(high, 0.0)


def _moved(problem: Problem, z: Array, dz: Array) -> Array:
    """The change of z by which parameters change as a step dz would change them if the charts were straight."""
    slopes, edge = _slopes(problem, z), np.exp(-FAR)
    share = jnp.clip(jax.nn.sigmoid(z) + slopes * dz, edge, 1 - edge)
    size = jnp.maximum(jax.nn.softplus(z) + slopes * dz, edge)
    grown = size + jnp.log(-jnp.expm1(-size))
    return jnp.where(problem.bounded, jnp.log(share / (1 - share)), jnp.where(problem.positive, grown, z + dz)) - z


def solve(
    normal: Normal, damping: Array, added: Array | float = 0.0, form: Array | float = 1.0,
    limits: tuple[Array, Array] | None = None, moved: Callable[[Array], Array] = lambda dz: dz,
) -> tuple[Array, Array]:  # fmt: skip
    """The step (dz, dd) with D = form damping diag(A) + `added`, dz between `limits`; `moved` puts dz into the charts, and dd
    follows."""
    C = normal.C + damping * _diagonal(normal.C)
    inverse = jnp.linalg.inv(C)
    own = -jnp.einsum("skl,sl->sk", inverse, normal.h)
    D = form * damping * _diagonal(normal.A) + jnp.diag(jnp.broadcast_to(added, normal.g.shape))
    S, rhs = schur(normal, inverse, normal.A + D)
    dz = moved(_step(S, rhs) if limits is None else _step_within(S, rhs, *limits))
    return dz, own - jnp.einsum("skl,spl,p->sk", inverse, normal.B, dz)


def _step(S: Array, rhs: Array) -> Array:
    scale = jax.lax.rsqrt(jnp.maximum(jnp.diagonal(S), 1e-300))
    return -scale * jnp.linalg.solve(S * scale[:, None] * scale + 1e-14 * jnp.eye(len(S)), scale * rhs)


def _step_within(S: Array, rhs: Array, low: Array, high: Array) -> Array:
    """The step between limits: numbers that would cross theirs stop there, and the others are solved for again."""

    def once(_: int, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        dz, stopped, at = carry
        out = ~stopped & ((dz < low) | (dz > high))
        stopped, at = stopped | out, jnp.where(out, jnp.clip(dz, low, high), at)
        rest = jnp.where(stopped[:, None] | stopped, 0.0, S) + jnp.diag(jnp.where(stopped, 1.0, 0.0))
        return jnp.where(stopped, at, _step(rest, jnp.where(stopped, 0.0, rhs + S @ at))), stopped, at

    begin = (_step(S, rhs), jnp.zeros(len(rhs), bool), jnp.zeros_like(rhs))
    return jnp.clip(jax.lax.fori_loop(0, PASSES, once, begin)[0], low, high)


def schur(normal: Normal, inverse: Array, A: Array) -> tuple[Array, Array]:
    """A and g after the starts have been eliminated."""
    BC = jnp.einsum("spk,skl->spl", normal.B, inverse)
    return A - jnp.einsum("spk,sqk->pq", BC, normal.B), normal.g - jnp.einsum("spk,sk->p", BC, normal.h)


def _diagonal(blocks: Array) -> Array:
    d = jnp.diagonal(blocks, axis1=-2, axis2=-1)
    floor = 1e-12 * jnp.max(d, axis=-1, keepdims=True, initial=0.0) + 1e-300
    return jnp.maximum(d, floor)[..., None] * jnp.eye(blocks.shape[-1])
