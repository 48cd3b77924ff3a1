"""How long does a data set for a learned solver take: one million transitions of the ant, 16 substeps each, to HDF5?

Programs compile within the measured time, from an empty cache.
"""

import dataclasses
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("FLEXOR_CACHE", tempfile.mkdtemp(prefix="flexor-nerd-data-"))

from _form import Result, at_most, run

from flexor.nerd import Recipe
from flexor.nerd.data import facts


def memory() -> float:
    """Largest memory of this process so far, in GB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e9 if sys.platform == "darwin" else 1e6)


def measure(quick: bool) -> Result:
    recipe = Recipe.read("cartpole" if quick else "ant")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for count in (20_000, 40_000) if quick else (250_000, 1_000_000):
            begun = time.perf_counter()
            path = dataclasses.replace(recipe, transitions=count).sample(Path(folder) / f"{count}.h5")
            seconds = time.perf_counter() - begun
            rows.append(
                {
                    "robot": recipe.robot, "transitions": count, "substeps": recipe.substeps, "s": round(seconds, 1),
                    "dropped": facts(path)["dropped"], "file, GB": round(path.stat().st_size / 1e9, 2),
                    "memory so far, GB": round(memory(), 2),
                }
            )  # fmt: skip
    growth = rows[1]["memory so far, GB"] / rows[0]["memory so far, GB"]
    checks = [at_most("largest memory, with the second data set over the first", growth, 1.25)]
    if not quick:
        checks.append(at_most("one million ant transitions, 16 substeps each", rows[-1]["s"], 60, "s", timed=True))
    return Result(rows, checks, ["The first row compiles; the second finds the object code in the cache on disk."])


if __name__ == "__main__":
    run("How long does it take to sample a million transitions of the ant?", measure)
