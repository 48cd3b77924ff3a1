"""`Recipe`: settings with which a task is learned well, and those of the tasks that come with flexor."""

import dataclasses
from dataclasses import dataclass, field

from flexor.envs import AbstractTask
from flexor.learn.algorithm import AbstractAlgorithm
from flexor.learn.ppo import PPO
from flexor.learn.shac import SHAC


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

    algorithm: AbstractAlgorithm = field(default_factory=PPO)
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
"""Settings of PPO by the names of tasks (`task.name`)."""

ANALYTIC: dict[str, Recipe] = {
    "CartpoleSwingUp": Recipe(SHAC(sizes=(64, 64), steepest=1e4), Training(robots=64, iterations=1000)),
    "AntRun": Recipe(SHAC(), Training(robots=64, iterations=2000)),
}
"""Settings of SHAC by the names of tasks."""

DEFAULTS: dict[type[AbstractAlgorithm], Recipe] = {PPO: Recipe(), SHAC: Recipe(SHAC(), Training(robots=64, iterations=2000))}
"""Settings of algorithms for any other task."""


def recipe(task: AbstractTask, algorithm: type[AbstractAlgorithm] = PPO) -> Recipe:
    """The settings by which an algorithm learns a task, or the algorithm's defaults where there are none of the task's own;
    stretches are no longer than its episodes."""
    own = {PPO: RECIPES, SHAC: ANALYTIC}.get(algorithm, {}).get(task.name)
    found = DEFAULTS.get(algorithm) if own is None else own
    if found is None:
        raise KeyError(f"there is no recipe of {algorithm.__name__}; `fx.learn.train` takes `algorithm` and `options`.")
    steps = min(found.options.steps, task.length)
    return dataclasses.replace(found, options=dataclasses.replace(found.options, steps=steps))
