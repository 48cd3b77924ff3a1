"""The solution of the NCP by sweeps and Newton steps, and its derivative.

Projected Gauss-Seidel finds who touches, sticks and slides, but its error shrinks slowly where contacts are redundant (a box
on four corners); Newton's method is fast where the modes are right and lost where they are not. Each iteration is therefore a
number of sweeps (12, 24, 48, 96) followed by up to three Newton steps in the modes that they found, and the better of the two
points is kept. Mostly the first iteration ends it.

At the solution every contact is open, sticking or sliding, and every row free or at a bound. Within its mode it obeys
three smooth equations R(v, x) = 0, v = J u + cfm x, and M (u - u0) = J^T x, so the tangents obey the linear system

    Rv J_i du + E_i dx_i + r_i = 0,    M du = b + sum_j J_j^T dx_j,    E = Rx + cfm Rv,    b, r: what the data contribute.

Eliminating dx leaves an nv x nv matrix M + sum J^T E^-1 Rv J, as sparse as M where only the world is touched. Newton's method
solves the same system. The factors contain no tangents, so JAX transposes the rest for reverse mode. Neither the start nor
the number of sweeps has a derivative.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from flexor.contact.laws import (
    SPINS,
    Block,
    Disc,
    Row,
    Slope,
    contact_law,
    contact_speed,
    linearised,
    row_law,
    slope,
    soft,
    softened,
    turned,
    turned_back,
)
from flexor.contact.problem import Problem, generalised_impulse, velocity, visit, visit_rows
from flexor.contact.sweep import Scales, bolder, into_disc, inverse3, scales_of, sweep
from flexor.dynamics.crba import solve_inertia
from flexor.dynamics.kept import kept
from flexor.simd import eliminate
from flexor.spatial import dot, matmul, matvec, take

DISCS = (slice(1, 3), *SPINS)  # rows of a contact whose impulses lie in a disc each


class Effort(NamedTuple):
    """How long the solver goes on: see the fields of these names of `NCP`."""

    iterations: int
    tolerance: float
    sweeps: tuple[int, int]
    newton_steps: int
    patience: int


class Solution(NamedTuple):
    """The velocity, impulses of contacts and of rows, the residual in velocity, and the number of iterations."""

    u: Float[Array, " nv"]
    x: Float[Array, "n 3"]
    y: Float[Array, " m"]
    residual: Float[Array, ""]
    iterations: Int[Array, ""]


class _Point(NamedTuple):
    """The velocity, impulses of contacts and rows, and their residual."""

    u: Array
    x: Array
    y: Array
    error: Array


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def solve_implicitly(effort: Effort, p: Problem, start: tuple[Array, Array]) -> Solution:
    """The velocity with the impulses that obey all laws, from the impulses `start`."""
    x, y = start
    if not len(p.cones.wanted) and not len(p.rows.wanted):
        return Solution(p.free, x, y, jnp.zeros((), x.dtype), jnp.zeros((), int))
    scales = scales_of(p)
    floor = jnp.maximum(effort.tolerance, 16 * jnp.finfo(p.free.dtype).eps * (1 + jnp.max(jnp.abs(p.free))))

    def iterate(carry: tuple[_Point, _Point, Array, Array]) -> tuple[_Point, _Point, Array, Array]:
        now, before, count, stale = carry
        sweeps, own = jnp.minimum(effort.sweeps[0] * 2**count, effort.sweeps[1]), bolder(scales, count)
        _, x, y = lax.fori_loop(0, sweeps, lambda _, z: sweep(p, own, *z), now[:3])
        swept = _point(p, scales, x, y)

        def descend(inner: tuple[_Point, _Point, Array]) -> tuple[_Point, _Point, Array]:
            now = _newton(p, scales, own, inner[0])
            return now, _best(p, now, inner[1]), inner[2] + 1

        start = (swept, _best(p, swept, before), jnp.zeros((), int))
        now, best, _ = lax.while_loop(lambda c: (c[2] < effort.newton_steps) & (c[1].error > floor), descend, start)
        # sweeps go on from where they were, unless Newton's method came closer
        return _best(p, now, swept), best, count + 1, jnp.where(best.error < 0.9 * before.error, 0, stale + 1)

    def unsolved(carry: tuple[_Point, _Point, Array, Array]) -> Array:
        return (carry[2] < effort.iterations) & (carry[3] < effort.patience) & (carry[1].error > floor)

    first, zero = _point(p, scales, x, y), jnp.zeros((), int)
    _, best, count, _ = lax.while_loop(unsolved, iterate, (first, first, zero, zero))
    return Solution(*best, count)


def _point(p: Problem, scales: Scales, x: Array, y: Array) -> _Point:
    u = velocity(p, x, y)
    return _Point(u, x, y, residual(p, scales, u, x, y))


def _best(p: Problem, new: _Point, old: _Point) -> _Point:
    """The one with the smaller residual; impulses that nobody uses are not touched."""
    closer = new.error < old.error

    def choose(_: None, item: tuple[Array, Array]) -> tuple[None, Array]:
        return None, jnp.where(closer, *item)

    def keep(_: None, item: tuple[Array, Array]) -> tuple[None, Array]:
        return None, item[1]

    _, x = visit(p.cones.active, choose, keep, None, (new.x, old.x))
    _, y = visit_rows(p.rows.active, choose, keep, None, (new.y, old.y))
    return _Point(jnp.where(closer, new.u, old.u), x, y, jnp.where(closer, new.error, old.error))


def _aim(u: Array, x: Array, block: Block, A: Array) -> tuple[Array, list[tuple[slice, Array, Array, Array]]]:
    """What a contact would like, before projection, given the velocity now: its normal impulse, and of each disc (the tangents,
    the spins) the rows, the coefficient of friction, the rate and the impulse."""
    lack = contact_speed(block, u, x)
    discs = [(slice(1, 3), block.friction, block.rate), *block.spins]
    return x[0] - (lack[0] - block.wanted) / A[0, 0], [(r, mu, rate, x[r] - rate * lack[r]) for r, mu, rate in discs]


def _aim_row(u: Array, y: Array, row: Row, a: Array) -> Array:
    """The same of a row."""
    return y - (dot(row.J, u) + row.cfm * y - row.wanted) / a


def residual(p: Problem, scales: Scales, u: Array, x: Array, y: Array) -> Array:
    """Largest violation of the laws in m/s or rad/s: how far the impulses are from their projections, times the compliance."""

    def contact(worst: Array, item: tuple[Array, Block, Array]) -> tuple[Array, None]:
        x, block, A = item
        normal, discs = _aim(u, x, block, A)
        off = jnp.abs((x[0] - jnp.maximum(normal, 0.0)) * A[0, 0])
        for rows, friction, rate, aim in discs:
            off_t = (x[rows] - into_disc(aim, friction * jnp.maximum(x[0], 0.0))) / rate
            off = jnp.maximum(off, jnp.max(jnp.abs(off_t)))
        return jnp.maximum(worst, off), None

    def limit(worst: Array, item: tuple[Array, Row, Array]) -> tuple[Array, None]:
        y, row, a = item
        off = (y - jnp.clip(_aim_row(u, y, row, a), row.low, row.high)) * a
        return jnp.maximum(worst, jnp.abs(off)), None

    zero = jnp.zeros((), x.dtype)
    blocks = p.cones.blocks(scales.rate, scales.spin_rate)
    worst, _ = visit(p.cones.active, contact, lambda w, _: (w, None), zero, (x, blocks, scales.A))
    return visit_rows(p.rows.active, limit, lambda w, _: (w, None), worst, (y, p.rows.data(), scales.a_row))[0]


def _mode(u: Array, x: Array, block: Block, A: Array) -> tuple[Array, ...]:
    """Mode of a contact (closed, sliding, whether each spin slides), by where projection puts it."""
    normal, discs = _aim(u, x, block, A)
    return normal > 0, *(dot(aim, aim) >= (friction * x[0]) ** 2 for _, friction, _, aim in discs)


def _mode_row(u: Array, y: Array, row: Row, a: Array) -> tuple[Array, Array]:
    """Mode of a row (at the lower, at the upper bound)."""
    aim = _aim_row(u, y, row, a)
    return aim <= row.low, aim >= row.high


class _Laws(NamedTuple):
    """The laws of contacts or rows where they are now: R, dR/dv, dR/dx, and what gives their tangents."""

    R: Array
    Rv: Array
    Rx: Array
    part: tuple[Any, ...]


def _laws(p: Problem, scales: Scales, u: Array, x: Array, y: Array) -> tuple[_Laws, _Laws]:
    """The laws of all contacts and of all rows, each in the mode that its impulse is in."""
    blocks, rows = p.cones.blocks(scales.rate, scales.spin_rate), p.rows.data()
    closed, *sliding = _each(_mode, (p.cones.active, p.cones.active), (u, x, blocks, scales.A), (None, 0, 0, 0))
    low, high = _each(_mode_row, (p.rows.active, p.rows.active), (u, y, rows, scales.a_row), (None, 0, 0, 0))
    v, v_row = matvec(p.cones.J, u) + _compliance(p.cones.cfm, x) * x, matvec(p.rows.J, u) + p.rows.cfm * y
    v = v if p.cones.carry is None else v + p.cones.carry
    idle = ~p.rows.active  # an idle row stays where it is: at zero, as if that were its lower bound
    rows = rows._replace(low=jnp.where(idle, 0.0, rows.low))
    part, part_row = ((closed & p.cones.active, *sliding), v, x, blocks), ((low | idle, high), v_row, y, rows)
    R, Rv, Rx = _each(partial(linearised, contact_law), (v, scales.A, scales.A), part)
    r, rv, rx = _each(partial(linearised, row_law), (v_row, v_row, v_row), part_row)
    return _Laws(R, Rv, Rx, (contact_law, *part)), _Laws(r, rv, rx, (row_law, *part_row))


def _compliance(cfm: Array, x: Array) -> Array:
    """The compliance of every row of all contacts: that of normal and tangents, none for angular rows."""
    return cfm[:, None] * jnp.asarray(np.arange(x.shape[1]) < 3, x.dtype)[None] if x.shape[1] > 3 else cfm[:, None]


def _each(f: Callable[..., Any], none: Any, items: tuple[Any, ...], axes: Any = 0) -> Any:
    """`jax.vmap` of f over all contacts or all rows; where there are none, `none` is the result and f is not even traced."""
    return jax.vmap(f, axes)(*items) if len(jax.tree.leaves(items[-1])[0]) else none


def _newton(p: Problem, scales: Scales, own: Scales, now: _Point) -> _Point:
    """A point along the Newton step: the first that is better than where it started, or the best of all tried, which may be
    worse: the way to the right modes can lead uphill. The modes are those by the scales of this iteration, `own`."""
    dx, dy = _newton_step(p, own, *now[:3])

    def stay(_: None, item: tuple[Array, ...]) -> tuple[None, Array]:
        return None, item[0]

    def add(_: None, item: tuple[Array, ...]) -> tuple[None, Array]:
        return None, item[0] + item[1]

    def point_at(length: Array) -> _Point:
        def contact(_: None, item: tuple[Array, Array, Block]) -> tuple[None, Array]:
            x, dx, block = item
            xn = jnp.maximum(x[0] + length * dx[0], 0.0)
            discs = [(slice(1, 3), block.friction), *((rows, mu) for rows, mu, _ in block.spins)]
            return None, jnp.concatenate([xn[None], *(into_disc(x[r] + length * dx[r], mu * xn) for r, mu in discs)])

        def row(_: None, item: tuple[Array, ...]) -> tuple[None, Array]:
            y, dy, low, high = item
            return None, jnp.clip(y + length * dy, low, high)

        _, x = visit(p.cones.active, contact, stay, None, (now.x, dx, p.cones.blocks(scales.rate, scales.spin_rate)))
        _, y = visit_rows(p.rows.active, row, stay, None, (now.y, dy, p.rows.low, p.rows.high))
        return _point(p, scales, x, y)

    def shorter(carry: tuple[_Point, Array]) -> tuple[_Point, Array]:
        best, length = carry
        return _best(p, point_at(length), best), length / 2

    _, x = visit(p.cones.active, add, stay, None, (now.x, dx))
    _, y = visit_rows(p.rows.active, add, stay, None, (now.y, dy))
    full = _point(p, scales, x, y)
    full = full._replace(error=jnp.where(jnp.isnan(full.error), jnp.inf, full.error))
    one = jnp.ones((), x.dtype)
    return lax.while_loop(lambda c: (c[1] > 0.1) & (c[0].error >= now.error), shorter, (full, one))[0]


def _newton_step(p: Problem, scales: Scales, u: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Newton step for the laws in the modes that the impulses are in now.

    With dx = -(z + K J du) and M du = J^T dx, the step solves (M + sum J^T K J) du = -sum J^T z.
    """

    def contact(carry: tuple[Array, Array], item: tuple[Any, ...]) -> tuple[Any, Slope]:
        x, block, A, stiff, spin_stiff = item
        k = slope(block, A, stiff, spin_stiff, u, x)
        n, (H, b) = block.J[0], carry
        left, force, more = n, n * k.z, []
        for rows, disc in zip(DISCS, k.discs, strict=False):
            a, c = turned(disc.aim, block.J[rows])
            left, force = left + disc.cone * a, force + (a * disc.z[0] + c * disc.z[1])
            more += [(a, disc.along * a), (c, disc.across * c)]
        for column, row in ((left, k.normal * n), *more):
            H = H + column[:, None] * row[None]
        return (H, b - force), k

    def limit(carry: tuple[Array, Array], item: tuple[Array, Row, Array]) -> tuple[Any, Any]:
        y, row, a = item
        R, Rv, Rx = linearised(row_law, _mode_row(u, y, row, a), dot(row.J, u) + row.cfm * y, y, row)
        E = Rx + jnp.maximum(row.cfm, soft(a.dtype) * a) * Rv
        H, b = carry
        K, z = Rv / E, R / E
        return (H + row.J[:, None] * (K * row.J)[None], b - row.J * z), (K, z)

    zero, zeros = jnp.zeros((), x.dtype), jnp.zeros_like(p.free)
    blocks = (x, p.cones.blocks(scales.rate, scales.spin_rate), scales.A, scales.stiff, scales.spin_stiff)
    widths = [rows.stop - rows.start for rows in DISCS if rows.stop <= x.shape[1]]
    discs = [Disc(jnp.zeros(n, x.dtype), zero, zero, zero, jnp.zeros(2, x.dtype)) for n in widths]
    idle = Slope(zero, zero, tuple(discs))
    system, slopes = visit(p.cones.active, contact, lambda c, _: (c, idle), (p.M, zeros), blocks)
    rows = (y, p.rows.data(), scales.a_row)
    system, row_slopes = visit_rows(p.rows.active, limit, lambda c, _: (c, (zero, zero)), system, rows)
    du = _substitute(_eliminate(system[0]), system[1])

    def response(_: None, item: tuple[Array, Slope]) -> tuple[None, Array]:
        J, k = item
        dv = matvec(J, du)
        normal = k.normal * dv[0]
        found = [(k.z + normal)[None]]
        for rows, disc in zip(DISCS, k.discs, strict=False):
            da, dc = turned(disc.aim, dv[rows])
            along, across = disc.z[0] + disc.along * da + disc.cone * normal, disc.z[1] + disc.across * dc
            found.append(turned_back(disc.aim, along, across))
        return None, -jnp.concatenate(found)

    def response_row(_: None, item: tuple[Array, tuple[Array, Array]]) -> tuple[None, Array]:
        J, (K, z) = item
        return None, -z - K * dot(J, du)

    _, dx = visit(
        p.cones.active, response, lambda _, item: (None, jnp.zeros(x.shape[1], x.dtype)), None, (p.cones.J, slopes)
    )
    _, dy = visit_rows(p.rows.active, response_row, lambda _, item: (None, zero), None, (p.rows.J, row_slopes))
    return dx, dy


