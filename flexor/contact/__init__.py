"""Contact: detection yields `Contacts`; `Penalty`, `NCP` and `Mixed` turn them into forces and impulses."""

from flexor.contact.contacts import Contacts, contact_jacobian
from flexor.contact.detect import detect
from flexor.contact.friction import AbstractFriction, Andersson, BrownMcPhee, Hollars, SmoothedCoulomb
from flexor.contact.mixed import Mixed
from flexor.contact.ncp import NCP, Impulses
from flexor.contact.penalty import Penalty

__all__ = [
    "NCP",
    "AbstractFriction",
    "Andersson",
    "BrownMcPhee",
    "Contacts",
    "Hollars",
    "Impulses",
    "Mixed",
    "Penalty",
    "SmoothedCoulomb",
    "contact_jacobian",
    "detect",
]
