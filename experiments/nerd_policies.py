"""Policies trained only inside a learned solver, judged in it and in the physics that it learned (Xu et al. 2025, table 1).

Each task stands over the learned solver of its robot by one switch, `task.on(nerd.solver())`; nothing else differs. Beside each
policy stands one trained as long, from the same seed, in the true physics: that which the solver was trained on. All act without
noise in 2,048 episodes from the same starts, in both.

Runs that were stopped are resumed from the folder `--out`, which also gets `TASK.toml` for `flexor evaluate`. `--task NAME`,
`--seeds 0 1` and `--iterations N` run a part; `--quick` trains the cartpole for some iterations.
"""

import argparse
import csv
import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
from _experiment import Check, Result, at_least, at_most, run
from rich.console import Console

import flexor as fx
from flexor.files import write_whole
from flexor.learn import Policy, evaluate, recipe, train
from flexor.nerd import Nerd

SHARE = 0.9  # of a return that the same policy, or one trained in the true physics, has elsewhere
LONGEST = 40.0  # minutes of a training inside a learned solver
PLACES = ("neural", "true")


@dataclass(frozen=True)
class Place:
    """A task, the learned solver of its robot in the package, and iterations of training."""

    solver: str
    iterations: int
    remark: str


TASKS = {
    "cartpole": Place("cartpole", 1000, "no base step; episodes end at speeds above 10, not at the ends of the rail"),
    "ant-run": Place("ant", 1000, "over a coarse base step; the paper's network has none"),
    "ant-spin": Place("ant", 1000, "over a coarse base step; the paper's network has none"),
    "ant-spin-track": Place("ant", 1000, "over a coarse base step; the paper's network has none"),
}
MISSING = "Franka reach and quadruped tasks are left out: the package has no learned solvers of their robots."


def learned(name: str, place: str, physics: Any, seed: int, iterations: int, folder: Path) -> tuple[Policy, float]:
    """A policy trained in one of the two places, or the rest of its training; and the minutes that took."""
    task = fx.envs.make(name).on(physics)
    found = recipe(task)
    options = dataclasses.replace(found.options, seed=seed, iterations=iterations)
    console = Console(stderr=True, highlight=False)

    def tell(done: int, total: int, row: dict[str, Any]) -> None:
        if done % 100 == 0 and row["return"] is not None:
            console.print(f"{row['seconds']:6.0f} s  {name} in the {place} engine, seed {seed}: return {row['return']:.5g}")

    policy = train(task, algorithm=found.algorithm, options=options, out=folder, progress=tell)
    policy = dataclasses.replace(policy, card={**policy.card, "recipe": {"task": name, "options": {}, "solver": None}})
    policy.save(folder / "policy.safetensors")
    with (folder / "history.csv").open(encoding="utf-8") as file:
        seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
    return policy, seconds[-1] / 60


def configuration(name: str, nerd: Nerd, solver: str, options: argparse.Namespace) -> str:
    """What `flexor evaluate` reads to print the same returns."""
    assert nerd.truth is not None
    substeps = round(nerd.dt / nerd.truth.shortest_step(nerd.dt))
    return (
        f'task = "{name}"\nepisodes = {options.episodes}\n'
        f'policies = ["{name}-neural-*/policy.safetensors", "{name}-true-*/policy.safetensors"]\n\n'
        f'[solvers]\nneural = "nerd:{solver}"\ntrue = {{ name = "ncp", substeps = {substeps} }}\n'
    )


