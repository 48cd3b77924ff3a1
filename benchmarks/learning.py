"""How fast robots live and learn: steps per second of the whole loop against `mujoco.batch` and Gymnasium's vector environments,
all under a policy 128-64-32 that draws its actions; and what the time of a PPO iteration goes into.

The loop is physics with its substeps, observation, policy, sampling, reward, ends and resets. The peers' policies run in NumPy,
on the same weights. Runs take turns, so that all meet the same disturbances, and the fastest of each counts.
"""

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from _form import Check, Result, at_least, at_most, run, tell
from _robots_in_numpy import CORES, Ants, Quadrupeds, gymnasium_rate

import flexor as fx
from flexor.envs import AbstractTask, check
from flexor.learn import PPO, Actor, Loop, Policy, load, recipe
from flexor.learn.policy import policy_of, pretrained
from flexor.learn.ppo import first, prepared, update

SIZES = (128, 64, 32)
SPAN = 20.0  # s for which each of the compared runs lasts at least


def policy_for(task: AbstractTask, name: str) -> Policy:
    """The package's policy for a task, or where there is none a fresh one."""
    if name in pretrained():
        return load(name)
    learner = first(PPO(sizes=SIZES), task.observations, task.actions, jax.random.key(0), jnp.float32)
    return policy_of(learner.actor, task)


def best(runs: list[tuple[Callable[[], Any], int]], span: float) -> list[float]:
    """Steps per second of the fastest of at least three runs of each, which take turns until each has lasted for `span`."""
    for f, _ in runs:
        f()
    times: list[list[float]] = [[] for _ in runs]
    while any(len(t) < 3 or sum(t) < span for t in times):
        for k, (f, _) in enumerate(runs):
            begun = time.perf_counter()
            f()
            times[k].append(time.perf_counter() - begun)
    return [n / min(t) for (_, n), t in zip(runs, times, strict=True)]


def looping(task: AbstractTask, actor: Actor, robots: int, steps: int) -> tuple[Callable[[], Any], int]:
    """flexor's loop, which goes on where it was, and how many steps a call takes."""
    loop = Loop(task, steps=steps)
    episodes = [loop.start(jax.random.key(0), robots)]

    def live() -> None:
        episodes[0], lived = loop(actor, episodes[0])
        jax.block_until_ready(lived)

    return live, robots * steps


def against_mujoco(name: str, peer: Any, target: float, quick: bool) -> tuple[dict[str, Any], list[Check]]:
    """A task in flexor and in NumPy over `mujoco.batch`."""
    robots, steps, short = (64, 8, 2) if quick else (2048, 32, 4)
    task = fx.envs.make(name)
    policy = policy_for(task, name)
    many = peer(task, robots)

    def step() -> None:
        for _ in range(short):
            many.step(policy)

    ours, theirs = best([looping(task, policy.actor, robots, steps), (step, robots * short)], 0.0 if quick else SPAN)
    tell(f"{name}: {ours / theirs:.1f} x mujoco.batch")
    row = {"task": name, "peer": f"mujoco.batch, NumPy, {CORES} threads", "robots": robots, "steps/s": ours,
           "steps/s of the peer": theirs, "times": ours / theirs}  # fmt: skip
    what = f"times mujoco.batch: {name}, {robots} robots"
    return row, [at_least(what, ours / theirs, target, timed=True), same_task(name, task, many)]


def same_task(name: str, task: Any, many: Any) -> Check:
    """Whether the peer's observations are those of flexor's task, in the peer's states. A robot looks where it started."""
    check(task)
    goal = jnp.array([1.0, 0.0]) if isinstance(many, Quadrupeds) else None
    dtype = task.sim.model.dtype

    def observed(q: Any, qd: Any) -> Any:
        return task.observe(fx.State(q, qd, jnp.zeros((), dtype)), goal)

    q, qd = (jnp.asarray(x[:16], dtype) for x in (many.q, many.qd))
    far = np.abs(np.asarray(jax.jit(jax.vmap(observed))(q, qd)) - many.observe()[:16]).max()
    return at_most(f"distance of the peer's observations: {name}", float(far), 1e-4)  # single precision, speeds of tens


