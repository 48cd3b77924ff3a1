"""The laws of one contact and of one row, R(v, x) = 0 within a mode, and how an impulse answers to a velocity by them.

At a solution every contact is open, sticking or sliding, and every row free or at a bound; v = J u + cfm x.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flexor.spatial import dot, matvec

SOFT = 1e-7  # compliance that Newton's method lends to a contact that has none, as a share of its response


class Block(NamedTuple):
    """One contact, or with a leading axis all of them, as the equations see it; `rate` scales slip to impulse."""

    J: Array
    wanted: Array
    cfm: Array
    friction: Array
    rate: Array


class Row(NamedTuple):
    """One row, or with a leading axis all of them."""

    J: Array
    wanted: Array
    cfm: Array
    low: Array
    high: Array


def contact_law(mode: tuple[Array, Array], v: Array, x: Array, block: Block) -> Array:
    """R of one contact in a mode (closed, sliding), v = J u + E x: Signorini's equality and Coulomb's law, or x = 0 where open.

    Sliding is written as x_t = mu x_n a/|a| with a = x_t - rate (J_t u + E x_t) (Alart & Curnier 1991), which says the same
    as "x_t opposes the slip" and stays regular where the slip vanishes.
    """
    closed, sliding = mode
    normal = jnp.where(closed, v[0] - block.wanted, x[0])
    aim = x[1:] - block.rate * v[1:]
    length = jnp.sqrt(dot(aim, aim) + jnp.finfo(v.dtype).tiny)
    slide = x[1:] - block.friction * x[0] * aim / length
    tangential = jnp.where(closed, jnp.where(sliding, slide, block.rate * v[1:]), x[1:])
    return jnp.concatenate([normal[None], tangential])


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


class Slope(NamedTuple):
    """How a contact's impulse answers to its velocity in its mode, dx = -(z + K dv), with tangents turned to where its friction
    aims (a) and across (c):

        K = [[normal, 0, 0], [cone normal, along, 0], [0, 0, across]]
    """

    aim: Array
    normal: Array
    cone: Array
    along: Array
    across: Array
    z: Array


def turned(aim: Array, v: Array) -> Array:
    """Rows 0, 1, 2 along the normal and the two tangents as rows along normal, aim and across it."""
    return jnp.stack([v[0], aim[0] * v[1] + aim[1] * v[2], aim[0] * v[2] - aim[1] * v[1]])


def softened(cfm: Array, A: Array) -> Array:
    """c, the compliance of a contact itself in Newton's method."""
    return jnp.maximum(cfm, SOFT * A[..., 0, 0])


def slope(block: Block, A: Array, stiff: Array, u: Array, x: Array) -> Slope:
    """The laws of `contact_law` in the mode that the impulse is in, solved for dx: E dx + Rv dv + R = 0, E = Rx + c Rv; `stiff`
    is 1 / c.

    Open: dx = -x. Sticking: dx = -(v + dv) / c. Sliding with s = mu x_n / |a|, a = x_t - rate v_t: the impulse goes on along a to
    the cone's edge, and turns across it with the slope rate s / (1 - s + s c rate).
    """
    c = softened(block.cfm, A)
    v = matvec(block.J, u) + block.cfm * x
    normal, aim = x[0] - (v[0] - block.wanted) / A[0, 0], x[1:] - block.rate * v[1:]
    edge, square = block.friction * x[0], dot(aim, aim)
    closed, sliding = normal > 0, square >= edge * edge
    length = jnp.sqrt(square + jnp.finfo(x.dtype).tiny)
    aim = aim / length
    share = edge / length
    turn = 1 / jnp.where(sliding, (1 - share) + share * c * block.rate, 1.0)
    stiff = jnp.where(closed, stiff, 0.0)
    vt, xt = turned(aim, v), turned(aim, x)
    z_n = jnp.where(closed, (v[0] - block.wanted) * stiff, x[0])
    slide_a, slide_c = xt[1] - edge + block.friction * z_n, xt[2] * turn
    z = jnp.stack([z_n, *(jnp.where(closed, jnp.where(sliding, slide, stick * stiff), at_rest)
                          for slide, stick, at_rest in ((slide_a, vt[1], xt[1]), (slide_c, vt[2], xt[2])))])  # fmt: skip
    across = jnp.where(closed & sliding, block.rate * share * turn, stiff)
    cone, along = jnp.where(sliding, block.friction, 0.0), jnp.where(sliding, 0.0, stiff)
    return Slope(aim, stiff, cone, along, across, z)
