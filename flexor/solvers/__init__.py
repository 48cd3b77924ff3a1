"""Solvers behind one interface, and the `Simulator` that runs them."""

from flexor.solvers.artefact import open
from flexor.solvers.hybrid import HybridSolver
from flexor.solvers.integrators import RK4, ImplicitDamping, SemiImplicitEuler, SplitRK4
from flexor.solvers.linearize import Linearization, linearize
from flexor.solvers.mujoco import MujocoSolver
from flexor.solvers.policy import AbstractPolicy
from flexor.solvers.rigid import RigidSolver
from flexor.solvers.simulator import Simulator, taps
from flexor.solvers.solver import AbstractMemory, AbstractSolver, AbstractWrapper
from flexor.solvers.stepper import Stepper
from flexor.solvers.substeps import Substeps
from flexor.solvers.trajectory import Status, Trajectory

__all__ = [
    "RK4",
    "AbstractMemory",
    "AbstractPolicy",
    "AbstractSolver",
    "AbstractWrapper",
    "HybridSolver",
    "ImplicitDamping",
    "Linearization",
    "MujocoSolver",
    "RigidSolver",
    "SemiImplicitEuler",
    "Simulator",
    "SplitRK4",
    "Status",
    "Stepper",
    "Substeps",
    "Trajectory",
    "linearize",
    "open",
    "taps",
]
