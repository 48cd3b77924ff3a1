"""The solution of the NCP by sweeps and Newton steps, and its derivative.

Projected Gauss-Seidel finds who touches, sticks and slides, but its error shrinks slowly where contacts are redundant (a box
on four corners); Newton's method is fast where the modes are right and lost where they are not. Each iteration is therefore a
number of sweeps (12, 24, 48, 96) followed by up to three Newton steps in the modes that they found, and the better of the two
points is kept. Mostly the first iteration ends it.

At the solution every contact is open, sticking or sliding, and every joint row free or at a bound. Within its mode it obeys
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
from jaxtyping import Array, Bool, Float

from flexor.contact.laws import SOFT, Block, Row, Slope, contact_law, linearised, row_law, slope, softened, turned
from flexor.dynamics.crba import solve_inertia
from flexor.dynamics.kept import kept
from flexor.spatial import cross, dot, matmul, matvec

SWEEPS = (12, 96)  # sweeps in the first iteration, doubled from one to the next, and at most
NEWTON = 3  # Newton steps in an iteration
JAM = 0.25  # share of a contact's own compliance that friction leaves it at least
RELAX = 1.35  # of the impulses in a sweep; fewer robots need Newton steps than with 1.2 or 1.5
FEW = 4  # joint rows that are not worth a question whether any of them is active
STALE = 5  # iterations without progress after which there is no hope of any


class Problem(NamedTuple):
    """Data of the NCP: contacts (blocks of normal and two tangents), then joint rows; `wanted` is w. The factor of M and
    Y = M^-1 J^T are there for speed: derivatives do not go through them.

    What is not active has no impulse. It costs nothing where no member of a batch wants it (in a SIMD kernel), or where there
    is no batch; otherwise it is computed and dropped.
    """

    free: Float[Array, " nv"]
    M: Float[Array, "nv nv"]
    chol: Float[Array, "nv nv"]
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
    active: Bool[Array, " n"]
    active_row: Bool[Array, " m"]


def _blocks(p: Problem, rate: Array) -> Block:
    return Block(p.J, p.wanted, p.cfm, p.friction, rate)


def _rows(p: Problem) -> Row:
    return Row(p.J_row, p.wanted_row, p.cfm_row, p.low, p.high)


def visit(
    active: Array,
    f: Callable[[Any, Any], tuple[Any, Any]],
    skip: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    items: Any,
    *,
    at_once: bool = False,
) -> tuple[Any, Any]:
    """`lax.scan` of f over the active items, of `skip` over the others; `at_once` asks first whether any is active at all."""
    if not len(active):
        return carry, jax.tree.map(lambda x: jnp.zeros((0, *x.shape), x.dtype), jax.eval_shape(skip, carry, jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), items))[1])  # fmt: skip
    if at_once and len(active) >= FEW:
        return lax.cond(jnp.any(active), partial(visit, active, f, skip), partial(lax.scan, skip), carry, items)
    return lax.scan(lambda carry, item: lax.cond(item[0], f, skip, carry, item[1]), carry, (active, items))


visit_rows = partial(visit, at_once=True)  # joint rows mostly are idle all at once


def velocity(p: Problem, x: Array, y: Array) -> Array:
    """u = u0 + Y x."""

    def push(u: Array, item: tuple[Array, Array]) -> tuple[Array, None]:
        return u + matvec(item[0], item[1]), None

    def push_row(u: Array, item: tuple[Array, Array]) -> tuple[Array, None]:
        return u + item[0] * item[1], None

    u, _ = visit(p.active, push, lambda u, _: (u, None), p.free, (p.Y, x))
    return visit_rows(p.active_row, push_row, lambda u, _: (u, None), u, (p.Y_row, y))[0]


class _Point(NamedTuple):
    """The velocity, impulses of contacts and rows, and their residual."""

    u: Array
    x: Array
    y: Array
    error: Array


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def solve_implicitly(
    iterations: int, tolerance: float, p: Problem, start: tuple[Array, Array]
) -> tuple[Array, Array, Array, Array, Array]:
    """The velocity u, impulses of contacts and of joint rows, the residual in velocity, and the number of iterations."""
    x, y = start
    if not len(p.wanted) and not len(p.wanted_row):
        return p.free, x, y, jnp.zeros((), x.dtype), jnp.zeros((), int)
    scales = _scales(p)
    floor = jnp.maximum(tolerance, 16 * jnp.finfo(p.free.dtype).eps * (1 + jnp.max(jnp.abs(p.free))))

    def iterate(carry: tuple[_Point, _Point, Array, Array]) -> tuple[_Point, _Point, Array, Array]:
        now, before, count, stale = carry
        sweeps = jnp.minimum(SWEEPS[0] * 2**count, SWEEPS[1])
        _, x, y = lax.fori_loop(0, sweeps, lambda _, z: _sweep(p, scales, *z), now[:3])
        swept = _point(p, scales, x, y)

        def descend(inner: tuple[_Point, _Point, Array]) -> tuple[_Point, _Point, Array]:
            now = _newton(p, scales, inner[0])
            return now, _best(p, now, inner[1]), inner[2] + 1

        start = (swept, _best(p, swept, before), jnp.zeros((), int))
        now, best, _ = lax.while_loop(lambda c: (c[2] < NEWTON) & (c[1].error > floor), descend, start)
        # sweeps go on from where they were, unless Newton's method came closer
        return _best(p, now, swept), best, count + 1, jnp.where(best.error < 0.9 * before.error, 0, stale + 1)

    def unsolved(carry: tuple[_Point, _Point, Array, Array]) -> Array:
        return (carry[2] < iterations) & (carry[3] < STALE) & (carry[1].error > floor)

    first, zero = _point(p, scales, x, y), jnp.zeros((), int)
    _, best, count, _ = lax.while_loop(unsolved, iterate, (first, first, zero, zero))
    return *best, count


class _Scales(NamedTuple):
    """Own compliance of contacts and rows (with CFM), and what the projections take from it: impulses that stop a contact
    altogether (`stick`, relaxed), its normal (`normal`) or its slip (`slip`, given that the normal is stopped; by its two tangents
    `rate`), for a velocity; and the stiffness that Newton's method gives a contact."""

    A: Array
    stick: Array
    slip: Array
    normal: Array
    rate: Array
    stiff: Array
    a_row: Array


