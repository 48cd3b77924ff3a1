"""Frames by name: bodies (links) and sites; where they are, how they move, and their Jacobians.

A frame's name is the body's or the site's. A site that is named like a body is called `site.<name>`.
"""

from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.dynamics.jacobians import body_jacobian, point_jacobian
from flexor.dynamics.kinematics import Kinematics, body_poses, body_velocities, forward_kinematics
from flexor.model.model import Model
from flexor.model.topology import Topology
from flexor.spatial import matmul, quat_to_matrix, rotate, shift_motion


class Frame(NamedTuple):
    """The body that carries a frame, and the site, or None where the frame is the body's own."""

    body: int
    site: int | None


def frames(model: Model) -> tuple[str, ...]:
    """Names of all frames: the world and the other bodies, then the sites."""
    return tuple(_table(model.topology))


def frame_pose(model: Model, q: Float[Array, " nq"], name: str) -> tuple[Float[Array, "3"], Float[Array, "3 3"]]:
    """Position of a frame's origin in the world, and its rotation matrix (its axes as columns, in world axes)."""
    return _pose(model, forward_kinematics(model, q), _find(model, name))


def frame_velocity(model: Model, q: Float[Array, " nq"], qd: Float[Array, " nv"], name: str) -> Float[Array, "6"]:
    """Angular velocity of a frame and velocity of its origin, world axes: `frame_jacobian` times qd."""
    kin, frame = forward_kinematics(model, q), _find(model, name)
    velocity = body_velocities(model, kin, qd)[frame.body]
    return shift_motion(velocity, _pose(model, kin, frame)[0] - body_poses(model, kin)[0][frame.body])


def frame_jacobian(model: Model, q: Float[Array, " nq"], name: str) -> Float[Array, "6 nv"]:
    """Jacobian of a frame's angular velocity and of the velocity of its origin, world axes: (w, v) = J qd."""
    kin, frame = forward_kinematics(model, q), _find(model, name)
    angular = body_jacobian(model, kin, frame.body)[:3]
    return jnp.concatenate([angular, point_jacobian(model, kin, frame.body, _pose(model, kin, frame)[0])])


def _pose(model: Model, kin: Kinematics, frame: Frame) -> tuple[Array, Array]:
    pos, rot = (x[frame.body] for x in body_poses(model, kin))
    if frame.site is None:
        return pos, rot
    sites = model.sites
    return pos + rotate(rot, sites.pos[frame.site]), matmul(rot, quat_to_matrix(sites.quat[frame.site]))


@lru_cache(maxsize=64)
def _table(t: Topology) -> dict[str, Frame]:
    table = {name: Frame(body, None) for body, name in enumerate(t.bodies)}
    for i, site in enumerate(t.sites):
        table[f"site.{site.name}" if site.name in t.bodies else site.name] = Frame(site.body, i)
    return table


def _find(model: Model, name: str) -> Frame:
    table = _table(model.topology)
    if name not in table:
        raise KeyError(
            f"'{model.topology.name}' has no frame named '{name}'; `fx.frames(model)` lists them: {', '.join(list(table)[:20])}"
            f"{', …' if len(table) > 20 else ''}."
        )
    return table[name]