def _eliminate(H: Array, written_out: int = 32) -> list[tuple[Array, Array, Array]]:
    """Pivots (inverted), rows and columns of an elimination without row exchanges, leaves of the tree first, where M's
    branches bring no fill-in.

    Friction makes H unsymmetric, so a pivot may vanish though H is regular. Lanes cannot exchange rows each as it likes; a pivot
    that is nothing beside its row is moved away from zero instead (Li & Demmel 1998), and what solves with the factors corrects
    for it. Up to `written_out` degrees of freedom the program is written out, its zeros found; beyond it is a loop.
    """
    H = H[::-1, ::-1]
    factors, least = [], float(jnp.finfo(H.dtype).eps) ** 0.75
    if len(H) > written_out:
        packed = eliminate(H, least)
        return [(packed[k, k], packed[k, k + 1 :], packed[k + 1 :, k]) for k in range(len(H))]
    while len(H):
        pivot, floor = H[0, 0], least * jnp.max(jnp.abs(H[0]))
        inverse = 1 / jnp.where(jnp.abs(pivot) < floor, jnp.copysign(floor, pivot), pivot)
        factors.append((inverse, H[0, 1:] * inverse, H[1:, 0]))
        H = H[1:, 1:] - H[1:, :1] * factors[-1][1][None]
    return factors


