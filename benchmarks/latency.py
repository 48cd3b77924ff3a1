"""How long does one robot take for one step from Python? The stepper, `Simulator.step` and `mujoco.mj_step`, taking turns."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("FLEXOR_CACHE", tempfile.mkdtemp(prefix="flexor-latency-"))

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from _form import Check, Result, at_most, run, tell

import flexor as fx
from flexor.solvers.mujoco import mujoco_model

warnings.simplefilter("ignore")
DT = 0.002
ROBOTS = {"cartpole": "hanging", "panda": None, "quadruped": "stand"}
RUN = 50  # steps between two resets, so that the quadruped stays on its feet
WAYS = ("mj_step", "stepper", "Simulator.step", "in jax.jit")
FIRST = """
import json, time, warnings
warnings.simplefilter("ignore")
start = time.perf_counter()
import jax
jax_ready = time.perf_counter()
import flexor as fx
flexor_ready = time.perf_counter()
name, keyframe = {name!r}, {keyframe!r}
if name:
    sim = fx.Simulator(fx.load(name), dt={dt})
    sim.step(sim.reset(keyframe)).q.block_until_ready()
print(json.dumps([jax_ready - start, flexor_ready - jax_ready, time.perf_counter() - flexor_ready]))
"""


def ways(name: str, keyframe: str | None) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """A reset and a step for each way to step a robot."""
    sim = fx.Simulator(fx.load(name), dt=DT)
    start = sim.reset(keyframe)
    u, u_jax = np.zeros(sim.model.nu, sim.model.dtype), jnp.zeros(sim.model.nu, sim.model.dtype)
    stepper, jitted = sim.compile(), jax.jit(sim.step)
    m = mujoco_model(sim.model)
    m.opt.timestep = DT
    d = mujoco.MjData(m)
    now = [start, start]

    def back() -> None:
        mujoco.mj_resetData(m, d)
        d.qpos[:] = start.q

    def mujoco_step() -> None:
        d.ctrl[:] = u
        mujoco.mj_step(m, d)

    def eager() -> None:
        now[0] = sim.step(now[0], u_jax)
        now[0].q.block_until_ready()

    def inside() -> None:
        now[1] = jitted(now[1], u_jax)
        now[1].q.block_until_ready()

    steps = (mujoco_step, lambda: stepper.step(u), eager, inside)
    resets = (back, lambda: stepper.reset(start), lambda: now.__setitem__(0, start), lambda: now.__setitem__(1, start))
    return dict(zip(WAYS, zip(resets, steps, strict=True), strict=True))


def measured(name: str, keyframe: str | None, runs: int) -> dict[str, np.ndarray]:
    """Microseconds of every step of each way; the ways take turns, so that all of them meet the same disturbances."""
    found = ways(name, keyframe)
    times: dict[str, list[int]] = {way: [] for way in found}
    clock = time.perf_counter_ns
    for turn in range(runs + 2):
        for way, (reset, step) in found.items():
            reset()
            for _ in range(RUN):
                before = clock()
                step()
                taken = clock() - before
                if turn > 1:
                    times[way].append(taken)
    return {way: np.array(t) / 1e3 for way, t in times.items()}


def first(name: str, keyframe: str | None, cache: str) -> list[float]:
    """Seconds of `import jax`, of `import flexor` on top, and of loading a robot and its first step, in a process of its own."""
    environment = {**os.environ, "FLEXOR_CACHE": cache}
    text = FIRST.format(name=name, keyframe=keyframe, dt=DT)
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def measure(quick: bool) -> Result:
    rows: list[dict[str, Any]] = []
    checks: list[Check] = []
    ratios: dict[tuple[str, str], float] = {}
    names = ["cartpole"] if quick else list(ROBOTS)
    for name in names:
        tell(f"{name}: steps")
        times = measured(name, ROBOTS[name], 4 if quick else 100)
        middle = {way: float(np.median(t)) for way, t in times.items()}
        for way, t in times.items():
            ratios[name, way] = middle[way] / middle["mj_step"]
            rows.append({"robot": name, "step by": way, "median µs": middle[way], "99th percentile µs": float(
                np.percentile(t, 99)), "of mj_step": ratios[name, way]})  # fmt: skip
    remarks = []
    imports = np.array([first("", None, "") for _ in range(2 if quick else 7)])
    jax_time, own = (statistics.median(imports[:, k]) for k in (0, 1))
    remarks.append(f"import jax: {jax_time:.2f} s; import flexor on top of it: {own:.2f} s (median of {len(imports)}).")
    for name in names:
        tell(f"{name}: first step")
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = (first(name, ROBOTS[name], cache)[2] for _ in range(2))
        remarks.append(f"{name}: load and first step {cold:.1f} s cold, {warm:.1f} s with the kernel on disk.")
    remarks.append("flexor in single precision, MuJoCo in double, as both do by default; one step waits for its result.")
    limits = {("cartpole", "stepper"): 3, ("panda", "stepper"): 1, ("quadruped", "stepper"): 1,
              ("quadruped", "Simulator.step"): 10}  # fmt: skip
    for (name, way), most in limits.items():
        if name in names:
            checks.append(at_most(f"{way} of {name}, times mj_step", ratios[name, way], most, timed=True))
    if not quick:
        checks.append(at_most("import flexor on top of jax", own, 0.6, "s", timed=True))
    return Result(rows, checks, remarks)


if __name__ == "__main__":
    run("How long does one robot take for one step from Python?", measure)
