"""What policies are worth: returns of many episodes under any physics, each robot until the first end; and one episode to watch.

Policies act by the means of their actions, without noise. The robots start from random states that follow from a seed, the same
for every policy and every solver, so that differences between rows are the policies' and the solvers'.
"""

import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flexor.cluster import AbstractExecutor, Arrays, Kept, Local, Work, results
from flexor.envs import AbstractTask, advance, batched, check, start
from flexor.envs.episode import taken
from flexor.files import digest
from flexor.learn.actor import Actor
from flexor.learn.loop import check_finite
from flexor.learn.policy import Policy
from flexor.solvers import Trajectory

OWN = "own"  # what the physics that a task comes with is called in tables
PIECE = 2048  # episodes of one seed that are one task of an executor
OUTCOME = ("returns", "lengths", "ended", "diverged")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Episodes of one policy under one physics from one seed: their returns, lengths in steps, whether they `ended` before their
    time was up, and whether the robot `diverged`. `terms` are the shares of the reward's terms in the returns."""

    policy: str
    physics: str
    seed: int
    returns: Float[np.ndarray, " episodes"] = field(repr=False)
    lengths: Int[np.ndarray, " episodes"] = field(repr=False)
    ended: Bool[np.ndarray, " episodes"] = field(repr=False)
    diverged: Bool[np.ndarray, " episodes"] = field(repr=False)
    terms: dict[str, Float[np.ndarray, " episodes"]] = field(repr=False)

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def deviation(self) -> float:
        """Between episodes."""
        return float(self.returns.std())

    def row(self) -> dict[str, Any]:
        """The figures, for tables and files."""
        return {
            "policy": self.policy, "physics": self.physics, "seed": self.seed, "episodes": len(self.returns),
            "return": self.mean, "deviation": self.deviation, "length": float(self.lengths.mean()),
            "ended": float(self.ended.mean()), "diverged": int(self.diverged.sum()),
            **{f"reward/{name}": float(x.mean()) for name, x in self.terms.items()},
        }  # fmt: skip


def evaluate(
    policies: Policy | Mapping[str, Policy],
    task: AbstractTask,
    *,
    solvers: Sequence[Any] | Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (0,),
    episodes: int = 2048,
    threads: int | None = None,
    executor: AbstractExecutor = Local(),
    keep: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Evaluation]:
    """Returns of `episodes` episodes for every policy, physics and seed, all robots in one kernel.

    `solvers` are what `task.on` takes: names, tables of options, or solvers; with a mapping, under names of your choice. Without
    them the task's own physics. `progress` is called with how many of the combinations are done, and how many there are.

    The `executor` gets a task for each combination, or for each 2,048 episodes where there are more. What is done is kept in the
    folder `keep`, and the same call after an interruption does the rest. Bits do not depend on either.
    """
    if episodes < 1:
        raise ValueError(f"`episodes` must be positive, got {episodes}.")
    named = {"policy": policies} if isinstance(policies, Policy) else dict(policies)
    worlds = {name: task if physics is None else task.on(physics) for name, physics in _physics(solvers).items()}
    for policy in named.values():
        policy.check(task)
    for world in worlds.values():
        check(world)
    each = [(physics, name, seed) for physics in worlds for name in named for seed in seeds]
    pieces = range(0, episodes, PIECE)
    tasks = {f"{k}-{first}": (*one, first) for k, one in enumerate(each) for first in pieces}
    actors = {name: policy.actor for name, policy in named.items()}
    kept = None if keep is None else Kept(Path(keep), _mark(worlds, actors, each, episodes))
    some = results(executor, Work(_judge, (worlds, actors, episodes, threads)), tasks, kept=kept)
    found: list[Evaluation] = []
    for physics, name, seed in each:
        parts = [arrays for _, arrays in itertools.islice(some, len(pieces))]
        found.append(_evaluation(name, physics, seed, parts))
        check_finite(worlds[physics], {term: jnp.asarray(x) for term, x in found[-1].terms.items()})
        if progress is not None:
            progress(len(found), len(each))
    return found


def _judge(
    worlds: Mapping[str, AbstractTask], actors: Mapping[str, Actor], episodes: int, threads: int | None
) -> Callable[[tuple[str, str, int, int]], Arrays]:
    """A function from physics, policy, seed and first episode to what became of the episodes from there."""
    programs: dict[str, Callable[..., Any]] = {}

    def some(task: tuple[str, str, int, int]) -> Arrays:
        physics, name, seed, first = task
        world = worlds[physics]
        if physics not in programs:
            programs[physics] = batched(one_episode, world, threads=threads)
        keys = jax.random.split(jax.random.key(seed), episodes)[first : first + PIECE]
        terms, *outcome = programs[physics](actors[name].astype(world.sim.model.dtype), keys)
        arrays = {**{f"reward/{term}": x for term, x in terms.items()}, **dict(zip(OUTCOME, outcome, strict=True))}
        return {key: np.asarray(x) for key, x in arrays.items()}

    return some


def _evaluation(policy: str, physics: str, seed: int, parts: Sequence[Arrays]) -> Evaluation:
    whole = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    terms = {key.removeprefix("reward/"): x for key, x in whole.items() if key not in OUTCOME}
    return Evaluation(policy, physics, seed, **{key: whole[key] for key in OUTCOME}, terms=terms)


