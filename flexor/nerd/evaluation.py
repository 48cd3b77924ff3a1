"""Passive motion: the learned solver beside the true one, from the same states, without controls, over many steps.

Errors as the original evaluates them: distance of the base, angle of its rotation, mean absolute error of the joints (angles of
unlimited hinges wrapped). A rollout diverged when its numbers are not finite or beyond `LARGEST`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flexor.nerd.artefact import Nerd
from flexor.nerd.data import LARGEST
from flexor.nerd.ranges import Ranges
from flexor.solvers import AbstractSolver, Simulator
from flexor.solvers.substeps import Substeps

BATCH = 256


@dataclass(frozen=True, eq=False)
class Passive:
    """Errors of every rollout after every step: arrays (rollout, step). Those that do not apply to the robot are None."""

    position: np.ndarray | None
    rotation: np.ndarray | None
    slides: np.ndarray | None
    hinges: np.ndarray | None
    diverged: np.ndarray

    def rows(self, horizons: Sequence[int] = (100, 500, 1000)) -> list[dict[str, Any]]:
        """A row for each horizon: mean, median and spread of each error at that step, and how many diverged by then."""
        made = []
        for h in horizons:
            if h > self.diverged.shape[1]:
                continue
            row: dict[str, Any] = {"steps": h}
            alive = ~self.diverged[:, h - 1]
            for name, unit in (("position", "m"), ("rotation", "rad"), ("slides", "m"), ("hinges", "rad")):
                errors = getattr(self, name)
                if errors is not None:
                    at = errors[alive, h - 1]
                    row |= {f"{name} mean, {unit}": _of(np.mean, at), f"{name} median, {unit}": _of(np.median, at),
                            f"{name} deviation, {unit}": _of(np.std, at)}  # fmt: skip
            made.append({**row, "diverged": int((~alive).sum()), "rollouts": len(alive)})
        return made


def _of(statistic: Any, x: np.ndarray) -> float:
    return float(statistic(x)) if x.size else float("nan")


def evaluate_passive(
    nerd: Nerd,
    solver: AbstractSolver,
    ranges: Ranges,
    *,
    substeps: int = 1,
    steps: int = 1000,
    rollouts: int = 2048,
    seed: int = 500,
) -> Passive:
    """Errors of the learned solver against `solver`, from random states of `ranges`, without controls."""
    model = nerd.model
    truth = Simulator(model, Substeps(solver, substeps) if substeps > 1 else solver, dt=nerd.dt)
    learned = nerd.simulator()

    def pair(key: Any) -> tuple[Any, Any]:
        q, qd = ranges.draw(model, key)
        a = truth.rollout(truth.reset(q, qd), steps=steps)
        b = learned.rollout(learned.reset(q, qd), steps=steps)
        return a.q[1:], b.q[1:]

    run = jax.jit(jax.vmap(pair))
    keys = jax.random.split(jax.random.key(seed), rollouts)
    parts = [jax.tree.map(np.asarray, run(keys[i : i + BATCH])) for i in range(0, rollouts, BATCH)]
    true, predicted = (np.concatenate(x) for x in zip(*parts, strict=True))
    return errors(nerd, true, predicted)


def errors(nerd: Nerd, true: np.ndarray, predicted: np.ndarray) -> Passive:
    """Errors of predicted against true coordinates, both (rollout, step, nq)."""
    t = nerd.frames.topology
    kinds = np.array([0 if j.kind == "slide" else 1 for j in t.joints])
    bad = ~np.isfinite(predicted).all(-1) | (np.abs(np.nan_to_num(predicted)) > LARGEST).any(-1)
    delta = np.asarray(eqx.filter_jit(jax.vmap(jax.vmap(nerd.frames.difference)))(jnp.asarray(true), jnp.asarray(predicted)))
    position = rotation = None
    if nerd.frames.root is not None:
        at = int(t.v_start[nerd.frames.root])
        position, rotation = (np.linalg.norm(delta[..., at + i : at + i + 3], axis=-1) for i in (0, 3))
    found: list[np.ndarray | None] = []
    for kind in (0, 1):
        dofs = [
            int(v) for j, v, k in zip(t.joints, t.v_start, kinds, strict=True) if j.kind in ("hinge", "slide") and k == kind
        ]
        found.append(np.abs(delta[..., dofs]).mean(-1) if dofs else None)
    return Passive(position, rotation, found[0], found[1], np.maximum.accumulate(bad, axis=1))
