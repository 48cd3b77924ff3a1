"""The solution of the NCP by sweeps and Newton steps, and its derivative.

Projected Gauss-Seidel finds who touches, sticks and slides, but its error shrinks slowly where contacts are redundant (a box
on four corners). Each iteration is therefore a few sweeps followed by up to three Newton steps in the modes that they found,
and the best point is kept; a handful of iterations then reaches rounding.

At the solution every contact is open, sticking or sliding, and every joint row free or at a bound. Within its mode it obeys
three smooth equations R(u, x) = 0, so with u = u0 + Y x the tangents obey the linear system

    C_i du + E_i dx_i + r_i = 0,      du = du0 + sum_j Y_j dx_j,      C = dR/du,  E = dR/dx,  r = what the data contribute.

It is solved by block elimination with an nv x nv operator T that holds the response of all contacts eliminated so far:
D_i = C_i T Y_i + E_i, then T <- T - (T Y_i) D_i^-1 (C_i T). Cost and program grow linearly with the contacts; the factors
contain no tangents, so JAX transposes the rest for reverse mode. Neither the start nor the number of sweeps has a derivative.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from flexor.spatial import cross, dot, matmul, matvec


class Problem(NamedTuple):
    """Data of the NCP: contacts (blocks of normal and two tangents), then joint rows. Y = M^-1 J^T, `wanted` is w."""

    free: Float[Array, " nv"]
    J: Float[Array, "n 3 nv"]
    Y: Float[Array, "n nv 3"]
    wanted: Float[Array, " n"]
    cfm: Float[Array, " n"]
    friction: Float[Array, " n"]
    J_row: Float[Array, "m nv"]
    Y_row: Float[Array, "m nv"]
    wanted_row: Float[Array, " m"]
    cfm_row: Float[Array, " m"]
    low: Float[Array, " m"]
    high: Float[Array, " m"]


class _Block(NamedTuple):
    """One contact, or with a leading axis all of them, as the equations see it; `rate` scales slip to impulse."""

    J: Array
    wanted: Array
    cfm: Array
    friction: Array
    rate: Array


class _Row(NamedTuple):
    """One joint row, or with a leading axis all of them."""

    J: Array
    wanted: Array
    cfm: Array
    low: Array
    high: Array


def _blocks(p: Problem, rate: Array) -> _Block:
    return _Block(p.J, p.wanted, p.cfm, p.friction, rate)


def _rows(p: Problem) -> _Row:
    return _Row(p.J_row, p.wanted_row, p.cfm_row, p.low, p.high)


def velocity(p: Problem, x: Array, y: Array) -> Array:
    """u = u0 + Y x."""
    return p.free + jnp.einsum("nvk,nk->v", p.Y, x) + y @ p.Y_row


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def solve_implicitly(
    iterations: int, tolerance: float, p: Problem, start: tuple[Array, Array]
) -> tuple[Array, Array, Array, Array]:
    """Impulses of contacts and of joint rows, the residual in velocity, and the number of iterations."""
    x, y = start
    if not len(p.wanted) and not len(p.wanted_row):
        return x, y, jnp.zeros((), x.dtype), jnp.zeros((), int)
    scales = _scales(p)
    floor = jnp.maximum(tolerance, 16 * jnp.finfo(p.free.dtype).eps * (1 + jnp.max(jnp.abs(p.free))))

    def iterate(carry: tuple[Any, Any, Array]) -> tuple[Any, Any, Array]:
        now, best, count = carry
        # a number of sweeps that varies from one iteration to the next keeps sweeps and Newton steps out of cycles
        x, y = lax.fori_loop(0, 1 + count % 7, lambda _, z: _sweep(p, scales, *z), now[:2])
        now = (x, y, residual(p, scales, x, y))

        def descend(inner: tuple[Any, Any, Array]) -> tuple[Any, Any, Array]:
            now = _newton(p, scales, *inner[0][:2])
            return now, _better(now, inner[1]), inner[2] + 1

        start = (now, _better(now, best), jnp.zeros((), int))
        now, best, _ = lax.while_loop(lambda c: (c[2] < 3) & (c[1][2] > floor), descend, start)
        return now, best, count + 1

    first = (x, y, residual(p, scales, x, y))
    done = lax.while_loop(lambda c: (c[2] < iterations) & (c[1][2] > floor), iterate, (first, first, jnp.zeros((), int)))
    return *done[1], done[2]


def _better(new: Any, best: Any) -> Any:
    """The one of two points (x, y, residual) with the smaller residual."""
    return jax.tree.map(lambda a, b: jnp.where(new[2] < best[2], a, b), new, best)


class _Scales(NamedTuple):
    """Own compliance of contacts and rows (with CFM), its inverse, and the rates of the projections."""

    A: Array
    A_inv: Array
    rate: Array
    a_row: Array


def _scales(p: Problem) -> _Scales:
    A = matmul(p.J, p.Y) + p.cfm[:, None, None] * jnp.eye(3, dtype=p.J.dtype)
    # a direction in which nothing moves has no compliance; any positive number serves there, since no impulse can act
    tiny = jnp.finfo(A.dtype).tiny
    normal = jnp.where(A[:, 0, 0] > tiny, A[:, 0, 0], 1.0)
    A = A.at[:, 0, 0].set(normal)
    slip = _largest(A[:, 1:, 1:])
    a_row = dot(p.J_row, p.Y_row) + p.cfm_row
    return _Scales(A, _inverse3(A), 1 / jnp.where(slip > tiny, slip, 1.0), jnp.where(a_row > tiny, a_row, 1.0))


def _aims(p: Problem, scales: _Scales, x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Impulses that each contact (normal, tangents) and each row would like, before projection, given the velocity now."""
    u = velocity(p, x, y)
    lack = matvec(p.J, u) + p.cfm[:, None] * x
    normal = x[:, 0] - (lack[:, 0] - p.wanted) / scales.A[:, 0, 0]
    row = y - (matvec(p.J_row, u) + p.cfm_row * y - p.wanted_row) / scales.a_row
    return normal, x[:, 1:] - scales.rate[:, None] * lack[:, 1:], row


