"""Pictures of a learned solver beside the true one: how its errors grow, and the two in motion."""

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from flexor.files import write_whole
from flexor.nerd.artefact import Nerd
from flexor.nerd.evaluation import Passive
from flexor.nerd.ranges import Ranges
from flexor.solvers import Trajectory
from flexor.viz.animation import animate, page
from flexor.viz.colours import SERIES
from flexor.viz.plots import styled
from flexor.viz.scene import Actor

PARTS = (("position", "base position (m)"), ("rotation", "base rotation (rad)"), ("slides", "slides (m)"),
         ("hinges", "hinges (rad)"))  # fmt: skip


def growth(result: Passive, dt: float) -> Figure:
    """Median error over time, with the middle half and the middle 90 % of the rollouts."""
    parts = [(getattr(result, name), label) for name, label in PARTS if getattr(result, name) is not None]
    with styled():
        figure = Figure(figsize=(3.4 * len(parts), 2.8), layout="constrained")
        for axes, (errors, label) in zip(np.atleast_1d(figure.subplots(1, len(parts))), parts, strict=True):
            at = dt * np.arange(1, errors.shape[1] + 1)
            alive = np.where(result.diverged, np.nan, errors)
            low, first, middle, last, high = np.maximum(np.nanquantile(alive, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0), 1e-9)
            axes.fill_between(at, low, high, color=SERIES[0], alpha=0.15, linewidth=0, label="90 %")
            axes.fill_between(at, first, last, color=SERIES[0], alpha=0.3, linewidth=0, label="50 %")
            axes.plot(at, middle, color=SERIES[0], label="median")
            axes.set(xlabel="time (s)", ylabel=label, yscale="log")
        axes.legend(fontsize=8)
    return figure


def pair(nerd: Nerd, steps: int, seed: int = 0) -> tuple[Trajectory, Trajectory]:
    """True and learned motion from one random state of those that were learned, without controls."""
    true, learned = nerd.true_simulator(), nerd.simulator()
    ranges = Ranges() if nerd.ranges is None else nerd.ranges
    q, qd = ranges.draw(nerd.model, jax.random.key(seed))
    return true.rollout(true.reset(q, qd), steps=steps), learned.rollout(learned.reset(q, qd), steps=steps)


def save_pair(path: str | os.PathLike[str], nerd: Nerd, runs: tuple[Trajectory, Trajectory]) -> Path:
    """Writes one page with both motions, the learned one beside the true one."""
    wide: Any = 1.5 * max(1.0, float(np.ptp(np.asarray(runs[0].q[:, 0]))))
    labels = ("true physics", "learned")
    actors = [
        Actor(nerd.model, run, label, SERIES[i], (0.0, i * wide, 0.0))
        for i, (run, label) in enumerate(zip(runs, labels, strict=True))
    ]
    write_whole({Path(path): page(f"{nerd.model.topology.name}, learned", animate(actors)).encode()})
    return Path(path)
