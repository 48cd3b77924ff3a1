"""`Doubt`: how unlike its training data a state is. A learned solver says by it from which step on it should not be believed.

    doubt(x) = |W (z - mean)| / limit,    W^T W = (covariance of z in the training data)^-1

where z are the inputs of the state itself: joint coordinates, velocities, torques, the direction of gravity in the root frame
(Mahalanobis 1936; as a warning Lee et al. 2018). `limit` is the conformal quantile (Vovk et al. 2005) of the largest distance
along each held-out trajectory: of trajectories like those that were learned from, at most the share 1 - `LEVEL` has a doubt above
one anywhere. Contacts are no part of z, so strange ground raises no doubt by itself.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.nerd.frames import Frames

LEVEL = 0.95  # share of the trajectories of the data that raise no doubt
FEWEST = 19  # held-out trajectories that a calibration takes: LEVEL / (1 - LEVEL)
CONSTANT = 1e-5  # deviation of an input that never changes
BLUR = 0.03  # of each input's own deviation, added to the covariance: nearly dependent inputs do not decide


class Doubt(eqx.Module):
    """The calibrated distance; see above. `whiten` is W."""

    mean: Float[Array, " n"]
    whiten: Float[Array, "n n"]
    limit: Float[Array, ""]

    def of(self, x: Float[Array, " n_in"]) -> Float[Array, ""]:
        """The doubt of one input of the network; above one the step should not be believed."""
        z = x[: len(self.mean)].astype(self.mean.dtype) - self.mean
        return jnp.sqrt(jnp.sum((self.whiten @ z) ** 2)) / self.limit


def state_inputs(frames: Frames) -> int:
    """How many inputs, the first ones, describe the state itself."""
    return frames.labels.index("gravity z") + 1


def fitted(learned: np.ndarray, held_out: np.ndarray, acts: np.ndarray, frames: Frames, dtype: Any) -> Doubt:
    """From inputs (trajectory, step, n_in) that were learned from and others; `acts` (trajectory, step) says in which of the
    others the network acts at all. Where almost none of them has
    such a step, every state in which the network acts is doubted."""
    n = state_inputs(frames)
    z = np.asarray(learned[..., :n], float).reshape(-1, n)
    mean, deviation = z.mean(0), z.std(0)
    covariance = (z - mean).T @ (z - mean) / len(z) + np.diag((BLUR * deviation) ** 2 + CONSTANT**2)
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    distance = np.linalg.norm((np.asarray(held_out[..., :n], float) - mean) @ whiten.T, axis=-1)
    limit = conformal(np.where(acts, distance, 0.0).max(axis=1))
    return Doubt(*(jnp.asarray(x, dtype) for x in (mean, whiten, limit)))


def conformal(scores: np.ndarray, level: float = LEVEL) -> float:
    """The score that another, exchangeable one exceeds with probability 1 - `level` at most: the ceil((n + 1) level)-th of n."""
    rank = int(np.ceil((len(scores) + 1) * level))
    if rank > len(scores):
        raise ValueError(f"{len(scores)} held-out trajectories are too few to calibrate the warning; it takes {FEWEST}.")
    return max(float(np.sort(scores)[rank - 1]), float(np.finfo(np.float32).tiny))


@dataclass(frozen=True, eq=False)
class Warnings:
    """What a warning is worth. `separation` is the area under the curve between states of the training ranges and states twice as
    far out (`Ranges.beyond`); `false_alarms` the share of rollouts from the ranges that raise a doubt. A rollout is bad from the
    first step at which its error exceeds five times the mean one: `bad` counts those, from the ranges and from twice as far out,
    and `announced` those of them that raise a doubt by then."""

    separation: float
    false_alarms: float
    bad: tuple[int, int]
    announced: tuple[int, int]
    rollouts: int

    def rows(self) -> list[list[Any]]:
        """Lines of a table."""
        places = ("from the training ranges", "from twice as far out")
        shares = [
            [f"bad rollouts {place} that are announced", f"{told} of {bad}"]
            for place, bad, told in zip(places, self.bad, self.announced, strict=True)
        ]
        return [
            ["area under the curve, training ranges against twice as far out", round(self.separation, 3)],
            ["rollouts from the training ranges that raise a doubt", f"{self.false_alarms:.1%}"],
            *shares,
        ]


def separation(inside: np.ndarray, outside: np.ndarray) -> float:
    """The area under the curve: how often a figure of the second kind is larger than one of the first."""
    order = np.searchsorted(np.sort(inside), outside, side="left"), np.searchsorted(np.sort(inside), outside, side="right")
    return float((order[0] + order[1]).mean() / 2 / len(inside))
