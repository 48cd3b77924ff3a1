"""Levenberg-Marquardt, with the starts of the segments eliminated from every step.

    [A + D   B      ] [dz]      [g]          D = l diag(A) + e U^2    or    D = 100 l e U^2
    [B^T     C + l D_C] [dd] = - [h]          e = (mean square of the weighted errors) / TRUST^2

C is block diagonal (a start touches only its own segment), so the step costs one p x p system, the Schur complement
A + D - sum_s B_s (C_s + l D_s)^-1 B_s^T, whatever the number of segments. Written here, because optimistix solves the
whole Jacobian densely; one iteration is one pure function, so that a population of them runs under `vmap`.

l diag(A) is Marquardt's (1963). e U^2 holds in place what the data do not determine: a damping that falls with the square of
the errors keeps the convergence quadratic even where A is singular (Fan & Yuan 2005). U are the slopes of the charts, for a
step is meant in the parameters themselves: charts are flat near their ends (a damping near zero, a mass at its bound), where
a step in z means nothing. So a step is taken in shares of the range or the size and then put back into z (`_moved`). Numbers
that it would take beyond their bounds stop there, and the others are solved for again.

Errors alone cost a hundredth of errors and Jacobian, and lanes are free: a ladder of l in both forms of D is tried at once, and
the Jacobian is taken at the best. The algebra of a single search is left to numpy, which has nothing to compile; that of a
population is the same functions traced by JAX.
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
TRUST = 0.3  # of a range or size: how far a step goes in directions that the data do not determine
PASSES = 4  # rounds in which numbers stop at their bounds
FLOOR = 1e-3  # of the second damping that always stays
LADDER = 10.0 ** np.arange(-3, 4)
"""Dampings that are tried at once, in units of the last one that was good."""
SAMPLE = 64  # training segments that choose one of them; whether it is accepted depends on all segments


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
    full: Callable[..., Any] = np.full  # of numpy, which compiles nothing
    r = full((len(problem.derived), *problem.segments.measured.shape[1:]), 0.0)
    A, C = full((p, p), np.eye(p)), full((s, k, k), np.eye(k))
    nothing = Normal(full((), np.inf), r, A, full(p, 0.0), full((s, p, k), 0.0), C, full((s, k), 0.0))
    return Point(z, full((s, k), 0.0), nothing, full((), DAMPING), full((), np.inf), full((), 0))


class Proposal(NamedTuple):
    """Where a step would lead, and the damping it was made with; or, with a leading axis, several of them."""

    z: Float[Array, " p"]
    d: Float[Array, "s k"]
    damping: Float[Array, ""]


def iterate(problem: Problem, point: Point) -> Point:
    """One damped Gauss-Newton step, taken if it lowers the cost."""
    step = _candidate(problem, point, 1.0, point.damping)
    return accept(problem, point, Proposal(*step, point.damping))


def proposals(problem: Problem, point: Point, ladder: np.ndarray) -> Proposal:
    """Steps with a ladder of dampings, in both forms of D; by numpy."""
    point = jax.tree.map(np.asarray, point)
    forms, dampings = np.repeat([1.0, 0.0], len(ladder)), np.tile(point.damping * ladder, 2)
    with np.errstate(all="ignore"):
        made = [Proposal(*_candidate(problem, point, form, l), l) for form, l in zip(forms, dampings, strict=True)]
    stack: Callable[..., Any] = np.stack
    return jax.tree.map(lambda *x: stack(x), *made)


def choose(problem: Problem, proposals: Proposal) -> Proposal:
    """The proposal with the lowest cost."""
    costs = problem.costs(proposals.z, proposals.d, most=SAMPLE)
    best = jnp.argmin(jnp.where(jnp.isfinite(costs), costs, jnp.inf))
    return jax.tree.map(lambda x: x[best], proposals)


def accept(problem: Problem, point: Point, proposal: Proposal, ladder: np.ndarray | None = None) -> Point:
    """The point with the normal equations there, if its cost is lower than the last one's; `ladder` is what was tried."""
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


def _candidate(problem: Problem, point: Point, form: Array | float, damping: Array) -> tuple[Array, Array]:
    """z and d after a step with this damping, of the first form of D (1) or the second (0)."""
    xp, normal, slopes = _namespace(point.z), point.normal, _slopes(problem, point.z)
    cost = xp.where(xp.isfinite(normal.cost), normal.cost, 0.0)
    added = 2 * cost / max(problem.count, 1) / TRUST**2 * slopes**2
    added = xp.where(form > 0, added, (100 * damping + FLOOR) * added)
    dz, dd = solve(normal, damping, added, form, _limits(problem, point.z), lambda dz: _moved(problem, point.z, dz))
    return point.z + dz, point.d + xp.where(problem.held_out[:, None], 0.0, dd)


def _namespace(x: Any) -> Any:
    """numpy for its own arrays, else JAX."""
    return np if isinstance(x, np.ndarray) else jnp


def _sigmoid(z: Array) -> Array:
    return 1 / (1 + _namespace(z).exp(-z))


def _softplus(z: Array) -> Array:
    return _namespace(z).logaddexp(z, 0.0)


