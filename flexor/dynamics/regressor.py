"""Regressors: inverse dynamics and momentum as linear functions of the inertial parameters.

A body has ten of them, in its own frame: mass m, first moments h = m c, and second moments I (xx yy zz xy xz yz) about the
origin of the body's frame, so that a list pi of 10 (nbody - 1) numbers holds those of all bodies but the world. With a body's
twist (w, v) and acceleration at that origin, in its own axes,

    momentum    l = m v + w x h                            n = I w + h x v
    wrench      f = m a + w' x h + w x (w x h)             n = I w' + w x I w + h x a       a = v' + w x v - gravity

are both linear in (m, h, I) (Atkeson, An & Hollerbach 1986), and a joint feels S . wrench of all bodies that it moves:

    rnea(q, qd, qdd) = Y(q, qd, qdd) pi + armature qdd
    p = M qd = Y_p(q, qd) pi + armature qd                 dp/dt = tau + Y_s(q, qd) pi

The second line needs no accelerations: with Y_s pi = C^T qd - g(q) the change of p over a stretch of motion is the integral of
tau + Y_s pi (the form of the generalised-momentum observer, De Luca & Mattone 2003).
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.kinematics import Kinematics, node_accelerations, node_velocities
from flexor.model.model import Model
from flexor.spatial import (
    cross,
    dot,
    motion_cross,
    rotate,
    shift_motion,
    six_of,
    skew,
    take,
)

PER_BODY = 10
MOMENTS = ("m", "mx", "my", "mz", "Ixx", "Iyy", "Izz", "Ixy", "Ixz", "Iyz")
"""Short names of a body's ten parameters; those of a robot are `<body>.<name>`."""


def inertial_names(model: Model) -> tuple[str, ...]:
    """Names of the numbers in pi: `forearm.m`, `forearm.mx`, ..., `forearm.Iyz`, body by body."""
    return tuple(f"{body}.{moment}" for body in model.topology.bodies[1:] for moment in MOMENTS)


def inertial_parameters(model: Model) -> Float[Array, " n"]:
    """pi: mass, first moments in kg m, second moments in kg m^2 about the frame's origin, of all bodies but the world."""
    b = model.bodies
    mass, com = b.mass[1:], b.com[1:]
    outer = com[:, :, None] * com[:, None, :]
    about = mass[:, None, None] * (jnp.eye(3, dtype=com.dtype)[None] * dot(com, com)[:, None, None] - outer)
    return jnp.concatenate([mass[:, None], mass[:, None] * com, b.inertia[1:] + six_of(about)], axis=1).ravel()


def with_inertial_parameters(model: Model, pi: Float[Array, " n"]) -> Model:
    """The model with these inertial parameters; the inverse of `inertial_parameters`. A body without mass has its centre at the
    origin of its frame."""
    rows = pi.reshape(-1, PER_BODY)
    mass = rows[:, 0]
    com = jnp.where(mass[:, None] > 0, rows[:, 1:4] / jnp.where(mass > 0, mass, 1.0)[:, None], 0.0)
    outer = com[:, :, None] * com[:, None, :]
    about = mass[:, None, None] * (jnp.eye(3, dtype=com.dtype)[None] * dot(com, com)[:, None, None] - outer)
    b = model.bodies
    new = [
        jnp.concatenate([old[:1], x]) for old, x in ((b.mass, mass), (b.com, com), (b.inertia, rows[:, 4:] - six_of(about)))
    ]
    return eqx.tree_at(lambda m: (m.bodies.mass, m.bodies.com, m.bodies.inertia), model, new)


def torque_regressor(
    model: Model, kin: Kinematics, qd: Float[Array, " nv"], qdd: Float[Array, " nv"]
) -> Float[Array, "nv n"]:
    """Y with rnea(q, qd, qdd) = Y pi + armature qdd: generalised forces in N and N m for each number of pi."""
    _refuse_tendons(model)
    v, c = node_velocities(model, kin, qd)
    a = node_accelerations(model, kin, c, qdd)
    S, v, a = _in_bodies(model, kin, kin.S), _of_bodies(model, kin, v), _of_bodies(model, kin, a)
    turning, linear = v[:, :3], a[:, 3:] + cross(v[:, :3], v[:, 3:])
    columns = _wrench_columns(turning, a[:, :3], linear)
    return _seen(model, S, columns)


def momentum_regressor(model: Model, kin: Kinematics, qd: Float[Array, " nv"]) -> Float[Array, "nv n"]:
    """Y_p with M qd = Y_p pi + armature qd: generalised momentum for each number of pi."""
    _refuse_tendons(model)
    v, _ = node_velocities(model, kin, qd)
    return _seen(model, _in_bodies(model, kin, kin.S), _momentum_columns(_of_bodies(model, kin, v)))


