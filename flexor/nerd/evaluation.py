"""Passive motion: the learned solver beside the true one, from the same states, without controls, over many steps.

Errors as the original evaluates them: distance of the base, angle of its rotation, mean absolute error of the joints (angles of
unlimited hinges wrapped). A rollout diverged when its numbers are not finite or beyond `LARGEST`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flexor.nerd.artefact import Nerd
from flexor.nerd.data import LARGEST
from flexor.nerd.frames import Frames
from flexor.nerd.network import AbstractNetwork
from flexor.nerd.ranges import Ranges
from flexor.nerd.solver import NerdSolver
from flexor.nerd.warning import Doubt
from flexor.solvers import AbstractSolver, Simulator

BATCH = 256


@dataclass(frozen=True, eq=False)
class Passive:
    """Errors of every rollout after every step: arrays (rollout, step). Those that do not apply to the robot are None. `doubted`
    is the first step of each rollout that the solver doubts, infinite where there is none; None where it has no warning."""

    position: np.ndarray | None
    rotation: np.ndarray | None
    slides: np.ndarray | None
    hinges: np.ndarray | None
    diverged: np.ndarray
    doubted: np.ndarray | None = None

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


def base_alone(nerd: Nerd) -> Nerd:
    """The learned solver without what its network adds: the base step alone."""
    return dataclasses.replace(nerd, network=nerd.network.silenced())


@dataclass(frozen=True, eq=False)
class Contribution:
    """What a network adds to its base step: passive errors `with_network`, and of the base step alone. A network that takes less
    than the share `worthwhile` off every mean error of its base step is useless: the base step does its work."""

    with_network: Passive
    base: Passive
    worthwhile: float = 0.2

    def remaining(self, horizon: int) -> dict[str, float]:
        """For each kind of error, the mean with the network over that of the base step alone, after so many steps; infinite where
        all rollouts of the network diverged, zero where only those of the base step did."""
        (ours,), (base,) = self.with_network.rows([horizon]), self.base.rows([horizon])
        means = [key for key in ours if " mean, " in key]
        return {key.split(" mean, ")[0]: _share(ours[key], base[key]) for key in means}

    def useless(self, horizon: int) -> bool:
        """Whether less than a worthwhile share is taken off every kind of error."""
        return all(share > 1 - self.worthwhile for share in self.remaining(horizon).values())

    def verdict(self, horizon: int) -> str:
        """The same in words."""
        share = self.remaining(horizon)
        kind = min(share, key=lambda name: share[name])
        best = f"after {horizon} steps the network leaves {share[kind]:.2g} of the base step's error in {kind}"
        if self.useless(horizon):
            return f"useless: {best}, and takes less than {self.worthwhile:.0%} off any other."
        return f"{best}."


def _share(ours: float, base: float) -> float:
    """The quotient of two errors, where nan is that of rollouts that all diverged."""
    if np.isnan(ours):
        return np.inf
    return 0.0 if np.isnan(base) else float(ours / max(base, np.finfo(float).tiny))


def evaluate_contribution(
    nerd: Nerd, *, steps: int = 1000, rollouts: int = 2048, seed: int = 500, worthwhile: float = 0.2
) -> Contribution:
    """Passive motion with the network and by its base step alone, from the same states beside the same truth."""
    if nerd.ranges is None:
        raise ValueError(f"the card of this solver of '{nerd.model.topology.name}' has no ranges of states.")
    judge = passive_judge(nerd.true_simulator(), nerd.frames, nerd.ranges, steps=steps, rollouts=rollouts, seed=seed)
    return Contribution(judge(nerd.network, nerd.doubt), judge(base_alone(nerd).network), worthwhile)


def evaluate_passive(
    nerd: Nerd,
    *,
    truth: AbstractSolver | None = None,
    ranges: Ranges | None = None,
    steps: int = 1000,
    rollouts: int = 2048,
    seed: int = 500,
) -> Passive:
    """Errors of the learned solver against the solver `truth`, from random states of `ranges`, without controls; by default those
    that it was trained on."""
    sim = nerd.true_simulator() if truth is None else Simulator(nerd.model, truth, dt=nerd.dt)
    ranges = nerd.ranges if ranges is None else ranges
    if ranges is None:
        raise ValueError(f"the card of this solver of '{nerd.model.topology.name}' has no ranges of states: give `ranges`.")
    judge = passive_judge(sim, nerd.frames, ranges, steps=steps, rollouts=rollouts, seed=seed)
    return judge(nerd.network, nerd.doubt)


def passive_judge(
    truth: Simulator, frames: Frames, ranges: Ranges, *, steps: int, rollouts: int, seed: int, far: bool = False
) -> Callable[..., Passive]:
    """`evaluate_passive` as a function of the network, and of its warning or None, which compiles once; the true motion is
    computed once. With `far` from states twice as far out as the ranges."""
    model = truth.model
    keys = jax.random.split(jax.random.key(seed), rollouts)
    parts = [slice(i, i + BATCH) for i in range(0, rollouts, BATCH)]

    @jax.jit
    def true(keys: Any) -> Any:
        def one(key: Any) -> Any:
            q, qd = ranges.beyond(model, key)[0] if far else ranges.draw(model, key)
            return q, qd, truth.rollout(truth.reset(q, qd), steps=steps).q[1:]

        return jax.vmap(one)(keys)

    @eqx.filter_jit
    def learned(network: AbstractNetwork, doubt: Doubt | None, q: Any, qd: Any) -> Any:
        sim = Simulator(model, NerdSolver(network, frames, doubt), dt=frames.dt)

        def one(q: Any, qd: Any) -> Any:
            run = sim.rollout(sim.reset(q, qd), steps=steps)
            assert run.final is not None
            return run.q[1:], run.final.memory.since / frames.dt

        return jax.vmap(one)(q, qd)

    runs = [jax.tree.map(np.asarray, true(keys[part])) for part in parts]

    def judge(network: AbstractNetwork, doubt: Doubt | None = None) -> Passive:
        parts = [jax.tree.map(np.asarray, learned(network, doubt, q, qd)) for q, qd, _ in runs]
        predicted, since = (np.concatenate(x) for x in zip(*parts, strict=True))
        found = errors(frames, np.concatenate([run[2] for run in runs]), predicted)
        return found if doubt is None else dataclasses.replace(found, doubted=np.round(since))

    return judge


def passive_metrics(truth: Simulator, frames: Frames, ranges: Ranges) -> Callable[[AbstractNetwork], dict[str, float]]:
    """Mean errors of passive motion after 100 steps, as `train` takes them for `judge`."""
    judge = passive_judge(truth, frames, ranges, steps=100, rollouts=256, seed=500)

    def metrics(network: AbstractNetwork) -> dict[str, float]:
        row = judge(network).rows((100,))[0]
        return {name: float(value) for name, value in row.items() if "mean" in name or name == "diverged"}

    return metrics


def errors(frames: Frames, true: np.ndarray, predicted: np.ndarray) -> Passive:
    """Errors of predicted against true coordinates, both (rollout, step, nq)."""
    t = frames.topology
    kinds = np.array([0 if j.kind == "slide" else 1 for j in t.joints])
    bad = ~np.isfinite(predicted).all(-1) | (np.abs(np.nan_to_num(predicted)) > LARGEST).any(-1)
    delta = np.asarray(eqx.filter_jit(jax.vmap(jax.vmap(frames.difference)))(jnp.asarray(true), jnp.asarray(predicted)))
    position = rotation = None
    if frames.root is not None:
        at = int(t.v_start[frames.root])
        position, rotation = (np.linalg.norm(delta[..., at + i : at + i + 3], axis=-1) for i in (0, 3))
    found: list[np.ndarray | None] = []
    for kind in (0, 1):
        dofs = [
            int(v) for j, v, k in zip(t.joints, t.v_start, kinds, strict=True) if j.kind in ("hinge", "slide") and k == kind
        ]
        found.append(np.abs(delta[..., dofs]).mean(-1) if dofs else None)
    return Passive(position, rotation, found[0], found[1], np.maximum.accumulate(bad, axis=1))
