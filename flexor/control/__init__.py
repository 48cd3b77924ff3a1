"""Control: convex MPC of robots on four legs, planning through a simulator, arms that follow while their model adapts."""

from flexor.control.adaptive import LeastSquaresTorque, SlotineLi, free_of
from flexor.control.feedback import Feedback, lqr, lqr_along
from flexor.control.force_problem import DenseQP, ForceProblem, dense
from flexor.control.forces import AbstractForces, ForceSolution
from flexor.control.gait import GAITS, Gait
from flexor.control.ilqr import ILQR
from flexor.control.interior_point import InteriorPoint
from flexor.control.legs import Legs, on_its_feet, standing
from flexor.control.objective import Objective
from flexor.control.osqp_forces import Osqp
from flexor.control.pilot import Pilot
from flexor.control.planner import AbstractPlanner, Planned
from flexor.control.quadruped import Quadruped
from flexor.control.receding import Receding
from flexor.control.sampling import MPPI, AbstractSampling, CrossEntropy, PredictiveSampling
from flexor.control.spline import Spline
from flexor.control.tracking import PD, AbstractTracking, ComputedTorque, Goal, Loop, Sines
from flexor.control.twin import Twin
from flexor.control.walked import Walked
from flexor.control.walker import Memory, Plan, Swing, Walker

__all__ = [
    "GAITS",
    "ILQR",
    "MPPI",
    "PD",
    "AbstractForces",
    "AbstractPlanner",
    "AbstractSampling",
    "AbstractTracking",
    "ComputedTorque",
    "CrossEntropy",
    "DenseQP",
    "Feedback",
    "ForceProblem",
    "ForceSolution",
    "Gait",
    "Goal",
    "InteriorPoint",
    "LeastSquaresTorque",
    "Legs",
    "Loop",
    "Memory",
    "Objective",
    "Osqp",
    "Pilot",
    "Plan",
    "Planned",
    "PredictiveSampling",
    "Quadruped",
    "Receding",
    "Sines",
    "SlotineLi",
    "Spline",
    "Swing",
    "Twin",
    "Walked",
    "Walker",
    "dense",
    "free_of",
    "lqr",
    "lqr_along",
    "on_its_feet",
    "standing",
]
