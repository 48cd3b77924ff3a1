"""Tendons: lengths L(q), their Jacobian, and the inertia that an armature gives them.

A fixed tendon has the length sum of c_j q_j over hinges and slides, which is not a length in space: a coupling by a cable, a
differential, a finger's transmission. A spatial tendon runs from site to site, straight or past spheres and cylinders
(`wrapping.py`); behind a pulley its length counts divided by the divisor. Where it leaves a body it pulls along its direction n:
dL/dt is the sum of n . v over all points x at which it begins, ends or touches, v the velocity of the body there.
"""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.kinematics import Kinematics, moved
from flexor.dynamics.recursion import scatter_sum
from flexor.dynamics.wrapping import passage
from flexor.model.model import Model
from flexor.model.topology import INDEX, Topology
from flexor.spatial import cross, dot, matmul, matvec, quat_to_matrix, rotate, take


def tendon_lengths(model: Model, kin: Kinematics, q: Float[Array, " nq"]) -> Float[Array, " ntendon"]:
    """Length of every tendon at the coordinates q, whose kinematics are `kin`."""
    t = model.topology
    tendon, column, joint = _joint_steps(t)
    length = scatter_sum(_numbers(model, tendon, column) * take(q, t.q_start[joint]), tendon, len(t.tendons))
    for part in _sections(model, kin):
        length = length + scatter_sum(part.length, part.tendon, len(t.tendons))
    return length


def tendon_jacobian(model: Model, kin: Kinematics) -> Float[Array, "ntendon nv"]:
    """J with dL/dt = J qd; a force f along the tendons is the generalised force J^T f."""
    t = model.topology
    tendon, column, joint = _joint_steps(t)
    place = tendon * t.nv + t.v_start[joint]
    J = scatter_sum(_numbers(model, tendon, column), place, len(t.tendons) * t.nv).reshape(len(t.tendons), t.nv)
    for part in _sections(model, kin):
        for body, point, pull in part.pulls:
            node = t.nodes.of_body[body]
            wrench = jnp.concatenate([cross(point - take(kin.origin, node), pull), pull], axis=-1)
            rows = jnp.where(t.dofs.moves[node], matmul(wrench, kin.S.T), 0.0)
            J = J + scatter_sum(rows, part.tendon, len(t.tendons))
    return J


def tendon_inertia(model: Model, kin: Kinematics) -> Float[Array, "nv nv"]:
    """J^T a J: what the armatures a of the tendons add to the joint-space inertia."""
    rows = model.topology.inertial_tendons
    J = take(tendon_jacobian(model, kin), rows)
    return J.T @ (take(model.tendons.armature, rows)[:, None] * J)


def tendon_inertial_force(
    model: Model, kin: Kinematics, qd: Float[Array, " nv"] | None, qdd: Float[Array, " nv"]
) -> Float[Array, " nv"]:
    """J^T a (J qdd + J' qd): the part of the armatures in inverse dynamics; without qd J^T a J qdd alone."""
    rows = model.topology.inertial_tendons
    J = take(tendon_jacobian(model, kin), rows)
    acceleration = matvec(J, qdd)
    if qd is not None:
        acceleration = acceleration + take(_velocity_product(model, kin, qd), rows)
    return (take(model.tendons.armature, rows) * acceleration) @ J


def _velocity_product(model: Model, kin: Kinematics, qd: Float[Array, " nv"]) -> Float[Array, " ntendon"]:
    """J' qd: the second derivative of the lengths at zero acceleration, along the motion of the frames."""
    rate = moved(model, kin, qd)
    return jax.jvp(lambda k: matvec(tendon_jacobian(model, k), qd), (kin,), (rate,))[1]


# fixed tendons


