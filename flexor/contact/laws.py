"""The laws of one contact and of one row, R(v, x) = 0 within a mode, and how an impulse answers to a velocity by them.

At a solution every contact is open, sticking or sliding, and every row free or at a bound; v = J u + cfm x.

A contact has a normal and two tangents. With torsional and rolling friction it has one or three rows more, angular velocities
about the normal and about the tangents, whose impulses lie in *discs* of their own: |x_d| <= mu_d x_n, mu_d in m, and x_d opposes
v_d where it is at the edge. Each disc knows the normal impulse alone; MuJoCo's elliptic cone couples all of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flexor.spatial import dot, matvec

SPINS = (slice(3, 4), slice(4, 6))  # rows of torsion and of rolling


class Spin(NamedTuple):
    """Torsional and rolling friction of a contact: coefficients in m, and what scales its angular velocities to impulses."""

    friction: Array
    rate: Array


class Block(NamedTuple):
    """One contact, or with a leading axis all of them, as the equations see it; `rate` scales slip to impulse; `spin` is None
    where a contact has three rows; `carry` is what moving surfaces add to J u, None where none moves."""

    J: Array
    wanted: Array
    cfm: Array
    friction: Array
    rate: Array
    spin: Spin | None = None
    carry: Array | None = None

    @property
    def spins(self) -> list[tuple[slice, Array, Array]]:
        """Rows, coefficient and rate of torsion, and of rolling where there is any."""
        if self.spin is None:
            return []
        return [(rows, self.spin.friction[k], self.spin.rate[k]) for k, rows in enumerate(SPINS) if rows.stop <= len(self.J)]


class Row(NamedTuple):
    """One row, or with a leading axis all of them."""

    J: Array
    wanted: Array
    cfm: Array
    low: Array
    high: Array


SOFT = 1e-7  # compliance that Newton's method lends to a contact that has none, as a share of its response


def soft(dtype: Any) -> float:
    """The same for a row. Redundant rows (loops) make the system singular without; eps over it is the relative error of a step,
    1e-3 in single precision."""
    return 1e-4 if jnp.finfo(dtype).bits == 32 else SOFT


def contact_speed(block: Block, u: Array, x: Array) -> Array:
    """v = J u + E x, E the compliance of normal and tangents; that of angular rows is zero. Moving surfaces add to it."""
    v = matvec(block.J, u) if block.carry is None else matvec(block.J, u) + block.carry
    return v + block.cfm * x if block.spin is None else v.at[:3].add(block.cfm * x[:3])


def contact_law(mode: tuple[Array, ...], v: Array, x: Array, block: Block) -> Array:
    """R of one contact in a mode (closed, sliding, and whether each spin slides), v = J u + E x: Signorini's equality and
    Coulomb's law, or x = 0 where open.

    Sliding is written as x_t = mu x_n a/|a| with a = x_t - rate (J_t u + E x_t) (Alart & Curnier 1991), which says the same
    as "x_t opposes the slip" and stays regular where the slip vanishes.
    """
    closed, *sliding = mode
    normal = jnp.where(closed, v[0] - block.wanted, x[0])

    def disc(sliding: Array, rows: slice, friction: Array, rate: Array) -> Array:
        aim = x[rows] - rate * v[rows]
        length = jnp.sqrt(dot(aim, aim) + jnp.finfo(v.dtype).tiny)
        slide = x[rows] - friction * x[0] * aim / length
        return jnp.where(closed, jnp.where(sliding, slide, rate * v[rows]), x[rows])

    discs = [(slice(1, 3), block.friction, block.rate), *block.spins]
    return jnp.concatenate([normal[None], *(disc(s, *d) for s, d in zip(sliding, discs, strict=True))])


def row_law(mode: tuple[Array, Array], v: Array, y: Array, row: Row) -> Array:
    """R of one row in a mode (at the lower bound, at the upper bound), v = J u + E y."""
    at_low, at_high = mode
    # the bound at which the row is not may be infinite: it must not enter, not even as a tangent
    bound = jnp.where(at_low, row.low, jnp.where(at_high, row.high, 0.0))
    return jnp.where(at_low | at_high, y - bound, v - row.wanted)


def linearised(law: Callable[..., Array], *items: Any) -> tuple[Array, Array, Array]:
    """R, dR/dv and dR/dx of one contact or row."""
    Rv, Rx = jax.jacfwd(law, argnums=(1, 2))(*items)
    return law(*items), Rv, Rx


class Disc(NamedTuple):
    """How a disc of friction answers to its velocities, turned to where it aims (a) and across (c):

    dx_a = -(z_a + along dv_a + cone normal dv_n),   dx_c = -(z_c + across dv_c)
    """

    aim: Array
    cone: Array
    along: Array
    across: Array
    z: Array


class Slope(NamedTuple):
    """How a contact's impulse answers to its velocity in its mode: dx_n = -(z + normal dv_n), and its discs: the tangents, and
    the spins if any."""

    normal: Array
    z: Array
    discs: tuple[Disc, ...]


def turned(aim: Array, v: Array) -> tuple[Array, Array]:
    """Two rows along two axes as rows along aim and across it; a single row (torsion) has nothing across."""
    if len(v) == 1:
        return aim[0] * v[0], jnp.zeros_like(v[0])
    return aim[0] * v[0] + aim[1] * v[1], aim[0] * v[1] - aim[1] * v[0]


def turned_back(aim: Array, along: Array, across: Array) -> Array:
    """The inverse of `turned`, for numbers."""
    if len(aim) == 1:
        return (aim[0] * along)[None]
    return jnp.stack([aim[0] * along - aim[1] * across, aim[1] * along + aim[0] * across])


def softened(cfm: Array, A: Array) -> Array:
    """c, the compliance of a contact itself in Newton's method."""
    return jnp.maximum(cfm, SOFT * A[..., 0, 0])


