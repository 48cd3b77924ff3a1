"""Rows: scalar constraints on the generalised velocity, whatever they come from.

A row is a direction J, and its impulse y acts along it: M (u - u0) = J^T y. The impulse stays within its bounds, and where it
is between them the velocity obeys

    J u + cfm y = w.

A *unilateral* row keeps a gap from closing: 0 <= y, and w is given by the gap, its restitution and the time of impact, as for
contacts. A *bilateral* row keeps its gap at zero, w = -baumgarte gap / h: an equality or a loop without bounds, or dry
friction, which has bounds -h loss <= y <= h loss and no gap. Contacts are the same with three directions and a cone in place of
bounds.

Every source of rows fills a `Rows`; `joint_rows` joins them. The solver knows nothing of where they come from.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from flexor.contact.contact import Instant
from flexor.contact.equality import tie_count, ties
from flexor.contact.problem import Bounded, visit_rows
from flexor.contact.soft import Soft, soft_row, softness
from flexor.dynamics.crba import inverse_times
from flexor.dynamics.tendons import tendon_jacobian, tendon_lengths
from flexor.model.model import Model
from flexor.model.topology import Topology
from flexor.simd import stored
from flexor.spatial import dot, matvec, quat_log, take


class Rows(NamedTuple):
    """Rows as their sources fill them. `unilateral` and `opposite` are static: the latter is the number of the row of which a row
    is the opposite direction (the two ends of a limit), its own where there is none. Where some are `soft`, these are their laws,
    and `violation` is |r| of the impedance: that of all rows of a loop together."""

    J: Float[Array, "m nv"]
    gap: Float[Array, " m"]
    low: Float[Array, " m"]
    high: Float[Array, " m"]
    cfm: Float[Array, " m"]
    baumgarte: Float[Array, " m"]
    restitution: Float[Array, " m"]
    unilateral: np.ndarray
    opposite: np.ndarray
    soft: Soft | None = None
    violation: Float[Array, " m"] | None = None


def row_slices(t: Topology) -> dict[str, slice]:
    """The places of the rows in their order, by kind: limits (lower, then upper ends) and dry friction, each of joints and then
    of tendons, equalities and loops if any."""
    limits = 2 * len(t.limited) + len(t.limited_balls) + 2 * len(t.limited_tendons)
    counts = {"limit": limits, "friction": len(t.dry) + len(t.dry_tendons)}
    if t.equalities or t.loops:
        counts["equality"] = tie_count(t)
    ends = np.cumsum([0, *counts.values()]).tolist()
    return {kind: slice(ends[i], ends[i + 1]) for i, kind in enumerate(counts)}


def joint_rows(now: Instant, dt: Float[Array, ""]) -> Rows:
    """All rows of joints and tendons, in the order of `row_slices`."""
    t = now.model.topology
    parts = [_limit_rows(now)]
    parts += [_ball_limit_rows(now)] if len(t.limited_balls) else []
    parts += [_tendon_limit_rows(now)] if len(t.limited_tendons) else []
    parts += [_friction_rows(now, dt)]
    parts += [_tendon_friction_rows(now, dt)] if len(t.dry_tendons) else []
    parts += [_equality_rows(now)] if t.equalities or t.loops else []
    return _softened(now.model, _joined(*parts))


def _softened(model: Model, rows: Rows) -> Rows:
    """The rows with the laws of those that are soft."""
    t = model.topology
    if not any(c.kind != "pair" for c in t.compliances):
        return rows
    joints, tendons = t.compliant("joint", len(t.joints)), t.compliant("tendon", len(t.tendons))
    ends = [np.tile(joints[t.limited], 2), joints[t.limited_balls], np.tile(tendons[t.limited_tendons], 2)]
    hard = np.full(len(t.dry) + len(t.dry_tendons), -1)
    loops, welds = t.compliant("loop", len(t.loops)), np.array([x.weld for x in t.loops], bool)
    ties = [t.compliant("equality", len(t.equalities)), np.repeat(loops, 3), np.repeat(loops[welds], 3)]
    number = np.concatenate([*ends, hard, *ties]).astype(int)
    turning = np.arange(len(number)) >= len(number) - 3 * int(welds.sum())
    soft = softness(model, number, turning if welds.any() else None)
    if soft is None:
        return rows
    violation = jnp.abs(rows.gap)
    if t.loops:
        first = len(number) - 3 * len(loops) - 3 * int(welds.sum())
        owner = np.concatenate([np.repeat(np.arange(len(loops)), 3), np.repeat(np.flatnonzero(welds), 3)])
        half = np.where(turning[first:], 0.5, 1.0)  # MuJoCo counts the vector part of a quaternion, half the angle
        square = jnp.zeros(len(loops), rows.gap.dtype).at[owner].add((half * rows.gap[first:]) ** 2)
        whole = jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))
        violation = jnp.concatenate([violation[:first], take(whole, owner)])
    return rows._replace(soft=soft, violation=violation)


def row_sources(t: Topology) -> tuple[str, ...]:
    """Where the rows come from, in words."""
    names = {
        "limits of joint": [t.joints[j].name for j in (*t.limited, *t.limited_balls)],
        "limits of tendon": [t.tendons[i].name for i in t.limited_tendons],
        "dry friction in joint": list(dict.fromkeys(t.joints[j].name for j in t.dof_joint[t.dry])),
        "dry friction in tendon": [t.tendons[i].name for i in t.dry_tendons],
        "equality": [*(e.name for e in t.equalities), *(x.name for x in t.loops)],
    }
    return tuple(f"{what} '{n[0]}'" + (f" and {len(n) - 1} more" if n[1:] else "") for what, n in names.items() if n)


def row_count(model: Model) -> int:
    """How many rows the joints have."""
    return max(s.stop for s in row_slices(model.topology).values())


def _limit_rows(now: Instant) -> Rows:
    """Lower ends of all limits, then upper ends."""
    t, joints = now.model.topology, now.model.joints
    limited, dtype = t.limited, now.q.dtype
    eye = np.eye(t.nv)[t.v_start[limited]]
    here, ends = take(now.q, t.q_start[limited]), take(joints.range, limited)
    zero, n = jnp.zeros(2 * len(limited), dtype), len(limited)
    gap = jnp.concatenate([here - ends[:, 0], ends[:, 1] - here])
    cfm, baumgarte = (jnp.concatenate([take(x, limited)] * 2) for x in (joints.limit_cfm, joints.limit_baumgarte))
    J = jnp.asarray(np.concatenate([eye, -eye]), dtype)
    return Rows(J, gap, zero, zero + jnp.inf, cfm, baumgarte, zero, np.ones(2 * n, bool), np.tile(np.arange(n), 2))


def _ball_limit_rows(now: Instant) -> Rows:
    """The largest angles of ball joints."""
    joints, balls = now.model.joints, now.model.topology.limited_balls
    angle, J = ball_angles(now.model, now.q)
    n, zero = len(balls), jnp.zeros_like(angle)
    cfm, baumgarte = take(joints.limit_cfm, balls), take(joints.limit_baumgarte, balls)
    gap = take(joints.range, balls)[:, 1] - angle
    return Rows(-J, gap, zero, zero + jnp.inf, cfm, baumgarte, zero, np.ones(n, bool), np.arange(n))


def ball_angles(model: Model, q: Float[Array, " nq"]) -> tuple[Float[Array, " n"], Float[Array, "n nv"]]:
    """Angles of the rotations of the ball joints with limits, and J with d(angle)/dt = J qd: the axis of the rotation."""
    t = model.topology
    quat = take(q, t.q_start[t.limited_balls][:, None] + np.arange(4))
    turn = quat_log(quat / jnp.sqrt(dot(quat, quat))[:, None])
    angle = jnp.sqrt(jnp.maximum(dot(turn, turn), jnp.finfo(q.dtype).tiny))
    places = np.eye(t.nv)[t.v_start[t.limited_balls][:, None] + np.arange(3)]
    return angle, jnp.sum((turn / angle[:, None])[:, :, None] * jnp.asarray(places, q.dtype), axis=1)


def _friction_rows(now: Instant, dt: Array) -> Rows:
    """Dry friction of every degree of freedom that has it."""
    t, dtype = now.model.topology, now.q.dtype
    loss = dt * take(now.model.joints.frictionloss, t.dof_joint[t.dry])
    zero, n = jnp.zeros(len(t.dry), dtype), len(t.dry)
    J = jnp.asarray(np.eye(t.nv)[t.dry], dtype)
    return Rows(J, zero, -loss, loss, zero, zero, zero, np.zeros(n, bool), np.arange(n))


def _tendon_limit_rows(now: Instant) -> Rows:
    """Shortest lengths of all tendons with limits, then longest."""
    table, limited = now.model.tendons, now.model.topology.limited_tendons
    here, ends = take(tendon_lengths(now.model, now.kin, now.q), limited), take(table.range, limited)
    J = take(tendon_jacobian(now.model, now.kin), limited)
    n, zero = len(limited), jnp.zeros(2 * len(limited), here.dtype)
    gap = jnp.concatenate([here - ends[:, 0], ends[:, 1] - here])
    cfm, baumgarte = (jnp.concatenate([take(x, limited)] * 2) for x in (table.limit_cfm, table.limit_baumgarte))
    both = np.tile(np.arange(n), 2)
    return Rows(jnp.concatenate([J, -J]), gap, zero, zero + jnp.inf, cfm, baumgarte, zero, np.ones(2 * n, bool), both)


def _tendon_friction_rows(now: Instant, dt: Array) -> Rows:
    """Dry friction of every tendon that has it."""
    dry = now.model.topology.dry_tendons
    loss = dt * take(now.model.tendons.frictionloss, dry)
    J, zero, n = take(tendon_jacobian(now.model, now.kin), dry), jnp.zeros_like(loss), len(dry)
    return Rows(J, zero, -loss, loss, zero, zero, zero, np.zeros(n, bool), np.arange(n))


def _equality_rows(now: Instant) -> Rows:
    """Coordinates tied together, and bodies held together."""
    gap, J, _, _, cfm, baumgarte = ties(now)
    n = len(gap)
    endless, zero = jnp.full(n, jnp.inf, gap.dtype), jnp.zeros(n, gap.dtype)
    return Rows(J, gap, -endless, endless, cfm, baumgarte, zero, np.zeros(n, bool), np.arange(n))


def _joined(*parts: Rows) -> Rows:
    starts = np.cumsum([0, *(len(p.gap) for p in parts)])
    J, gap, low, high, cfm, baumgarte, restitution = (jnp.concatenate(x) for x in zip(*(p[:7] for p in parts), strict=True))
    unilateral = np.concatenate([p.unilateral for p in parts])
    opposite = np.concatenate([p.opposite + start for p, start in zip(parts, starts, strict=False)])
    return Rows(J, gap, low, high, cfm, baumgarte, restitution, unilateral, opposite)


def bounded(
    rows: Rows, qd: Array, free: Array, chol: Array, dt: Array, warm: Float[Array, " m"], fastest: float
) -> tuple[Bounded, Float[Array, " m"]]:
    """The rows as the solver takes them, and their times of impact within the step.

    `free` is the velocity without impulses, `warm` the impulses to start from; gaps close no faster than `fastest`.
    """
    before, after = matvec(rows.J, qd), matvec(rows.J, free)
    time, wanted = impact(rows.gap, before, after, dt, rows.restitution, rows.baumgarte, fastest)
    hold = jnp.clip(-rows.baumgarte * rows.gap / dt, -fastest, fastest)
    active = reachable(rows.gap, after, dt) | (warm > 0) | ~rows.unilateral
    wanted = jnp.where(rows.unilateral, wanted, hold)
    cfm, time = rows.cfm, jnp.where(rows.unilateral, time, 0.0)
    if rows.soft is not None and rows.violation is not None:
        soft = rows.soft.soft
        yielding = soft_row(rows.soft, rows.gap, rows.violation, before, dt)
        wanted, cfm = (jnp.where(soft, x, y) for x, y in zip(yielding, (wanted, cfm), strict=True))
        active, time = jnp.where(soft & rows.unilateral, rows.gap < 0, active), jnp.where(soft, 0.0, time)
    found = Bounded(rows.J, _responses(rows, chol, active), wanted, cfm, rows.low, rows.high, active)
    return stored((found, time)) if _many(rows) else (found, time)


def _many(rows: Rows, written_out: int = 2048) -> bool:
    """Whether loops over the rows stay loops. Those over a Jacobian of fewer numbers are written out, their zeros found."""
    return rows.J.size > written_out


def _responses(rows: Rows, chol: Array, active: Bool[Array, " m"]) -> Float[Array, "m nv"]:
    """Y = M^-1 J^T of the active rows; opposite rows share a solution."""
    own = np.flatnonzero(rows.opposite == np.arange(len(rows.opposite)))
    last = np.array([np.flatnonzero(rows.opposite == i)[-1] for i in own], int)
    used = take(active, own) | take(active, last)
    J = jax.lax.stop_gradient(take(rows.J, own))
    J, used = stored((J, used)) if _many(rows) else (J, used)
    _, Y = visit_rows(used, lambda _, j: (None, inverse_times(chol, j)), lambda _, j: (None, jnp.zeros_like(j)), None, J)
    sign = np.where(rows.opposite == np.arange(len(rows.opposite)), 1.0, -1.0)
    return jnp.asarray(sign[:, None], Y.dtype) * take(Y, np.searchsorted(own, rows.opposite))


def impact(
    distance: Array, before: Array, free: Array, dt: Array, restitution: Array | float, baumgarte: Array, fastest: float
) -> tuple[Array, Array]:
    """Time of impact within the step, and the velocity wanted after it; see `flexor.contact.ncp`."""
    # a gap of some roundings, in m, is none: inside a stack, where bodies fall alike, its time of impact would be any
    overlapping = distance <= 64 * jnp.finfo(distance.dtype).eps
    coming = (distance + dt * free < 0) & ~overlapping
    t = jnp.where(coming, distance / jnp.where(coming, -free, 1.0), 0.0)
    gained = free - before
    approach = jnp.minimum(before + t / dt * gained, 0.0)
    bounce = jnp.maximum(-restitution * approach + (1 - t / dt) * gained, 0.0)
    push_out = jnp.maximum(bounce, jnp.minimum(-baumgarte * distance / dt, fastest))
    return t, jnp.where(overlapping, push_out, jnp.where(coming, bounce, -distance / dt))


def reachable(distance: Array, free: Array, dt: Array) -> Bool[Array, " n"]:
    """Whether a gap may close within the step: by twice the free velocity, or by what impulses elsewhere may add, 1 m/s."""
    return distance < dt * (1 + 2 * jnp.maximum(-free, 0.0))