def _substitute(factors: list[tuple[Array, Array, Array]], b: Array) -> Array:
    """H^-1 b."""
    b, values = b[::-1], []
    for inverse, _, column in factors:
        values.append(b[0] * inverse)
        b = b[1:] - column * values[-1]
    x = b
    for (_, row, _), value in zip(reversed(factors), reversed(values), strict=True):
        x = jnp.concatenate([(value - dot(row, x))[None], x])
    return x[::-1]


@solve_implicitly.defjvp
def _solve_jvp(effort: Effort, primals: Any, tangents: Any) -> Any:
    """Tangents of velocity and impulses: what the data contribute, b = M dfree - dM (u - free) + dJ^T x and r, then as in
    `_newton_step`, once more for the error that rounding and Newton's own compliance leave."""
    p, start = primals
    dp: Problem = tangents[0]
    u, x, y, error, count = (kept(z) for z in solve_implicitly(effort, p, start))
    scales = scales_of(p)
    contact, row = _laws(p, scales, u, x, y)
    respond = _responses(p, scales, contact, row)
    b = matvec(p.M, dp.free) - matvec(dp.M, u - p.free) + generalised_impulse(dp.cones.J, x) + y @ dp.rows.J
    dv = matvec(dp.cones.J, u) + _compliance(dp.cones.cfm, x) * x
    dv = dv if dp.cones.carry is None else dv + dp.cones.carry
    still_rates = (jnp.zeros_like(scales.rate), None if scales.spin_rate is None else jnp.zeros_like(scales.spin_rate))
    r = matvec(contact.Rv, dv) + _data_tangents(contact.part, dp.cones.blocks(*still_rates))
    r_row = row.Rv * (matvec(dp.rows.J, u) + dp.rows.cfm * y) + _data_tangents(row.part, dp.rows.data())
    dx, dy = respond(b, r, r_row)
    du = solve_inertia(p.M, p.chol, b + generalised_impulse(p.cones.J, dx) + dy @ p.rows.J)
    moved = matvec(p.cones.J, du) + _compliance(p.cones.cfm, x) * dx
    off = matvec(contact.Rv, moved) + matvec(contact.Rx, dx) + r
    off_row = row.Rv * (matvec(p.rows.J, du) + p.rows.cfm * dy) + row.Rx * dy + r_row
    more, more_row = respond(jnp.zeros_like(b), off, off_row)
    du = du + solve_inertia(p.M, p.chol, generalised_impulse(p.cones.J, more) + more_row @ p.rows.J)
    still: Any = np.zeros((), jax.dtypes.float0)
    return Solution(u, x, y, error, count), Solution(du, dx + more, dy + more_row, jnp.zeros_like(error), still)