def _joint_steps(t: Topology) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tendon, column of the coefficients and joint of every step of the fixed tendons."""
    steps = [(i, k, w.index) for i, tendon in enumerate(t.tendons) if tendon.fixed for k, w in enumerate(tendon.path)]
    tendon, column, joint = np.array(steps, INDEX).reshape(-1, 3).T
    return tendon, column, joint


def _numbers(model: Model, tendon: np.ndarray, column: np.ndarray) -> Array:
    """Entries of the table of coefficients."""
    table = model.tendons.coefficients
    return take(table.reshape(-1), tendon * table.shape[1] + column)


# spatial tendons


class _Section(NamedTuple):
    """A part of a path from one site to the next: its tendon, the column of its pulley's divisor (-1 before the first pulley),
    the two sites, the geom between them (-1: none), whether that is a sphere, and its side site (-1: none)."""

    tendon: int
    column: int
    start: int
    end: int
    geom: int = -1
    sphere: int = 0
    side: int = -1


class _Sections(NamedTuple):
    """Sections of a kind: tendons, lengths, and all ends as (bodies, points, pulls: the direction over the divisor)."""

    tendon: np.ndarray
    length: Array
    pulls: list[tuple[np.ndarray, Array, Array]]


@lru_cache(maxsize=64)
def _paths(t: Topology) -> tuple[np.ndarray, ...]:
    """The sections of all spatial tendons: straight, past a geom, past a geom with a side site; columns as in `_Section`."""
    made: list[_Section] = []
    for i, tendon in enumerate(t.tendons):
        column, last, geom = -1, None, None
        for w in () if tendon.fixed else tendon.path:
            if w.kind == "pulley":
                column, last = column + 1, None
            elif w.kind != "site":
                geom = w
            else:
                if last is not None and geom is None:
                    made.append(_Section(i, column, last, w.index))
                elif last is not None and geom is not None:
                    side = -1 if geom.side is None else geom.side
                    made.append(_Section(i, column, last, w.index, geom.index, int(geom.kind == "sphere"), side))
                last, geom = w.index, None
    kinds = ([s for s in made if s.geom < 0], [s for s in made if s.geom >= 0 > s.side], [s for s in made if s.side >= 0])
    return tuple(np.array(kind, INDEX).reshape(-1, len(_Section._fields)).T for kind in kinds)


def _sections(model: Model, kin: Kinematics) -> list[_Sections]:
    """The sections of all spatial tendons where they are now."""
    straight, past, sided = _paths(model.topology)
    parts = [_straight(model, kin, straight)] if straight.size else []
    return parts + [_past(model, kin, rows) for rows in (past, sided) if rows.size]


def _straight(model: Model, kin: Kinematics, rows: np.ndarray) -> _Sections:
    tendon, column, start, end, *_ = rows
    x0, x1 = _site_points(model, kin, start), _site_points(model, kin, end)
    way, share = x1 - x0, _shares(model, tendon, column)
    length = _lengths(way)
    pull = (share / length)[:, None] * way
    body = np.array([s.body for s in model.topology.sites], INDEX)
    return _Sections(tendon, share * length, [(body[start], x0, -pull), (body[end], x1, pull)])


def _past(model: Model, kin: Kinematics, rows: np.ndarray) -> _Sections:
    """Past geoms; where a string does not wrap, its two touching points are one, at its end, and their pulls cancel."""
    tendon, column, start, end, geom, sphere, side = rows
    x0, x1 = _site_points(model, kin, start), _site_points(model, kin, end)
    sides = _site_points(model, kin, side) if (side >= 0).all() else None
    pos, rot = _geom_frames(model, kin, geom)
    radius = take(model.geoms.size, geom)[:, 0]
    axes = (0, 0, 0, 0, 0, 0, None if sides is None else 0)
    found = jax.vmap(passage, axes)(x0, x1, pos, rot, radius, jnp.asarray(sphere.astype(bool)), sides)
    wraps = found.wraps[:, None]
    first, last = jnp.where(wraps, found.first, x1), jnp.where(wraps, found.last, x1)
    ways = first - x0, jnp.where(wraps, x1 - last, x1 - x0)
    before, after = (_lengths(w) for w in ways)
    share = _shares(model, tendon, column)
    pulls = [(share / length)[:, None] * way for length, way in zip((before, after), ways, strict=True)]
    length = jnp.where(found.wraps, before + found.arc + after, before)
    site, own = (
        np.array([s.body for s in model.topology.sites], INDEX),
        np.array([g.body for g in model.topology.geoms], INDEX),
    )
    ends = [
        (site[start], x0, -pulls[0]),
        (own[geom], first, pulls[0]),
        (own[geom], last, -pulls[1]),
        (site[end], x1, pulls[1]),
    ]
    return _Sections(tendon, share * length, ends)


def _shares(model: Model, tendon: np.ndarray, column: np.ndarray) -> Array:
    """One over the divisor of the pulley before a section, one where there is none."""
    if (column < 0).all():
        return jnp.ones(len(tendon), model.dtype)
    return 1 / jnp.where(column < 0, 1.0, _numbers(model, tendon, np.maximum(column, 0)))


def _lengths(way: Float[Array, "n 3"]) -> Float[Array, " n"]:
    return jnp.sqrt(jnp.maximum(dot(way, way), jnp.finfo(way.dtype).tiny))


def _site_points(model: Model, kin: Kinematics, sites: np.ndarray) -> Float[Array, "n 3"]:
    """Positions of sites in the world."""
    node = model.topology.nodes.of_body[np.array([model.topology.sites[s].body for s in sites])]
    return take(kin.pos, node) + rotate(take(kin.rot, node), take(model.sites.pos, sites))


def _geom_frames(model: Model, kin: Kinematics, geoms: np.ndarray) -> tuple[Float[Array, "n 3"], Float[Array, "n 3 3"]]:
    """Positions and axes of geoms in the world."""
    node = model.topology.nodes.of_body[np.array([model.topology.geoms[g].body for g in geoms])]
    pos = take(kin.pos, node) + rotate(take(kin.rot, node), take(model.geoms.pos, geoms))
    return pos, matmul(take(kin.rot, node), quat_to_matrix(take(model.geoms.quat, geoms)))