def _scales(p: Problem) -> _Scales:
    eye, tiny = jnp.eye(3, dtype=p.J.dtype), jnp.finfo(p.J.dtype).tiny

    def contact(_: None, item: tuple[Array, Array, Array]) -> tuple[None, tuple[Array, ...]]:
        J, Y, cfm = item
        A = matmul(J, Y) + cfm * eye
        # a direction in which nothing moves has no compliance; any positive number serves there, since no impulse can act
        A = A.at[0, 0].set(jnp.where(A[0, 0] > tiny, A[0, 0], 1.0))
        slip = _largest(A[1:, 1:])
        normal, rate = 1 / A[0, 0], 1 / jnp.where(slip > tiny, slip, 1.0)
        return None, (A, RELAX * _inverse3(A), (rate * normal) * A[1:, 0], normal, rate, 1 / softened(cfm, A))

    def row(_: None, item: tuple[Array, Array, Array]) -> tuple[None, Array]:
        a = dot(item[0], item[1]) + item[2]
        return None, jnp.where(a > tiny, a, 1.0)

    one = jnp.ones((), p.J.dtype)
    idle = (eye, eye, jnp.zeros(2, p.J.dtype), one, one, one)
    _, found = visit(p.active, contact, lambda _, item: (None, idle), None, (p.J, p.Y, p.cfm))
    _, a_row = visit_rows(p.active_row, row, lambda _, item: (None, one), None, (p.J_row, p.Y_row, p.cfm_row))
    return _Scales(*found, a_row)


def _point(p: Problem, scales: _Scales, x: Array, y: Array) -> _Point:
    u = velocity(p, x, y)
    return _Point(u, x, y, residual(p, scales, u, x, y))


