"""The legs of robots: feet, knees and hips, how high they are, and the pose in which the robot stands.

Feet are the spheres that may touch a plane, as descriptions of legged robots have them. Heights are above that plane, which is
level. All of it follows from the model: no robot has its name here.
"""

import dataclasses
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics import Kinematics, body_poses, body_velocities, forward_kinematics
from flexor.model.model import Model
from flexor.model.topology import Topology
from flexor.spatial import rotate


def on_its_feet(model: Model) -> Model:
    """The robot, of whose contacts only those of feet with the ground are left: enough where an episode ends before anything
    else touches."""
    t = model.topology
    if t.compliances:
        raise ValueError(f"'{t.name}' has soft constraints, whose pairs cannot be left out.")
    kept = [k for k, p in enumerate(t.pairs) if (t.geoms[p.a].shape, t.geoms[p.b].shape) == ("plane", "sphere")]
    if not kept:
        raise ValueError(f"'{t.name}' has no feet: no sphere that may touch a plane.")
    topology = dataclasses.replace(t, pairs=tuple(t.pairs[k] for k in kept))
    pairs = jax.tree.map(lambda x: x[np.array(kept)], model.pairs)
    return dataclasses.replace(model, topology=topology, pairs=pairs)


class Legs(eqx.Module):
    """The legs of a robot: for each foot its sphere, the body of its last joint (the knee, or ankle) and of its first (the
    hip)."""

    feet: tuple[int, ...] = eqx.field(static=True)
    knees: tuple[int, ...] = eqx.field(static=True)
    hips: tuple[int, ...] = eqx.field(static=True)
    ground: int = eqx.field(static=True)

    @staticmethod
    def of(model: Model) -> "Legs":
        t = model.topology
        if not t.joints or t.joints[0].kind != "free":
            raise ValueError(f"'{t.name}' does not float: the first joint of a legged robot must be free.")
        touching = [p for p in t.pairs if (t.geoms[p.a].shape, t.geoms[p.b].shape) == ("plane", "sphere")]
        jointed = [(p, _jointed(t, t.geoms[p.b].body)) for p in touching]
        touching, chains = [p for p, c in jointed if c], [c for _, c in jointed if c]
        if not touching:
            raise ValueError(f"'{t.name}' has no feet: no sphere below a joint that may touch a plane.")
        feet = tuple(p.b for p in touching)
        return Legs(feet, tuple(c[0] for c in chains), tuple(c[-1] for c in chains), touching[0].a)

    def level(self, model: Model) -> Float[Array, ""]:
        """Height of the ground."""
        return model.geoms.pos[self.ground, 2]

    def foot_positions(self, model: Model, kin: Kinematics) -> Float[Array, "nfoot 3"]:
        """Centres of the feet."""
        pos, rot = body_poses(model, kin)
        of = model.topology.geoms
        return jnp.stack([pos[of[k].body] + rotate(rot[of[k].body], model.geoms.pos[k]) for k in self.feet])

    def foot_velocities(self, model: Model, kin: Kinematics, qd: Float[Array, " nv"]) -> Float[Array, "nfoot 3"]:
        """Velocities of those centres, world axes."""
        moving, pos = body_velocities(model, kin, qd), body_poses(model, kin)[0]
        where, of = self.foot_positions(model, kin), model.topology.geoms
        bodies = [of[k].body for k in self.feet]
        return jnp.stack([moving[b, 3:] + jnp.cross(moving[b, :3], where[i] - pos[b]) for i, b in enumerate(bodies)])

    def clearances(self, model: Model, kin: Kinematics) -> Float[Array, " nfoot"]:
        """Distances of the feet from the ground."""
        radii = jnp.stack([model.geoms.size[k, 0] for k in self.feet])
        return self.foot_positions(model, kin)[:, 2] - radii - self.level(model)

    def soles(self, model: Model) -> tuple[tuple[int, ...], ...]:
        """Which spheres belong together, those of one body: a foot may stand on several."""
        bodies = [model.topology.geoms[k].body for k in self.feet]
        return tuple(tuple(i for i, b in enumerate(bodies) if b == body) for body in dict.fromkeys(bodies))

    def per_sole(
        self, model: Model, x: Float[Array, " nfoot *n"], reduce: Callable[..., Array]
    ) -> Float[Array, " nsole *n"]:
        """A number or vector for each foot, of those of its spheres: their mean or minimum."""
        return jnp.stack([reduce(x[np.array(rows)], axis=0) for rows in self.soles(model)])

    def heights(self, model: Model, kin: Kinematics, bodies: tuple[int, ...]) -> Float[Array, " n"]:
        """Heights of the origins of bodies above the ground."""
        pos = body_poses(model, kin)[0]
        return jnp.stack([pos[b, 2] for b in dict.fromkeys(bodies)]) - self.level(model)


def _jointed(t: Topology, body: int) -> list[int]:
    """Bodies with a joint from a body upwards to the root, without that."""
    jointed, root = {j.body for j in t.joints}, t.joints[0].body
    chain = []
    while body != root:
        if body in jointed:
            chain.append(body)
        body = t.parents[body]
    return chain


def standing(model: Model, angles: Mapping[str, float]) -> Float[Array, " nq"]:
    """Coordinates of a robot that stands level: joints by pattern of their names at `angles`, the first pattern that fits, others
    at zero; the lowest foot touches the ground."""
    t, legs = model.topology, Legs.of(model)
    q = np.zeros(model.nq)
    q[3] = 1
    for k, joint in enumerate(t.joints[1:], start=1):
        q[t.q_start[k]] = next((x for name, x in angles.items() if fnmatchcase(joint.name, name)), 0.0)
    first = jnp.asarray(q, model.dtype)
    q[2] = -float(jnp.min(legs.clearances(model, forward_kinematics(model, first))))
    return jnp.asarray(q, model.dtype)