def residual(p: Problem, scales: _Scales, x: Array, y: Array) -> Array:
    """Largest violation of the laws in m/s or rad/s: how far the impulses are from their projections, times the compliance."""
    normal, tangent, row = _aims(p, scales, x, y)
    off_n = (x[:, 0] - jnp.maximum(normal, 0.0)) * scales.A[:, 0, 0]
    off_t = (x[:, 1:] - _into_disc(tangent, p.friction * jnp.maximum(x[:, 0], 0.0))) / scales.rate[:, None]
    off_row = (y - jnp.clip(row, p.low, p.high)) * scales.a_row
    parts = [jnp.max(jnp.abs(off), initial=0.0) for off in (off_n, off_t, off_row)]
    return jnp.maximum(parts[0], jnp.maximum(parts[1], parts[2]))


def modes(p: Problem, scales: _Scales, x: Array, y: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Modes of contacts (closed, sliding) and rows (at the lower, at the upper bound), by where projection puts them."""
    normal, tangent, row = _aims(p, scales, x, y)
    sliding = dot(tangent, tangent) >= (p.friction * x[:, 0]) ** 2
    return (normal > 0, sliding), (row <= p.low, row >= p.high)


def _sweep(p: Problem, scales: _Scales, x: Array, y: Array) -> tuple[Array, Array]:
    """One projected Gauss-Seidel sweep over all contacts, then over all rows."""
    u = velocity(p, x, y)
    u, x = lax.scan(_visit_contact, u, (x, _blocks(p, scales.rate), p.Y, scales.A, scales.A_inv))
    _, y = lax.scan(_visit_row, u, (y, _rows(p), p.Y_row, scales.a_row))
    return x, y


def _visit_contact(u: Array, item: tuple[Any, ...]) -> tuple[Array, Array]:
    """One contact given all others: the sticking impulse if the cone holds it, else normal, then tangents projected."""
    x, block, Y, A, A_inv = item
    lack = matvec(block.J, u) + block.cfm * x - jnp.zeros_like(x).at[0].set(block.wanted)
    stick = x - matvec(A_inv, lack)
    holds = (stick[0] > 0) & (dot(stick[1:], stick[1:]) <= (block.friction * stick[0]) ** 2)
    xn = jnp.maximum(x[0] - lack[0] / A[0, 0], 0.0)
    slip = lack[1:] + A[1:, 0] * (xn - x[0])
    xt = _into_disc(x[1:] - block.rate * slip, block.friction * xn)
    new = jnp.where(holds, stick, jnp.concatenate([xn[None], xt]))
    return u + matvec(Y, new - x), new


def _visit_row(u: Array, item: tuple[Any, ...]) -> tuple[Array, Array]:
    y, row, Y, a = item
    new = jnp.clip(y - (dot(row.J, u) + row.cfm * y - row.wanted) / a, row.low, row.high)
    return u + Y * (new - y), new


def _into_disc(x: Array, radius: Array) -> Array:
    length = jnp.sqrt(dot(x, x) + jnp.finfo(x.dtype).tiny)
    return x * jnp.minimum(1.0, radius / length)[..., None]


def _largest(A: Array) -> Array:
    """Largest eigenvalue of a symmetric 2 x 2 matrix."""
    mean, half = (A[..., 0, 0] + A[..., 1, 1]) / 2, (A[..., 0, 0] - A[..., 1, 1]) / 2
    return mean + jnp.sqrt(half**2 + A[..., 0, 1] ** 2)


def _inverse3(A: Array) -> Array:
    """Inverse by cofactors; a singular matrix gives a finite one instead, which no active contact uses."""
    rows = [cross(A[..., 1, :], A[..., 2, :]), cross(A[..., 2, :], A[..., 0, :]), cross(A[..., 0, :], A[..., 1, :])]
    det = dot(A[..., 0, :], rows[0])
    tiny = jnp.finfo(A.dtype).tiny
    det = jnp.where(jnp.abs(det) > tiny, det, 1.0)
    return jnp.stack(rows, axis=-1) / det[..., None, None]


def contact_residual(mode: tuple[Array, Array], u: Array, x: Array, block: _Block) -> Array:
    """R of one contact in a mode (closed, sliding): Signorini's equality and Coulomb's law, or x = 0 where open.

    Sliding is written as x_t = mu x_n a/|a| with a = x_t - rate (J_t u + E x_t) (Alart & Curnier 1991), which says the same
    as "x_t opposes the slip" and stays regular where the slip vanishes.
    """
    closed, sliding = mode
    v = matvec(block.J, u) + block.cfm * x
    normal = jnp.where(closed, v[0] - block.wanted, x[0])
    aim = x[1:] - block.rate * v[1:]
    length = jnp.sqrt(dot(aim, aim) + jnp.finfo(v.dtype).tiny)
    slide = x[1:] - block.friction * x[0] * aim / length
    tangential = jnp.where(closed, jnp.where(sliding, slide, block.rate * v[1:]), x[1:])
    return jnp.concatenate([normal[None], tangential])


def row_residual(mode: tuple[Array, Array], u: Array, y: Array, row: _Row) -> Array:
    """R of one joint row in a mode (at the lower bound, at the upper bound)."""
    at_low, at_high = mode
    inside = dot(row.J, u) + row.cfm * y - row.wanted
    # the bound that is not met may be infinite: it must not enter, not even as a tangent
    bound = jnp.where(at_low, row.low, jnp.where(at_high, row.high, 0.0))
    return jnp.where(at_low | at_high, y - bound, inside)


class _Factors(NamedTuple):
    """The linearised laws of contacts and rows, and their block elimination."""

    C: Array
    C_row: Array
    contact: tuple[Array, ...]
    row: tuple[Array, ...]


def _factor(p: Problem, scales: _Scales, x: Array, y: Array) -> tuple[_Factors, Any]:
    """Factors at (x, y), and (law, mode, velocity, impulses, data) of the contacts and of the rows."""
    u = velocity(p, x, y)
    mode, mode_row = modes(p, scales, x, y)
    parts = (contact_residual, mode, u, x, _blocks(p, scales.rate)), (row_residual, mode_row, u, y, _rows(p))
    (C, E), (C_row, E_row) = (_linearise(*part) for part in parts)
    T, contact = lax.scan(_eliminate, jnp.eye(len(u), dtype=u.dtype), (C, E, p.Y))
    _, row = lax.scan(_eliminate, T, (C_row[:, None], E_row[:, None, None], p.Y_row[..., None]))
    return _Factors(C, C_row, contact, row), parts


def _substitute(p: Problem, factors: _Factors, s: Array, r: Array, r_row: Array) -> tuple[Array, Array]:
    """dx and dy with C du + E dx + r = 0 and du = s + Y dx + Y_row dy."""
    s, z = lax.scan(_forward, s, (factors.C, r, *factors.contact))
    _, z_row = lax.scan(_forward, s, (factors.C_row[:, None], r_row[:, None], *factors.row))
    a, dy = lax.scan(_backward, jnp.zeros_like(s), (z_row, p.Y_row[..., None], *factors.row), reverse=True)
    _, dx = lax.scan(_backward, a, (z, p.Y, *factors.contact), reverse=True)
    return dx, dy[:, 0]


def _newton(p: Problem, scales: _Scales, x: Array, y: Array) -> tuple[Array, Array, Array]:
    """The best of a few points along the Newton step for the laws in the modes that the impulses are in now.

    It may be worse than where it started: the way to the right modes can lead uphill.
    """
    factors, (contact, row) = _factor(p, scales, x, y)
    r = jax.vmap(contact[0], (0, None, 0, 0))(*contact[1:])
    r_row = jax.vmap(row[0], (0, None, 0, 0))(*row[1:])
    dx, dy = _substitute(p, factors, jnp.zeros_like(p.free), r, r_row)

    def point(length: Array, projected: Array) -> tuple[Array, Array, Array]:
        xn = jnp.maximum(x[:, 0] + length * dx[:, 0], 0.0)
        xt = _into_disc(x[:, 1:] + length * dx[:, 1:], p.friction * xn)
        to = jnp.where(projected, jnp.concatenate([xn[:, None], xt], axis=1), x + dx)
        to_row = jnp.where(projected, jnp.clip(y + length * dy, p.low, p.high), y + dy)
        return to, to_row, residual(p, scales, to, to_row)

    lengths = jnp.array([1.0, 1.0, 0.5, 0.25, 0.1], x.dtype)
    points = jax.vmap(point)(lengths, jnp.arange(5) > 0)
    best = jnp.nanargmin(points[2])
    return jax.tree.map(lambda z: z[best], points)


@solve_implicitly.defjvp
def _solve_jvp(iterations: int, tolerance: float, primals: Any, tangents: Any) -> Any:
    p, start = primals
    dp: Problem = tangents[0]
    x, y, error, count = solve_implicitly(iterations, tolerance, p, start)
    factors, (contact, row) = _factor(p, _scales(p), x, y)
    still = jnp.zeros_like(p.wanted)
    r = _data_tangents(contact, _blocks(dp, still))
    r_row = _data_tangents(row, _rows(dp))
    s = dp.free + jnp.einsum("nvk,nk->v", dp.Y, x) + y @ dp.Y_row
    dx, dy = _substitute(p, factors, s, r, r_row)
    return (x, y, error, count), (dx, dy, jnp.zeros_like(error), np.zeros((), jax.dtypes.float0))


def _linearise(residual: Callable[..., Array], mode: Any, u: Array, x: Array, data: Any) -> tuple[Array, Array]:
    """C = dR/du and E = dR/dx of every contact or row."""
    return jax.vmap(jax.jacfwd(residual, argnums=(1, 2)), (0, None, 0, 0))(mode, u, x, data)


def _data_tangents(part: tuple[Any, ...], ddata: Any) -> Array:
    """What a change of the data contributes to R of every contact or row, at fixed velocity and impulses."""
    law, mode, u, x, data = part

    def tangent(mode: Any, x: Array, data: Any, ddata: Any) -> Array:
        return jax.jvp(lambda d: law(mode, u, x, d), (data,), (ddata,))[1]

    return jax.vmap(tangent)(mode, x, data, ddata)


def _eliminate(T: Array, item: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array, Array]]:
    C, E, Y = item
    TY, CT = matmul(T, Y), matmul(C, T)
    D_inv = _regular_inverse(matmul(C, TY) + E)
    return T - matmul(matmul(TY, D_inv), CT), (D_inv, CT, TY)


def _regular_inverse(D: Array) -> Array:
    """Inverse of a 1 x 1 or 3 x 3 block; a redundant contact without CFM, whose block vanishes, adds no response."""
    if D.shape[-1] == 1:
        safe = jnp.where(D == 0, 1.0, D)
        return jnp.where(D == 0, 0.0, 1 / safe)
    return _inverse3(D)


def _forward(s: Array, item: tuple[Array, ...]) -> tuple[Array, Array]:
    C, r, D_inv, _, TY = item
    z = matvec(D_inv, matvec(C, s) + r)
    return s - matvec(TY, z), z


def _backward(a: Array, item: tuple[Array, ...]) -> tuple[Array, Array]:
    """dx_i = -z_i - D_i^-1 C_i T_i a, with a the velocity that the later contacts' impulses give."""
    z, Y, D_inv, CT, _ = item
    dx = -z - matvec(D_inv, matvec(CT, a))
    return a + matvec(Y, dx), dx
