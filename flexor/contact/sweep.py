"""Projected Gauss-Seidel: a sweep visits every contact, then every row, and gives each the impulse that suits it best
while all others stay, and somewhat more of it (over-relaxation).

**Jams.** A contact that can move one way only, and that way within the cone of friction, can jam: friction undoes what the normal
impulse does (a link that hangs from a pivot, wedged against the ground; Painleve). Taken alone, all others fixed, it may both
stick and slide, with impulses far apart, though all contacts together have one solution. Sticking whenever the cone holds it
would leave a solution that slides. So such a contact sticks only where it is: when what it aims at from its present impulse lies
within the disc (`_slide`), which leaves every solution alone.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from flexor.contact.laws import SOFT, Block, softened
from flexor.contact.problem import Problem, visit, visit_rows
from flexor.spatial import cross, dot, matmul, matvec

JAM = 0.25  # share of a contact's own compliance that friction leaves it at least
ONE_WAY = 0.9  # squared correlation of normal and slip from which a contact moves one way only
BOLD = 10.0  # see `bolder`; chosen, as ONE_WAY, by pendulums that jam, and by thrown ants and quadrupeds, which hardly do
STICK, SLIDE = 1.2, 1.35  # over-relaxation, chosen by the time of ants that slide and quadrupeds that stand


class Scales(NamedTuple):
    """Own compliance of contacts and rows (with CFM), and what the projections take from it: impulses that stop a contact
    altogether (`stick`, over-relaxed), its normal alone (`normal`), its slip (`rate`), or the slip that comes of stopping the
    normal (`slip`), each for a unit of velocity; `hold`, the square of the friction that may hold it at once, negative where it
    may jam; the stiffness that Newton's method gives a contact; and the rates and stiffnesses of its spins."""

    A: Array
    stick: Array
    hold: Array
    slip: Array
    normal: Array
    rate: Array
    stiff: Array
    a_row: Array
    spin_rate: Array | None = None
    spin_stiff: Array | None = None


def scales_of(p: Problem) -> Scales:
    eye, tiny = jnp.eye(3, dtype=p.cones.J.dtype), jnp.finfo(p.cones.J.dtype).tiny

    def contact(_: None, item: tuple[Array, Array, Array, Array]) -> tuple[None, tuple[Array, ...]]:
        J, Y, cfm, friction = item
        A = matmul(J[:3], Y[:, :3]) + cfm * eye
        # a direction in which nothing moves has no compliance; any positive number serves there, since no impulse can act
        A = A.at[0, 0].set(jnp.where(A[0, 0] > tiny, A[0, 0], 1.0))
        slip = _largest(A[1:, 1:])
        normal, rate = 1 / A[0, 0], 1 / jnp.where(slip > tiny, slip, 1.0)
        coupled = dot(A[1:, 0], A[1:, 0])
        jams = (friction**2 * coupled > A[0, 0] ** 2) & (coupled > ONE_WAY * A[0, 0] * slip)
        hold = jnp.where(jams, -1.0, friction**2)
        own = (A, STICK * inverse3(A), hold, (rate * normal) * A[1:, 0], normal, rate, 1 / softened(cfm, A))
        return None, (*own, *_spin_scales(J, Y))

    def row(_: None, item: tuple[Array, Array, Array]) -> tuple[None, Array]:
        a = dot(item[0], item[1]) + item[2]
        return None, jnp.where(a > tiny, a, 1.0)

    one = jnp.ones((), p.cones.J.dtype)
    spins = () if p.cones.J.shape[1] == 3 else (jnp.ones(2, one.dtype),) * 2
    idle = (eye, eye, one, jnp.zeros(2, p.cones.J.dtype), one, one, one, *spins)
    _, (A, stick, hold, slip, normal, rate, stiff, *spin) = visit(
        p.cones.active, contact, lambda _, item: (None, idle), None, (p.cones.J, p.cones.Y, p.cones.cfm, p.cones.friction)
    )
    _, a_row = visit_rows(p.rows.active, row, lambda _, item: (None, one), None, (p.rows.J, p.rows.Y, p.rows.cfm))
    return Scales(A, stick, hold, slip, normal, rate, stiff, a_row, *spin)


def _spin_scales(J: Array, Y: Array) -> tuple[Array, ...]:
    """Rates and stiffnesses of torsion and rolling; nothing where a contact has three rows."""
    if len(J) == 3:
        return ()
    tiny = jnp.finfo(J.dtype).tiny
    torsion = dot(J[3], Y[:, 3])
    rolling = _largest(matmul(J[4:], Y[:, 4:])) if len(J) == 6 else torsion
    a = jnp.stack([torsion, rolling])
    rate = 1 / jnp.where(a > tiny, a, 1.0)
    return rate, rate / SOFT


def bolder(scales: Scales, count: Array) -> Scales:
    """The scales of an iteration: from the second on, the slip of contacts that may jam counts for more, 100, 10, 1000 times.

    There the slip is small beside what impulses could do to it, and what sticks and what slides hangs on it. Any positive rate
    leaves the solutions what they are, but whether sweeps and Newton's method reach them depends on it.
    """
    much = jnp.where(count % 2 == 1, BOLD**2, 1.0) * jnp.where(count % 4 >= 2, BOLD, 1.0)
    much = jnp.where(scales.hold < 0, much, 1.0).astype(scales.rate.dtype)
    return scales._replace(rate=scales.rate * much, slip=scales.slip * much[:, None])


