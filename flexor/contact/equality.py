"""Equalities: by how much they are violated, and along which direction of the velocities.

Of joints and tendons one row each, r = (x1 - ref1) - p(x2 - ref2) with the polynomial p of `Equalities`. Of a loop the three
numbers of a - b, the vector from the anchor of the second body to that of the first in the world; a weld has three more, the
rotation 2 s v, with v the vector part of the quaternion of E = R_b^T R_a R(quat), which is one where the weld holds, and s its
torquescale. For small angles that is s times the rotation vector.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.contact.contact import Instant
from flexor.dynamics import Kinematics, body_jacobian, point_jacobian, tendon_jacobian, tendon_lengths
from flexor.model.model import Model
from flexor.model.topology import INDEX, Topology
from flexor.spatial import cross, matmul, quat_to_matrix, rotate, take


class Ties(NamedTuple):
    """All rows of equalities and loops: what is violated, the Jacobian, and the parameters of each row."""

    gap: Float[Array, " n"]
    J: Float[Array, "n nv"]
    stiffness: Float[Array, " n"]
    damping: Float[Array, " n"]
    cfm: Float[Array, " n"]
    baumgarte: Float[Array, " n"]


def tie_count(t: Topology) -> int:
    """How many rows the equalities and loops have."""
    return len(t.equalities) + 3 * len(t.loops) + 3 * len(_welds(t))


def ties(now: Instant) -> Ties:
    """The rows of equalities, then three of every loop, then three more of every weld."""
    model, kin, q, _ = now
    t, parts = model.topology, []
    if t.equalities:
        table = model.equalities
        gap, J = violation(model, kin, q)
        parts.append(Ties(gap, J, table.stiffness, table.damping, table.cfm, table.baumgarte))
    if t.loops:
        gap, J = _gaps(model, kin)
        parts.append(Ties(gap, J, *(_thrice(getattr(model.loops, f)) for f in Ties._fields[2:])))
    welds = _welds(t)
    if len(welds):
        gap, J = _turns(model, kin, welds)
        loops = model.loops
        own = (loops.rotation_stiffness, loops.rotation_damping, loops.rotation_cfm, loops.baumgarte)
        parts.append(Ties(gap, J, *(_thrice(take(x, welds)) for x in own)))
    return Ties(*(jnp.concatenate(x) for x in zip(*parts, strict=True))) if len(parts) > 1 else parts[0]


def violation(model: Model, kin: Kinematics, q: Float[Array, " nq"]) -> tuple[Float[Array, " neq"], Float[Array, "neq nv"]]:
    """r = (x1 - ref1) - p(x2 - ref2) of every equality with its polynomial p (see `Equalities`), and J with dr/dt = J qd."""
    t, c = model.topology, model.equalities.coefficients
    tendon = np.array([e.kind == "tendon" for e in t.equalities], bool)
    first = np.array([e.first for e in t.equalities], int)
    coupled = np.array([e.second is not None for e in t.equalities], bool)
    second = np.array([e.first if e.second is None else e.second for e in t.equalities], int)
    moved, eye = q - model.reference, np.eye(t.nv)
    if not tendon.any():
        x1, x2 = take(moved, t.q_start[first]), take(moved, t.q_start[second])
        to, by = eye[t.v_start[first]], jnp.asarray(eye[t.v_start[second]], q.dtype)
    else:  # coordinates of joints and lengths of tendons in one table
        length = tendon_lengths(model, kin, q) - model.tendons.reference
        moved = jnp.concatenate([take(moved, t.q_start), length])
        J = jnp.concatenate([jnp.asarray(eye[t.v_start], q.dtype), tendon_jacobian(model, kin)])
        first, second = first + len(t.joints) * tendon, second + len(t.joints) * tendon
        x1, x2, to, by = take(moved, first), take(moved, second), take(J, first), take(J, second)
    x = jnp.where(coupled, x2, 0.0)
    value = c[:, 0] + x * (c[:, 1] + x * (c[:, 2] + x * (c[:, 3] + x * c[:, 4])))
    slope = c[:, 1] + x * (2 * c[:, 2] + x * (3 * c[:, 3] + x * 4 * c[:, 4]))
    return x1 - value, jnp.asarray(to, q.dtype) - jnp.where(coupled[:, None], slope[:, None] * by, 0.0)


def _welds(t: Topology) -> np.ndarray:
    return np.array([i for i, x in enumerate(t.loops) if x.weld], INDEX)


def _thrice(x: Float[Array, " n"]) -> Float[Array, " n3"]:
    return jnp.repeat(x, 3, total_repeat_length=3 * len(x))


def _gaps(model: Model, kin: Kinematics) -> tuple[Array, Array]:
    """a - b of every loop, and the velocity of the one anchor against the other."""
    t, ends = model.topology, []
    for side, anchor in (("first", model.loops.anchor_a), ("second", model.loops.anchor_b)):
        body = np.array([getattr(x, side) for x in t.loops], INDEX)
        node = t.nodes.of_body[body]
        point = take(kin.pos, node) + rotate(take(kin.rot, node), anchor)
        ends.append((point, point_jacobian(model, kin, body, point)))
    (a, J_a), (b, J_b) = ends
    return (a - b).reshape(-1), (J_a - J_b).reshape(-1, t.nv)


def _turns(model: Model, kin: Kinematics, welds: np.ndarray) -> tuple[Array, Array]:
    """2 s v of every weld, and its rate: with the angular velocity w of a against b in axes of b, 2 v' = v_0 w - v x w."""
    t = model.topology
    first, second = (np.array([getattr(t.loops[i], side) for i in welds], INDEX) for side in ("first", "second"))
    R_a, R_b = (take(kin.rot, t.nodes.of_body[body]) for body in (first, second))
    R_b = jnp.swapaxes(R_b, -1, -2)
    E = matmul(R_b, matmul(R_a, quat_to_matrix(take(model.loops.quat, welds))))
    twice = jnp.stack([E[:, 2, 1] - E[:, 1, 2], E[:, 0, 2] - E[:, 2, 0], E[:, 1, 0] - E[:, 0, 1]], axis=-1)
    # 2 v_0, the root of one plus the trace; half a turn away, where it vanishes, the direction back is any
    scalar = jnp.sqrt(jnp.maximum(1 + E[:, 0, 0] + E[:, 1, 1] + E[:, 2, 2], 1e-4))[:, None]
    gap = twice / scalar
    w = matmul(R_b, body_jacobian(model, kin, first)[:, :3] - body_jacobian(model, kin, second)[:, :3])
    turned = jnp.swapaxes(cross(gap[:, None], jnp.swapaxes(w, -1, -2)), -1, -2)
    rate = (scalar[:, None] * w - turned) / 2
    s = take(model.loops.torquescale, welds)
    return (s[:, None] * gap).reshape(-1), (s[:, None, None] * rate).reshape(-1, t.nv)