def against_gymnasium(quick: bool) -> tuple[list[dict[str, Any]], list[Check]]:
    """The ant of Gymnasium: flexor's task on the same description, and Gymnasium's own vector environments, the faster of those
    in one process and those with a process each."""
    robots, steps, short = (64, 4, 2) if quick else (2048, 16, 4)
    task = fx.envs.make("gymnasium/ant")
    policy = policy_for(task, "gymnasium/ant")
    counts = {"sync": 64} if quick else {"sync": 64, "async": 2 * CORES}
    envs = {f"Gymnasium, {kind}, {n}": gymnasium_rate(kind, n, policy, short) for kind, n in counts.items()}
    runs = [looping(task, policy.actor, robots, steps), *((f, n) for f, n, _ in envs.values())]
    ours, *theirs = best(runs, 0.0 if quick else SPAN)
    for _, _, close in envs.values():
        close()
    tell(f"Ant-v5: {ours / max(theirs):.0f} x Gymnasium's vector environments")
    rows = [
        {
            "task": "Ant-v5",
            "peer": peer,
            "robots": robots,
            "steps/s": ours,
            "steps/s of the peer": rate,
            "times": ours / rate,
        }
        for peer, rate in zip(envs, theirs, strict=True)
    ]
    return rows, [at_least("times Gymnasium's vector environments: Ant-v5", ours / max(theirs), 100, timed=True)]


def iteration(name: str, quick: bool) -> tuple[str, Check]:
    """What the time of a PPO iteration of a task's recipe goes into, the median of some."""
    task = fx.envs.make(name)
    how, options = recipe(task).algorithm, recipe(task).options
    assert isinstance(how, PPO)
    robots = 64 if quick else options.robots
    how = dataclasses.replace(how, minibatches=4) if quick else how
    loop, learner = Loop(task, steps=options.steps), how.first(task, jax.random.key(0))
    episodes, times = loop.start(jax.random.key(1), robots), []
    for k in range(3 if quick else 30):
        marks = [time.perf_counter()]
        episodes, lived = jax.block_until_ready(loop(learner.actor, episodes))
        marks.append(time.perf_counter())
        jax.block_until_ready(prepared(how, learner, lived))
        marks.append(time.perf_counter())
        learner, _ = jax.block_until_ready(update(how, learner, lived, jax.random.key(k)))
        marks.append(time.perf_counter())
        times.append(np.diff(marks))
    live, prepare, learn = np.median(np.array(times[1:]), axis=0)
    whole = live + learn
    text = (
        f"A PPO iteration of {name} ({robots} robots, {options.steps} steps, {how.epochs} epochs) takes {whole:.2f} s: "
        f"{live / whole:.0%} physics and policy, {prepare / whole:.0%} values, advantages and norms, "
        f"{(learn - prepare) / whole:.0%} gradients and steps of Adam."
    )
    share = f"share of physics and policy in the time of a PPO iteration: {name}"
    return text, at_least(share, float(live / whole), 0.4, timed=True)


def measure(quick: bool) -> Result:
    rows: list[dict[str, Any]] = []
    checks: list[Check] = []
    tasks = [("ant-run", Ants, 10.0), ("quadruped-forward", Quadrupeds, 20.0)]
    for name, peer, target in tasks[:1] if quick else tasks:
        row, found = against_mujoco(name, peer, target, quick)
        rows.append(row)
        checks += found
    more, found = against_gymnasium(quick)
    text, share = iteration("cartpole" if quick else "ant-run", quick)
    return Result([*rows, *more], [*checks, *found, share], [text])


if __name__ == "__main__":
    run("How fast do robots live and learn, compared with mujoco.batch and Gymnasium?", measure)
