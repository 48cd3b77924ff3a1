"""Penalty contact: forces from overlap and its rate (Hunt & Crossley 1975), friction from the sliding speed."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.contact.contact import AbstractContact, Instant, Loads
from flexor.contact.contacts import Contacts, contact_jacobian, tapped
from flexor.contact.detect import detect
from flexor.contact.equality import ties
from flexor.contact.friction import AbstractFriction, BrownMcPhee
from flexor.contact.near import near_contacts, places
from flexor.contact.rows import ball_angles
from flexor.contact.sums import tap_sums
from flexor.dynamics import Kinematics, tendon_jacobian, tendon_lengths
from flexor.model.model import Model
from flexor.spatial import matvec
from flexor.taps import tap


class Penalty(AbstractContact):
    """Normal force k d^n (1 + c d') of the overlap d, never pulling; friction by one of the laws in `contact.friction`.

    Joint limits are one-sided spring-dampers, equalities two-sided ones; dry joint friction is loss tanh(qd / joint_velocity).
    A robot with more than `most` candidates (where None: `separate`) has a list of contacts, found anew at each instant
    (`near.places`).
    """

    friction: AbstractFriction = BrownMcPhee()
    exponent: float = 1.5
    joint_velocity: float = 1e-2
    most: int | None = eqx.field(static=True, default=None)
    separate: int = eqx.field(static=True, default=32)

    def sources(self, model: Model) -> tuple[str, ...]:
        return ()

    def check(self, model: Model) -> None:
        """Raises about adhesion, and pairs with torsional or rolling friction, which it has not."""
        if model.topology.sticky:
            raise ValueError(f"Penalty() has no adhesion, which '{model.topology.name}' has: use contact=NCP().")
        spinning = [p.name for p in model.topology.pairs if p.condim > 3]
        if spinning:
            raise ValueError(
                f"Penalty() has no torsional or rolling friction, which pair '{spinning[0]}' of '{model.topology.name}' has: use "
                'contact=NCP(), or load with ignore=["condim"].'
            )

    def forces(self, now: Instant) -> Loads:
        model, kin, _, qd = now
        joints = self.limit_force(now) + self.friction_force(now)
        if model.topology.equalities or model.topology.loops:
            joints = joints + self.equality_force(now)
        room = places(model.topology, self.separate, self.most)
        still = jnp.zeros((), qd.dtype)
        contacts = detect(model, kin) if room is None else near_contacts(now, qd, still, room).contacts
        return Loads(joints + self.contact_force(model, kin, contacts, qd))

    def contact_force(
        self, model: Model, kin: Kinematics, contacts: Contacts, qd: Float[Array, " nv"]
    ) -> Float[Array, " nv"]:
        """Generalised force of all contacts."""
        if not len(contacts):
            return jnp.zeros_like(qd)
        contacts, depth = tapped(model, kin, contacts)
        J = contact_jacobian(model, kin, contacts)
        velocity = tap("contact.relative_velocity", matvec(J, qd))
        fn = tap("contact.normal_force", self.normal_force(contacts, depth, -velocity[:, 0]))
        ft = tap("contact.friction_force", self.friction.force(contacts.friction, fn, slip(contacts, velocity)))
        force = jnp.concatenate([fn[:, None], ft], axis=1)
        tap_sums(model, kin, contacts, force)
        return jnp.einsum("ck,ckd->d", force, J)

    def normal_force(self, contacts: Contacts, depth: Array, rate: Array) -> Array:
        """k d^n (1 + c d'), zero where apart or where damping would pull."""
        touching = depth > 0
        safe = jnp.where(touching, depth, 1.0)
        force = contacts.pairs.stiffness * safe**self.exponent * jnp.maximum(1 + contacts.pairs.damping * rate, 0.0)
        return jnp.where(touching, force, 0.0)

    def limit_force(self, now: Instant) -> Float[Array, " nv"]:
        """Spring-damper force of the limits of joints and tendons, zero inside the range, never pulling into the limit."""
        model, kin, q, qd = now
        force = jnp.zeros_like(qd)
        limited = model.topology.limited
        if len(limited):
            at_v, at_q = model.topology.v_start[limited], model.topology.q_start[limited]
            k, d = model.joints.limit_stiffness[limited], model.joints.limit_damping[limited]
            low = model.joints.range[limited, 0] - q[at_q]
            high = q[at_q] - model.joints.range[limited, 1]
            force = force.at[at_v].set(_stop(low, -qd[at_v], k, d) - _stop(high, qd[at_v], k, d))
        balls = model.topology.limited_balls
        if len(balls):
            angle, J = ball_angles(model, q)
            k, d = model.joints.limit_stiffness[balls], model.joints.limit_damping[balls]
            force = force - _stop(angle - model.joints.range[balls, 1], matvec(J, qd), k, d) @ J
        if len(model.topology.limited_tendons):
            table, J = model.tendons, tendon_jacobian(model, kin)
            length, rate = tendon_lengths(model, kin, q), matvec(J, qd)
            low, high = table.range[:, 0] - length, length - table.range[:, 1]
            up = _stop(low, -rate, table.limit_stiffness, table.limit_damping)
            force = force + (up - _stop(high, rate, table.limit_stiffness, table.limit_damping)) @ J
        return tap("joint.limit_force", force)

    def equality_force(self, now: Instant) -> Float[Array, " nv"]:
        """-J^T (k r + d J qd) of equalities and loops violated by r."""
        r, J, stiffness, damping, _, _ = ties(now)
        return tap("joint.equality_force", -(stiffness * r + damping * matvec(J, now.qd)) @ J)

    def friction_force(self, now: Instant) -> Float[Array, " nv"]:
        """Dry friction in joints and tendons, smoothed at rest."""
        model, kin, _, qd = now
        loss = model.joints.frictionloss[model.topology.dof_joint]
        force = -loss * jnp.tanh(qd / self.joint_velocity)
        if len(model.topology.dry_tendons):
            J = tendon_jacobian(model, kin)
            force = force - (model.tendons.frictionloss * jnp.tanh(matvec(J, qd) / self.joint_velocity)) @ J
        return tap("joint.friction_force", force)


def slip(contacts: Contacts, velocity: Float[Array, "n 3"]) -> Float[Array, "n 2"]:
    """Velocities of the surfaces against each other along the tangents, given those of the bodies."""
    carry = contacts.carry(3)
    return velocity[:, 1:] if carry is None else velocity[:, 1:] + carry[:, 1:]


def _stop(depth: Array, rate: Array, stiffness: Array, damping: Array) -> Array:
    """k depth + d rate of what is beyond an end and goes further with `rate`; never pulling, zero within the range. An end at
    infinity is never reached; its depth stays out of the product, whose derivative by k it is."""
    beyond = depth > 0
    return jnp.where(beyond, jnp.maximum(stiffness * jnp.where(beyond, depth, 0.0) + damping * rate, 0.0), 0.0)