def _best(p: Problem, new: _Point, old: _Point) -> _Point:
    """The one with the smaller residual; impulses that nobody uses are not touched."""
    closer = new.error < old.error

    def choose(_: None, item: tuple[Array, Array]) -> tuple[None, Array]:
        return None, jnp.where(closer, *item)

    def keep(_: None, item: tuple[Array, Array]) -> tuple[None, Array]:
        return None, item[1]

    _, x = visit(p.active, choose, keep, None, (new.x, old.x))
    _, y = visit_rows(p.active_row, choose, keep, None, (new.y, old.y))
    return _Point(jnp.where(closer, new.u, old.u), x, y, jnp.where(closer, new.error, old.error))


def _aim(u: Array, x: Array, block: Block, A: Array) -> tuple[Array, Array]:
    """Impulses (normal, tangents) that a contact would like, before projection, given the velocity now."""
    lack = matvec(block.J, u) + block.cfm * x
    return x[0] - (lack[0] - block.wanted) / A[0, 0], x[1:] - block.rate * lack[1:]


def _aim_row(u: Array, y: Array, row: Row, a: Array) -> Array:
    """The same of a joint row."""
    return y - (dot(row.J, u) + row.cfm * y - row.wanted) / a


def residual(p: Problem, scales: _Scales, u: Array, x: Array, y: Array) -> Array:
    """Largest violation of the laws in m/s or rad/s: how far the impulses are from their projections, times the compliance."""

    def contact(worst: Array, item: tuple[Array, Block, Array]) -> tuple[Array, None]:
        x, block, A = item
        normal, tangent = _aim(u, x, block, A)
        off_n = (x[0] - jnp.maximum(normal, 0.0)) * A[0, 0]
        off_t = (x[1:] - _into_disc(tangent, block.friction * jnp.maximum(x[0], 0.0))) / block.rate
        return jnp.maximum(worst, jnp.maximum(jnp.abs(off_n), jnp.max(jnp.abs(off_t)))), None

    def limit(worst: Array, item: tuple[Array, Row, Array]) -> tuple[Array, None]:
        y, row, a = item
        off = (y - jnp.clip(_aim_row(u, y, row, a), row.low, row.high)) * a
        return jnp.maximum(worst, jnp.abs(off)), None

    zero = jnp.zeros((), x.dtype)
    worst, _ = visit(p.active, contact, lambda w, _: (w, None), zero, (x, _blocks(p, scales.rate), scales.A))
    return visit_rows(p.active_row, limit, lambda w, _: (w, None), worst, (y, _rows(p), scales.a_row))[0]


def _mode(u: Array, x: Array, block: Block, A: Array) -> tuple[Array, Array]:
    """Mode of a contact (closed, sliding), by where projection puts it."""
    normal, tangent = _aim(u, x, block, A)
    return normal > 0, dot(tangent, tangent) >= (block.friction * x[0]) ** 2


def _mode_row(u: Array, y: Array, row: Row, a: Array) -> tuple[Array, Array]:
    """Mode of a joint row (at the lower, at the upper bound)."""
    aim = _aim_row(u, y, row, a)
    return aim <= row.low, aim >= row.high


def _sweep(p: Problem, scales: _Scales, u: Array, x: Array, y: Array) -> tuple[Array, Array, Array]:
    """One projected Gauss-Seidel sweep over all contacts, then over all rows; u is the velocity with these impulses."""
    items = (x, _blocks(p, scales.rate), p.Y, scales.A, scales.stick, scales.slip, scales.normal)
    u, x = visit(p.active, _visit_contact, lambda u, item: (u, item[0]), u, items)
    u, y = visit_rows(p.active_row, _visit_row, lambda u, item: (u, item[0]), u, (y, _rows(p), p.Y_row, scales.a_row))
    return u, x, y