def _responses(p: Problem, scales: Scales, contact: _Laws, row: _Laws) -> Callable[..., tuple[Array, Array]]:
    """The linear map (b, r, r_row) -> (dx, dy) of the linearised laws; what it needs is computed once."""
    compliance = softened(p.cones.cfm, scales.A)[:, None, None]
    if scales.spin_stiff is not None:
        spins = 1 / take(scales.spin_stiff.T, np.array([0, 1, 1])[: p.cones.J.shape[1] - 3]).T
        compliance = jnp.concatenate([jnp.broadcast_to(compliance[:, 0], (len(spins), 3)), spins], axis=1)[:, None]
    E_inv = _each(_inverse, contact.Rx, (contact.Rx + compliance * contact.Rv,))
    E_row = row.Rx + jnp.maximum(p.rows.cfm, soft(p.M.dtype) * scales.a_row) * row.Rv
    KJ, KJ_row = matmul(matmul(E_inv, contact.Rv), p.cones.J), (row.Rv / E_row)[:, None] * p.rows.J
    H = p.M + p.rows.J.T @ KJ_row
    H = H + jnp.einsum("nka,nkb->ab", p.cones.J, KJ) if len(KJ) else H
    factors = _eliminate(H)

    def respond(b: Array, r: Array, r_row: Array) -> tuple[Array, Array]:
        z, z_row = matvec(E_inv, r), r_row / E_row
        du = _substitute(factors, b - generalised_impulse(p.cones.J, z) - z_row @ p.rows.J)
        return -z - matvec(KJ, du), -z_row - matvec(KJ_row, du)

    return respond


