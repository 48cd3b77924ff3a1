"""The quantities of rigid-body dynamics that the oracles know too, at random instants of a robot."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flexor import dynamics as dyn
from flexor.model.model import Model

QUANTITIES = {
    "poses": "positions and rotation matrices of all bodies",
    "velocities": "angular velocities of all bodies, and velocities of their origins",
    "J frame": "frame Jacobians of all bodies",
    "J point": "Jacobians of a random point on each of six bodies",
    "rnea": "inverse dynamics with a wrench on every body",
    "M": "joint-space inertia (CRBA)",
    "aba": "forward dynamics with a wrench on every body",
    "bias": "Coriolis, centrifugal and gravity forces",
    "gravity": "gravity force",
    "com": "centre of mass",
    "h_G": "centroidal momentum",
    "A_G": "centroidal momentum matrix",
    "T": "kinetic energy",
    "V": "potential energy",
}


class Instant(NamedTuple):
    """Coordinates, velocities, accelerations, generalised forces and body wrenches of a robot; or of several instants."""

    q: Any
    qd: Any
    qdd: Any
    tau: Any
    wrench: Any


class Points(NamedTuple):
    """Points fixed to bodies, at offsets in the bodies' axes."""

    bodies: np.ndarray
    offsets: np.ndarray


def random_instants(model: Model, rng: np.random.Generator, count: int) -> Instant:
    """Random instants, stacked: angles over the whole turn, lengths within a metre, everything else normal."""
    t = model.topology
    q = rng.uniform(-1, 1, (count, t.nq))
    for joint, start in zip(t.joints, t.q_start, strict=True):
        if joint.kind == "hinge":
            q[:, start] *= np.pi
        elif joint.kind in ("ball", "free"):
            rows = slice(start, start + 4) if joint.kind == "ball" else slice(start + 3, start + 7)
            quat = rng.normal(size=(count, 4))
            q[:, rows] = quat / np.linalg.norm(quat, axis=1, keepdims=True)
    qd, qdd, tau = (rng.normal(size=(count, t.nv)) for _ in range(3))
    wrench = rng.normal(size=(count, len(t.bodies), 6))
    wrench[:, 0] = 0
    return Instant(q, qd, qdd, tau, wrench)


def random_points(model: Model, rng: np.random.Generator, count: int = 6) -> Points:
    """Points on some bodies other than the world."""
    bodies = rng.integers(1, len(model.topology.bodies), count)
    return Points(bodies, rng.normal(size=(count, 3)))


def flexor_quantities(points: Points) -> Callable[[Model, Instant], dict[str, jax.Array]]:
    """All of `QUANTITIES` as a function of a model and one instant."""

    def all_of(model: Model, at: Instant) -> dict[str, jax.Array]:
        kin = dyn.forward_kinematics(model, at.q)
        pos, rot = dyn.body_poses(model, kin)
        where = pos[points.bodies] + (rot[points.bodies] @ jnp.asarray(points.offsets, pos.dtype)[..., None])[..., 0]
        return {
            "poses": jnp.concatenate([pos, rot.reshape(-1, 9)], axis=1),
            "velocities": dyn.body_velocities(model, kin, at.qd),
            "J frame": dyn.body_jacobian(model, kin, np.arange(len(model.topology.bodies))),
            "J point": dyn.point_jacobian(model, kin, points.bodies, where),
            "rnea": dyn.rnea(model, kin, at.qd, at.qdd, at.wrench),
            "M": dyn.crba(model, kin),
            "aba": dyn.aba(model, kin, at.qd, at.tau, at.wrench),
            "bias": dyn.bias_force(model, kin, at.qd),
            "gravity": dyn.gravity_force(model, kin),
            "com": dyn.centre_of_mass(model, kin),
            "h_G": dyn.centroidal_momentum(model, kin, at.qd),
            "A_G": dyn.centroidal_momentum_matrix(model, kin),
            "T": dyn.kinetic_energy(model, kin, at.qd),
            "V": dyn.potential_energy(model, kin, at.q),
        }

    return all_of
