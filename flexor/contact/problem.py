"""The NCP's data, and how they are gone through: contact by contact, row by row, past those that are idle."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from flexor.contact.laws import Block, Row, Spin
from flexor.spatial import matvec


class Cones(NamedTuple):
    """Contacts as the solver takes them: blocks of a normal and two tangents, with impulses in a circular cone, and of spins if
    there is torsional or rolling friction (`laws.py`); `wanted` is w of the normal; `carry` is what
    moving surfaces add to the velocities J u, None where there are none."""

    J: Float[Array, "n rows nv"]
    Y: Float[Array, "n nv rows"]
    wanted: Float[Array, " n"]
    cfm: Float[Array, " n"]
    friction: Float[Array, " n"]
    active: Bool[Array, " n"]
    spin_friction: Float[Array, "n 2"] | None = None
    carry: Float[Array, "n rows"] | None = None

    def blocks(self, rate: Array, spin_rate: Array | None) -> Block:
        """All contacts; the rates scale their slip and spin to impulses."""
        spin = None if self.spin_friction is None or spin_rate is None else Spin(self.spin_friction, spin_rate)
        return Block(self.J, self.wanted, self.cfm, self.friction, rate, spin, self.carry)


class Bounded(NamedTuple):
    """Rows as the solver takes them, with impulses from `low` to `high`."""

    J: Float[Array, "m nv"]
    Y: Float[Array, "m nv"]
    wanted: Float[Array, " m"]
    cfm: Float[Array, " m"]
    low: Float[Array, " m"]
    high: Float[Array, " m"]
    active: Bool[Array, " m"]

    def data(self) -> Row:
        """All rows, as their law takes them."""
        return Row(self.J, self.wanted, self.cfm, self.low, self.high)


class Problem(NamedTuple):
    """Data of the NCP. The factor of M and Y = M^-1 J^T are there for speed: derivatives do not go through them.

    What is not active has no impulse. It costs nothing where no member of a batch wants it (in a SIMD kernel), or where there
    is no batch; otherwise it is computed and dropped.
    """

    free: Float[Array, " nv"]
    M: Float[Array, "nv nv"]
    chol: Float[Array, "nv nv"]
    cones: Cones
    rows: Bounded


def visit(
    active: Array,
    f: Callable[[Any, Any], tuple[Any, Any]],
    skip: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    items: Any,
    *,
    at_once: range = range(0),
) -> tuple[Any, Any]:
    """`lax.scan` of f over the active items, of `skip` over the others; where their number is in `at_once`, it asks first whether
    any is active at all."""
    if not len(active):
        return carry, jax.tree.map(lambda x: jnp.zeros((0, *x.shape), x.dtype), jax.eval_shape(skip, carry, jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), items))[1])  # fmt: skip
    if len(active) in at_once:
        return lax.cond(jnp.any(active), partial(visit, active, f, skip), partial(lax.scan, skip), carry, items)
    return lax.scan(lambda carry, item: lax.cond(item[0], f, skip, carry, item[1]), carry, (active, items))


# Rows mostly are idle all at once. Fewer are not worth the question, and of more some always are active.
visit_rows = partial(visit, at_once=range(4, 49))


def velocity(p: Problem, x: Array, y: Array) -> Array:
    """u = u0 + Y x."""

    def push(u: Array, item: tuple[Array, Array]) -> tuple[Array, None]:
        return u + matvec(item[0], item[1]), None

    def push_row(u: Array, item: tuple[Array, Array]) -> tuple[Array, None]:
        return u + item[0] * item[1], None

    u, _ = visit(p.cones.active, push, lambda u, _: (u, None), p.free, (p.cones.Y, x))
    return visit_rows(p.rows.active, push_row, lambda u, _: (u, None), u, (p.rows.Y, y))[0]


def generalised_impulse(J: Float[Array, "n rows nv"], x: Float[Array, "n rows"]) -> Float[Array, " nv"]:
    """J^T x of all contacts."""
    return jnp.einsum("nka,nk->a", J, x) if len(J) else jnp.zeros(J.shape[2], J.dtype)
