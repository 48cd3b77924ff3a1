"""`AbstractAlgorithm`: how a policy is learned, in turns: a stretch of steps of all robots, and what is made of it."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import PRNGKeyArray

from flexor.envs import AbstractTask, Episode
from flexor.learn.actor import Actor
from flexor.learn.loop import Experience

Turn = Callable[[Any, Episode, PRNGKeyArray], tuple[Any, Episode, Experience, dict[str, Any]]]
"""From a learner, the robots and a key to the learner and the robots afterwards, what they lived through, and figures."""


class AbstractLearner(eqx.Module):
    """What is learned, and all that an algorithm remembers from one turn to the next."""

    actor: eqx.AbstractVar[Actor]


class AbstractAlgorithm(abc.ABC):
    """A frozen dataclass with the settings of an algorithm."""

    @abc.abstractmethod
    def first(self, task: AbstractTask, key: PRNGKeyArray) -> AbstractLearner:
        """A learner that knows nothing."""

    @abc.abstractmethod
    def turns(self, task: AbstractTask, *, steps: int, threads: int | None = None) -> Turn:
        """What makes a turn of `steps` steps, to be called again and again."""
