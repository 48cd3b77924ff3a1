"""Adhesion: forces that pull shapes together along the normals of their contacts.

Each contact of a pair with `Pairs.adhesion` f is pulled together by f while its distance is below `Pairs.gap`; an actuator on a
body pulls with its force, in equal parts, at all contacts that the body has so near (MuJoCo's `adhesion`). These are forces as
any other: they change the velocity without impulses, u0 - h M^-1 J_n^T f, and what the contact bears, and how much it may rub,
follow from that. A contact then can pull with up to f.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.contact.contact import FreeStep
from flexor.contact.contacts import Contacts, contact_jacobian
from flexor.dynamics.crba import factor_inertia, solve_inertia


def pulled(step: FreeStep, contacts: Contacts) -> FreeStep:
    """The step with the forces of adhesion in its velocity; as it is where there are none."""
    model, kin, _, _ = step.start
    if not model.topology.sticky or not len(contacts):
        return step
    force = adhesive_forces(step, contacts)
    J = contact_jacobian(model, kin, contacts)[:, 0]
    change = solve_inertia(step.M, factor_inertia(step.M), jnp.sum(force[:, None] * J, axis=0))
    return step._replace(velocity=step.velocity - step.dt * change)


def adhesive_forces(step: FreeStep, contacts: Contacts) -> Float[Array, " ncon"]:
    """The force of each contact in N that pulls its two bodies together."""
    t = step.start.model.topology
    near = contacts.distance < contacts.pairs.gap
    force = jnp.where(near, contacts.pairs.adhesion, 0.0)
    if step.pull is None:
        return force
    for actuator, pull in zip(t.adhesive, step.pull, strict=True):
        own = near & jnp.any(jnp.asarray(contacts.bodies) == t.actuators[actuator].body, axis=1)
        count = jnp.sum(own.astype(force.dtype))
        force = force + jnp.where(own, pull / jnp.maximum(count, 1.0), 0.0)
    return force
