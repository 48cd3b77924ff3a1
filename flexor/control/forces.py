"""`AbstractForces`: whatever answers a `ForceProblem`: a solver of QPs, or a network that learned from one."""

import abc
from typing import NamedTuple

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int

from flexor.control.force_problem import ForceProblem


class ForceSolution(NamedTuple):
    """Forces of the feet on the robot, in N, those of the first step first; whether they are within the tolerance, and the number
    of iterations. Unconverged forces still obey all bounds."""

    forces: Float[Array, "horizon foot 3"]
    converged: Bool[Array, ""]
    iterations: Int[Array, ""]


class AbstractForces(eqx.Module):
    """Forces of the feet for a problem."""

    @abc.abstractmethod
    def __call__(self, problem: ForceProblem, start: Float[Array, "horizon foot 3"] | None = None) -> ForceSolution:
        """The forces; `start` are those to begin with, of the last time for instance."""
