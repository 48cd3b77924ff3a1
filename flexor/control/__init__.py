"""Control that looks ahead: the convex MPC of robots on four legs."""

from flexor.control.force_problem import DenseQP, ForceProblem, dense
from flexor.control.interior_point import ForceSolution, InteriorPoint

__all__ = ["DenseQP", "ForceProblem", "ForceSolution", "InteriorPoint", "dense"]
