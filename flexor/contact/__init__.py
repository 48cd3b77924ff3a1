"""Contact: detection yields `Contacts`; contact models (`AbstractContact`) turn them into forces and impulses."""

from flexor.contact.contact import AbstractContact, FreeStep, Instant, Loads, Outcome
from flexor.contact.contacts import Contacts, contact_jacobian
from flexor.contact.detect import detect
from flexor.contact.friction import AbstractFriction, Andersson, BrownMcPhee, Hollars, SmoothedCoulomb
from flexor.contact.mixed import Mixed
from flexor.contact.ncp import NCP, Impulses, NoContact, no_impulses
from flexor.contact.penalty import Penalty

__all__ = [
    "NCP",
    "AbstractContact",
    "AbstractFriction",
    "Andersson",
    "BrownMcPhee",
    "Contacts",
    "FreeStep",
    "Hollars",
    "Impulses",
    "Instant",
    "Loads",
    "Mixed",
    "NoContact",
    "Outcome",
    "Penalty",
    "SmoothedCoulomb",
    "contact_jacobian",
    "detect",
    "no_impulses",
]
