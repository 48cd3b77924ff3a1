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

from flexor.contact.contact import AbstractContact, FreeStep, Instant, Loads, Outcome
from flexor.contact.contacts import Contacts, contact_velocity, jacobian_of_one, no_contacts, senses, tapped
from flexor.contact.detect import candidates, detect
from flexor.contact.implicit import Solution, solve_implicitly
from flexor.contact.laws import SOFT
from flexor.contact.problem import Cones, Problem, generalised_impulse, visit, visit_rows
from flexor.contact.rows import bounded, impact, joint_rows, reachable, row_count, row_slices, row_sources
from flexor.dynamics.crba import factor_inertia, inverse_times, solve_inertia
from flexor.model.model import Model, Pairs
from flexor.spatial import dot, matmul, matvec


class Impulses(eqx.Module):
    """What the NCP remembers and reports: impulses of contacts (normal, two tangents) and of the rows of the joints, in N s and
    N m s; `residual`, the largest violation of the contact laws in m/s or rad/s; the number of iterations it took; and how many
    overlapping candidates were left out because they were not among the `NCP.most` deepest."""

    contact: Float[Array, "ncon 3"]
    joint: Float[Array, " nrow"]
    residual: Float[Array, ""]
    iterations: Int[Array, ""]
    left_out: Int[Array, ""]


class _Assembled(NamedTuple):
    """A problem; where its solution starts; the candidates that take part (None: all), and the depth of all of them; times of
    impact of contacts and rows."""

    problem: Problem
    warm: tuple[Array, Array]
    nearest: Array | None
    depth: Float[Array, " ncon"]
    times: tuple[Array, Array]


class NCP(AbstractContact):
    """Impulse-level contact. The solution ends after `iterations`, or when the laws hold to `tolerance` in m/s (or to rounding).
    `warm_start=False` starts every step from zero impulses. Overlap is never pushed out faster than `push_out` in m/s. Of many
    candidates (meshes have one for each corner) the `most` nearest take part; `Impulses.left_out` counts what that left out."""

    iterations: int = eqx.field(static=True, default=30)
    tolerance: float = eqx.field(static=True, default=1e-10)
    warm_start: bool = eqx.field(static=True, default=True)
    push_out: float = eqx.field(static=True, default=1.0)
    most: int = eqx.field(static=True, default=64)

    def sources(self, model: Model) -> tuple[str, ...]:
        t = model.topology
        return (*((f"{len(t.pairs)} contact pairs",) if t.pairs else ()), *row_sources(t))

    def init(self, model: Model) -> Impulses:
        return no_impulses(model, len(candidates(model.topology)))

    def forces(self, now: Instant) -> Loads:
        return Loads(contacts=detect(now.model, now.kin))

    def resolve(self, step: FreeStep, loads: Loads, memory: Impulses) -> Outcome:
        assembled = self._assemble(step, loads, memory)
        solution = solve_implicitly(self.iterations, self.tolerance, assembled.problem, assembled.warm)
        return self._report(step, loads, assembled, solution)

    def _assemble(self, step: FreeStep, loads: Loads, memory: Impulses) -> _Assembled:
        """The candidates as cones, the joints as rows."""
        now, dt = step.start, step.dt
        chol = factor_inertia(step.M)
        found = no_contacts(now.model) if loads.contacts is None else loads.contacts
        contacts, depth = tapped(now.model, now.kin, found, loads.tap)
        nearest = _nearest(depth, self.most)
        keep = 1.0 if self.warm_start else 0.0
        warm = (keep * _chosen(memory.contact, nearest), keep * memory.joint)
        cones, times = self._cones(step, loads, contacts, depth, nearest, chol, warm[0])
        rows, row_times = bounded(joint_rows(now, dt), now.qd, step.velocity, chol, dt, warm[1], self.push_out)
        return _Assembled(Problem(step.velocity, step.M, chol, cones, rows), warm, nearest, depth, (times, row_times))

    def _cones(
        self, step: FreeStep, loads: Loads, contacts: Contacts, depth: Array, nearest: Array | None, chol: Array, warm: Array
    ) -> tuple[Cones, Float[Array, " n"]]:
        """The nearest contacts, and their times of impact. Jacobians are computed for those alone that may touch in the step."""
        (model, kin, _, qd), free, dt = step.start, step.velocity, step.dt
        velocity = contact_velocity(model, kin, contacts, qd)
        tapped_velocity = loads.tap("contact.relative_velocity", velocity)
        more = None if tapped_velocity is velocity else _chosen((tapped_velocity - velocity)[:, 0], nearest)
        free_normal = _chosen(contact_velocity(model, kin, contacts, free)[:, 0], nearest)
        distance = _chosen(-depth, nearest)
        active = reachable(distance, free_normal, dt) | (warm[:, 0] > 0)

        def touch(_: None, item: tuple[Any, ...]) -> tuple[None, tuple[Array, ...]]:
            place, (distance, more, free_normal, restitution, baumgarte) = item
            J = jacobian_of_one(model, kin, *place)
            before = dot(J[0], qd) if more is None else dot(J[0], qd) + more
            time, wanted = impact(distance, before, free_normal, dt, restitution, baumgarte, self.push_out)
            return None, (J, inverse_times(chol, jax.lax.stop_gradient(J.T)), time, wanted)

        def idle(_: None, item: tuple[Any, ...]) -> tuple[None, tuple[Array, ...]]:
            J, zero = jnp.zeros((3, len(qd)), qd.dtype), jnp.zeros((), qd.dtype)
            return None, (J, J.T, zero, zero)

        pairs: Pairs = jax.tree.map(lambda p: _chosen(p, nearest), contacts.pairs)
        places = tuple(_chosen(z, nearest) for z in (senses(model, contacts), contacts.point, contacts.normal))
        speeds = (distance, more, free_normal, pairs.restitution, pairs.baumgarte)
        _, (J, Y, time, wanted) = visit(active, touch, idle, None, (places, speeds))
        return Cones(J, Y, wanted, pairs.cfm, _chosen(contacts.friction, nearest), active), time

    def _report(self, step: FreeStep, loads: Loads, assembled: _Assembled, solution: Solution) -> Outcome:
        """Names the forces, and takes the step with the impulses as their listeners left them."""
        p, _, nearest, depth, times = assembled
        u, x, y, residual, count = solution
        change, added = _tapped_forces(step, loads, _spread(x, nearest, depth), y, p.rows.J)
        if change is not None:
            change = _chosen(change, nearest)
            x, added = x + change, [*added, generalised_impulse(p.cones.J, change)]
        u = u + solve_inertia(p.M, p.chol, sum(added, jnp.zeros_like(u))) if added else u
        late, left_out = _late(p, x, y, *times), jnp.maximum(jnp.sum(depth > 0) - self.most, 0)
        equalities = row_slices(step.start.model.topology).get("equality")
        late = late if equalities is None else _keeping(p, equalities, late)
        memory = Impulses(_spread(x, nearest, depth), y, residual, count, left_out)
        return Outcome(u, step.dt * u - late, memory)


