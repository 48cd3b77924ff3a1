"""flexor: robot dynamics that can be differentiated, trusted and looked into.

`load` a robot, give it to a `Simulator`, `rollout`: see README.md and docs/.
"""

from flexor import contact, dynamics, simd, spatial
from flexor.certify import Certificate, certify
from flexor.contact import NCP, Andersson, BrownMcPhee, Contacts, Hollars, Penalty, SmoothedCoulomb
from flexor.model.description import DescriptionError, ModelWarning
from flexor.model.model import Control, Model, State
from flexor.model.parameters import parameters, replace
from flexor.model.save import save
from flexor.robots import load
from flexor.solvers import (
    RK4,
    AbstractSolver,
    ImplicitDamping,
    MujocoSolver,
    RigidSolver,
    SemiImplicitEuler,
    Simulator,
    Status,
    Trajectory,
    taps,
)

__version__ = "0.1.0"

__all__ = [
    "NCP",
    "RK4",
    "AbstractSolver",
    "Andersson",
    "BrownMcPhee",
    "Certificate",
    "Contacts",
    "Control",
    "DescriptionError",
    "Hollars",
    "ImplicitDamping",
    "Model",
    "ModelWarning",
    "MujocoSolver",
    "Penalty",
    "RigidSolver",
    "SemiImplicitEuler",
    "Simulator",
    "SmoothedCoulomb",
    "State",
    "Status",
    "Trajectory",
    "certify",
    "contact",
    "dynamics",
    "load",
    "parameters",
    "replace",
    "save",
    "simd",
    "spatial",
    "taps",
]
