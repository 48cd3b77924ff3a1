"""Control that looks ahead: the convex MPC of robots on four legs."""

from flexor.control.force_problem import DenseQP, ForceProblem, dense
from flexor.control.forces import AbstractForces, ForceSolution
from flexor.control.gait import GAITS, Gait
from flexor.control.interior_point import InteriorPoint
from flexor.control.legs import Legs, on_its_feet, standing
from flexor.control.osqp_forces import Osqp
from flexor.control.pilot import Pilot
from flexor.control.quadruped import Quadruped
from flexor.control.twin import Twin
from flexor.control.walked import Walked
from flexor.control.walker import Memory, Plan, Swing, Walker

__all__ = [
    "GAITS",
    "AbstractForces",
    "DenseQP",
    "ForceProblem",
    "ForceSolution",
    "Gait",
    "InteriorPoint",
    "Legs",
    "Memory",
    "Osqp",
    "Pilot",
    "Plan",
    "Quadruped",
    "Swing",
    "Twin",
    "Walked",
    "Walker",
    "dense",
    "on_its_feet",
    "standing",
]
