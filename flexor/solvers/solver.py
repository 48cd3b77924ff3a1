"""The contract of all physics: `step(model, state, control, dt) -> state`, and what belongs to it.

`AbstractSolver` is the contract; `AbstractWrapper` is a solver around another solver, which behaves like the inner one
except for what it overrides. Code that uses a solver relies on the contract and never asks for its class.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from flexor.model.model import Control, Model, State
from flexor.model.pytree import Pytree


class AbstractSolver(Pytree):
    """Anything that advances a robot by one step. Pure; what it must remember between steps lives in `State.memory`."""

    differentiable: ClassVar[bool] = True
    """Whether a step is JAX throughout, so that it can be differentiated, and substepped by `Substeps`."""
    compilable: ClassVar[bool] = True
    """Whether a step compiles to a SIMD kernel (`flexor.simd`); elsewhere it goes through XLA."""

    passive: ClassVar[bool] = False
    """Whether energy enters the robot only through its controls: contacts and joints create none. `Trajectory.status` then
    reports a rollout whose energy grows for no such reason."""

    @abc.abstractmethod
    def init(self, model: Model, state: State) -> State:
        """The state with the memory with which this solver starts."""

    @abc.abstractmethod
    def step(self, model: Model, state: State, control: Control, dt: Float[Array, ""]) -> State:
        """The state a time dt later."""

    def check(self, model: Model, dt: float | None) -> None:
        """Raises, with a sentence, when this solver cannot simulate the model with time steps of `dt` seconds.

        `Simulator` calls it before anything is traced. `dt` is None where its value is not a number yet: it is then an argument
        of a compiled or differentiated function.
        """

    def accept(self, control: Any) -> None:
        """Raises, with a sentence, when a control, as the user gave it, has a part that this solver cannot apply."""

    def shortest_step(self, dt: float) -> float:
        """The time between two inputs in a step of dt: dt itself, or that of a substep."""
        return dt

    def moves_by_velocity(self, model: Model) -> bool:
        """Whether a step always moves the robot by its new velocity, q+ = q (+) dt qd+; False where that is not certain.
        Derivatives along a trajectory are cheaper where it does."""
        return False

    def simplified(self) -> "AbstractSolver":
        """The same solver without parts that their concrete numbers make idle, fresh networks for instance."""
        return self


class AbstractMemory(eqx.Module):
    """Memory of a solver that knows where it should not be believed, a learned one for instance."""

    @property
    @abc.abstractmethod
    def doubted_since(self) -> Float[Array, ""]:
        """The time of the first state that should not be believed; infinite where there is none."""


class AbstractWrapper(AbstractSolver):
    """A solver around the solver `base`. It delegates the whole contract; override what the wrapper changes.

    Only `moves_by_velocity` is not delegated: it describes the step itself.
    """

    base: AbstractSolver

    @property
    def differentiable(self) -> bool:  # type: ignore[override]
        """As the solver within."""
        return self.base.differentiable

    @property
    def compilable(self) -> bool:  # type: ignore[override]
        """As the solver within."""
        return self.base.compilable

    def init(self, model: Model, state: State) -> State:
        return self.base.init(model, state)

    def step(self, model: Model, state: State, control: Control, dt: Float[Array, ""]) -> State:
        return self.base.step(model, state, control, dt)

    def check(self, model: Model, dt: float | None) -> None:
        self.base.check(model, dt)

    def accept(self, control: Any) -> None:
        self.base.accept(control)

    def shortest_step(self, dt: float) -> float:
        return self.base.shortest_step(dt)

    def simplified(self) -> AbstractSolver:
        base = self.base.simplified()
        return self if base is self.base else eqx.tree_at(lambda s: s.base, self, base)


def class_name(part: object) -> str:
    """Name of a solver's class, or of one of its parts', for messages."""
    return type(part).__name__
