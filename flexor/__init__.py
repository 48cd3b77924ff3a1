"""flexor: robot dynamics that can be differentiated, trusted and looked into.

`load` a robot, give it to a `Simulator`, `rollout`: see README.md and docs/.

Certificates, identification and learned solvers are imported when they are first used, which keeps
`import flexor` short.
"""

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from flexor import contact, dynamics, simd, spatial
from flexor.augment import Add, Augmentation, Blueprint, Each, Replace, Scale, Shared, Whole
from flexor.augment import networks as nets
from flexor.contact import NCP, Andersson, BrownMcPhee, Contacts, Hollars, Mixed, Penalty, SmoothedCoulomb
from flexor.dynamics import difference, frame_jacobian, frame_pose, frame_velocity, frames, integrate, random_state, sensors
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
    SplitRK4,
    Status,
    Stepper,
    Substeps,
    Trajectory,
    linearize,
    open,
    taps,
)
from flexor.solvers.table import solver

if TYPE_CHECKING:  # what type checkers and editors see of the names that are imported at their first use
    from flexor import adapt, cluster, control, envs, learn, nerd, ode, plugins, viz
    from flexor.certify import Certificate, certify
    from flexor.identify import (
        LBFGS,
        Adam,
        BasinHopping,
        Fit,
        LevenbergMarquardt,
        Load,
        Log,
        Pagmo,
        Posterior,
        Shooting,
        SparseGroupLasso,
        Torque,
    )
    from flexor.identify.discover import discover
    from flexor.identify.identify import identify

__version__ = "0.2.0"

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
    "Load",
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
    "SplitRK4",
    "State",
    "Status",
    "Stepper",
    "Substeps",
    "Torque",
    "Trajectory",
    "Whole",
    "adapt",
    "certify",
    "cluster",
    "contact",
    "control",
    "difference",
    "discover",
    "dynamics",
    "envs",
    "frame_jacobian",
    "frame_pose",
    "frame_velocity",
    "frames",
    "identify",
    "integrate",
    "learn",
    "linearize",
    "load",
    "nerd",
    "nets",
    "ode",
    "open",
    "parameters",
    "plugins",
    "random_state",
    "replace",
    "save",
    "sensors",
    "simd",
    "solver",
    "spatial",
    "taps",
    "viz",
    "with_delay",
]

# Imported at first use: modules, and names with the module that defines them.
_MODULES = ("adapt", "cluster", "control", "envs", "learn", "nerd", "ode", "plugins", "viz")
_NAMES = {
    **dict.fromkeys(("Certificate", "certify"), "flexor.certify"),
    **dict.fromkeys(("LBFGS", "Adam", "BasinHopping", "Fit", "LevenbergMarquardt", "Load", "Log"), "flexor.identify"),
    **dict.fromkeys(
        ("Pagmo", "Posterior", "Shooting", "Torque", "SparseGroupLasso", "discover", "identify"), "flexor.identify"
    ),
}
_FUNCTIONS = ("certify", "identify", "taps")  # of the same name as a module


class _Package(types.ModuleType):
    """The module `flexor`, with names that are imported at their first use.

    After importing a submodule, Python binds it in its package. Where the name is a function's, the function stays:
    `flexor.identify` is the function whatever was imported before, and `from flexor.identify import ...` reads the folder.
    """

    def __getattr__(self, name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"flexor.{name}")
        if name not in _NAMES:
            raise AttributeError(f"module 'flexor' has no attribute {name!r}")
        value = getattr(importlib.import_module(_NAMES[name]), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _FUNCTIONS and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *_MODULES, *_NAMES})


sys.modules[__name__].__class__ = _Package

if "gymnasium" in sys.modules:  # its users make environments by name
    importlib.import_module("flexor.gym")
