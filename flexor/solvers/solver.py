"""The interface of all physics: `step(model, state, control, dt) -> state`."""

import abc
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from flexor.model.model import Control, Model, State


class AbstractSolver(eqx.Module):
    """Anything that advances a robot by one step. Pure; what it must remember between steps lives in `State.memory`."""

    kernels: ClassVar[bool] = True
    """Whether a step is written in JAX throughout, so that it can be compiled to a SIMD kernel."""

    @abc.abstractmethod
    def init(self, model: Model, state: State) -> State:
        """The state with the memory with which this solver starts."""

    @abc.abstractmethod
    def step(self, model: Model, state: State, control: Control, dt: Float[Array, ""]) -> State:
        """The state a time dt later."""

    def known(self) -> "AbstractSolver":
        """The same solver without what its known numbers make idle: fresh networks, for instance."""
        return self

    def check(self, model: Model) -> None:
        """Raises, with a sentence, when this solver cannot simulate the model."""

    def accept(self, control: Any) -> None:
        """Raises, with a sentence, when a control as it was given asks for what this solver knows nothing of."""


def named(solver: Any) -> str:
    """Name of a solver or of one of its parts, for messages."""
    return type(solver).__name__
