"""Transmissions: the length of every actuator, and the moment arms by which its force becomes generalised force.

    l(q),   J = dl/dq,   l' = J qd,   generalised force J^T f

`gear` multiplies both. With d the direction of the actuator (`Transmissions`), MuJoCo's definitions are

    hinge, slide           l = q
    ball                   l = d . log(quat), J = d on the joint's velocities; in the axes of the parent d becomes R^T d
    free                   l = 0, J = d: force in world axes and moment in the body's; in the parent's axes R^T on the moment
    tendon                 the tendon's length and Jacobian
    site                   l = 0, J = d in the axes of the site: a thruster, a propeller
    site with reference    l = d . (R_r^T (p - p_r), log(quat_r^-1 quat)), J = d . R_r^T (J - J_r), without the joints that
                           move both sites
    body                   l = 0, J = 0: it pulls on contacts, which are found elsewhere (`flexor.contact.adhesion`)
    slider-crank           l = a . v - sqrt((a . v)^2 + r^2 - v . v) with the axis a of the slider, v from slider to pin and the
                           rod's length r; a . v where the rod does not reach

(MuJoCo's documentation, Computation, "Actuation model: Transmission").
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.jacobians import body_jacobian, point_jacobian
from flexor.dynamics.kinematics import Kinematics, body_poses
from flexor.dynamics.recursion import scatter_sum
from flexor.dynamics.tendons import tendon_jacobian, tendon_lengths
from flexor.model.model import Model
from flexor.model.topology import INDEX, Actuator, Topology
from flexor.spatial import cross, dot, matmul, matrix_to_quat, quat_log, quat_to_matrix, rotate, take

_Part = tuple[Array, Array]  # lengths (n,) and moments (n, nv)


def transmission(model: Model, kin: Kinematics, q: Float[Array, " nq"]) -> tuple[Float[Array, " nu"], Float[Array, "nu nv"]]:
    """Lengths and moments of all actuators at the coordinates q, whose kinematics are `kin`."""
    t, parts, rows = model.topology, [], []
    laws = {"straight": _straight, "ball": _ball, "free": _free, "tendon": _tendon, "site": _site, "difference": _difference,
            "crank": _crank, "body": _body}  # fmt: skip
    for kind, law in laws.items():
        members = [i for i, a in enumerate(t.actuators) if kind_of(t, a) == kind]
        if members:
            parts.append(law(model, kin, q, [t.actuators[i] for i in members]))
            rows += members
    order = np.argsort(rows)
    length, moment = (take(jnp.concatenate(x), order) for x in zip(*parts, strict=True))
    return model.actuators.gear * length, model.actuators.gear[:, None] * moment


def kind_of(t: Topology, a: Actuator) -> str:
    """The kind of an actuator's transmission."""
    if a.body is not None:
        return "body"
    if a.slider is not None:
        return "crank"
    if a.site is not None:
        return "site" if a.reference is None else "difference"
    if a.tendon is not None:
        return "tendon"
    assert a.joint is not None
    return {"hinge": "straight", "slide": "straight"}.get(t.joints[a.joint].kind, t.joints[a.joint].kind)


def full_turns(model: Model) -> Float[Array, " nu"]:
    """What a whole turn adds to the length of a circular actuator: 2 pi |gear direction|; one for all others."""
    t = model.topology
    circular = [a for a in t.actuators if a.circular]
    rows = np.array([i for i, a in enumerate(t.actuators) if a.circular], INDEX)
    size = jnp.linalg.norm(take(model.transmissions.direction, _rows(model, circular)), axis=-1)
    return jnp.ones(t.nu, size.dtype).at[rows].set(2 * np.pi * jnp.abs(take(model.actuators.gear, rows)) * size)


def _rows(model: Model, actuators: list[Actuator]) -> np.ndarray:
    """Rows of the actuators in `Model.transmissions`."""
    place = {a.name: i for i, a in enumerate(model.topology.transmissions)}
    return np.array([place[a.name] for a in actuators], INDEX)


def _straight(model: Model, kin: Kinematics, q: Array, actuators: list[Actuator]) -> _Part:
    t = model.topology
    joint = np.array([a.joint for a in actuators], INDEX)
    return take(q, t.q_start[joint]), jnp.asarray(np.eye(t.nv)[t.v_start[joint]], q.dtype)


def _on_dofs(model: Model, actuators: list[Actuator], values: Float[Array, "n k"], first: int) -> Float[Array, "n nv"]:
    """Rows with the values on the joint's degrees of freedom, from the one number `first` on."""
    t, k = model.topology, values.shape[1]
    start = np.array([t.v_start[a.joint] for a in actuators], INDEX) + first
    place = (np.arange(len(actuators)) * t.nv + start)[:, None] + np.arange(k)
    return scatter_sum(values.reshape(-1), place.ravel(), len(actuators) * t.nv).reshape(len(actuators), t.nv)


def _quaternions(model: Model, q: Array, actuators: list[Actuator], first: int) -> Float[Array, "n 4"]:
    start = np.array([model.topology.q_start[a.joint] for a in actuators], INDEX) + first
    quat = take(q, start[:, None] + np.arange(4))
    return quat / jnp.linalg.norm(quat, axis=-1, keepdims=True)


def _in_child(actuators: list[Actuator], quat: Array, axis: Float[Array, "n 3"]) -> Float[Array, "n 3"]:
    """Axes that are given in the parent where the actuator says so, in the axes of the child."""
    in_parent = np.array([a.in_parent for a in actuators], dtype=bool)[:, None]
    turned = rotate(jnp.swapaxes(quat_to_matrix(quat), -1, -2), axis)
    return jnp.where(in_parent, turned, axis) if in_parent.any() else axis