def _slopes(problem: Problem, z: Array) -> Array:
    """Change of a parameter with its z, in units of its range or size."""
    xp, share = _namespace(z), _sigmoid(z)
    return xp.where(problem.bounded, share * (1 - share), xp.where(problem.positive, share, 1.0))


def _limits(problem: Problem, z: Array) -> tuple[Array, Array]:
    """The least and the largest step: to the bounds, to a twentieth of a size, and as far as a curved chart can be trusted.

    Curved charts end `FENCE` below where the search started: once an inertia has degenerated to a rod or a disc, its
    derivatives do not lead back.
    """
    xp, slopes, edge, share, size = _namespace(z), _slopes(problem, z), np.exp(-FAR), _sigmoid(z), _softplus(z)
    low = xp.where(problem.linear, -xp.inf, xp.maximum(-REACH, problem.start - FENCE - z))
    high = xp.where(problem.linear, xp.inf, REACH)
    low = xp.where(problem.positive, (xp.maximum(edge, 0.05 * size) - size) / slopes, low)
    low = xp.where(problem.bounded, (edge - share) / slopes, low)
    high = xp.where(problem.bounded, (1 - edge - share) / slopes, xp.where(problem.positive, xp.inf, high))
    return xp.minimum(low, 0.0), xp.maximum(high, 0.0)


def _moved(problem: Problem, z: Array, dz: Array) -> Array:
    """The change of z by which parameters change as a step dz would change them if the charts were straight."""
    xp, slopes, edge = _namespace(z), _slopes(problem, z), np.exp(-FAR)
    share = xp.clip(_sigmoid(z) + slopes * dz, edge, 1 - edge)
    size = xp.maximum(_softplus(z) + slopes * dz, edge)
    grown = size + xp.log(-xp.expm1(-size))
    return xp.where(problem.bounded, xp.log(share / (1 - share)), xp.where(problem.positive, grown, z + dz)) - z


def solve(
    normal: Normal, damping: Array, added: Array | float = 0.0, form: Array | float = 1.0,
    limits: tuple[Array, Array] | None = None, moved: Callable[[Array], Array] = lambda dz: dz,
) -> tuple[Array, Array]:  # fmt: skip
    """The step (dz, dd) with D = form damping diag(A) + `added`, dz between `limits`; `moved` puts dz into the charts, and dd
    follows."""
    xp = _namespace(normal.A)
    C = normal.C + damping * _diagonal(normal.C)
    inverse = xp.linalg.inv(C) if C.size else C
    D = form * damping * _diagonal(normal.A) + xp.diag(xp.broadcast_to(added, normal.g.shape))
    S, rhs = schur(normal, inverse, normal.A + D)
    dz = moved(_step(S, rhs) if limits is None else _step_within(S, rhs, *limits))
    return dz, -(inverse @ (normal.h + xp.tensordot(dz, normal.B, (0, 1)))[..., None])[..., 0]


def _step(S: Array, rhs: Array) -> Array:
    xp: Any = _namespace(S)
    scale = 1 / xp.sqrt(xp.maximum(xp.diagonal(S), 1e-300))
    system = S * scale[:, None] * scale[None] + 1e-14 * xp.eye(len(S))
    try:
        return -scale * xp.linalg.solve(system, scale * rhs)
    except np.linalg.LinAlgError:  # numpy raises where JAX returns NaN
        return xp.full_like(rhs, np.nan)


def _step_within(S: Array, rhs: Array, low: Array, high: Array) -> Array:
    """The step between limits: numbers that would cross theirs stop there, and the others are solved for again."""
    xp = _namespace(S)

    def once(_: int, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        dz, stopped, at = carry
        out = ~stopped & ((dz < low) | (dz > high))
        stopped, at = stopped | out, xp.where(out, xp.clip(dz, low, high), at)
        rest = xp.where(stopped[:, None] | stopped[None], 0.0, S) + xp.diag(xp.where(stopped, 1.0, 0.0))
        return xp.where(stopped, at, _step(rest, xp.where(stopped, 0.0, rhs + S @ at))), stopped, at

    carry = (_step(S, rhs), xp.zeros(len(rhs), bool), xp.zeros_like(rhs))
    if xp is np:
        for k in range(PASSES):
            carry = once(k, carry)
    else:
        carry = jax.lax.fori_loop(0, PASSES, once, carry)
    return xp.clip(carry[0], low, high)


def schur(normal: Normal, inverse: Array, A: Array) -> tuple[Array, Array]:
    """A and g after the starts have been eliminated."""
    xp, BC = _namespace(A), normal.B @ inverse
    return A - xp.tensordot(BC, normal.B, ((0, 2), (0, 2))), normal.g - xp.tensordot(BC, normal.h, ((0, 2), (0, 1)))


def _diagonal(blocks: Array) -> Array:
    xp = _namespace(blocks)
    d = xp.diagonal(blocks, axis1=-2, axis2=-1)
    floor = 1e-12 * xp.max(d, axis=-1, keepdims=True, initial=0.0) + 1e-300
    return xp.where(np.eye(blocks.shape[-1], dtype=bool), xp.maximum(d, floor)[..., None], 0.0)
