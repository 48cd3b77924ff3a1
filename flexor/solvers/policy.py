"""Policies: what gives a rollout its controls."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import ArrayLike, PRNGKeyArray

from flexor.model.model import Control, State

Policy = Callable[[State], ArrayLike | Control]
"""A policy without memory: the control at a state."""


class AbstractPolicy(eqx.Module):
    """A policy with memory, which it carries from step to step of a rollout: any pytree of arrays of fixed shapes.

    Keys are None where `rollout` was given none; a policy that draws no random numbers need not look at them.
    """

    compilable: ClassVar[bool] = True
    """Whether it can be part of the rollout's kernel; otherwise XLA runs the loop and calls a kernel for each step of the
    robot."""

    def init(self, key: PRNGKeyArray | None) -> Any:
        """The memory with which a rollout begins."""
        return None

    @abc.abstractmethod
    def __call__(self, state: State, memory: Any, key: PRNGKeyArray | None) -> tuple[ArrayLike | Control, Any]:
        """The control at a state, and the memory for the next step. Each step has a key of its own."""


class Memoryless(AbstractPolicy):
    """A function `state -> control` as an `AbstractPolicy`."""

    function: Policy

    def __call__(self, state: State, memory: Any, key: PRNGKeyArray | None) -> tuple[ArrayLike | Control, Any]:
        return self.function(state), memory


def as_policy(controls: Any) -> AbstractPolicy | None:
    """Controls that are a function or a policy as an `AbstractPolicy`; None for arrays."""
    if not callable(controls):
        return None
    return controls if isinstance(controls, AbstractPolicy) else Memoryless(controls)
