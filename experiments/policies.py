"""Policies from nothing: how long a task takes to learn on this machine, and whether what was learned holds elsewhere.

Each task is trained by its recipe from several seeds until the mean return of the episodes in training is the wanted one, by the
clock, compilation included. The returns of the original authors of the tasks (Xu et al. 2025) are the wanted ones, but for the
cartpole: there it is 95 % of what a long run reaches. The policies then act without noise in episodes of their own. The quadruped
is trained on robots that differ in mass and friction and are pushed, to the end of its recipe, and walks for 20 s in MuJoCo as
well, which it has never met.

`--algorithm shac` learns by analytic gradients instead, to the same returns: the cartpole's is that of a long run of PPO.

Runs that were stopped are resumed from the folder `--out`. `--task NAME` and `--seeds 0 1` run a part; `--quick` trains the
cartpole for some iterations.
"""

import argparse
import csv
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
from _experiment import Check, Result, at_least, at_most, equals, run
from rich.console import Console

import flexor as fx
from flexor.envs import AbstractTask, Pushes, Randomised, Scaled
from flexor.learn import PPO, SHAC, AbstractAlgorithm, Policy, Training, evaluate, recipe, train
from flexor.viz.plots import styled

SHARE = 0.95  # of the long run's return
LONG = 3000  # iterations of the long run
WALK = 20.0  # s in MuJoCo
ENDLESS = 10**6  # iterations where the clock decides
ALGORITHMS: dict[str, type[AbstractAlgorithm]] = {"ppo": PPO, "shac": SHAC}


@dataclass(frozen=True)
class Goal:
    """A return to reach, None where a long run decides it, in so many minutes. With `whole` the recipe is followed to its end, on
    the task as `varied`; `walks` asks for 20 s in MuJoCo without a fall."""

    wanted: float | None
    minutes: float
    whole: bool = False
    varied: Callable[[AbstractTask], AbstractTask] = lambda task: task
    walks: bool = False


def sturdy(task: AbstractTask) -> AbstractTask:
    """The task on robots of other masses, on floors of other friction, with noisy observations, pushed every few seconds."""
    parameters = {"pair.*.friction": Scaled(0.5, 1.25, together=True), "body.*.mass": Scaled(0.9, 1.1)}
    return Randomised(task, parameters, noise=0.02, pushes=Pushes(0.5, pause=(1.0, 3.0)))


GOALS = {
    "cartpole": Goal(None, 1.0),
    "franka-reach": Goal(89.0, 10.0),
    "ant-run": Goal(2400.0, 10.0),
    "quadruped-forward": Goal(1236.0, 20.0, whole=True, varied=sturdy, walks=True),
}


@dataclass(frozen=True)
class Trained:
    """A policy, the seconds and returns of its training, and when it had the wanted return: None if never."""

    policy: Policy
    seconds: np.ndarray
    returns: np.ndarray
    reached: float | None


def learned(
    name: str, goal: Goal, wanted: float | None, seed: int, folder: Path, kind: type[AbstractAlgorithm], **bounds: Any
) -> Trained:
    """Trains a task, or goes on with a run in the folder."""
    task = fx.envs.make(name)
    found = recipe(task, kind)
    options = dataclasses.replace(found.options, seed=seed, minutes=goal.minutes, **bounds)
    if not goal.whole:
        options = dataclasses.replace(options, wanted=wanted, **({} if bounds else {"iterations": ENDLESS}))
    policy = _run(name, goal.varied(task), found.algorithm, options, folder)
    policy = dataclasses.replace(policy, card={**policy.card, "recipe": {"task": name, "options": {}, "solver": None}})
    policy.save(folder / "policy.safetensors")
    with (folder / "history.csv").open(encoding="utf-8") as file:
        history = [(float(row["seconds"]), float(row["return"] or "nan")) for row in csv.DictReader(file)]
    seconds, returns = np.array(history).T
    there = np.flatnonzero(returns >= wanted) if wanted is not None else []
    return Trained(policy, seconds, returns, float(seconds[there[0]]) if len(there) else None)


def _run(name: str, task: AbstractTask, algorithm: AbstractAlgorithm, options: Training, folder: Path) -> Policy:
    """Training that tells how it goes."""
    console = Console(stderr=True, highlight=False)

    def tell(done: int, total: int, row: dict[str, Any]) -> None:
        if done % 100 == 0 and row["return"] is not None:
            console.print(f"{row['seconds']:6.0f} s  {name}, seed {options.seed}: return {row['return']:.5g}")

    return train(task, algorithm=algorithm, options=options, out=folder, progress=tell)


