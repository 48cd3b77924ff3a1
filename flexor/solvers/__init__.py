"""Solvers behind one interface, and the `Simulator` that runs them."""

from flexor.solvers.hybrid import HybridSolver
from flexor.solvers.integrators import RK4, ImplicitDamping, SemiImplicitEuler
from flexor.solvers.mujoco import MujocoSolver
from flexor.solvers.rigid import RigidSolver
from flexor.solvers.simulator import Simulator, taps
from flexor.solvers.solver import AbstractSolver
from flexor.solvers.substeps import Substeps
from flexor.solvers.trajectory import Status, Trajectory

__all__ = [
    "RK4",
    "AbstractSolver",
    "HybridSolver",
    "ImplicitDamping",
    "MujocoSolver",
    "RigidSolver",
    "SemiImplicitEuler",
    "Simulator",
    "Status",
    "Substeps",
    "Trajectory",
    "taps",
]
