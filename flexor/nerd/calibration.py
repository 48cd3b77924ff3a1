"""The warning of a learned solver that has none yet, and what a warning is worth."""

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flexor.nerd.artefact import Nerd
from flexor.nerd.data import Data
from flexor.nerd.evaluation import Passive, passive_judge
from flexor.nerd.examples import Examples, examples
from flexor.nerd.frames import Frames
from flexor.nerd.warning import Doubt, Warnings, fitted, separation

MOST = 200_000  # transitions from which mean and covariance are taken
BAD = 5.0  # times the mean error


def doubt_of(learned: np.ndarray, shown: Examples, first: int, frames: Frames, dtype: Any) -> Doubt:
    """The warning from inputs that were learned from, calibrated on the trajectories of other examples from the `first` on."""
    thinned = learned[:: max(1, learned.shape[0] * learned.shape[1] // MOST)]
    acts = np.stack([np.isfinite(y[:, -1]) for y in shown.y[first:]])
    return fitted(thinned, shown.x[first:], acts, frames, dtype)


def calibrate(nerd: Nerd, data: Data | str | os.PathLike[str], *, held_out: float = 0.5) -> Nerd:
    """The solver with a warning, or with a new one, from a data set like the one it was trained on: a share of its trajectories
    sets the limit, the others mean and covariance."""
    shown = examples(data, nerd.model, nerd.frames)
    learned = shown.shape[0] - round(held_out * shown.shape[0])
    doubt = doubt_of(shown.x[:learned], shown, learned, nerd.frames, nerd.network.dtype)
    return dataclasses.replace(nerd, doubt=doubt)


def evaluate_warning(nerd: Nerd, *, steps: int = 100, rollouts: int = 2048, seed: int = 900) -> Warnings:
    """What the warning of a solver is worth: on states, and on passive rollouts beside the physics it was trained on."""
    doubt, ranges = nerd.doubt, nerd.ranges
    if doubt is None or ranges is None:
        raise ValueError(
            f"this solver of '{nerd.model.topology.name}' has no {'warning' if doubt is None else 'ranges of states'}: "
            "`fx.nerd.calibrate` adds a warning from a data set."
        )
    model, frames = nerd.model, nerd.frames

    @jax.jit
    def figures(keys: Any) -> tuple[Any, Any, Any]:
        def one(key: Any) -> tuple[Any, Any, Any]:
            inside, (outside, beyond) = ranges.draw(model, key), ranges.beyond(model, key)
            still = jnp.zeros(len(frames.pushed), model.dtype)
            first, second = (_doubt(doubt, nerd, frames, q, qd, still) for q, qd in (inside, outside))
            return first, second, beyond

        return jax.vmap(one)(keys)

    inside, outside, beyond = map(np.asarray, figures(jax.random.split(jax.random.key(seed), rollouts)))
    passive = []
    for far in (False, True):
        judge = passive_judge(nerd.true_simulator(), frames, ranges, steps=steps, rollouts=rollouts, seed=seed, far=far)
        passive.append(judge(nerd.network, doubt))
    unit = [np.nanmean(_finite(e)) for e in _errors(passive[0])]
    counts = [_told(p, unit) for p in passive]
    return Warnings(
        separation(inside, outside[beyond]),
        float(np.isfinite(_since(passive[0])).mean()),
        (counts[0][0], counts[1][0]),
        (counts[0][1], counts[1][1]),
        rollouts,
    )


def _doubt(doubt: Doubt, nerd: Nerd, frames: Frames, q: Any, qd: Any, torque: Any) -> Any:
    scene = frames.look(nerd.model, q, qd, torque)
    return doubt.of(frames.features(scene, frames.foresee(nerd.model, scene)))


def _finite(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), x, np.nan)


def _errors(passive: Passive) -> list[np.ndarray]:
    found = (passive.position, passive.rotation, passive.slides, passive.hinges)
    return [x for x in found if x is not None]


def _told(passive: Passive, unit: list[Any]) -> tuple[int, int]:
    """How many rollouts go bad, and how many of them have raised a doubt by then."""
    bad = np.any([~(e <= BAD * u) for e, u in zip(_errors(passive), unit, strict=True)], axis=0)
    some, first = bad.any(1), np.argmax(bad, axis=1) + 1
    return int(some.sum()), int((some & (_since(passive) <= first)).sum())


def _since(passive: Passive) -> np.ndarray:
    assert passive.doubted is not None
    return passive.doubted
