"""The base step, which a learned solver goes beyond: the motion of the robot if nothing touched it, and then contacts and stops
resolved once for the whole of it; and where a step leaves the contacts that were seen before it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.contact import NCP, detect
from flexor.contact.contacts import relative_velocity
from flexor.contact.detect import candidates
from flexor.dynamics import Kinematics, aba, body_poses, crba, forward_kinematics, integrate, passive_force
from flexor.model.model import Control, Model, State, as_control
from flexor.model.topology import Topology
from flexor.spatial import rotate

BASES = ("none", "free", "coarse", "fine")
RESOLVED = ("coarse", "fine")  # those that know of contact
ROUND = ("sphere", "capsule")  # shapes that are a radius around a core


def free_step(
    model: Model,
    q: Float[Array, " nq"],
    qd: Float[Array, " nv"],
    torque: Float[Array, " nv"],
    wrench: Float[Array, "nbody 6"] | None,
    dt: float,
    substeps: int,
) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
    """The state after `substeps` of semi-implicit Euler under constant joint torques and wrenches on the bodies, as
    `RigidSolver` goes without contact."""
    h = dt / substeps

    def once(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        q, qd = state
        qd = qd + h * aba(model, forward_kinematics(model, q), qd, torque + passive_force(model, q, qd), wrench)
        return (integrate(model, q, h * qd), qd), None

    return jax.lax.scan(once, (q, qd), length=substeps)[0]


def coarse_step(
    model: Model,
    scene: Any,
    free_q: Float[Array, " nq"],
    free: Float[Array, " nv"],
    distance: Float[Array, " ncon"],
    dt: float,
) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
    """The state after a free step with contacts, stops and dry friction resolved over it as a whole (`NCP`).

    `distance` is that after the free step: what touches is what would overlap then, so that before it is taken as
    d' - dt n v. Inertia, directions and velocities v are those of the instant at which the strongest contact acts.
    """
    q, qd, contact, h = scene.q, scene.qd, NCP(), jnp.asarray(dt, free.dtype)
    share = acting(scene.distance, distance, h, jnp.linalg.norm(model.gravity))
    kin = forward_kinematics(model, integrate(model, q, share * h * (qd + share / 2 * (free - qd))))
    found = detect(model, kin)
    _, point = moved_points(model, q, kin, scene)
    velocity = relative_velocity(model, kin, free, found.bodies, (point, point))
    before = distance - h * jnp.sum(scene.normal * velocity, axis=1)
    new = (point, point, scene.normal, before)  # of the scene's ground, not of the model's own
    found = eqx.tree_at(lambda c: (c.point_a, c.point_b, c.normal, c.distance), found, new)
    memory = contact.init(model, found)
    u, displacement, _ = contact.resolve(model, kin, found, q, qd, free, crba(model, kin), h, memory)
    return integrate(model, free_q, displacement - h * free), u


def fine_step(
    model: Model,
    q: Float[Array, " nq"],
    qd: Float[Array, " nv"],
    torque: Float[Array, " nv"],
    wrench: Float[Array, "nbody 6"] | None,
    dt: float,
    substeps: int,
) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
    """The state after `substeps` of `RigidSolver` under constant joint torques and wrenches, contact with the model's own ground
    included. Impulses start from nothing in every step, for the state does not keep them."""
    from flexor.solvers import RigidSolver, Substeps

    solver = Substeps(RigidSolver(), substeps)
    passive = as_control(model, Control(tau=torque, wrench=wrench))
    begin = solver.init(model, State(q, qd, jnp.zeros((), q.dtype), None))
    after = solver.step(model, begin, passive, jnp.asarray(dt, q.dtype))
    return after.q, after.qd


def acting(now: Float[Array, " ncon"], later: Float[Array, " ncon"], dt: Array, gravity: Array) -> Float[Array, ""]:
    """The share of the step after which contact acts: that at which it is met, where it is met at speed c, and half of the rest
    where it lasts; the mean of both by their impulses, c and g dt. Of several contacts the fastest count most, by c^4."""
    closing = jnp.maximum(now - later, 0.0) / dt
    met = jnp.clip(now / jnp.maximum(now - later, 1e-9), 0.0, 1.0)
    fall = gravity * dt + 1e-9
    share = (closing * met + fall * (1 + met) / 2) / (closing + fall)
    weight = jnp.where(later < 0, (closing + fall) ** 4, 0.0)
    total = jnp.sum(weight)
    return jnp.where(total > 0, jnp.sum(weight * share) / jnp.where(total > 0, total, 1.0), 0.5)


def stop_rooms(model: Model, q: Float[Array, " nq"]) -> Float[Array, "n_limited 2"]:
    """How far limited joints are from their lower and upper stops."""
    t = model.topology
    limits, at = model.joints.range[t.limited], q[t.q_start[t.limited]]
    return jnp.stack([at - limits[:, 0], limits[:, 1] - at], axis=-1)


def moved_points(
    model: Model, q: Float[Array, " nq"], kin: Kinematics, seen: Any
) -> tuple[Float[Array, "ncon 3"], Float[Array, "ncon 3"]]:
    """The points of the candidates `seen` at q (normal, point_a, point_b) after the bodies went on to the poses of `kin`: exact
    for corners and balls over planes, and nearly so elsewhere, for steps are short.

    The core c of a shape (a ball's centre, a corner itself) moves with its body, c' = p' + R' R^T (c - p), and its surface
    lies a radius r from it along the normal still.
    """
    t = model.topology
    (p, R), (new_p, new_R) = body_poses(model, forward_kinematics(model, q)), body_poses(model, kin)
    points = []
    for sign, point, geom, body in zip((-1.0, 1.0), (seen.point_a, seen.point_b), *_owners(t), strict=True):
        is_round = np.array([t.geoms[g].shape in ROUND for g in geom], bool)
        arm = sign * jnp.where(is_round, model.geoms.size[geom, 0], 0.0)[:, None] * seen.normal
        inside = rotate(jnp.swapaxes(R[body], -1, -2), point + arm - p[body])
        points.append(new_p[body] + rotate(new_R[body], inside) - arm)
    return points[0], points[1]


def moved_contacts(
    model: Model, q: Float[Array, " nq"], new_q: Float[Array, " nq"], new_qd: Float[Array, " nv"], seen: Any
) -> tuple[Float[Array, "ncon 3"], Float[Array, " ncon"]]:
    """Relative velocities and distances of the candidates `seen` at q (see `moved_points`) in a later state."""
    kin = forward_kinematics(model, new_q)
    points = moved_points(model, q, kin, seen)
    away = (points[1] - seen.point_b) - (points[0] - seen.point_a)
    velocity = relative_velocity(model, kin, new_qd, np.stack(_owners(model.topology)[1], axis=1), points)
    return velocity, seen.distance + jnp.sum(seen.normal * away, axis=1)


def _owners(t: Topology) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Shapes of the candidates' two sides, and their bodies."""
    pairs = [t.pairs[i] for i in candidates(t)]
    a, b = (np.array([getattr(pair, side) for pair in pairs], int) for side in "ab")
    body = np.array([g.body for g in t.geoms], int)
    return (a, b), (body[a], body[b])
