"""Processes that `cluster.py` starts, and kills: a driver that samples, and a member of a group that trains."""

import dataclasses
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def tell(**facts: Any) -> None:
    """A line for the process that watches."""
    print(json.dumps(facts), flush=True)


def private_memory() -> float:
    """Memory of this process that it shares with no other, in MB: Ray's store is shared."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) / 1e3


def sample(executor: str, robot: str, transitions: str, path: str, until: str) -> None:
    """Writes a data set, and tells of every chunk; beyond the share `until` it only waits for its end."""
    from flexor.cluster import executor as named
    from flexor.nerd import Recipe
    from flexor.nerd.data import facts

    recipe = dataclasses.replace(Recipe.read(robot), transitions=int(transitions))
    who = named(executor)
    if executor != "local":
        from flexor.cluster.on_ray import connected

        connected(executor.partition(":")[2])
    began, begun = time.perf_counter(), time.process_time()

    def progress(done: int, total: int) -> None:
        tell(share=done / total, memory=private_memory())
        if done > float(until) * total:
            time.sleep(600)

    recipe.sample(path, executor=who, progress=progress)
    compiled = None
    if executor != "local":
        import ray

        from flexor.cluster import kernels

        compiled = ray.get(kernels.exchange(ray).count.remote())
    about, processor = facts(path), time.process_time() - begun
    tell(
        seconds=time.perf_counter() - began,
        processor=processor,
        hash=about["hash"],
        dropped=about["dropped"],
        compiled=compiled,
    )


def train(joined: str, data: str, out: str, last: str) -> None:
    """Trains on a data set, alone (`-`) or as one of several processes; the last of them kills itself after step `last`."""
    from flexor.cluster import join_as

    if joined != "-":
        join_as(joined)
    import jax

    from flexor.nerd import Recipe, Sizes, Training
    from flexor.nerd import train as run

    recipe = Recipe.read("cartpole")
    sim = recipe.simulator()
    doomed = jax.process_index() == jax.process_count() - 1

    def watch(done: int, total: int, loss: float) -> None:
        if done == int(last) and doomed:
            os.kill(os.getpid(), signal.SIGKILL)

    nerd = run(
        sim, data, sizes=Sizes(layers=1, width=16, heads=2, history=4), frames=recipe.frames(sim.model), out=out, progress=watch,
        options=Training(steps=20, batch=16, window=6, every=5),
    )  # fmt: skip
    if jax.process_index() == 0:
        nerd.save(Path(out) / "network.safetensors")


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"sample": sample, "train": train}
    commands[sys.argv[1]](*sys.argv[2:])
