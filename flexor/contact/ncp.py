"""Contact as a nonlinear complementarity problem on impulses, by projected Gauss-Seidel on the generalised velocity.

Within a step of length h the free velocity is u0 = qd + h M^-1 f. Impulses x change it to u = u0 + M^-1 J^T x, with, for every
contact (normal n, tangents t, E = cfm):

    0 <= x_n   and   J_n u + E x_n >= w   and one of the two an equality             (Signorini)
    |x_t| <= mu x_n,   and x_t opposes J_t u + E x_t wherever |x_t| = mu x_n, which
    vanishes elsewhere                                                               (Coulomb, circular cone)

Limits, dry friction and equalities of the joints are rows with bounds in place of the cone (`rows.py`). The sweep stores u and
visits one contact at a time, so a sweep costs O(contacts x nv) (Jourdan, Alart & Jean 1998; Heiden et al. 2021).
Overlap -d is removed at the share `baumgarte` in a step: then w is at least baumgarte (-d) / h.

**The time of impact.** A contact at distance d > 0 whose free velocity carries it through the surface within the step touches
at t = -d / (J_n u0). Its impulse acts for the rest of the step only: q moves by h u - sum_i t_i M^-1 J_i^T x_i, and the wanted
velocity is w = max(0, -e v + (h - t) a), v the normal velocity at t, a the free normal acceleration. Trajectories are then
continuous in the initial state when an impact moves from one step to the next, so their derivatives are those of the
hybrid system (the jump of the velocity *and* the shift of the impact), not those of a fixed sequence of steps.

**Derivatives** are those of the solution, by implicit differentiation (`implicit.py`), whatever the number of sweeps.
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flexor.contact.adhesion import pulled
from flexor.contact.contact import AbstractContact, FreeStep, Instant, Loads, Outcome
from flexor.contact.contacts import Contacts, contact_velocity, jacobian_of_one, no_contacts, senses, tapped
from flexor.contact.detect import candidates, detect
from flexor.contact.implicit import Effort, Solution, solve_implicitly
from flexor.contact.laws import soft
from flexor.contact.near import Found, matched, near_contacts, places
from flexor.contact.problem import Cones, Problem, generalised_impulse, visit, visit_rows
from flexor.contact.rows import bounded, impact, joint_rows, reachable, row_count, row_slices, row_sources
from flexor.contact.soft import soft_row
from flexor.contact.sums import tap_sums
from flexor.dynamics.crba import factor_inertia, inverse_times, solve_inertia
from flexor.model.model import Model
from flexor.model.topology import INDEX
from flexor.simd import stored
from flexor.spatial import dot, matmul, matvec
from flexor.taps import listening


class Impulses(eqx.Module):
    """What the NCP remembers and reports: impulses of contacts (normal, two tangents, and with torsional or rolling friction the
    moments about the three) and of the rows of the joints, in N s and N m s; `residual`, the largest violation of the contact
    laws in m/s or rad/s; the number of iterations it took; how many candidates that touch had no place among `NCP.most`; and,
    where contacts have no places of their own, the `key` of each."""

    contact: Float[Array, "ncon rows"]
    joint: Float[Array, " nrow"]
    residual: Float[Array, ""]
    iterations: Int[Array, ""]
    left_out: Int[Array, ""]
    key: Int[Array, " ncon"] | None = None


class _Assembled(NamedTuple):
    """Contacts and their problem; where its solution starts; times of impact of contacts and rows; keys of the contacts, and how
    many had no place."""

    contacts: Contacts
    problem: Problem
    warm: tuple[Array, Array]
    times: tuple[Array, Array]
    key: Int[Array, " ncon"] | None
    left_out: Int[Array, ""]


class NCP(AbstractContact):
    """Impulse-level contact. The solution ends after `iterations`, or when the laws hold to `tolerance` in m/s (or to rounding).
    `warm_start=False` starts every step from zero impulses. Overlap is never pushed out faster than `push_out` in m/s. A robot
    with more than `most` candidates (where None: `separate`; meshes have one for each corner) has a list of contacts instead,
    found anew in each step (`near.places`); `Impulses.left_out` counts those that found no place in it.

    An iteration is a number of sweeps, the first of `sweeps` to begin with, twice as many from one to the next, the second at
    most, and up to `newton_steps` Newton steps. After `patience` iterations without progress it gives up.
    """

    iterations: int = eqx.field(static=True, default=30)
    tolerance: float = eqx.field(static=True, default=1e-10)
    warm_start: bool = eqx.field(static=True, default=True)
    push_out: float = eqx.field(static=True, default=1.0)
    most: int | None = eqx.field(static=True, default=None)
    separate: int = eqx.field(static=True, default=32)
    sweeps: tuple[int, int] = eqx.field(static=True, default=(12, 96), converter=tuple)
    newton_steps: int = eqx.field(static=True, default=3)
    patience: int = eqx.field(static=True, default=5)

    def sources(self, model: Model) -> tuple[str, ...]:
        t = model.topology
        return (*((f"{len(t.pairs)} contact pairs",) if t.pairs else ()), *row_sources(t))

    def init(self, model: Model) -> Impulses:
        count = len(candidates(model.topology))
        room = places(model.topology, self.separate, self.most)
        return no_impulses(model, count) if room is None else no_impulses(model, room, keyed=True)

    def resolve(self, step: FreeStep, loads: Loads, memory: Impulses) -> Outcome:
        assembled = self._assemble(step, loads, memory)
        effort = Effort(self.iterations, self.tolerance, self.sweeps, self.newton_steps, self.patience)
        solution = solve_implicitly(effort, assembled.problem, assembled.warm)
        return self._report(step, loads, assembled, solution)

    def _found(self, step: FreeStep, loads: Loads) -> Found:
        """The contacts that the loads leave to the impulses; those of the model where they say nothing."""
        model, kin, _, _ = step.start
        none = jnp.zeros((), int)
        if loads.contacts is not None:
            return Found(loads.contacts, None, none)
        room = places(model.topology, self.separate, self.most)
        if room is None:
            return Found(detect(model, kin), None, none)
        return near_contacts(step.start, step.velocity, step.dt, room)

    def _assemble(self, step: FreeStep, loads: Loads, memory: Impulses) -> _Assembled:
        """The candidates as cones, the joints as rows."""
        now, dt = step.start, step.dt
        chol = factor_inertia(step.M)
        found, key, left_out = self._found(step, loads)
        step = pulled(step, found)
        contacts, depth = tapped(now.model, now.kin, found, loads.tap)
        keep = 1.0 if self.warm_start else 0.0
        before = memory.contact if key is None else matched(stored(memory.key), stored(memory.contact), key)
        warm = (keep * before, keep * memory.joint)
        cones, times = self._cones(step, loads, contacts, depth, key, chol, warm[0])
        rows, row_times = bounded(joint_rows(now, dt), now.qd, step.velocity, chol, dt, warm[1], self.push_out)
        warm = warm if key is None else (stored(warm[0]), warm[1])
        problem = Problem(step.velocity, step.M, chol, cones, rows)
        return _Assembled(contacts, problem, warm, (times, row_times), key, left_out)

    def _cones(
        self, step: FreeStep, loads: Loads, contacts: Contacts, depth: Array, key: Array | None, chol: Array, warm: Array
    ) -> tuple[Cones, Float[Array, " n"]]:
        """The contacts, and their times of impact. Jacobians are computed for those alone that may touch in the step: by their
        velocities where each candidate has its place, else for all that were found near."""
        (model, kin, _, qd), free, dt = step.start, step.velocity, step.dt
        more, rows = _added_velocity(step, loads, contacts), model.topology.contact_rows
        free_normal = contact_velocity(model, kin, contacts, free)[:, 0] if key is None else None

        def may_touch(free_normal: Array) -> Array:
            hard = reachable(-depth, free_normal, dt) | (warm[:, 0] > 0)
            return hard if contacts.soft is None else jnp.where(contacts.soft.soft, depth > 0, hard)

        def touch(_: None, item: tuple[Any, ...]) -> tuple[None, tuple[Array, ...]]:
            (bodies, sense, a, b, normal), (depth, more, free_normal, restitution, baumgarte), (cfm, soft) = item
            sense = senses(model, bodies) if sense is None else sense
            J = jacobian_of_one(model, kin, sense, (a + b) / 2, normal, rows)
            before = dot(J[0], qd) if more is None else dot(J[0], qd) + more
            free_normal = dot(J[0], free) if free_normal is None else free_normal
            time, wanted = impact(-depth, before, free_normal, dt, restitution, baumgarte, self.push_out)
            law: tuple[Array, ...] = (time, wanted, free_normal)
            if soft is not None:
                yielding = soft_row(soft, -depth, jnp.maximum(depth, 0.0), before, dt)
                given = zip((0.0, yielding[0], free_normal, yielding[1]), (*law, cfm), strict=True)
                law = tuple(jnp.where(soft.soft, x, y) for x, y in given)
            return None, (J, inverse_times(chol, jax.lax.stop_gradient(J.T)), *law)

        def idle(_: None, item: tuple[Any, ...]) -> tuple[None, tuple[Array, ...]]:
            J, zero = jnp.zeros((rows, len(qd)), qd.dtype), jnp.zeros((), qd.dtype)
            return None, (J, J.T, zero, zero, zero, *([] if contacts.soft is None else [zero]))

        pairs = contacts.pairs
        near: Array = may_touch(free_normal) if free_normal is not None else jnp.asarray(key) >= 0
        sense = senses(model, contacts.bodies) if key is None else None
        places = (None if key is None else contacts.bodies, sense, contacts.point_a, contacts.point_b, contacts.normal)
        speeds = (depth, more, free_normal, pairs.restitution, pairs.baumgarte)
        soft = (None if contacts.soft is None else pairs.cfm, contacts.soft)
        _, (J, Y, time, wanted, speed, *cfm) = visit(near, touch, idle, None, (places, speeds, soft))
        active = near if key is None else near & may_touch(speed)
        spin = contacts.spin_friction if rows > 3 else None
        cones = Cones(J, Y, wanted, cfm[0] if cfm else pairs.cfm, contacts.friction, active, spin, contacts.carry(rows))
        return (cones, time) if key is None else stored((cones, time))

    def _report(self, step: FreeStep, loads: Loads, assembled: _Assembled, solution: Solution) -> Outcome:
        """Names the forces, and takes the step with the impulses as their listeners left them."""
        contacts, p, _, times, key, left_out = assembled
        u, x, y, residual, count = solution
        change, added = _tapped_forces(step, loads, x, y, p.rows.J)
        if change is not None:
            x, added = x + change, [*added, generalised_impulse(p.cones.J, change)]
        tap_sums(step.start.model, step.start.kin, contacts, x / step.dt, loads.tap)
        u = u + solve_inertia(p.M, p.chol, sum(added, jnp.zeros_like(u))) if added else u
        late = _late(p, x, y, *times)
        equalities = row_slices(step.start.model.topology).get("equality")
        late = late if equalities is None else _keeping(p, equalities, late)
        return Outcome(u, step.dt * u - late, Impulses(x, y, residual, count, left_out, key))


class NoContact(AbstractContact):
    """No contact between shapes; limits, dry friction and equalities of the joints as `ncp` solves them."""

    ncp: NCP = NCP()

    def sources(self, model: Model) -> tuple[str, ...]:
        return row_sources(model.topology)

    def init(self, model: Model) -> Impulses | None:
        return no_impulses(model, 0) if self.sources(model) else None

    def forces(self, now: Instant) -> Loads:
        none = no_contacts(now.model)
        tap_sums(now.model, now.kin, none, jnp.zeros((0, 3), now.qd.dtype))
        return Loads(contacts=none)

    def resolve(self, step: FreeStep, loads: Loads, memory: Impulses) -> Outcome:
        return self.ncp.resolve(step, loads, memory)


def no_impulses(model: Model, contacts: int, *, keyed: bool = False) -> Impulses:
    """Those before the first step."""
    contact = jnp.zeros((contacts, model.topology.contact_rows), model.dtype)
    joint = jnp.zeros(row_count(model), model.dtype)
    key = jnp.full(contacts, -1, INDEX) if keyed else None
    return Impulses(contact, joint, jnp.zeros((), model.dtype), jnp.zeros((), int), jnp.zeros((), int), key)


def _added_velocity(step: FreeStep, loads: Loads, contacts: Contacts) -> Float[Array, " ncon"] | None:
    """What listeners add to the normal velocities before the step; None if nothing."""
    if not listening():
        return None
    velocity = contact_velocity(step.start.model, step.start.kin, contacts, step.start.qd)
    changed = loads.tap("contact.relative_velocity", velocity)
    return None if changed is velocity else (changed - velocity)[:, 0]


@jax.custom_jvp
def _late(p: Problem, x: Array, y: Array, time: Array, time_row: Array) -> Array:
    """By how much less the impulses move the robot for acting late: M^-1 sum_i t_i J_i^T x_i."""

    def add(late: Array, item: tuple[Array, Array, Array]) -> tuple[Array, None]:
        Y, x, t = item
        return late + t * (matvec(Y, x) if x.ndim else Y * x), None

    def leave(late: Array, _: Any) -> tuple[Array, None]:
        return late, None

    late, _ = visit(p.cones.active, add, leave, jnp.zeros_like(p.free), (p.cones.Y, x, time))
    return visit_rows(p.rows.active, add, leave, late, (p.rows.Y, y, time_row))[0]


@_late.defjvp
def _late_jvp(primals: Any, tangents: Any) -> Any:
    p, dp = primals[0], tangents[0]

    def impulse(J: Array, J_row: Array, x: Array, y: Array, time: Array, time_row: Array) -> Array:
        return generalised_impulse(J, time[:, None] * x) + (time_row * y) @ J_row

    late = _late(*primals)
    _, db = jax.jvp(impulse, (p.cones.J, p.rows.J, *primals[1:]), (dp.cones.J, dp.rows.J, *tangents[1:]))
    return late, solve_inertia(p.M, p.chol, db - matvec(dp.M, late))


def _keeping(p: Problem, rows: slice, late: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """What is left of `late` along bilateral rows that hold before an impact as well as after it: their own answer to the impact
    comes as late as the impact itself. late - Y (J Y + c)^-1 J late with Y = M^-1 J^T and the compliance c of Newton's method."""
    J = p.rows.J[rows]
    Y = jax.lax.map(partial(solve_inertia, p.M, p.chol), J)
    own = jnp.sum(J * Y, axis=-1)
    own = jnp.where(own > jnp.finfo(J.dtype).tiny, own, 1.0)  # a row that nothing moves may have any
    A = matmul(J, Y.T) + jnp.diag(jnp.maximum(p.rows.cfm[rows], soft(J.dtype) * own))
    return late - solve_inertia(A, factor_inertia(A), matvec(J, late)) @ Y


def _tapped_forces(step: FreeStep, loads: Loads, x: Array, y: Array, J_row: Array) -> tuple[Array | None, list[Array]]:
    """Gives the impulses their names as forces: what listeners add to the impulses of contacts, None if nothing, and to the
    generalised impulses of the joints."""
    dt = step.dt
    forces = {"contact.normal_force": x[:, 0] / dt, "contact.friction_force": x[:, 1:3] / dt}
    for kind, rows in row_slices(step.start.model.topology).items():
        forces[f"joint.{kind}_force"] = y[rows] @ J_row[rows] / dt
    tapped_forces = {name: loads.tap(name, force) for name, force in forces.items()}
    change = {n: None if tapped_forces[n] is force else dt * (tapped_forces[n] - force) for n, force in forces.items()}
    normal, friction, *joint = change.values()
    contact = None
    if normal is not None or friction is not None:
        contact = jnp.zeros_like(x)
        contact = contact if normal is None else contact.at[:, 0].set(normal)
        contact = contact if friction is None else contact.at[:, 1:3].set(friction)
    return contact, [z for z in joint if z is not None]