def sweep(p: Problem, scales: Scales, u: Array, x: Array, y: Array) -> tuple[Array, Array, Array]:
    """One projected Gauss-Seidel sweep over all contacts, then over all rows; u is the velocity with these impulses."""
    blocks = p.cones.blocks(scales.rate, scales.spin_rate)
    items = (x, blocks, p.cones.Y, scales.A, scales.stick, scales.hold, scales.slip, scales.normal)
    u, x = visit(p.cones.active, _visit_contact, lambda u, item: (u, item[0]), u, items)
    u, y = visit_rows(p.rows.active, _visit_row, lambda u, item: (u, item[0]), u, (y, p.rows.data(), p.rows.Y, scales.a_row))
    return u, x, y


def _visit_contact(u: Array, item: tuple[Any, ...]) -> tuple[Array, Array]:
    """One contact given all others: the sticking impulse if the cone holds it, else one on the cone's edge; both over-relaxed."""
    whole, block, Y, A, S, hold, G, normal = item
    if block.spin is not None:
        plain = block._replace(J=block.J[:3], spin=None, carry=None if block.carry is None else block.carry[:3])
        u, new = _visit_contact(u, (whole[:3], plain, Y[:, :3], A, S, hold, G, normal))
        return _visit_spins(u, whole, new, block, Y)
    x = whole
    given = block.cfm * x - jnp.zeros_like(x).at[0].set(block.wanted)
    given = given if block.carry is None else given + block.carry
    # two sums side by side: everything here waits for the last
    lack = (given + matvec(block.J[:, ::2], u[::2])) + matvec(block.J[:, 1::2], u[1::2])
    stick = x - matvec(S, lack)
    holds = (stick[0] > 0) & (dot(stick[1:], stick[1:]) <= hold * stick[0] ** 2)
    new = lax.cond(holds, lambda: stick, lambda: _slide(x, lack, block, A, G, normal))
    return u + matvec(Y, new - x), new


def _visit_spins(u: Array, x: Array, new: Array, block: Block, Y: Array) -> tuple[Array, Array]:
    """The spins of a contact whose normal and tangents have their `new` impulses: each projected into its disc."""
    found = [new]
    for rows, friction, rate in block.spins:
        spinning = matvec(block.J[rows], u)
        spinning = spinning if block.carry is None else spinning + block.carry[rows]
        impulse = into_disc(x[rows] - rate * spinning, friction * new[0])
        u = u + matvec(Y[:, rows], impulse - x[rows])
        found.append(impulse)
    return u, jnp.concatenate(found)


def _slide(x: Array, lack: Array, block: Block, A: Array, G: Array, normal: Array) -> Array:
    """The impulse on the cone's edge, x_n (1, mu a / |a|), with a = x_t - rate slip, slip the velocity that is left when the
    normal alone is stopped. Friction couples normal and tangents, so the normal law is one equation for the change of x_n:

        (A_nn + mu A_nt a / |a|) dx_n = -(lack_n + A_nt (mu x_n a / |a| - x_t))

    Where a is within the disc, the contact slides no more: a is taken, and the normal stopped alone.
    """
    aim = (x[1:] - block.rate * lack[1:]) + G * lack[0]
    square, alone = dot(aim, aim), jnp.maximum(x[0] - normal * lack[0], 0.0)
    inside = square <= (block.friction * alone) ** 2
    friction = jnp.where(inside, 0.0, block.friction)
    length = jnp.sqrt(square + jnp.finfo(x.dtype).tiny)
    own, coupling = A[0, 0] * length, friction * dot(A[0, 1:], aim)
    lack_n = jnp.where(inside, lack[0], SLIDE * (lack[0] - dot(A[0, 1:], x[1:])))
    # friction that would jam the contact counts for a part only, and the rest is left to the next visits
    xn = jnp.maximum(x[0] - (length * lack_n + (SLIDE * x[0]) * coupling) / jnp.maximum(own + coupling, JAM * own), 0.0)
    return jnp.concatenate([xn[None], jnp.where(inside, aim, 0.0) + xn * (friction / length * aim)])


def _visit_row(u: Array, item: tuple[Any, ...]) -> tuple[Array, Array]:
    y, row, Y, a = item
    new = jnp.clip(y - (dot(row.J, u) + row.cfm * y - row.wanted) / a, row.low, row.high)
    return u + Y * (new - y), new


def into_disc(x: Array, radius: Array) -> Array:
    length = jnp.sqrt(dot(x, x) + jnp.finfo(x.dtype).tiny)
    return x * jnp.minimum(1.0, radius / length)[..., None]


def _largest(A: Array) -> Array:
    """Largest eigenvalue of a symmetric 2 x 2 matrix."""
    mean, half = (A[..., 0, 0] + A[..., 1, 1]) / 2, (A[..., 0, 0] - A[..., 1, 1]) / 2
    return mean + jnp.sqrt(half**2 + A[..., 0, 1] ** 2)


def inverse3(A: Array) -> Array:
    """Inverse by cofactors; a singular matrix gives a finite one instead, which no active contact uses."""
    rows = [cross(A[..., 1, :], A[..., 2, :]), cross(A[..., 2, :], A[..., 0, :]), cross(A[..., 0, :], A[..., 1, :])]
    det = dot(A[..., 0, :], rows[0])
    tiny = jnp.finfo(A.dtype).tiny
    det = jnp.where(jnp.abs(det) > tiny, det, 1.0)
    return jnp.stack(rows, axis=-1) / det[..., None, None]
