"""flexor: robot dynamics that can be differentiated, trusted and looked into.

`load` a robot, give it to a `Simulator`, `rollout`: see README.md and docs/.
"""

from flexor import contact, dynamics, nerd, simd, spatial
from flexor.augment import Add, Augmentation, Blueprint, Each, Replace, Scale, Shared, Whole
from flexor.augment import networks as nets
from flexor.certify import Certificate, certify
from flexor.contact import NCP, Andersson, BrownMcPhee, Contacts, Hollars, Mixed, Penalty, SmoothedCoulomb
from flexor.dynamics import difference, frame_jacobian, frame_pose, frame_velocity, frames, integrate, random_state
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
from flexor.model.delay import with_delay
from flexor.model.description import DescriptionError, ModelWarning
from flexor.model.model import Control, Model, State
from flexor.model.parameters import parameters, replace
from flexor.model.save import save
from flexor.robots import load
from flexor.solvers import (
    RK4,
    AbstractPolicy,
    AbstractSolver,
    AbstractWrapper,
    HybridSolver,
    ImplicitDamping,
    Linearization,
    MujocoSolver,
    RigidSolver,
    SemiImplicitEuler,
    Simulator,
    Status,
    Stepper,
    Substeps,
    Trajectory,
    linearize,
    open,
    taps,
)
from flexor.solvers.table import solver

__version__ = "0.1.0"

__all__ = [
    "LBFGS",
    "NCP",
    "RK4",
    "AbstractPolicy",
    "AbstractSolver",
    "AbstractWrapper",
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
    "Linearization",
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
    "Stepper",
    "Substeps",
    "Trajectory",
    "Whole",
    "certify",
    "contact",
    "difference",
    "discover",
    "dynamics",
    "frame_jacobian",
    "frame_pose",
    "frame_velocity",
    "frames",
    "identify",
    "integrate",
    "linearize",
    "load",
    "nerd",
    "nets",
    "open",
    "parameters",
    "random_state",
    "replace",
    "save",
    "simd",
    "solver",
    "spatial",
    "taps",
    "with_delay",
]
