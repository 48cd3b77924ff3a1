"""The contract of everything that constrains a robot: forces at an instant, then impulses over a step.

A step with impulses goes: `forces` (generalised force and damping that act with all others), the velocity without impulses,
`resolve` (the velocity with them). Where a model asks for no impulses, `forces` alone is used, by any integrator.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import Array, Float

from flexor.contact.contacts import Contacts
from flexor.dynamics import Kinematics
from flexor.model.model import Model
from flexor.taps import Handler, tap


class Instant(NamedTuple):
    """A robot at one instant."""

    model: Model
    kin: Kinematics
    q: Float[Array, " nq"]
    qd: Float[Array, " nv"]


class Loads(NamedTuple):
    """What a contact model brings to a step before its impulses: generalised force and damping matrix, None where there is none;
    the candidates that are left to the impulses; and the tap by which these are named."""

    force: Float[Array, " nv"] | None = None
    damping: Float[Array, "nv nv"] | None = None
    contacts: Contacts | None = None
    tap: Handler = tap


class FreeStep(NamedTuple):
    """A step of length dt without impulses: where it starts, the velocity at its end, and the joint-space inertia, with what
    implicit damping adds to it; and the forces of the actuators that pull bodies against their contacts, None if there are none.
    """

    start: Instant
    velocity: Float[Array, " nv"]
    M: Float[Array, "nv nv"]
    dt: Float[Array, ""]
    pull: Float[Array, " npull"] | None = None


class Outcome(NamedTuple):
    """Velocity at the end of a step, displacement over it, and what the contact model remembers until the next."""

    velocity: Float[Array, " nv"]
    displacement: Float[Array, " nv"]
    memory: Any


class AbstractContact(eqx.Module):
    """A contact model. It constrains the joints too: limits, dry friction, equalities."""

    @abc.abstractmethod
    def sources(self, model: Model) -> tuple[str, ...]:
        """What it solves by impulses in this model, in words; the integrator must have a place for them. Empty: forces alone."""

    def check(self, model: Model) -> None:
        """Raises, with a sentence, when it does not fit the model."""

    def init(self, model: Model) -> Any:
        """What it remembers before the first step."""
        return None

    def forces(self, now: Instant) -> Loads:
        """Its forces at an instant, and the candidates for its impulses."""
        return Loads()

    def resolve(self, step: FreeStep, loads: Loads, memory: Any) -> Outcome:
        """The step with its impulses; `loads` as `forces` returned them at the start of the step."""
        return Outcome(step.velocity, step.dt * step.velocity, memory)
