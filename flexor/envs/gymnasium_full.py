"""What Gymnasium's ant, humanoid and double pendulum show beside the state: forces, inertias and velocities of bodies.

MuJoCo's quantities about the robot's centre of mass c, in world axes: `cinert` (rotational inertia about c, mass times the place
of the body's centre of mass from c, mass), `cvel` (angular velocity, velocity of the body's point at c), `cfrc_ext` (moment about
c and force of all contacts). Forces are means over a step, by taps; MuJoCo shows those of the last stage of the last time step.
"""

from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from flexor.dynamics import Kinematics, actuator_force, body_poses, body_velocities, centre_of_mass, forward_kinematics
from flexor.envs.gymnasium import InvertedDoublePendulum, Locomotion
from flexor.envs.task import Step
from flexor.model.model import Model, State
from flexor.spatial import cross, rotate, rotated_inertia, six_of

CONTACT, STOPS = "link.contact_force", "joint.limit_force"


class Felt(eqx.Module):
    """Forces of the last step, zeros at the start of an episode: wrenches of contacts on the bodies, about the robot's centre of
    mass, and what the actuators did to the joints."""

    contact: Float[Array, "nbody 6"]
    actuators: Float[Array, " nv"]


class FullLocomotion(Locomotion):
    """`Locomotion` with Gymnasium's default observations: contact forces within +-`strongest`, and where `inner`, inertias and
    velocities of all bodies and the actuators' forces before them. Contacts cost `contact_share` of the squares of these forces,
    at most `dearest`."""

    record: ClassVar[tuple[str, ...]] = (CONTACT,)

    strongest: float = eqx.field(kw_only=True, default=np.inf)
    contact_share: float = eqx.field(kw_only=True, default=0.0)
    dearest: float = eqx.field(kw_only=True, default=np.inf)
    inner: bool = eqx.field(static=True, kw_only=True, default=False)

    def reset(self, key: PRNGKeyArray) -> tuple[State, Felt]:
        model = self.sim.model
        still = jnp.zeros((len(model.topology.bodies), 6), model.dtype), jnp.zeros(model.nv, model.dtype)
        return super().reset(key)[0], Felt(*still)

    def observe(self, state: State, goal: Felt) -> Float[Array, " n"]:
        parts = [super().observe(state, None)]
        if self.inner:
            model = self.sim.model
            kin = forward_kinematics(model, state.q)
            c = centre_of_mass(model, kin)
            parts += [central_inertias(model, kin, c)[1:].ravel(), central_velocities(model, kin, state.qd, c)[1:].ravel()]
            parts.append(goal.actuators[6:])
        return jnp.concatenate([*parts, self._bounded(goal.contact)[1:].ravel()])

    def reward(self, step: Step) -> Mapping[str, Float[Array, ""]]:
        cost = self.contact_share * jnp.sum(self._bounded(self._contact(step)) ** 2)
        return {**super().reward(step), "contact": -jnp.minimum(cost, self.dearest)}

    def follow(self, step: Step, key: PRNGKeyArray) -> Felt:
        after, u = step.after, step.control.u
        assert u is not None
        return Felt(self._contact(step), actuator_force(self.sim.model, after.q, after.qd, u))

    def _bounded(self, contact: Float[Array, "nbody 6"]) -> Float[Array, "nbody 6"]:
        return jnp.clip(contact, -self.strongest, self.strongest)

    def _contact(self, step: Step) -> Float[Array, "nbody 6"]:
        """MuJoCo's `cfrc_ext`, without what acts on the world."""
        model = self.sim.model
        kin = forward_kinematics(model, step.after.q)
        moment, force = jnp.split(step.recorded[CONTACT], 2, axis=1)
        away = body_poses(model, kin)[0] - centre_of_mass(model, kin)[None]
        return jnp.concatenate([moment + cross(away, force), force], axis=1).at[0].set(0)


class FullDoublePendulum(InvertedDoublePendulum):
    """The double pendulum with the force of the rail's ends on the cart, within +-10 N, in its observation."""

    record: ClassVar[tuple[str, ...]] = (STOPS,)

    def reset(self, key: PRNGKeyArray) -> tuple[State, Float[Array, "1"]]:
        return super().reset(key)[0], jnp.zeros(1, self.sim.model.dtype)

    def observe(self, state: State, goal: Float[Array, "1"]) -> Float[Array, "9"]:
        return jnp.concatenate([super().observe(state, None), jnp.clip(goal, -10, 10)])

    def follow(self, step: Step, key: PRNGKeyArray) -> Float[Array, "1"]:
        return step.recorded[STOPS][:1]


def central_inertias(model: Model, kin: Kinematics, c: Float[Array, "3"]) -> Float[Array, "nbody 10"]:
    """MuJoCo's `cinert` about a point c: xx yy zz xy xz yz, then the first moments, then the mass."""
    pos, rot = body_poses(model, kin)
    m, d = model.bodies.mass, pos + rotate(rot, model.bodies.com) - c[None]
    own = six_of(rotated_inertia(rot, model.bodies.inertia))
    x, y, z = d.T
    shift = jnp.stack([y * y + z * z, x * x + z * z, x * x + y * y, -x * y, -x * z, -y * z], axis=1)
    return jnp.concatenate([own + m[:, None] * shift, m[:, None] * d, m[:, None]], axis=1)


def central_velocities(
    model: Model, kin: Kinematics, qd: Float[Array, " nv"], c: Float[Array, "3"]
) -> Float[Array, "nbody 6"]:
    """MuJoCo's `cvel` about a point c: angular velocity, and velocity of the point of each body that is at c."""
    moving = body_velocities(model, kin, qd)
    turning, linear = moving[:, :3], moving[:, 3:]
    return jnp.concatenate([turning, linear + cross(turning, c[None] - body_poses(model, kin)[0])], axis=1)
