"""Windows: short pieces of recordings, for fine-tuning, and where they start.

`RegularStarts` takes the recorded states. `SteadyStarts` does not trust recorded velocities (`steady.py`): its windows start at
steady instants, from the states that parabolas through the positions give, moved out of what overlaps.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flexor import simd
from flexor.model.model import Control, Model
from flexor.nerd.artefact import Nerd
from flexor.nerd.frames import Frames
from flexor.nerd.steady import SteadyStates, lift, steady_states
from flexor.solvers import Trajectory

PIECE = 256  # windows encoded at once


class Starts(NamedTuple):
    """Instants of one recording at which windows start, the states there, and by what coordinates of the window are moved."""

    at: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    shift: np.ndarray


class AbstractStarts(abc.ABC):
    """Where windows start."""

    trusts_velocities: ClassVar[bool]
    """Whether recorded velocities are trusted."""

    @abc.abstractmethod
    def find(self, frames: Frames, model: Model, logs: Sequence[Trajectory], length: int) -> list[Starts]:
        """The starts of windows of `length` steps in each recording."""


@final
@dataclass(frozen=True)
class RegularStarts(AbstractStarts):
    """Windows overlap by half; the first and the last of every recording are among them. States are as recorded."""

    trusts_velocities: ClassVar[bool] = True

    def find(self, frames: Frames, model: Model, logs: Sequence[Trajectory], length: int) -> list[Starts]:
        found = []
        for log in logs:
            last = len(log) - length
            at = np.unique(np.append(np.arange(0, last + 1, max(1, length // 2)), last))
            q = np.asarray(log.q, np.float32)[at]
            found.append(Starts(at, q, np.asarray(log.qd, np.float32)[at], np.zeros_like(q)))
        return found


@final
@dataclass(frozen=True)
class SteadyStarts(AbstractStarts):
    """Windows start at every other steady instant: where the coordinates of 2 `half` + 1 instants lie on a parabola."""

    half: int = 3
    trusts_velocities: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.half < 1:
            raise ValueError(f"a parabola needs one instant at least on either side, got `half` = {self.half}.")

    def find(self, frames: Frames, model: Model, logs: Sequence[Trajectory], length: int) -> list[Starts]:
        recorded = [np.asarray(log.q) for log in logs]
        states = steady_states(frames, model, recorded, self.half)
        kept = [np.flatnonzero(s.at <= len(log) - length)[::2] for s, log in zip(states, logs, strict=True)]
        states = [SteadyStates(s.at[k], s.q[k], s.qd[k]) for s, k in zip(states, kept, strict=True)]
        q = np.concatenate([s.q for s in states])
        if not len(q):
            raise ValueError("the recordings have no steady instants: their coordinates nowhere follow a parabola.")
        shifts = np.asarray(jax.jit(jax.vmap(lambda q: lift(frames, model, q)))(q))
        ends = np.cumsum([len(s.at) for s in states])
        return [Starts(*s, shift) for s, shift in zip(states, np.split(shifts, ends[:-1]), strict=True)]


class Windows(eqx.Module):
    """Pieces of recordings: inputs and targets (n, window, ...), None where no loss reads them, states and torques
    (n, window + 1, ...), and whether a recording begins there (n)."""

    x: Any
    y: Any
    r: Any
    begin: Any


def windows(
    nerd: Nerd,
    logs: Sequence[Trajectory],
    length: int,
    starts: AbstractStarts = RegularStarts(),  # noqa: B008
    *,
    encode: bool = True,
) -> Windows:
    """All windows of the recordings; with their inputs and targets if `encode`."""
    if not logs:
        raise ValueError("fine-tuning needs recordings, and there are none.")
    for i, log in enumerate(logs):
        _check(nerd, log, i, length)
    found = starts.find(nerd.frames, nerd.model, logs, length)

    def pieces(name: str, count: int) -> np.ndarray:
        recorded = (np.asarray(getattr(log, name), np.float32) for log in logs)
        return np.concatenate([x[s.at[:, None] + np.arange(count)] for x, s in zip(recorded, found, strict=True)])

    q, qd, u = pieces("q", length + 1), pieces("qd", length + 1), pieces("u", length)
    q[:, 0], qd[:, 0] = (np.concatenate([getattr(s, name) for s in found]) for name in ("q", "qd"))
    q += np.concatenate([s.shift for s in found])[:, None]
    made = [_encoded(nerd.frames, nerd.model, encode, q[k], qd[k], u[k]) for k in _in_pieces(len(q))]
    x, y, r = jax.tree.map(lambda *z: np.concatenate(z)[: len(q)], *made)
    return Windows(x, y, r, np.concatenate([s.at == 0 for s in found]))


def over_pieces(f: Callable[[Array], Array], rows: np.ndarray) -> np.ndarray:
    """f of all rows, piece by piece."""
    return np.concatenate([f(rows[k]) for k in _in_pieces(len(rows))])[: len(rows)]


def _in_pieces(n: int) -> list[np.ndarray]:
    """Rows in pieces of one size, so that one compilation serves them; the last piece begins again with the first."""
    rows = np.arange(-n % PIECE + n) % n
    return np.split(rows, len(rows) // PIECE)


@eqx.filter_jit
def _encoded(frames: Frames, model: Model, encode: bool, q: Any, qd: Any, u: Any) -> tuple[Any, Any, Array]:
    """Inputs and targets, where they are asked for, and states with torques."""

    def one(q: Array, qd: Array, u: Array, new_q: Array, new_qd: Array) -> tuple[Any, Any, Array]:
        scene = frames.observe(model, q, qd, Control(u=u, tau=jnp.zeros(model.nv, model.dtype)))
        if not encode:
            return None, None, scene.torque
        ahead = frames.foresee(model, scene)
        return frames.features(scene, ahead), frames.target(scene, ahead, new_q, new_qd), scene.torque

    n, t = u.shape[:2]
    steps = (
        jnp.asarray(z, model.dtype).reshape(n * t, z.shape[-1]) for z in (q[:, :-1], qd[:, :-1], u, q[:, 1:], qd[:, 1:])
    )
    x, y, torque = jax.tree.map(lambda z: z.reshape(n, t, z.shape[-1]), simd.vmap(one)(*steps))
    torque = jnp.pad(torque, ((0, 0), (0, 1), (0, 0)))
    return x, y, jnp.concatenate([jnp.asarray(z, model.dtype) for z in (q, qd, torque)], axis=-1)


def _check(nerd: Nerd, log: Trajectory, i: int, length: int) -> None:
    t = nerd.model.topology
    if np.shape(log.q)[-1] != t.nq or np.shape(log.qd)[-1] != t.nv:
        raise ValueError(f"recording {i} has {np.shape(log.q)[-1]} coordinates; '{t.name}' has {t.nq}.")
    if not all(np.isfinite(np.asarray(z)).all() for z in (log.q, log.qd, log.u)):
        raise ValueError(f"recording {i} holds numbers that are not finite.")
    steps = np.diff(np.asarray(log.time))
    if not np.allclose(steps, nerd.dt, rtol=1e-2):
        raise ValueError(
            f"recording {i} has steps of {np.median(steps):g} s; the solver was trained for steps of {nerd.dt:g} s. Resample it."
        )
    if len(log) < length:
        raise ValueError(f"recording {i} has {len(log)} steps; windows of {length} do not fit.")
