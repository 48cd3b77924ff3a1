"""Contact as a nonlinear complementarity problem on impulses, by projected Gauss-Seidel on the generalised velocity.

Within a step of length h the free velocity is u0 = qd + h M^-1 f. Impulses x change it to u = u0 + M^-1 J^T x, with, for every
contact (normal n, tangents t, E = cfm):

    0 <= x_n   and   J_n u + E x_n >= w   and one of the two an equality             (Signorini)
    |x_t| <= mu x_n,   and x_t opposes J_t u + E x_t wherever |x_t| = mu x_n, which
    vanishes elsewhere                                                               (Coulomb, circular cone)

Joint limits are the same without friction; dry joint friction is a row with -h loss <= x <= h loss. The sweep stores u and
visits one contact at a time, so a sweep costs O(contacts x nv) (Jourdan, Alart & Jean 1998; Heiden et al. 2021).
Overlap -d is removed at the share `baumgarte` in a step: then w is at least baumgarte (-d) / h.

**The time of impact.** A contact at distance d > 0 whose free velocity carries it through the surface within the step touches
at t = -d / (J_n u0). Its impulse acts for the rest of the step only: q moves by h u - sum_i t_i M^-1 J_i^T x_i, and the wanted
velocity is w = max(0, -e v + (h - t) a), v the normal velocity at t, a the free normal acceleration. Trajectories are then
continuous in the initial state when an impact moves from one step to the next, so their derivatives are those of the
hybrid system (the jump of the velocity *and* the shift of the impact), not those of a fixed sequence of steps.

**Derivatives** are those of the solution, by implicit differentiation (`implicit.py`), whatever the number of sweeps.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flexor.contact.contacts import Contacts, contact_velocity, jacobian_of_one, senses, tapped
from flexor.contact.implicit import solve_implicitly
from flexor.contact.problem import Problem, pulled, visit, visit_rows
from flexor.dynamics import Kinematics
from flexor.dynamics.crba import factor_inertia, inverse_times, solve_inertia
from flexor.model.model import Model, Pairs
from flexor.spatial import dot, matvec, take
from flexor.taps import Handler, tap


class Impulses(eqx.Module):
    """What the NCP remembers and reports: impulses of contacts (normal, two tangents) and of joint rows, in N s and N m s;
    `residual`, the largest violation of the contact laws in m/s or rad/s; the number of iterations it took; and how many
    overlapping candidates were left out because they were not among the `NCP.most` deepest."""

    contact: Float[Array, "ncon 3"]
    joint: Float[Array, " nrow"]
    residual: Float[Array, ""]
    iterations: Int[Array, ""]
    left_out: Int[Array, ""]


class NCP(eqx.Module):
    """Impulse-level contact. The solution ends after `iterations`, or when the laws hold to `tolerance` in m/s (or to rounding).
    `warm_start=False` starts every step from zero impulses. Overlap is never pushed out faster than `push_out` in m/s. Of many
    candidates (meshes have one for each corner) the `most` nearest take part; `Impulses.left_out` counts what that left out."""

    iterations: int = eqx.field(static=True, default=30)
    tolerance: float = eqx.field(static=True, default=1e-10)
    warm_start: bool = eqx.field(static=True, default=True)
    push_out: float = eqx.field(static=True, default=1.0)
    most: int = eqx.field(static=True, default=64)
    impulsive: ClassVar[bool] = True

    def init(self, model: Model, contacts: Contacts) -> Impulses:
        """No impulses yet."""
        rows = 2 * len(model.topology.limited) + len(_dry(model))
        contact, joint = jnp.zeros((len(contacts), 3), model.dtype), jnp.zeros(rows, model.dtype)
        return Impulses(contact, joint, jnp.zeros((), model.dtype), jnp.zeros((), int), jnp.zeros((), int))

    def resolve(
        self,
        model: Model,
        kin: Kinematics,
        contacts: Contacts,
        q: Float[Array, " nq"],
        qd: Float[Array, " nv"],
        free: Float[Array, " nv"],
        M: Float[Array, "nv nv"],
        dt: Float[Array, ""],
        memory: Impulses,
        tap: Handler = tap,
    ) -> tuple[Float[Array, " nv"], Float[Array, " nv"], Impulses]:
        """Velocity after the step, displacement over the step, and the impulses.

        `free` is the velocity after the step without contact, M the joint-space inertia with what damping adds to it. `tap`
        names the quantities; `Mixed` has its own.
        """
        chol = factor_inertia(M)
        contacts, depth = tapped(model, kin, contacts, tap)
        near = _nearest(depth, self.most)
        velocity = contact_velocity(model, kin, contacts, qd)
        heard = tap("contact.relative_velocity", velocity)
        more = None if heard is velocity else _near((heard - velocity)[:, 0], near)
        free_normal = _near(contact_velocity(model, kin, contacts, free)[:, 0], near)
        distance = _near(-depth, near)
        rows, gap, low, high, cfm, baumgarte = _joint_rows(model, q, dt)
        hit_row, wanted_row = impact(gap, matvec(rows, qd), matvec(rows, free), dt, 0.0, baumgarte, self.push_out)
        wanted_row = jnp.where(jnp.isinf(high), wanted_row, 0.0)  # dry friction wants no velocity at all
        keep = 1.0 if self.warm_start else 0.0
        start = (keep * _near(memory.contact, near), keep * memory.joint)
        active = _reachable(distance, free_normal, dt) | (start[0][:, 0] > 0)
        active_row = jnp.isfinite(high) | _reachable(gap, matvec(rows, free), dt) | (start[1] > 0)
        c: Pairs = jax.tree.map(lambda p: _near(p, near), contacts.pairs)

        def touch(_: None, item: tuple[Any, ...]) -> tuple[None, tuple[Array, ...]]:
            place, (distance, more, free_normal, restitution, baumgarte) = item
            J = jacobian_of_one(model, kin, *place)
            before = dot(J[0], qd) if more is None else dot(J[0], qd) + more
            met = impact(distance, before, free_normal, dt, restitution, baumgarte, self.push_out)
            return None, (J, inverse_times(chol, jax.lax.stop_gradient(J.T)), *met)

        def apart(_: None, item: tuple[Any, ...]) -> tuple[None, tuple[Array, ...]]:
            J, zero = jnp.zeros((3, len(qd)), qd.dtype), jnp.zeros((), qd.dtype)
            return None, (J, J.T, zero, zero)

        places = tuple(_near(z, near) for z in (senses(model, contacts), contacts.point, contacts.normal))
        speeds = (distance, more, free_normal, c.restitution, c.baumgarte)
        _, (J, Y, hit, wanted) = visit(active, touch, apart, None, (places, speeds))
        problem = Problem(
            free, M, chol, J, Y, wanted, c.cfm, _near(contacts.friction, near),
            rows, _row_response(model, chol, active_row), wanted_row, cfm, low, high, active, active_row,
        )  # fmt: skip
        u, x, y, residual, count = solve_implicitly(self.iterations, self.tolerance, problem, start)
        change, push = _tapped(model, _spread(x, near, depth), y, dt, tap)
        if change is not None:
            x, push = x + _near(change, near), push + pulled(J, _near(change, near))
        u = u if push is None else u + solve_inertia(M, chol, push)
        late, left_out = _late(problem, x, y, hit, hit_row), jnp.maximum(jnp.sum(depth > 0) - self.most, 0)
        return u, dt * u - late, Impulses(_spread(x, near, depth), y, residual, count, left_out)


@jax.custom_jvp
def _late(p: Problem, x: Array, y: Array, hit: Array, hit_row: Array) -> Array:
    """By how much less the impulses move the robot for acting late: M^-1 sum_i t_i J_i^T x_i."""

    def add(late: Array, item: tuple[Array, Array, Array]) -> tuple[Array, None]:
        Y, x, t = item
        return late + t * (matvec(Y, x) if x.ndim else Y * x), None

    def leave(late: Array, _: Any) -> tuple[Array, None]:
        return late, None

    late, _ = visit(p.active, add, leave, jnp.zeros_like(p.free), (p.Y, x, hit))
    return visit_rows(p.active_row, add, leave, late, (p.Y_row, y, hit_row))[0]


@_late.defjvp
def _late_jvp(primals: Any, tangents: Any) -> Any:
    p, dp = primals[0], tangents[0]

    def impulse(J: Array, J_row: Array, x: Array, y: Array, hit: Array, hit_row: Array) -> Array:
        return pulled(J, hit[:, None] * x) + (hit_row * y) @ J_row

    late = _late(*primals)
    _, db = jax.jvp(impulse, (p.J, p.J_row, *primals[1:]), (dp.J, dp.J_row, *tangents[1:]))
    return late, solve_inertia(p.M, p.chol, db - matvec(dp.M, late))


def _nearest(depth: Array, most: int) -> Array | None:
    """Rows of the deepest candidates; None where all take part."""
    return None if len(depth) <= most else jax.lax.top_k(depth, most)[1]


def _near(x: Array, rows: Array | None) -> Array:
    """The given rows of an array, or all of it."""
    return x if rows is None else x[rows]


def _spread(x: Array, rows: Array | None, like: Array) -> Array:
    """The inverse of `_near`: zero for every candidate that does not take part."""
    return x if rows is None else jnp.zeros((len(like), *x.shape[1:]), x.dtype).at[rows].set(x)


def impact(
    distance: Array, before: Array, free: Array, dt: Array, restitution: Array | float, baumgarte: Array, fastest: float
) -> tuple[Array, Array]:
    """Time of impact within the step, and the velocity wanted after it; see the head of this file."""
    overlapping = distance <= 0
    coming = (distance + dt * free < 0) & ~overlapping
    t = jnp.where(coming, distance / jnp.where(coming, -free, 1.0), 0.0)
    gained = free - before
    approach = jnp.minimum(before + t / dt * gained, 0.0)
    bounce = jnp.maximum(-restitution * approach + (1 - t / dt) * gained, 0.0)
    push_out = jnp.maximum(bounce, jnp.minimum(-baumgarte * distance / dt, fastest))
    return t, jnp.where(overlapping, push_out, jnp.where(coming, bounce, -distance / dt))


def _row_response(model: Model, chol: Array, active: Array) -> Array:
    """M^-1 of the joint rows' Jacobian: a column of M^-1 for every joint, shared by its two limits."""
    limited, dry = model.topology.v_start[model.topology.limited], _dry(model)
    n, nv = len(limited), chol.shape[0]
    used = jnp.concatenate([active[:n] | active[n : 2 * n], active[2 * n :]])
    eye = jnp.asarray(np.eye(nv)[np.concatenate([limited, dry])], chol.dtype)
    _, Y = visit_rows(used, lambda _, e: (None, inverse_times(chol, e)), lambda _, e: (None, jnp.zeros_like(e)), None, eye)
    return jnp.concatenate([Y[:n], -Y[:n], Y[n:]])