def part(name: str, options: argparse.Namespace) -> tuple[Result, dict[int, Trained]]:
    """One task from all seeds."""
    goal, rows, checks, found = GOALS[name], [], [], {}
    wanted, remarks = goal.wanted, []
    bounds = {"iterations": 12} if options.quick else {}
    if wanted is None:
        endless = dataclasses.replace(goal, minutes=60.0)
        bounds_of_long = bounds or {"iterations": LONG}
        long = learned(name, endless, None, 100, options.out / f"{name}-long", PPO, **bounds_of_long)
        best = evaluate(long.policy, fx.envs.make(name), episodes=options.episodes)[0].mean
        wanted = best - (1 - SHARE) * abs(best)
        remarks.append(f"{name}: a long run of {long.seconds[-1]:.0f} s has the return {best:.5g}; {wanted:.5g} are wanted.")
    kind, mark = ALGORITHMS[options.algorithm], "" if options.algorithm == "ppo" else f"-{options.algorithm}"
    for seed in options.seeds:
        folder = options.out / f"{name}{mark}-{seed}"
        one = found[seed] = learned(name, goal, wanted, seed, folder, kind, **bounds)
        judged = evaluate(one.policy, fx.envs.make(name), episodes=options.episodes)[0]
        row = {
            "task": name, "algorithm": kind.__name__, "seed": seed, "wanted": wanted, "seconds to it": one.reached,
            "seconds": one.seconds[-1], "return in training": one.returns[-1], "return without noise": judged.mean,
            "deviation": judged.deviation, "ended early": float(judged.ended.mean()),
        }  # fmt: skip
        checks += [
            in_time(f"{name}, seed {seed}: time to a return of {wanted:.4g}", one.reached, 60 * goal.minutes),
            at_least(f"{name}, seed {seed}: return without noise", judged.mean, wanted),
        ]
        if goal.walks and not options.quick:
            more, check = walked(name, one.policy, seed)
            row, checks = {**row, **more}, [*checks, check]
        rows.append(row)
    return Result(rows, checks, remarks), found


def in_time(what: str, seconds: float | None, target: float) -> Check:
    """A check of a time; None is never."""
    if seconds is None:
        return Check(what, "never", f"<= {target:g} s", False, True)
    return at_most(what, seconds, target, "s", timed=True)


def walked(name: str, policy: Policy, seed: int, episodes: int = 16) -> tuple[dict[str, Any], Check]:
    """Episodes of 20 s in MuJoCo."""
    task = fx.envs.make(name)
    task = fx.envs.make(name, solver="mujoco", length=round(WALK / float(task.sim.dt)))
    found = evaluate(policy, task, episodes=episodes)[0]
    falls = int(found.ended.sum())
    row = {
        "falls in MuJoCo": f"{falls} of {episodes}",
        "return there per step": float(found.returns.sum() / found.lengths.sum()),
    }
    return row, equals(f"{name}, seed {seed}: falls in {episodes} walks of {WALK:g} s in MuJoCo", falls, 0)


def curves(parts: dict[str, dict[int, Trained]], wanted: dict[str, float]) -> matplotlib.figure.Figure:
    """Returns over the time of training, a panel for each task."""
    with styled():
        figure = matplotlib.figure.Figure(figsize=(3.4 * len(parts), 2.8), layout="constrained")
        panels = np.atleast_1d(np.asarray(figure.subplots(1, len(parts))))
        for axes, (name, found) in zip(panels, parts.items(), strict=True):
            for seed, one in found.items():
                axes.plot(one.seconds, one.returns, label=f"seed {seed}")
            axes.axhline(wanted[name], color="#7a8793", linestyle=":")
            axes.set(title=name, xlabel="time (s)", ylabel="return")
        panels[0].legend(fontsize=8)
    return figure


def measure(options: argparse.Namespace) -> Result:
    """All tasks, or the one that is asked for."""
    options.seeds = options.seeds or ([0] if options.quick else [0, 1, 2])
    options.episodes = 64 if options.quick else 2048
    names = [options.task] if options.task else ["cartpole"] if options.quick else list(GOALS)
    results, found = {}, {}
    for name in names:
        results[name], found[name] = part(name, options)
    wanted = {name: r.rows[0]["wanted"] for name, r in results.items()}
    curves(found, wanted).savefig(options.out / "returns.png", dpi=150)
    rows = [row for r in results.values() for row in r.rows]
    remarks = [x for r in results.values() for x in r.remarks] + ["Times include compilation."]
    return Result(rows, [c for r in results.values() for c in r.checks], remarks)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=tuple(GOALS), help="one task")
    parser.add_argument("--algorithm", choices=tuple(ALGORITHMS), default="ppo", help="how to learn (ppo)")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="SEED", help="of the runs (0 1 2)")


if __name__ == "__main__":
    run("How long does a robot take to learn on this machine?", measure, _add)