def _visit_contact(u: Array, item: tuple[Any, ...]) -> tuple[Array, Array]:
    """One contact given all others: the sticking impulse if the cone holds it, else one on the cone's edge; both over-relaxed.

    On the edge the impulse is x_n (1, mu a / |a|), with a = x_t - rate slip, slip the velocity that is left when the normal alone
    is stopped. Friction couples normal and tangents, so the normal law is one equation for the change of x_n:

        (A_nn + mu A_nt a / |a|) dx_n = -(lack_n + A_nt (mu x_n a / |a| - x_t))

    Where a is within the disc, the contact slides no more: a is taken, and the normal stopped alone.
    """
    x, block, Y, A, S, G, normal = item
    known = block.cfm * x - jnp.zeros_like(x).at[0].set(block.wanted)
    # two sums side by side: everything here waits for the last, which is also why it is arranged around one division
    lack = (known + matvec(block.J[:, ::2], u[::2])) + matvec(block.J[:, 1::2], u[1::2])
    stick = x - matvec(S, lack)
    holds = (stick[0] > 0) & (dot(stick[1:], stick[1:]) <= (block.friction * stick[0]) ** 2)
    aim = (x[1:] - block.rate * lack[1:]) + G * lack[0]
    square, alone = dot(aim, aim), jnp.maximum(x[0] - normal * lack[0], 0.0)
    inside = square <= (block.friction * alone) ** 2
    friction = jnp.where(inside, 0.0, block.friction)
    length = jnp.sqrt(square + jnp.finfo(x.dtype).tiny)
    own, coupling = A[0, 0] * length, friction * dot(A[0, 1:], aim)
    lack_n = jnp.where(inside, lack[0], RELAX * (lack[0] - dot(A[0, 1:], x[1:])))
    # friction that would jam the contact counts for a part only, and the rest is left to the next visits
    xn = jnp.maximum(x[0] - (length * lack_n + (RELAX * x[0]) * coupling) / jnp.maximum(own + coupling, JAM * own), 0.0)
    xt = jnp.where(inside, aim, 0.0) + xn * (friction / length * aim)
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


class _Laws(NamedTuple):
    """The laws of contacts or rows where they are now: R, dR/dv, dR/dx, and what gives their tangents."""

    R: Array
    Rv: Array
    Rx: Array
    part: tuple[Any, ...]


def _laws(p: Problem, scales: _Scales, u: Array, x: Array, y: Array) -> tuple[_Laws, _Laws]:
    """The laws of all contacts and of all rows, each in the mode that its impulse is in."""
    blocks, rows = _blocks(p, scales.rate), _rows(p)
    closed, sliding = jax.vmap(_mode, (None, 0, 0, 0))(u, x, blocks, scales.A)
    low, high = jax.vmap(_mode_row, (None, 0, 0, 0))(u, y, rows, scales.a_row)
    v, v_row = matvec(p.J, u) + p.cfm[:, None] * x, matvec(p.J_row, u) + p.cfm_row * y
    idle = ~p.active_row  # an idle row stays where it is: at zero, as if that were its lower bound
    rows = rows._replace(low=jnp.where(idle, 0.0, rows.low))
    part, part_row = ((closed & p.active, sliding), v, x, blocks), ((low | idle, high), v_row, y, rows)
    contact = _Laws(*jax.vmap(partial(linearised, contact_law))(*part), (contact_law, *part))
    return contact, _Laws(*jax.vmap(partial(linearised, row_law))(*part_row), (row_law, *part_row))


def _newton(p: Problem, scales: _Scales, now: _Point) -> _Point:
    """A point along the Newton step: the first that is better than where it started, or the best of all tried, which may be
    worse: the way to the right modes can lead uphill."""
    dx, dy = _newton_step(p, scales, *now[:3])

    def stay(_: None, item: tuple[Array, ...]) -> tuple[None, Array]:
        return None, item[0]

    def add(_: None, item: tuple[Array, ...]) -> tuple[None, Array]:
        return None, item[0] + item[1]

    def tried(length: Array) -> _Point:
        def contact(_: None, item: tuple[Array, Array, Array]) -> tuple[None, Array]:
            x, dx, friction = item
            xn = jnp.maximum(x[0] + length * dx[0], 0.0)
            return None, jnp.concatenate([xn[None], _into_disc(x[1:] + length * dx[1:], friction * xn)])

        def row(_: None, item: tuple[Array, ...]) -> tuple[None, Array]:
            y, dy, low, high = item
            return None, jnp.clip(y + length * dy, low, high)

        _, x = visit(p.active, contact, stay, None, (now.x, dx, p.friction))
        _, y = visit_rows(p.active_row, row, stay, None, (now.y, dy, p.low, p.high))
        return _point(p, scales, x, y)

    def shorter(carry: tuple[_Point, Array]) -> tuple[_Point, Array]:
        best, length = carry
        return _best(p, tried(length), best), length / 2

    _, x = visit(p.active, add, stay, None, (now.x, dx))
    _, y = visit_rows(p.active_row, add, stay, None, (now.y, dy))
    full = _point(p, scales, x, y)
    full = full._replace(error=jnp.where(jnp.isnan(full.error), jnp.inf, full.error))
    one = jnp.ones((), x.dtype)
    return lax.while_loop(lambda c: (c[1] > 0.1) & (c[0].error >= now.error), shorter, (full, one))[0]


