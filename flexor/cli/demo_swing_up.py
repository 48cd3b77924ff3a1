"""The demo's chapter on learning: a cart learns to swing its pole up, from nothing, while one watches the return."""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from flexor.cli.demo_runs import Run
from flexor.envs import AbstractTask, make
from flexor.learn import play, recipe, train
from flexor.learn.policy import Policy, policy_of
from flexor.robots import load
from flexor.solvers import Simulator

TOLD = 1.0  # s between two reports of the return


@dataclass(frozen=True)
class SwingUp:
    """The history of the training, a row for each stretch, and an episode of the policy before and after it."""

    history: list[dict[str, Any]]
    episodes: list[Run]
    returns: list[float]

    @property
    def seconds(self) -> float:
        """Of training, compilation included."""
        return float(self.history[-1]["seconds"])

    @property
    def curve(self) -> tuple[list[float], list[float]]:
        """Seconds and returns, from the first episodes that came to an end."""
        rows = [row for row in self.history if row["return"] is not None]
        return [row["seconds"] for row in rows], [row["return"] for row in rows]


def chapter(quick: bool, tell: Callable[[str], None], wanted: float = 800.0, minutes: float = 2.0, seed: int = 1) -> SwingUp:
    """Trains by the recipe of the task until the mean return is `wanted`, or for `minutes`."""
    task = single(make("cartpole"))
    how = recipe(task)
    bounds: dict[str, Any] = {"iterations": 12} if quick else {"wanted": wanted, "minutes": minutes}
    history: list[dict[str, Any]] = []
    told = time.perf_counter()

    def watch(iteration: int, iterations: int, row: dict[str, Any]) -> None:
        nonlocal told
        history.append(row)
        if row["return"] is not None and time.perf_counter() > told + TOLD:
            told = time.perf_counter()
            tell(f"cartpole learns to swing up: return {row['return']:.0f}")

    tell("cartpole learns to swing up")
    policy = train(
        task, algorithm=how.algorithm, options=dataclasses.replace(how.options, seed=seed, **bounds), progress=watch
    )
    played = [_episode(label, p, task) for label, p in (("before", untrained(task)), ("after", policy))]
    return SwingUp(history, [run for run, _ in played], [total for _, total in played])


def single(task: AbstractTask) -> AbstractTask:
    """The task in single precision, in which policies are learned, whatever the precision of this process."""
    model = load("cartpole", dtype=jnp.float32)
    return dataclasses.replace(task, sim=Simulator(model, task.sim.solver, dt=task.sim.dt))


def untrained(task: AbstractTask) -> Policy:
    """What training starts with."""
    learner = recipe(task).algorithm.first(task, jax.random.key(0))
    return policy_of(learner.actor, task)


def _episode(label: str, policy: Policy, task: AbstractTask) -> tuple[Run, float]:
    begun = time.perf_counter()
    motion, terms = play(policy, task)
    run = Run(label, task.sim.model, motion, time.perf_counter() - begun)
    return run, float(sum(x.sum() for x in terms.values()))