def slope(block: Block, A: Array, stiff: Array, spin_stiff: Array | None, u: Array, x: Array) -> Slope:
    """The laws of `contact_law` in the mode that the impulse is in, solved for dx: E dx + Rv dv + R = 0, E = Rx + c Rv; `stiff`
    is 1 / c.

    Open: dx = -x. Sticking: dx = -(v + dv) / c. Sliding with s = mu x_n / |a|, a = x_t - rate v_t: the impulse goes on along a to
    the cone's edge, and turns across it with the slope rate s / (1 - s + s c rate).
    """
    v = contact_speed(block, u, x)
    closed = x[0] - (v[0] - block.wanted) / A[0, 0] > 0
    normal = jnp.where(closed, stiff, 0.0)
    z_n = jnp.where(closed, (v[0] - block.wanted) * normal, x[0])

    def disc(rows: slice, friction: Array, rate: Array, c: Array, stiff: Array) -> Disc:
        aim = x[rows] - rate * v[rows]
        edge, square = friction * x[0], dot(aim, aim)
        sliding = square >= edge * edge
        length = jnp.sqrt(square + jnp.finfo(x.dtype).tiny)
        aim = aim / length
        share = edge / length
        turn = 1 / jnp.where(sliding, (1 - share) + share * c * rate, 1.0)
        stiff = jnp.where(closed, stiff, 0.0)
        (va, vc), (xa, xc) = turned(aim, v[rows]), turned(aim, x[rows])
        slide_a, slide_c = xa - edge + friction * z_n, xc * turn
        z = jnp.stack([jnp.where(closed, jnp.where(sliding, slide, stick * stiff), at_rest)
                       for slide, stick, at_rest in ((slide_a, va, xa), (slide_c, vc, xc))])  # fmt: skip
        across = jnp.where(closed & sliding, rate * share * turn, stiff)
        return Disc(aim, jnp.where(sliding, friction, 0.0), jnp.where(sliding, 0.0, stiff), across, z)

    discs = [disc(slice(1, 3), block.friction, block.rate, softened(block.cfm, A), stiff)]
    if spin_stiff is not None:
        discs += [disc(*spin, 1 / spin_stiff[k], spin_stiff[k]) for k, spin in enumerate(block.spins)]
    return Slope(normal, z_n, tuple(discs))