def _newton_step(p: Problem, scales: _Scales, u: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Newton step for the laws in the modes that the impulses are in now.

    With dx = -(z + K J du) and M du = J^T dx, the step solves (M + sum J^T K J) du = -sum J^T z.
    """

    def contact(carry: tuple[Array, Array], item: tuple[Array, Block, Array, Array]) -> tuple[Any, Slope]:
        x, block, A, stiff = item
        k = slope(block, A, stiff, u, x)
        n, a, c = turned(k.aim, block.J)
        H, b = carry
        for left, right in ((n + k.cone * a, k.normal * n), (a, k.along * a), (c, k.across * c)):
            H = H + left[:, None] * right
        return (H, b - (n * k.z[0] + a * k.z[1] + c * k.z[2])), k

    def limit(carry: tuple[Array, Array], item: tuple[Array, Row, Array]) -> tuple[Any, Any]:
        y, row, a = item
        R, Rv, Rx = linearised(row_law, _mode_row(u, y, row, a), dot(row.J, u) + row.cfm * y, y, row)
        E = Rx + jnp.maximum(row.cfm, SOFT * a) * Rv
        H, b = carry
        K, z = Rv / E, R / E
        return (H + row.J[:, None] * (K * row.J), b - row.J * z), (K, z)

    zero, zeros = jnp.zeros((), x.dtype), jnp.zeros_like(p.free)
    blocks = (x, _blocks(p, scales.rate), scales.A, scales.stiff)
    idle = Slope(jnp.zeros(2, x.dtype), zero, zero, zero, zero, jnp.zeros(3, x.dtype))
    system, slopes = visit(p.active, contact, lambda c, _: (c, idle), (p.M, zeros), blocks)
    system, row_slopes = visit_rows(p.active_row, limit, lambda c, _: (c, (zero, zero)), system, (y, _rows(p), scales.a_row))
    du = _substitute(_eliminate(system[0]), system[1])

    def response(_: None, item: tuple[Array, Slope]) -> tuple[None, Array]:
        J, k = item
        dn, da, dc = turned(k.aim, matvec(J, du))
        pushed = k.normal * dn
        along, across = k.z[1] + k.along * da + k.cone * pushed, k.z[2] + k.across * dc
        return None, -jnp.stack(
            [k.z[0] + pushed, k.aim[0] * along - k.aim[1] * across, k.aim[1] * along + k.aim[0] * across]
        )

    def response_row(_: None, item: tuple[Array, tuple[Array, Array]]) -> tuple[None, Array]:
        J, (K, z) = item
        return None, -z - K * dot(J, du)

    _, dx = visit(p.active, response, lambda _, item: (None, idle.z), None, (p.J, slopes))
    _, dy = visit_rows(p.active_row, response_row, lambda _, item: (None, zero), None, (p.J_row, row_slopes))
    return dx, dy


def _eliminate(H: Array) -> list[tuple[Array, Array, Array]]:
    """Pivots (inverted), rows and columns of an elimination without row exchanges, leaves of the tree first, where M's
    branches bring no fill-in.

    Friction makes H unsymmetric, so a pivot may vanish though H is regular. Lanes cannot exchange rows each as it likes; a pivot
    that is nothing beside its row is moved away from zero instead (Li & Demmel 1998), and what solves with the factors corrects
    for it.
    """
    H = H[::-1, ::-1]
    factors, least = [], jnp.finfo(H.dtype).eps ** 0.75
    while len(H):
        pivot, floor = H[0, 0], least * jnp.max(jnp.abs(H[0]))
        inverse = 1 / jnp.where(jnp.abs(pivot) < floor, jnp.copysign(floor, pivot), pivot)
        factors.append((inverse, H[0, 1:] * inverse, H[1:, 0]))
        H = H[1:, 1:] - H[1:, :1] * factors[-1][1]
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
def _solve_jvp(iterations: int, tolerance: float, primals: Any, tangents: Any) -> Any:
    """Tangents of velocity and impulses: what the data contribute, b = M dfree - dM (u - free) + dJ^T x and r, then as in
    `_newton_step`, once more for the error that rounding and Newton's own compliance leave."""
    p, start = primals
    dp: Problem = tangents[0]
    u, x, y, error, count = (kept(z) for z in solve_implicitly(iterations, tolerance, p, start))
    scales = _scales(p)
    contact, row = _laws(p, scales, u, x, y)
    respond = _responses(p, scales, contact, row)
    b = matvec(p.M, dp.free) - matvec(dp.M, u - p.free) + pulled(dp.J, x) + y @ dp.J_row
    dv = matvec(dp.J, u) + dp.cfm[:, None] * x
    r = matvec(contact.Rv, dv) + _data_tangents(contact.part, _blocks(dp, jnp.zeros_like(p.wanted)))
    r_row = row.Rv * (matvec(dp.J_row, u) + dp.cfm_row * y) + _data_tangents(row.part, _rows(dp))
    dx, dy = respond(b, r, r_row)
    du = solve_inertia(p.M, p.chol, b + pulled(p.J, dx) + dy @ p.J_row)
    off = matvec(contact.Rv, matvec(p.J, du) + p.cfm[:, None] * dx) + matvec(contact.Rx, dx) + r
    off_row = row.Rv * (matvec(p.J_row, du) + p.cfm_row * dy) + row.Rx * dy + r_row
    more, more_row = respond(jnp.zeros_like(b), off, off_row)
    du = du + solve_inertia(p.M, p.chol, pulled(p.J, more) + more_row @ p.J_row)
    still = jnp.zeros_like(error), np.zeros((), jax.dtypes.float0)
    return (u, x, y, error, count), (du, dx + more, dy + more_row, *still)


def pulled(J: Float[Array, "n 3 nv"], x: Float[Array, "n 3"]) -> Float[Array, " nv"]:
    """J^T x of all contacts."""
    return jnp.einsum("nka,nk->a", J, x)


def _responses(p: Problem, scales: _Scales, contact: _Laws, row: _Laws) -> Callable[..., tuple[Array, Array]]:
    """The linear map (b, r, r_row) -> (dx, dy) of the linearised laws; what it needs is computed once."""
    E_inv = _inverse3(contact.Rx + softened(p.cfm, scales.A)[:, None, None] * contact.Rv)
    E_row = row.Rx + jnp.maximum(p.cfm_row, SOFT * scales.a_row) * row.Rv
    KJ, KJ_row = matmul(matmul(E_inv, contact.Rv), p.J), (row.Rv / E_row)[:, None] * p.J_row
    H = p.M + jnp.einsum("nka,nkb->ab", p.J, KJ) + jnp.einsum("na,nb->ab", p.J_row, KJ_row)
    factors = _eliminate(H)

    def respond(pushed: Array, r: Array, r_row: Array) -> tuple[Array, Array]:
        z, z_row = matvec(E_inv, r), r_row / E_row
        du = _substitute(factors, pushed - pulled(p.J, z) - z_row @ p.J_row)
        return -z - matvec(KJ, du), -z_row - matvec(KJ_row, du)

    return respond


def _data_tangents(part: tuple[Any, ...], ddata: Any) -> Array:
    """What a change of the data contributes to R of every contact or row, at fixed v and impulses."""
    law, mode, v, x, data = part

    def tangent(mode: Any, v: Array, x: Array, data: Any, ddata: Any) -> Array:
        return jax.jvp(lambda d: law(mode, v, x, d), (data,), (ddata,))[1]

    return jax.vmap(tangent)(mode, v, x, data, ddata)
