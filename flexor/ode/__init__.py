"""Neural ordinary differential equations: motion in continuous time, known, learned or both."""

from flexor.ode.artefact import Ode, Parts
from flexor.ode.encoder import AbstractEncoder, Measured, Past
from flexor.ode.field import AbstractField, BlackBoxField, RigidField, black_box
from flexor.ode.mechanics import HamiltonianField, LagrangianField, hamiltonian, lagrangian, port_hamiltonian
from flexor.ode.recipe import Recipe, train
from flexor.ode.series import Series
from flexor.ode.solver import OdeSolver
from flexor.ode.stepping import AbstractStepping, Adaptive, RungeKutta4
from flexor.ode.system import AbstractSystem, Corrected, Robot, StateSpace
from flexor.ode.training import Training, fit

__all__ = [
    "AbstractEncoder",
    "AbstractField",
    "AbstractStepping",
    "AbstractSystem",
    "Adaptive",
    "BlackBoxField",
    "Corrected",
    "HamiltonianField",
    "LagrangianField",
    "Measured",
    "Ode",
    "OdeSolver",
    "Parts",
    "Past",
    "Recipe",
    "RigidField",
    "Robot",
    "RungeKutta4",
    "Series",
    "StateSpace",
    "Training",
    "black_box",
    "fit",
    "hamiltonian",
    "lagrangian",
    "port_hamiltonian",
    "train",
]