class NoContact(AbstractContact):
    """No contact between shapes; limits, dry friction and equalities of the joints as `ncp` solves them."""

    ncp: NCP = NCP()

    def sources(self, model: Model) -> tuple[str, ...]:
        return row_sources(model.topology)

    def init(self, model: Model) -> Impulses | None:
        return no_impulses(model, 0) if self.sources(model) else None

    def resolve(self, step: FreeStep, loads: Loads, memory: Impulses) -> Outcome:
        return self.ncp.resolve(step, loads, memory)


def no_impulses(model: Model, contacts: int) -> Impulses:
    """Those before the first step."""
    contact, joint = jnp.zeros((contacts, 3), model.dtype), jnp.zeros(row_count(model), model.dtype)
    return Impulses(contact, joint, jnp.zeros((), model.dtype), jnp.zeros((), int), jnp.zeros((), int))


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
    A = matmul(J, Y.T) + jnp.diag(jnp.maximum(p.rows.cfm[rows], SOFT * jnp.sum(J * Y, axis=-1)))
    return late - solve_inertia(A, factor_inertia(A), matvec(J, late)) @ Y


def _nearest(depth: Array, most: int) -> Array | None:
    """Numbers of the deepest candidates; None where all take part."""
    return None if len(depth) <= most else jax.lax.top_k(depth, most)[1]


def _chosen(x: Array, numbers: Array | None) -> Array:
    """The given rows of an array, or all of it."""
    return x if numbers is None else x[numbers]


def _spread(x: Array, numbers: Array | None, like: Array) -> Array:
    """The inverse of `_chosen`: zero for every candidate that does not take part."""
    return x if numbers is None else jnp.zeros((len(like), *x.shape[1:]), x.dtype).at[numbers].set(x)


def _tapped_forces(step: FreeStep, loads: Loads, x: Array, y: Array, J_row: Array) -> tuple[Array | None, list[Array]]:
    """Gives the impulses their names as forces: what listeners add to the impulses of contacts, None if nothing, and to the
    generalised impulses of the joints."""
    dt = step.dt
    forces = {"contact.normal_force": x[:, 0] / dt, "contact.friction_force": x[:, 1:] / dt}
    for kind, rows in row_slices(step.start.model.topology).items():
        forces[f"joint.{kind}_force"] = y[rows] @ J_row[rows] / dt
    tapped_forces = {name: loads.tap(name, force) for name, force in forces.items()}
    change = {n: None if tapped_forces[n] is force else dt * (tapped_forces[n] - force) for n, force in forces.items()}
    normal, friction, *joint = change.values()
    contact = None
    if normal is not None or friction is not None:
        contact = jnp.zeros_like(x)
        contact = contact if normal is None else contact.at[:, 0].set(normal)
        contact = contact if friction is None else contact.at[:, 1:].set(friction)
    return contact, [z for z in joint if z is not None]
