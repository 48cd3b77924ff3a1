"""How long until the first step of a large robot? Load, trace and compile, cold and with the kernel on disk; and the memory."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from _form import Check, Result, at_most, run, tell
from _scenes import panda_grasping


class Case(NamedTuple):
    """A robot as `fx.load` takes it, or a function that gives its text; how long its first step may take in s, cold, and what it
    stands on."""

    load: str | Callable[[], str]
    cold: float | None = None
    floating: bool = False
    ground: bool = True


CASES = {
    "quadruped": Case("quadruped", 6.0, ground=False),
    "panda with its hand": Case("panda", 15.0),
    "panda with its hand, a table and 20 boxes": Case(partial(panda_grasping, 19), 15.0, ground=False),
    "anymal_c, all meshes": Case("anymal_c", floating=True),
    "g1, all meshes": Case("g1", 25.0, floating=True),
    "talos, all meshes": Case("talos", 25.0, floating=True),
}
WARM, MEMORY = 1.5, 2.0  # s and GB, for all of them

CODE = """
import json, resource, sys, time, warnings
warnings.simplefilter("ignore")
import flexor as fx
load, options = json.loads(sys.argv[1])
start = time.perf_counter()
model = fx.load(load, **options)
loaded = time.perf_counter()
sim = fx.Simulator(model, dt=0.002)
state = sim.reset()
sim.step(state).qd.block_until_ready()
done = time.perf_counter()
from flexor.contact.detect import candidates
print(json.dumps([loaded - start, done - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, model.nv,
                  len(model.topology.pairs), len(candidates(model.topology))]))
"""


def first(case: Case, cache: str) -> list[float]:
    """Seconds to load, seconds to the end of the first step, memory in GB, and what the robot has, in a fresh process."""
    env, load = {**os.environ, "FLEXOR_CACHE": cache}, case.load
    if not isinstance(load, str):
        path = Path(cache) / "scene.xml"
        path.write_text(load(), encoding="utf-8")
        load = str(path)
    arguments = [sys.executable, "-c", CODE, json.dumps([load, {"floating": case.floating, "ground": case.ground}])]
    done = subprocess.run(arguments, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return list(json.loads(done.stdout.splitlines()[-1]))


def measure(quick: bool) -> Result:
    rows, checks = [], []
    for name, case in CASES.items():
        if quick and name != "quadruped":
            continue
        tell(name)
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = first(case, cache), first(case, cache)
        rows.append(
            {
                "robot": name, "dofs": int(cold[3]), "pairs": int(cold[4]), "candidates": int(cold[5]), "load (s)": cold[0],
                "first step, cold (s)": cold[1], "with the kernel on disk (s)": warm[1], "memory (GB)": cold[2],
            }
        )  # fmt: skip
        checks += _checks(name, case, cold, warm)
    return Result(rows, checks, ["Times include loading; `import flexor` does not count."])


def _checks(name: str, case: Case, cold: list[float], warm: list[float]) -> list[Check]:
    found = [at_most(f"{name}: memory of the compiler", cold[2], MEMORY, "GB")]
    if case.cold is not None:
        found.append(at_most(f"{name}: first step, cold", cold[1], case.cold, "s", timed=True))
        found.append(at_most(f"{name}: first step with the kernel on disk", warm[1], WARM, "s", timed=True))
    return found


if __name__ == "__main__":
    run("how long does the first step of a large robot take, and how much memory?", measure)