def _mark(worlds: Mapping[str, AbstractTask], actors: Mapping[str, Actor], each: Sequence[Any], episodes: int) -> str:
    """What kept results belong to: the numbers of tasks and policies, and how they are combined."""
    leaves, form = jax.tree.flatten((worlds, actors))
    arrays = [np.asarray(x) for x in leaves if eqx.is_array_like(x)]
    shapes = [(x.shape, str(x.dtype)) for x in arrays]
    text = re.sub(
        "0x[0-9a-f]+", "", repr((str(form), list(each), episodes, PIECE, shapes))
    )  # without addresses of functions
    return digest(text.encode() + b"".join(np.ascontiguousarray(x).tobytes() for x in arrays))


def summary(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """A row for each policy and physics: the mean return over seeds, the deviation between all episodes, and that between the
    means of the seeds (None where there is one seed)."""
    groups: dict[tuple[str, str], list[Evaluation]] = {}
    for e in evaluations:
        groups.setdefault((e.policy, e.physics), []).append(e)
    rows = []
    for (policy, physics), some in groups.items():
        returns, means = np.concatenate([e.returns for e in some]), [e.mean for e in some]
        rows.append({
            "policy": policy, "physics": physics, "episodes": len(returns), "return": float(returns.mean()),
            "deviation": float(returns.std()), "between seeds": float(np.std(means)) if len(some) > 1 else None,
            "length": float(np.mean([e.lengths.mean() for e in some])), "ended": float(np.mean([e.ended.mean() for e in some])),
            "diverged": sum(int(e.diverged.sum()) for e in some),
        })  # fmt: skip
    return rows


def one_episode(task: AbstractTask, actor: Actor, key: PRNGKeyArray) -> tuple[Any, ...]:
    """Sums of the reward's terms, return, length, end and divergence of the first episode of one robot."""

    def turn(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        episode, terms, *_ = carry
        episode, t = advance(task, episode, actor(episode.observation))
        terms = {name: terms[name] + x for name, x in t.terms.items()}
        return episode, terms, t.over, t.total, t.steps, t.ended, t.diverged

    episode = start(task, key)
    names = jax.eval_shape(lambda e: advance(task, e, e.action)[1].terms, episode)
    zero, no = jnp.zeros((), episode.total.dtype), jnp.zeros((), bool)
    begin = (episode, dict.fromkeys(names, zero), no, zero, jnp.zeros((), jnp.int32), no, no)
    _, terms, _, *outcome = jax.lax.while_loop(lambda carry: ~carry[2], turn, begin)
    return terms, *outcome


def play(policy: Policy, task: AbstractTask, *, seed: int = 0) -> tuple[Trajectory, dict[str, Float[np.ndarray, " steps"]]]:
    """The motion of one robot until the end of its first episode, and the terms of the reward at its steps."""
    policy.check(task)
    check(task)

    def whole(task: AbstractTask, actor: Actor, key: PRNGKeyArray) -> tuple[Any, ...]:
        def turn(episode: Any, _: None) -> tuple[Any, tuple[Any, ...]]:
            action = actor(episode.observation)
            step = taken(task, episode, action)  # the same program as in `advance`, whose state may be of the next episode
            new, t = advance(task, episode, action)
            return new, (step.after.q, step.after.qd, step.control.u, t.terms, t.over)

        first = start(task, key)
        return first.state.q, first.state.qd, jax.lax.scan(turn, first, length=task.length)[1]

    actor = policy.actor.astype(task.sim.model.dtype)
    q, qd, kept = batched(whole, task)(actor, jax.random.key(seed)[None])
    q, qd, (q_after, qd_after, u, terms, over) = jax.tree.map(lambda x: np.asarray(x[0]), (q, qd, kept))
    steps = int(np.argmax(over)) + 1
    check_finite(task, {name: x[:steps].sum()[None] for name, x in terms.items()})
    q, qd = (jnp.asarray(np.concatenate([x[None], y[:steps]])) for x, y in ((q, q_after), (qd, qd_after)))
    time: Array = jnp.arange(steps + 1, dtype=task.sim.model.dtype) * task.sim.dt
    topology = task.sim.model.topology
    motion = Trajectory(time, q, qd, u=jnp.asarray(u[:steps]), taps={}, final=None, topology=topology)
    return motion, {name: x[:steps] for name, x in terms.items()}


def _physics(solvers: Sequence[Any] | Mapping[str, Any] | None) -> dict[str, Any]:
    """Physics by the names that tables give them; None is the task's own."""
    if solvers is None:
        return {OWN: None}
    if isinstance(solvers, Mapping):
        return dict(solvers)
    named: dict[str, Any] = {}
    for physics in solvers:
        if physics is None or isinstance(physics, str):
            name = physics or OWN
        elif isinstance(physics, Mapping):
            name = " ".join([str(physics.get("name")), *(f"{k}={v}" for k, v in physics.items() if k != "name")])
        else:
            name = type(physics).__name__
        if name in named:
            raise ValueError(f"two of the solvers are called '{name}'; give them names of your own in a mapping.")
        named[name] = physics
    return named