def part(name: str, options: argparse.Namespace) -> Result:
    """One task from all seeds."""
    place, nerd = TASKS[name], fx.nerd.load(TASKS[name].solver)
    physics = {"neural": nerd.solver(), "true": nerd.truth}
    iterations = options.iterations or (12 if options.quick else place.iterations)
    policies, rows, minutes = {}, [], {}
    for where in PLACES:
        for seed in options.seeds:
            folder = options.out / f"{name}-{where}-{seed}"
            policies[f"{where} {seed}"], minutes[where, seed] = learned(
                name, where, physics[where], seed, iterations, folder
            )
    write_whole({options.out / f"{name}.toml": configuration(name, nerd, place.solver, options).encode()})
    judged = evaluate(policies, fx.envs.make(name), solvers=physics, episodes=options.episodes)
    found = {(e.policy, e.physics): e for e in judged}
    for where in PLACES:
        for seed in options.seeds:
            own = {there: found[f"{where} {seed}", there] for there in PLACES}
            rows.append({
                "task": name, "trained in": where, "seed": seed, "minutes": minutes[where, seed],
                **{f"return, {there}": e.mean for there, e in own.items()},
                **{f"deviation, {there}": e.deviation for there, e in own.items()},
                **{f"ended early, {there}": float(e.ended.mean()) for there, e in own.items()},
            })  # fmt: skip
    return Result(rows, checks(name, rows), [f"{name}: {place.remark}; {iterations} iterations."])


def checks(name: str, rows: list[dict[str, Any]]) -> list[Check]:
    """The claims about one task: means over the seeds."""

    def mean(trained: str, column: str) -> float:
        return float(np.mean([row[column] for row in rows if row["trained in"] == trained]))

    there, here, rival = mean("neural", "return, true"), mean("neural", "return, neural"), mean("true", "return, true")
    longest = max(row["minutes"] for row in rows if row["trained in"] == "neural")
    return [
        at_least(f"{name}, trained in the neural engine: 90 % of its return there, in the true physics", there, share(here)),
        at_least(f"{name}: 90 % of the return of policies trained in the true physics", there, share(rival)),
        at_most(f"{name}: minutes of training inside the neural engine", longest, LONGEST, "min", timed=True),
    ]


def share(value: float) -> float:
    """The wanted share of a return, also of a negative one."""
    return value - (1 - SHARE) * abs(value)


def returns(rows: list[dict[str, Any]]) -> matplotlib.figure.Figure:
    """Returns in the learned solver and in the true physics, of policies trained in either."""
    figure = matplotlib.figure.Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for where, marker in zip(PLACES, "ox", strict=True):
        own = [row for row in rows if row["trained in"] == where]
        points = [row["return, neural"] for row in own], [row["return, true"] for row in own]
        axes.plot(*points, marker, label=f"trained in the {where} engine")
    everything = [row[f"return, {there}"] for there in PLACES for row in rows]
    axes.plot([min(everything), max(everything)], [min(everything), max(everything)], "k:", linewidth=0.8)
    axes.set(xlabel="return in the learned solver", ylabel="return in the true physics")
    axes.legend()
    return figure


def measure(options: argparse.Namespace) -> Result:
    """All tasks, or the one that is asked for."""
    begun = time.perf_counter()
    options.seeds = options.seeds or ([0] if options.quick else [0, 1, 2])
    options.episodes = 64 if options.quick else 2048
    names = [options.task] if options.task else ["cartpole"] if options.quick else list(TASKS)
    results = [part(name, options) for name in names]
    returns([row for r in results for row in r.rows]).savefig(options.out / "returns.png", dpi=150)
    remarks = [
        *(x for r in results for x in r.remarks),
        MISSING,
        f"`flexor evaluate {options.out / names[0]}.toml` prints the returns again.",
        f"Minutes include compilation; all of it took {(time.perf_counter() - begun) / 60:.1f} minutes here.",
    ]
    return Result([row for r in results for row in r.rows], [c for r in results for c in r.checks], remarks)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=tuple(TASKS), help="one task")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="SEED", help="of the runs (0 1 2)")
    parser.add_argument("--iterations", type=int, metavar="N", help="of each training (1000)")


if __name__ == "__main__":
    run("Does a policy that has only met the learned solver work in the true physics?", measure, _add)
