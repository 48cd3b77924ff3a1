"""Forces of a fluid around the robot, by MuJoCo's two models (its documentation, Computation, "Fluid forces").

Each shape has a velocity (w, v) in its own axes, v against the wind. A *box* of edges b stands for a body as its inertia does;
with the density rho, the viscosity beta and d the mean edge,

    f_i = -3 pi beta d v_i   - rho / 2 b_j b_k |v_i| v_i
    n_i = -pi beta d^3 w_i   - rho / 64 b_i (b_j^4 + b_k^4) |w_i| w_i

An *ellipsoid* of semi-axes r has coefficients of its own: virtual masses and inertias (of the fluid that moves with it), lift by
Magnus' and Kutta's laws, and drag of its projected area A(v), of the rest of its largest section, and in rotation.

    f = m_a v x w + c_M rho V (w x v) + f_Kutta - (3 pi beta D + rho |v| (c_b A + c_s (A_max - A))) v
    n = m_a v x v + I_a w x w - (pi beta D^3 + rho |w (c_a I + c_s (I_max - I))|) w
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.kinematics import Kinematics, body_poses, body_velocities
from flexor.dynamics.recursion import scatter_sum
from flexor.model.model import FluidShapes, Model
from flexor.model.topology import INDEX
from flexor.spatial import cross, dot, matmul, quat_to_matrix, rotate, take

SMALLEST = 1e-15  # MuJoCo's mjMINVAL, its smallest divisor


def fluid_wrenches(model: Model, kin: Kinematics, qd: Float[Array, " nv"]) -> Float[Array, "nbody 6"]:
    """Moment about the body's origin and force of the fluid on every body, world axes."""
    t, shapes = model.topology, model.fluid_shapes
    n = len(t.bodies)
    if not t.media:
        return jnp.zeros((n, 6), qd.dtype)
    body = np.array([s.body for s in t.fluid_shapes], dtype=INDEX)
    rot = take(body_poses(model, kin)[1], body)
    arm = rotate(rot, shapes.pos)
    rot = matmul(rot, quat_to_matrix(shapes.quat))
    twist = take(body_velocities(model, kin, qd), body)
    turning, back = twist[:, :3], jnp.swapaxes(rot, -1, -2)
    moving = twist[:, 3:] + cross(turning, arm) - model.media.wind[0][None]
    w, v = rotate(back, turning), rotate(back, moving)
    ellipsoid = np.array([s.ellipsoid for s in t.fluid_shapes], dtype=bool)
    parts = []
    for law, rows in ((_box, np.flatnonzero(~ellipsoid)), (_ellipsoid, np.flatnonzero(ellipsoid))):
        if len(rows):
            own = FluidShapes(*(take(getattr(shapes, f), rows) for f in FluidShapes.__dataclass_fields__))
            medium = model.media.density[0], model.media.viscosity[0]
            parts.append(law(own, *medium, take(w, rows), take(v, rows)))
    order = np.argsort(np.concatenate([np.flatnonzero(~ellipsoid), np.flatnonzero(ellipsoid)]))
    moment, force = (rotate(rot, take(jnp.concatenate(x), order)) for x in zip(*parts, strict=True))
    return scatter_sum(jnp.concatenate([moment + cross(arm, force), force], axis=-1), body, n)


def _box(s: FluidShapes, density: Array, viscosity: Array, w: Array, v: Array) -> tuple[Array, Array]:
    """Moment and force on the boxes, in their axes."""
    b = s.size
    d = jnp.mean(b, axis=-1, keepdims=True)
    others = b[:, [1, 2, 0]], b[:, [2, 0, 1]]
    moment = -np.pi * viscosity * d**3 * w - density / 64 * b * (others[0] ** 4 + others[1] ** 4) * jnp.abs(w) * w
    force = -3 * np.pi * viscosity * d * v - density / 2 * others[0] * others[1] * jnp.abs(v) * v
    return moment, force


def _length(x: Float[Array, "n 3"]) -> Float[Array, "n 1"]:
    """Length of a vector, with derivative zero where it vanishes."""
    square = dot(x, x)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)[:, None]


def _ellipsoid(s: FluidShapes, density: Array, viscosity: Array, w: Array, v: Array) -> tuple[Array, Array]:
    """Moment and force on the ellipsoids, in their axes."""
    r = s.size
    largest, smallest = jnp.max(r, axis=-1, keepdims=True), jnp.min(r, axis=-1, keepdims=True)
    middle = jnp.sum(r, axis=-1, keepdims=True) - largest - smallest
    volume = 4 / 3 * np.pi * jnp.prod(r, axis=-1, keepdims=True)
    carried = density * s.virtual_mass * v
    force = cross(carried, w) + s.magnus_lift[:, None] * density * volume * cross(w, v)
    moment = cross(carried, v) + cross(density * s.virtual_inertia * w, w)
    area, lift = _projection(s, v)
    force = force + density * lift
    diameter, widest = 2 * jnp.mean(r, axis=-1, keepdims=True), np.pi * largest * middle
    sections = area * s.blunt_drag[:, None] + s.slender_drag[:, None] * (widest - area)
    drag = 3 * np.pi * viscosity * diameter + density * _length(v) * sections
    others = jnp.maximum(r[:, [1, 2, 0]], r[:, [2, 0, 1]])
    inertia, most = 8 / 15 * np.pi * r * others**4, 8 / 15 * np.pi * middle * largest**4
    turned = w * (s.angular_drag[:, None] * inertia + s.slender_drag[:, None] * (most - inertia))
    brake = np.pi * viscosity * diameter**3 + density * _length(turned)
    return moment - brake * w, force - drag * v


def _projection(s: FluidShapes, v: Array) -> tuple[Float[Array, "n 1"], Float[Array, "n 3"]]:
    """Area of the ellipsoids seen along their velocities, and Kutta's lift for a density of one."""
    r = s.size
    sections = (r[:, [1, 2, 0]] * r[:, [2, 0, 1]]) ** 2
    normal = sections * v
    above, below = dot(normal, normal)[:, None], dot(normal, v)[:, None]
    ratio = above / jnp.maximum(below, SMALLEST)
    area = np.pi * jnp.where(ratio > 0, jnp.sqrt(jnp.where(ratio > 0, ratio, 1.0)), 0.0)
    cosine = below / jnp.maximum(_length(v) * above, SMALLEST)
    circulation = s.kutta_lift[:, None] * cosine * area * cross(normal, v)
    return area, cross(circulation, v)
