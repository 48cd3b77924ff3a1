"""Inputs and targets of all steps of a data set, made once before training, piece by piece.

Those of a file are kept in memory-mapped temporary files, so that memory does not grow with the data set.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flexor import simd
from flexor.model.model import Model
from flexor.nerd.data import Data, blocks
from flexor.nerd.frames import Frames
from flexor.nerd.network import Norms
from flexor.nerd.ranges import Ranges
from flexor.nerd.scene import Scene

FLOOR = 1e-6  # deviation below which an input or a target counts as constant: anything less is rounding


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs x, targets y and what a rollout needs, r = (q, qd, torque), with axes (trajectory, step, number), in single
    precision; the hash of the data set, and what it says of itself."""

    x: np.ndarray
    y: np.ndarray
    r: np.ndarray
    hash: str
    facts: Mapping[str, Any]

    @property
    def ranges(self) -> Ranges | None:
        """What the data set covers, where it says so."""
        return Ranges.of(json.loads(self.facts["ranges"])) if "ranges" in self.facts else None

    @property
    def shape(self) -> tuple[int, int]:
        return self.x.shape[:2]

    def windows(self, rows: np.ndarray, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Windows of x, y and r: (batch, length, n)."""
        at = (rows[:, None], starts[:, None] + np.arange(length))
        return self.x[at], self.y[at], self.r[at]

    def chances(self, length: int) -> np.ndarray:
        """How many targets the windows before each one have together: (trajectory, start), and a last row for the total."""
        targets = np.stack([np.isfinite(row[:, -1]) for row in self.y]).astype(float)
        sums = np.cumsum(np.pad(targets, ((0, 0), (1, 0))), axis=1)
        counts = sums[:, length:] - sums[:, :-length]
        if not counts.any():
            raise ValueError(
                "nothing in the data set touches anything, so there is nothing to learn beyond the base step: sample ranges in "
                'which something does, or learn all of the dynamics: base = "none" in a recipe, `NoBase()` in Python.'
            )
        before = np.concatenate([[0.0], np.cumsum(counts)])
        last = np.full(counts.shape[1], before[-1])
        return np.concatenate([before[:-1], last]).reshape(-1, counts.shape[1])

    def norms(self, seed: int = 0, most: int = 100_000) -> Norms:
        """Means and deviations over a sample of the transitions."""
        n, t = self.shape
        rows = np.sort(np.random.default_rng(seed).permutation(n)[: max(1, most // t)])
        return norms_of(self.x[rows], self.y[rows])


def norms_of(x: np.ndarray, y: np.ndarray) -> Norms:
    """Means and deviations of inputs, and of targets where there are any; numbers that never change get deviation one."""
    found = []
    for z in (x, y):
        z = np.asarray(z, float).reshape(-1, z.shape[-1])
        z = z[np.isfinite(z).all(1)]
        mean, std = (z.mean(0), z.std(0)) if len(z) else (np.zeros(z.shape[1]), np.ones(z.shape[1]))
        found += [jnp.asarray(mean), jnp.asarray(np.where(std > FLOOR, std, 1.0))]
    return Norms(*found)


def examples(
    source: Data | str | os.PathLike[str], model: Model, frames: Frames, *, most: int | None = None, dt: float | None = None
) -> Examples:
    """Inputs and targets of a data set, in memory or in a file."""
    if isinstance(source, Data):
        _check_step(source, frames)
        x, y, r = (np.asarray(z) for z in _encode(frames, model, source))
        return Examples(x, y, r, source.hash, source.facts)
    path, done = Path(source), 0
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile(dir=path.parent)) for _ in range(3)]
        for data in blocks(path, model, most, dt=dt):
            _check_step(data, frames)
            parts = [np.ascontiguousarray(z, np.float32) for z in _encode(frames, model, data)]
            for file, z in zip(files, parts, strict=True):
                file.write(z.tobytes())
            done += data.shape[0]
        x, y, r = (np.memmap(f, np.float32, "r", shape=(done, *z.shape[1:])) for f, z in zip(files, parts, strict=True))
    return Examples(x, y, r, data.hash, data.facts)


def _check_step(data: Data, frames: Frames) -> None:
    if abs(data.dt / frames.dt - 1) > 1e-4:
        raise ValueError(f"the data set has steps of {data.dt:g} s, but the network has steps of {frames.dt:g} s.")


@eqx.filter_jit
def _encode(frames: Frames, model: Model, data: Data) -> tuple[Any, Any, Any]:
    def one(scene: Scene, q: Any, qd: Any) -> tuple[Any, Any]:
        ahead = frames.foresee(model, scene)
        return frames.features(scene, ahead), frames.target(scene, ahead, q, qd)

    shape, steps = data.shape, (data.scene, data.next_q, data.next_qd)
    flat = jax.tree.map(lambda z: jnp.asarray(z, model.dtype).reshape(shape[0] * shape[1], *z.shape[2:]), steps)
    x, y = (z.reshape(*shape, -1) for z in simd.vmap(one)(*flat))
    return x, y, jnp.concatenate([jnp.asarray(z) for z in (data.scene.q, data.scene.qd, data.scene.torque)], axis=-1)