def momentum_rate_regressor(model: Model, kin: Kinematics, qd: Float[Array, " nv"]) -> Float[Array, "nv n"]:
    """Y_s with d/dt (M qd) = tau + Y_s pi: Y_s pi = C(q, qd)^T qd - g(q), without accelerations.

    A column S of the motion subspaces that moves with its node has the rate v x S, so that d/dt (S . h) = S . wrench + (v x S) .
    h, with h the momentum of all that S moves; translations of free joints are fixed in the world.
    """
    _refuse_tendons(model)
    t, dofs = model.topology, model.topology.dofs
    v, _ = node_velocities(model, kin, qd)
    still = np.isin(t.dof_joint, t.joints_of("free")) & ~dofs.rotational
    rates = jnp.where(still[:, None], 0.0, motion_cross(take(v, dofs.node), kin.S))
    S, dS, own = _in_bodies(model, kin, kin.S), _in_bodies(model, kin, rates), _of_bodies(model, kin, v)
    fall = rotate(jnp.swapaxes(take(kin.rot, _bodies(model)), -1, -2), jnp.broadcast_to(model.gravity, (len(own), 3)))
    weight = _momentum_columns(jnp.concatenate([jnp.zeros_like(fall), fall], axis=-1))
    return _seen(model, dS, _momentum_columns(own)) + _seen(model, S, weight)


def _refuse_tendons(model: Model) -> None:
    t = model.topology
    if len(t.inertial_tendons):
        names = ", ".join(f"'{t.tendons[i].name}'" for i in t.inertial_tendons)
        raise ValueError(
            f"'{t.name}' has tendons with armature ({names}), which no inertial parameter of a body stands for."
        )


def _bodies(model: Model) -> np.ndarray:
    """Last nodes of all bodies but the world."""
    return model.topology.nodes.of_body[1:]


def _of_bodies(model: Model, kin: Kinematics, motion: Array) -> Float[Array, "nb 6"]:
    """Motion vectors of nodes, as those of the bodies at their origins and in their axes."""
    last = _bodies(model)
    at = shift_motion(take(motion, last), take(kin.pos - kin.origin, last))
    R = jnp.swapaxes(take(kin.rot, last), -1, -2)
    return jnp.concatenate([rotate(R, at[:, :3]), rotate(R, at[:, 3:])], axis=-1)


def _in_bodies(model: Model, kin: Kinematics, S: Float[Array, "nv 6"]) -> Float[Array, "nb nv 6"]:
    """Columns S at the origin and in the axes of every body that they move, zero for the others."""
    last = _bodies(model)
    arm, R = take(kin.pos - kin.origin, last)[:, None], jnp.swapaxes(take(kin.rot, last), -1, -2)[:, None]
    at = jnp.concatenate([jnp.broadcast_to(S[None, :, :3], (len(last), *S[:, :3].shape)),
                          S[None, :, 3:] + cross(S[None, :, :3], arm)], axis=-1)  # fmt: skip
    turned = jnp.concatenate([rotate(R, at[..., :3]), rotate(R, at[..., 3:])], axis=-1)
    return jnp.where(model.topology.dofs.moves[last][..., None], turned, 0.0)


def _seen(model: Model, S: Float[Array, "nb nv 6"], columns: Float[Array, "nb 6 10"]) -> Float[Array, "nv n"]:
    """S . columns, the bodies side by side."""
    each = jnp.sum(S[..., None] * columns[:, None], axis=2)
    return jnp.swapaxes(each, 0, 1).reshape(model.nv, -1)


def _momentum_columns(v: Float[Array, "nb 6"]) -> Float[Array, "nb 6 10"]:
    """Moment and momentum of a body with the twist v, for each of its ten parameters."""
    w, u = v[:, :3], v[:, 3:]
    nothing = jnp.zeros_like(w)[..., None]
    upper = jnp.concatenate([nothing, -skew(u), _second_moments(w)], axis=-1)
    lower = jnp.concatenate([u[..., None], skew(w), jnp.zeros((*w.shape, 6), w.dtype)], axis=-1)
    return jnp.concatenate([upper, lower], axis=-2)


def _wrench_columns(w: Array, turn: Array, a: Array) -> Float[Array, "nb 6 10"]:
    """Moment and force on a body that turns with w and `turn` = w', its origin accelerated by a, for each parameter."""
    nothing = jnp.zeros_like(w)[..., None]
    inner = _second_moments(w)
    gyroscopic = jnp.stack([cross(w, inner[..., k]) for k in range(6)], axis=-1)
    W = skew(w)
    centripetal = jnp.sum(W[..., :, :, None] * W[..., None, :, :], axis=-2)
    upper = jnp.concatenate([nothing, -skew(a), _second_moments(turn) + gyroscopic], axis=-1)
    lower = jnp.concatenate([a[..., None], skew(turn) + centripetal, jnp.zeros((*w.shape, 6), w.dtype)], axis=-1)
    return jnp.concatenate([upper, lower], axis=-2)


def _second_moments(w: Float[Array, "nb 3"]) -> Float[Array, "nb 3 6"]:
    """L with I w = L (xx yy zz xy xz yz)."""
    x, y, z = w[:, 0], w[:, 1], w[:, 2]
    o = jnp.zeros_like(x)
    rows = ([x, o, o, y, z, o], [o, y, o, x, o, z], [o, o, z, o, x, y])
    return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)
