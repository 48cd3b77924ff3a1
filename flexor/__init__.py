"""flexor: robot dynamics that can be differentiated, trusted and looked into.

`load` a robot, give it to a `Simulator`, `rollout`: see README.md and docs/.
"""

from flexor import contact, dynamics, nerd, simd, spatial
from flexor.augment import Add, Augmentation, Blueprint, Each, Replace, Scale, Shared, Whole
from flexor.augment import networks as nets
from flexor.certify import Certificate, certify
from flexor.contact import NCP, Andersson, BrownMcPhee, Contacts, Hollars, Mixed, Penalty, SmoothedCoulomb
from flexor.identify import (
    LBFGS,
    Adam,
    BasinHopping,
    Fit,
    LevenbergMarquardt,
    Log,
    Pagmo,
    Posterior,
    Shooting,
    SparseGroupLasso,
    discover,
    identify,
)
from flexor.model.description import DescriptionError, ModelWarning
from flexor.model.model import Control, Model, State
from flexor.model.parameters import parameters, replace
from flexor.model.save import save
from flexor.robots import load
from flexor.solvers import (
    RK4,
    AbstractSolver,
    HybridSolver,
    ImplicitDamping,
    MujocoSolver,
    RigidSolver,
    SemiImplicitEuler,
    Simulator,
    Status,
    Substeps,
    Trajectory,
    taps,
)

__version__ = "0.1.0"

__all__ = [
    "LBFGS",
    "NCP",
    "RK4",
    "AbstractSolver",
    "Adam",
    "Add",
    "Andersson",
    "Augmentation",
    "BasinHopping",
    "Blueprint",
    "BrownMcPhee",
    "Certificate",
    "Contacts",
    "Control",
    "DescriptionError",
    "Each",
    "Fit",
    "Hollars",
    "HybridSolver",
    "ImplicitDamping",
    "LevenbergMarquardt",
    "Log",
    "Mixed",
    "Model",
    "ModelWarning",
    "MujocoSolver",
    "Pagmo",
    "Penalty",
    "Posterior",
    "Replace",
    "RigidSolver",
    "Scale",
    "SemiImplicitEuler",
    "Shared",
    "Shooting",
    "Simulator",
    "SmoothedCoulomb",
    "SparseGroupLasso",
    "State",
    "Status",
    "Substeps",
    "Trajectory",
    "Whole",
    "certify",
    "contact",
    "discover",
    "dynamics",
    "identify",
    "load",
    "nerd",
    "nets",
    "parameters",
    "replace",
    "save",
    "simd",
    "spatial",
    "taps",
]