def _ball(model: Model, kin: Kinematics, q: Array, actuators: list[Actuator]) -> _Part:
    quat = _quaternions(model, q, actuators, 0)
    axis = _in_child(actuators, quat, take(model.transmissions.direction, _rows(model, actuators))[:, :3])
    return dot(axis, quat_log(quat)), _on_dofs(model, actuators, axis, 0)


def _free(model: Model, kin: Kinematics, q: Array, actuators: list[Actuator]) -> _Part:
    direction = take(model.transmissions.direction, _rows(model, actuators))
    moment = _in_child(actuators, _quaternions(model, q, actuators, 3), direction[:, 3:])
    both = jnp.concatenate([direction[:, :3], moment], axis=-1)
    return jnp.zeros(len(actuators), q.dtype), _on_dofs(model, actuators, both, 0)


def _tendon(model: Model, kin: Kinematics, q: Array, actuators: list[Actuator]) -> _Part:
    tendons = np.array([a.tendon for a in actuators], INDEX)
    return take(tendon_lengths(model, kin, q), tendons), take(tendon_jacobian(model, kin), tendons)


def _body(model: Model, kin: Kinematics, q: Array, actuators: list[Actuator]) -> _Part:
    n = len(actuators)
    return jnp.zeros(n, q.dtype), jnp.zeros((n, model.nv), q.dtype)


def _frames(model: Model, kin: Kinematics, sites: np.ndarray) -> tuple[np.ndarray, Array, Array]:
    """Bodies, positions and rotations of sites."""
    bodies = np.array([model.topology.sites[s].body for s in sites], INDEX)
    pos, rot = (take(x, bodies) for x in body_poses(model, kin))
    turned = matmul(rot, quat_to_matrix(take(model.sites.quat, sites)))
    return bodies, pos + rotate(rot, take(model.sites.pos, sites)), turned


def _jacobian(model: Model, kin: Kinematics, bodies: np.ndarray, points: Array) -> Float[Array, "n 6 nv"]:
    """Jacobian of velocity and angular velocity at points of bodies, world axes: force first, as MuJoCo's gear."""
    return jnp.concatenate([point_jacobian(model, kin, bodies, points), body_jacobian(model, kin, bodies)[:, :3]], axis=-2)


def _wrench(rot: Array, direction: Float[Array, "n 6"]) -> Float[Array, "n 6"]:
    return jnp.concatenate([rotate(rot, direction[:, :3]), rotate(rot, direction[:, 3:])], axis=-1)


def _site(model: Model, kin: Kinematics, q: Array, actuators: list[Actuator]) -> _Part:
    sites = np.array([a.site for a in actuators], INDEX)
    bodies, pos, rot = _frames(model, kin, sites)
    wrench = _wrench(rot, take(model.transmissions.direction, _rows(model, actuators)))
    moment = jnp.sum(wrench[:, :, None] * _jacobian(model, kin, bodies, pos), axis=1)
    return jnp.zeros(len(actuators), q.dtype), moment


def _difference(model: Model, kin: Kinematics, q: Array, actuators: list[Actuator]) -> _Part:
    own, other = np.array([a.site for a in actuators], INDEX), np.array([a.reference for a in actuators], INDEX)
    (body, pos, rot), (body_r, pos_r, rot_r) = _frames(model, kin, own), _frames(model, kin, other)
    direction = take(model.transmissions.direction, _rows(model, actuators))
    back = jnp.swapaxes(rot_r, -1, -2)
    turn = quat_log(matrix_to_quat(matmul(back, rot)))
    length = dot(direction, jnp.concatenate([rotate(back, pos - pos_r), turn], axis=-1))
    t = model.topology
    moves = t.dofs.moves[t.nodes.of_body[body]] & t.dofs.moves[t.nodes.of_body[body_r]]
    J = _jacobian(model, kin, body, pos) - _jacobian(model, kin, body_r, pos_r)
    moment = jnp.sum(_wrench(rot_r, direction)[:, :, None] * J, axis=1)
    return length, jnp.where(moves, 0.0, moment)


def _crank(model: Model, kin: Kinematics, q: Array, actuators: list[Actuator]) -> _Part:
    pins, sliders = np.array([a.site for a in actuators], INDEX), np.array([a.slider for a in actuators], INDEX)
    (body, pin, _), (body_s, slider, rot) = _frames(model, kin, pins), _frames(model, kin, sliders)
    rod = take(model.transmissions.crank_length, _rows(model, actuators))
    axis, v = rot[:, :, 2], pin - slider
    along = dot(axis, v)
    inside = along**2 + rod**2 - dot(v, v)
    reaches = inside > 0
    root = jnp.sqrt(jnp.where(reaches, inside, 1.0))
    length = jnp.where(reaches, along - root, along)
    share = jnp.where(reaches, 1 - along / root, 1.0)[:, None]
    by_v = share * axis + jnp.where(reaches, 1 / root, 0.0)[:, None] * v
    by_axis = share * v
    Jv = point_jacobian(model, kin, body, pin) - point_jacobian(model, kin, body_s, slider)
    turn = cross(axis, by_axis)  # a' = w x a, so that by_axis . a' = w . (a x by_axis)
    angular = body_jacobian(model, kin, body_s)[:, :3]
    return length, jnp.sum(by_v[:, :, None] * Jv, axis=1) + jnp.sum(turn[:, :, None] * angular, axis=1)
