"""Inputs and targets of all steps of a data set, made once before training, piece by piece.

Those of a file lie in another file without a name, mapped into memory, so that memory does not grow with the data set.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flexor.model.model import Model
from flexor.nerd.data import Data, blocks
from flexor.nerd.frames import Frames
from flexor.nerd.network import Norms

FLOOR = 1e-8  # deviation below which an input or a target is taken for constant


@dataclass(frozen=True, eq=False)
class Examples:
    """x and y with axes (trajectory, step, number), in single precision, and the hash of the data set."""

    x: np.ndarray
    y: np.ndarray
    hash: str

    @property
    def shape(self) -> tuple[int, int]:
        return self.x.shape[:2]

    def windows(self, rows: np.ndarray, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of windows: (batch, length, n)."""
        at = (rows[:, None], starts[:, None] + np.arange(length))
        return self.x[at], self.y[at]

    def norms(self, seed: int = 0, most: int = 100_000) -> Norms:
        """Means and deviations over a sample of the transitions; numbers that never change get deviation one."""
        n, t = self.shape
        rows = np.sort(np.random.default_rng(seed).permutation(n)[: max(1, most // t)])
        found = []
        for z in (self.x[rows], self.y[rows]):
            z = z.reshape(-1, z.shape[-1]).astype(float)
            found += [jnp.asarray(z.mean(0)), jnp.asarray(np.where(z.std(0) > FLOOR, z.std(0), 1.0))]
        return Norms(*found)


def examples(
    source: Data | str | os.PathLike[str], model: Model, frames: Frames, *, most: int | None = None, dt: float | None = None
) -> Examples:
    """Inputs and targets of a data set, in memory or in a file."""
    if isinstance(source, Data):
        x, y = _encode(frames, source)
        return Examples(np.asarray(x), np.asarray(y), source.hash)
    path, done = Path(source), 0
    with tempfile.TemporaryFile(dir=path.parent) as xs, tempfile.TemporaryFile(dir=path.parent) as ys:
        for data in blocks(path, model, most, dt=dt):
            if abs(data.dt / frames.dt - 1) > 1e-4:
                raise ValueError(f"'{path}' has steps of {data.dt:g} s; the network is to step by {frames.dt:g} s.")
            for file, z in zip((xs, ys), _encode(frames, data), strict=True):
                file.write(np.ascontiguousarray(z, np.float32).tobytes())
            done += data.shape[0]
        shape = (done, data.shape[1])
        x, y = (
            np.memmap(f, np.float32, "r", shape=(*shape, n)) for f, n in ((xs, len(frames.labels)), (ys, frames.outputs))
        )
    return Examples(x, y, data.hash)


@eqx.filter_jit
def _encode(frames: Frames, data: Data) -> tuple[Any, Any]:
    both = jax.vmap(jax.vmap(lambda s, q, qd: (frames.features(s), frames.target(s, q, qd))))
    return both(data.scene, data.next_q, data.next_qd)
