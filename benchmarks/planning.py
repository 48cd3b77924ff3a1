"""Does planning through the simulator solve what it is known for, and how long does it take?

Each exercise is planned by `ILQR` from controls of zero, then again once everything is compiled: that time is the figure. A cart
is then driven by a receding horizon that plans anew at every one of its control steps, called from Python.
"""

import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _form import Check, Result, at_least, at_most, run, tell

from flexor.control import ILQR, MPPI, CrossEntropy, Objective, PredictiveSampling, Receding
from flexor.envs import Exercise, exercise

jax.config.update("jax_enable_x64", True)  # second-order methods want the digits
SECONDS = 10.0  # for a plan from zeros
RATE = 100.0  # plans per second of a receding horizon


def planned(name: str, what: Exercise, planner: Any, label: str) -> tuple[dict[str, Any], list[Check]]:
    """A row and the checks of one exercise and planner."""
    tell(f"{name}: compiling {label}")
    before = time.perf_counter()
    planner.plan(what.sim, what.objective, what.start)
    first = time.perf_counter() - before
    before, cpu = time.perf_counter(), time.process_time()
    plan = planner.plan(what.sim, what.objective, what.start)
    taken, cpu = time.perf_counter() - before, time.process_time() - cpu
    row = {"exercise": name, "by": label, "steps": what.objective.steps, "iterations": len(plan.history) - 1}
    row |= {"cost": plan.cost, "seconds": taken, "processor s": cpu, "first time": first, "ended": plan.status.message}
    figures = what.judge(plan.trajectory)
    checks = [at_most(f"{name}, {label}: {f.what}", f.value, f.limit) for f in figures]
    return row, [*checks, at_most(f"{name}, {label}: time of a plan from zeros", taken, SECONDS, "s", timed=True)]


def driven(steps: int) -> tuple[dict[str, Any], list[Check]]:
    """A cart under a receding horizon in real time."""
    tell("cartpole: receding horizon")
    what = exercise("cartpole")
    sim = what.sim
    goal = Objective(what.objective.running, what.objective.final, steps=60)
    policy = Receding(ILQR(), sim, goal)
    state, memory, times, cpu = what.start, policy.init(None), [], []
    for k in range(steps + 2):
        before, used = time.perf_counter(), time.process_time()
        u, memory = policy(state, memory, None)
        u.block_until_ready()
        if k > 1:  # the first compiles, and plans for long
            times.append(time.perf_counter() - before)
            cpu.append(time.process_time() - used)
        state = sim.step(state, u)
    off = float(jnp.max(jnp.abs(state.q - sim.model.keyframe("upright"))))
    middle, slow = float(np.median(times)), float(np.percentile(times, 99))
    row = {"exercise": "cartpole, receding", "by": "ILQR", "steps": goal.steps, "iterations": 1, "cost": ""}
    row |= {"seconds": middle, "processor s": float(np.median(cpu)), "first time": "", "ended": f"99 % within {slow:.2g} s"}
    checks = [at_most("cartpole, receding: m or rad from upright at the end", off, 0.05),
              at_least("cartpole, receding: plans per second", 1 / middle, RATE, "Hz", timed=True),
              at_least("cartpole, receding: the same for the slowest in a hundred", 1 / slow, RATE, "Hz", timed=True),
              at_most("cartpole, receding: controls that were refused", int(memory.refused), 0)]  # fmt: skip
    return row, checks


def measure(quick: bool) -> Result:
    rows: list[dict[str, Any]] = []
    checks: list[Check] = []
    for name in ("cartpole",) if quick else ("cartpole", "acrobot", "panda-reach", "quadruped-jump"):
        row, found = planned(name, exercise(name), ILQR(), "ILQR")
        rows.append(row)
        checks += found
    samplers = () if quick else (MPPI(samples=512), PredictiveSampling(samples=512), CrossEntropy(samples=512))
    for planner in samplers:
        row, _ = planned("cartpole", exercise("cartpole"), planner, type(planner).__name__)
        rows.append(row)
    row, found = driven(150 if quick else 500)
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    remarks = [
        "Double precision. `first time` has tracing and compiling in it; the time of a receding horizon is that of a control.",
        f"The machine had {load:.1f} runnable processes for each processor at the end.",
    ]
    return Result([*rows, row], [*checks, *found], remarks)


if __name__ == "__main__":
    run("Does planning through the simulator solve what it is known for, and how long does it take?", measure)
