"""Neural ordinary differential equations: motion in continuous time, known, learned or both."""

from flexor.ode.field import AbstractField, BlackBoxField, RigidField, black_box
from flexor.ode.mechanics import HamiltonianField, LagrangianField, hamiltonian, lagrangian, port_hamiltonian
from flexor.ode.solver import OdeSolver
from flexor.ode.stepping import AbstractStepping, Adaptive, RungeKutta4

__all__ = [
    "AbstractField",
    "AbstractStepping",
    "Adaptive",
    "BlackBoxField",
    "HamiltonianField",
    "LagrangianField",
    "OdeSolver",
    "RigidField",
    "RungeKutta4",
    "black_box",
    "hamiltonian",
    "lagrangian",
    "port_hamiltonian",
]