def _inverse(E: Array) -> Array:
    """Inverse of E of one contact; with spins each disc knows itself and the normal alone."""
    if len(E) == 3:
        return inverse3(E)
    out, normal = jnp.zeros_like(E), 1 / _nonzero(E[0, 0])
    out = out.at[0, 0].set(normal)
    for rows in DISCS:
        if rows.stop <= len(E):
            own = _inverse2(E[rows, rows])
            out = out.at[rows, rows].set(own).at[rows, 0].set(-matvec(own, E[rows, 0]) * normal)
    return out


def _inverse2(E: Array) -> Array:
    if len(E) == 1:
        return 1 / _nonzero(E)
    det = E[0, 0] * E[1, 1] - E[0, 1] * E[1, 0]
    return jnp.stack([jnp.stack([E[1, 1], -E[0, 1]]), jnp.stack([-E[1, 0], E[0, 0]])]) / _nonzero(det)


def _nonzero(x: Array) -> Array:
    return jnp.where(jnp.abs(x) > jnp.finfo(x.dtype).tiny, x, 1.0)


def _data_tangents(part: tuple[Any, ...], ddata: Any) -> Array:
    """What a change of the data contributes to R of every contact or row, at fixed v and impulses."""
    law, mode, v, x, data = part

    def tangent(mode: Any, v: Array, x: Array, data: Any, ddata: Any) -> Array:
        return jax.jvp(lambda d: law(mode, v, x, d), (data,), (ddata,))[1]

    return _each(tangent, v, (mode, v, x, data, ddata))
