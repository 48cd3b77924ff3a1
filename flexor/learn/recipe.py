"""`Recipe`: settings with which a task is learned well, and those of the tasks that come with flexor."""

import dataclasses
from dataclasses import dataclass, field

from flexor.envs import AbstractTask
from flexor.learn.ppo import PPO


@dataclass(frozen=True)
class Training:
    """How long and on how many robots: `iterations` stretches of `steps` steps. Training stops early where the mean
    return of the episodes that end in a stretch is `wanted`, or after `minutes`, compilation and earlier runs included. A
    checkpoint is written every `every` iterations. A run may be resumed with other bounds."""

    robots: int = 2048
    steps: int = 32
    iterations: int = 500
    wanted: float | None = None
    minutes: float | None = None
    every: int = 10
    seed: int = 0


@dataclass(frozen=True)
class Recipe:
    """How to learn a task: `fx.learn.train` follows it where nothing else is said."""

    algorithm: PPO = field(default_factory=PPO)
    options: Training = field(default_factory=Training)


RECIPES: dict[str, Recipe] = {
    "CartpoleSwingUp": Recipe(
        PPO(sizes=(64, 64), activation="tanh", minibatches=4, highest_rate=3e-3, divergence=0.015, entropy_share=0.01),
        Training(robots=256, iterations=1000),
    ),
    "AntRun": Recipe(PPO(epochs=2), Training(iterations=1000)),
    "AntSpin": Recipe(PPO(epochs=2), Training(iterations=1000)),
    "AntSpinTrack": Recipe(PPO(epochs=2), Training(iterations=1000)),
    # the noise is drawn down: a gait that lives on its noise falls without it
    "Walk": Recipe(PPO(first_deviation=0.5, entropy_share=-0.01), Training(iterations=500)),
    "Reach": Recipe(PPO(sizes=(64, 64), first_deviation=0.5), Training(robots=1024, steps=64, iterations=400)),
}
"""Settings by the names of tasks (`task.name`)."""


def recipe(task: AbstractTask) -> Recipe:
    """The settings of a task, or the defaults where there are none of its own; stretches are no longer than its episodes."""
    found = RECIPES.get(task.name, Recipe())
    steps = min(found.options.steps, task.length)
    return dataclasses.replace(found, options=dataclasses.replace(found.options, steps=steps))