def _reachable(distance: Array, free: Array, dt: Array) -> Array:
    """Whether a gap may close within the step: by twice the free velocity, or by what impulses elsewhere may add, 1 m/s."""
    return distance < dt * (1 + 2 * jnp.maximum(-free, 0.0))


def _dry(model: Model) -> np.ndarray:
    """Degrees of freedom with dry friction."""
    t = model.topology
    return np.flatnonzero([t.joints[j].dry_friction for j in t.dof_joint])


def _joint_rows(model: Model, q: Array, dt: Array) -> tuple[Array, ...]:
    """Rows of lower limits, upper limits and dry friction: Jacobian, distance, bounds of the impulse, cfm, Baumgarte."""
    t, limited, dry = model.topology, model.topology.limited, _dry(model)
    at_q, at_v = t.q_start[limited], t.v_start[limited]
    eye = np.eye(t.nv)
    rows = jnp.asarray(np.concatenate([eye[at_v], -eye[at_v], eye[dry]]), q.dtype)
    inf, none = jnp.full(2 * len(limited), jnp.inf, q.dtype), jnp.zeros(len(dry), q.dtype)
    here, ends = take(q, at_q), take(model.joints.range, limited)
    distance = jnp.concatenate([here - ends[:, 0], ends[:, 1] - here, none])
    loss = dt * take(model.joints.frictionloss, t.dof_joint[dry])
    low, high = jnp.concatenate([0 * distance[: len(inf)], -loss]), jnp.concatenate([inf, loss])

    def both(x: Array) -> Array:
        return jnp.concatenate([take(x, limited), take(x, limited), none])

    return rows, distance, low, high, both(model.joints.limit_cfm), both(model.joints.limit_baumgarte)


