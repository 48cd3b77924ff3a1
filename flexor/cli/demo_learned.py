"""The demo's chapter on learned solvers: the package's cartpole beside the true one, same code, solver swapped."""

import time
from collections.abc import Callable

import numpy as np

from flexor.cli.demo_runs import Run
from flexor.nerd import load

START = np.array([[0.2, 2.0], [0.5, 0.0]])  # m and rad from upright, m/s and rad/s


def chapter(quick: bool, tell: Callable[[str], None]) -> list[Run]:
    """Passive motion under the true physics and under the learned one."""
    nerd = load("cartpole")
    true = nerd.true_simulator()
    runs = []
    for label, sim in (("true", true), ("learned", true.with_solver(nerd.solver()))):
        tell(f"cartpole: {label} physics")
        begun = time.perf_counter()
        trajectory = sim.rollout(sim.reset(*START), steps=30 if quick else 300).raise_if_bad()
        runs.append(Run(label, nerd.model, trajectory, time.perf_counter() - begun))
    return runs