def _tapped(model: Model, x: Array, y: Array, dt: Array, tap: Handler) -> tuple[Array | None, Any]:
    """The impulses as named forces: what listeners add to those of contacts, None if nothing, and to those of the joints, for
    any joint, None if nothing at all."""
    t, limited, dry = model.topology, model.topology.limited, _dry(model)
    n, at = len(limited), t.v_start[limited]
    zero = jnp.zeros(t.nv, x.dtype)
    limit = zero.at[at].set((y[:n] - y[n : 2 * n]) / dt)
    friction = zero.at[dry].set(y[2 * n :] / dt)
    forces = {
        "contact.normal_force": x[:, 0] / dt, "contact.friction_force": x[:, 1:] / dt,
        "joint.limit_force": limit, "joint.friction_force": friction,
    }  # fmt: skip
    heard = {name: tap(name, force) for name, force in forces.items()}
    fn, ft, *joint = (None if heard[name] is force else dt * (heard[name] - force) for name, force in forces.items())
    contact = None
    if fn is not None or ft is not None:
        contact = jnp.zeros_like(x)
        contact = contact if fn is None else contact.at[:, 0].set(fn)
        contact = contact if ft is None else contact.at[:, 1:].set(ft)
    added = [z for z in joint if z is not None]
    return contact, None if contact is None and not added else sum(added, zero)
