"""Does a Ray cluster give the bits of one process, whatever dies on the way, and what does it cost?

The cluster is one of `ray.cluster_utils` on this machine: a head without processors, and two nodes with one each.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("FLEXOR_CACHE", tempfile.mkdtemp(prefix="flexor-cluster-"))
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # workers with the priority of the process beside which they are measured
if "--quick" in sys.argv:  # programs that run once
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0")

import numpy as np
from _form import Check, Result, at_most, equals, run, tell

import flexor as fx

CHILD = Path(__file__).with_name("_cluster_child.py")
FLAT = 1.15  # memory in the second half of a run over that in the first
OVERHEAD = 1.15
LAST = 0.6  # share of a data set after which a driver is killed
SAME = 1e-5  # of losses


@contextmanager
def cluster() -> Iterator[Any]:
    """A head and two nodes with one processor each."""
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 10**9, "include_dashboard": False}
    )
    try:
        for _ in range(2):
            made.add_node(num_cpus=1, object_store_memory=10**9)
        yield made
    finally:
        import ray

        ray.shutdown()
        made.shutdown()


def driver(
    executor: str, robot: str, transitions: int, path: Path, until: float = 1.0, **environment: str
) -> subprocess.Popen[str]:
    """A process that samples, up to a share of the data set."""
    command = [sys.executable, str(CHILD), "sample", executor, robot, str(transitions), str(path), str(until)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})


def said(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """What a driver tells, line by line."""
    assert process.stdout is not None
    yield from (json.loads(line) for line in process.stdout if line.startswith("{"))


def watched(process: subprocess.Popen[str], made: Any = None) -> dict[str, Any]:
    """The last words of a driver that nobody disturbs, with the processor time of the cluster's workers added to its own, and how
    its memory grew from the first half to the second."""
    lines, workers = [], 0.0
    for line in said(process):
        lines.append(line)
        workers = max(workers, 0.0 if made is None else sum(worker.seconds for worker in workers_of(made)))
    if process.wait():
        raise RuntimeError(f"a driver ended with status {process.returncode}")
    memory = [line["memory"] for line in lines if "memory" in line]
    half = len(memory) // 2
    lines[-1]["processor"] += workers
    return {**lines[-1], "growth": max(memory[half:]) / max(memory[:half]), "memory": max(memory)}


@dataclass(frozen=True)
class Worker:
    """A process of a cluster's node: its number, what it does, and its processor time, start and imports included."""

    number: int
    words: str
    seconds: float


def workers_of(made: Any) -> list[Worker]:
    """All that the nodes have started and not ended."""
    raylets = {info.process.pid for node in made.list_all_nodes() for info in node.all_processes.get("raylet", ())}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, fields = (folder / "cmdline").read_text(), (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if words.startswith("ray::") and int(fields[1]) in raylets:
            found.append(Worker(int(folder.name), words, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")))
    return found


def kill_a_worker(made: Any) -> int:
    """SIGKILL for one process that has a task of the cluster; how many were found."""
    busy = [worker.number for worker in workers_of(made) if worker.words.startswith("ray::task_on_worker")]
    for number in busy[:1]:
        os.kill(number, signal.SIGKILL)
    return len(busy[:1])


def disturbed(made: Any, start: Callable[[float], subprocess.Popen[str]]) -> dict[str, Any]:
    """A driver one of whose workers is killed, then a node removed (and another added), then the driver itself killed and started
    again: its last words, what was killed, and how much of the work was kept."""
    first, killed, removed, at = start(LAST), 0, 0, 0.0
    for line in said(first):
        at = line.get("share", at)
        if at >= 0.2 and not killed:
            killed = kill_a_worker(made)
        if at >= 0.4 and not removed:
            made.remove_node(sorted(made.worker_nodes, key=lambda n: n.unique_id)[0], allow_graceful=False)
            made.add_node(num_cpus=1, object_store_memory=10**9)
            removed = 1
        if at > LAST:
            first.kill()
            break
    first.wait()
    second = start(1.0)
    lines = list(said(second))
    second.wait()
    return {**lines[-1], "killed": killed, "removed": removed, "kept": lines[0]["share"] > at}


def sampling(
    made: Any, folder: Path, quick: bool, transitions: int, faults: bool
) -> tuple[list[dict[str, Any]], list[Check]]:
    """A data set by Local(), by two workers, and with everything that can die."""
    robot, count = ("cartpole", 400_000) if quick else ("ant", transitions)
    ray = f"ray:{made.address}"
    if not quick:  # where the training's data set has left the kernel on the disk
        watched_or_last(driver("local", robot, 100, folder / "warm.h5"))
    tell("sampling by Local()")
    local = watched(driver("local", robot, count, folder / "local.h5"))
    tell(f"{local}\nsampling by two workers")
    two = watched(driver(ray, robot, count, folder / "two.h5"), made)
    tell(str(two))
    what = f"{count} transitions of the {robot}"
    rows = [
        row(what, name, found["seconds"], local["seconds"], found)
        for name, found in (("Local()", local), ("Ray, 2 nodes", two))
    ]
    checks = [
        equals(f"{what}: hash by two workers", two["hash"], local["hash"]),
        at_most("driver's memory with Ray, second half over first", round(two["growth"], 3), FLAT),
        at_most("seconds of two workers over Local()", round(two["seconds"] / local["seconds"], 3), OVERHEAD, timed=True),
    ]
    return rows, [*checks, *dying(made, ray, robot, count, folder, local["hash"])] if faults else checks


def row(work: str, by: str, seconds: float, alone: float | None, found: dict[str, Any]) -> dict[str, Any]:
    """A row of the table; `alone` are the seconds of Local(), and `found` the last words of a driver, where there are any."""
    return {
        "work": work, "by": by, "s": round(seconds, 2), "over Local()": "" if alone is None else round(seconds / alone, 3),
        "processor s": round(found["processor"], 1) if found else "",
        "driver's memory, MB": round(found["memory"]) if found else "",
        "second half over first": round(found["growth"], 3) if found else "",
    }  # fmt: skip


def dying(made: Any, ray: str, robot: str, count: int, folder: Path, wanted: str) -> list[Check]:
    """The same data set while a worker, a node and the driver die. Its workers have no disk for kernels."""
    tell("sampling while a worker, a node and the driver die")
    other = disturbed(made, lambda until: driver(ray, robot, count, folder / "disturbed.h5", until, FLEXOR_CACHE=""))
    return [
        equals("hash after a worker, a node and the driver died", other["hash"], wanted),
        equals("workers killed by SIGKILL, nodes removed", f"{other['killed']}, {other['removed']}", "1, 1"),
        equals("chunks written before the driver died are kept", str(other["kept"]), "True"),
        at_most("kernels compiled by the last driver's workers, which have no disk for them", other["compiled"], 1),
    ]


def watched_or_last(process: subprocess.Popen[str]) -> None:
    """Waits for a driver of one chunk."""
    list(said(process))
    if process.wait():
        raise RuntimeError(f"a driver ended with status {process.returncode}")


def swing() -> tuple[fx.Simulator, fx.Log]:
    """A simulated recording of a pendulum, with noise."""
    model = fx.load("pendulum")
    sim = fx.Simulator(model, fx.RigidSolver(contact=None), dt=0.01)
    start = (np.array([1.2]), np.zeros(1))
    q = np.asarray(sim.rollout(sim.reset(*start), steps=100).q, float)
    q = q + 1e-3 * np.random.default_rng(0).normal(size=q.shape)
    column = f"q.{model.topology.q_name(0)}"
    return sim, fx.Log(0.01 * np.arange(101), q, (column,), np.zeros((100, model.nu)), {column: 1e-3}, start)


def searching(who: Any, quick: bool) -> tuple[str, str, float]:
    """A basin-hopping search: what it is, a digest of its result, seconds."""
    sim, log = swing()
    starts = 16 if quick else 64
    search = fx.BasinHopping(starts=starts, rounds=2, local=6, enough=0.0, patience=9)
    bounds = {"*.mass": (0.1, 5.0), "*.damping": (1e-4, 1.0)}
    began = time.perf_counter()
    fit = fx.identify(sim, [log], list(bounds), bounds=bounds, search=search, held_out=0.0, executor=who)
    values = {name: np.asarray(x).tolist() for name, x in fit.values.items()}
    return f"basin hopping, {starts} starts, 2 rounds", fx_digest([values, fit.history]), time.perf_counter() - began


def judging(who: Any, quick: bool) -> tuple[str, str, float]:
    """Returns of a policy that comes with the package: what it is, a digest, seconds."""
    name = "cartpole" if quick else "ant-run"
    seeds, episodes = range(2 if quick else 4), 64 if quick else 512
    began = time.perf_counter()
    found = fx.learn.evaluate(fx.learn.load(name), fx.envs.make(name), seeds=seeds, episodes=episodes, executor=who)
    digest = fx_digest([[e.returns.tolist(), e.lengths.tolist()] for e in found])
    return f"{name}, {len(seeds)} seeds of {episodes} episodes", digest, time.perf_counter() - began


def nothing(who: Any, quick: bool) -> tuple[str, str, float]:
    """Tasks that do nothing, after one that starts the workers: what it is, a digest, seconds."""

    def prepare() -> Callable[[int], dict[str, np.ndarray]]:
        return lambda k: {"k": np.asarray(k)}

    count, work = 200 if quick else 2000, fx.cluster.Work(prepare)
    list(who.stream(work, range(2)))
    began = time.perf_counter()
    digest = fx_digest([int(x["k"]) for x in who.stream(work, range(count))])
    return f"{count} empty tasks", digest, time.perf_counter() - began


def fx_digest(values: Any) -> str:
    """Digest of numbers, to the last bit."""
    from flexor.files import digest

    return digest(json.dumps(values).encode())[:16]


def bags(made: Any, quick: bool) -> tuple[list[dict[str, Any]], list[Check]]:
    """A search and an evaluation, by Local() and by two workers."""
    rows, checks = [], []
    for work in (nothing, searching, judging):
        found = []
        for name, who in (("Local()", fx.cluster.Local()), ("Ray, 2 nodes", fx.cluster.Ray(made.address))):
            tell(f"{work.__name__} by {name}")
            found.append(work(who, quick))
            what, _, seconds = found[-1]
            rows.append(row(what, name, seconds, None if work is nothing else found[0][2], {}))
        checks.append(equals(f"{found[0][0]}: digest by two workers", found[1][1], found[0][1]))
    return rows, checks


def training(folder: Path) -> list[Check]:
    """One process; two; and two one of which dies."""
    data = folder / "cartpole.h5"
    watched_or_last(driver("local", "cartpole", 2000, data))

    def command(out: str, last: int) -> Callable[[str], list[str]]:
        return lambda joined: [sys.executable, str(CHILD), "train", joined, str(data), str(folder / out), str(last)]

    tell("training in one process, in two, and in two of which one dies")
    subprocess.run(command("one", -1)("-"), check=True)
    started: list[int] = []
    status = [fx.cluster.supervise(command("two", -1), 2)]

    def dying(joined: str) -> list[str]:
        return command("killed", 12 if len(started) == 0 else -1)(joined)

    status.append(fx.cluster.supervise(dying, 2, started=lambda processes: started.append(len(processes))))
    one, two, killed = (losses(folder / name) for name in ("one", "two", "killed"))
    same = (folder / "two" / "network.safetensors").read_bytes() == (folder / "killed" / "network.safetensors").read_bytes()
    return [
        at_most("loss curve of two JAX processes beside one, largest difference", float(np.abs(two - one).max()), SAME),
        equals("starts of two processes of which one dies at step 12 of 20", len(started), 2),
        equals("exit status of both groups", str(status), "[0, 0]"),
        equals("weights after the death are those without it", str(same), "True"),
        at_most("loss curve after the death beside that without", float(np.abs(killed - two).max()), 0.0),
    ]


def losses(folder: Path) -> np.ndarray:
    """Columns `loss` and `held_out` of a history."""
    table = np.genfromtxt(folder / "history.csv", delimiter=",", names=True)
    return np.stack([table["loss"], table["held_out"]])


PARTS = ("training", "sampling", "faults", "bags")


def measure(quick: bool, transitions: int, only: list[str]) -> Result:
    folder = Path(tempfile.mkdtemp(prefix="flexor-cluster-data-"))
    rows: list[dict[str, Any]] = []
    checks = training(folder) if "training" in only else []
    try:
        with cluster() as made:
            if {"sampling", "faults"} & set(only):
                more, found = sampling(made, folder, quick, transitions, "faults" in only)
                rows, checks = [*rows, *more], [*checks, *found]
            if "bags" in only:
                more, found = bags(made, quick)
                rows, checks = [*rows, *more], [*checks, *found]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    remark = "Seconds include the start of workers and, in them, tracing and XLA's compilation; kernels come from the disk."
    return Result(rows, checks, [remark, "Processor seconds of workers include Python's start and imports."])


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much is sampled of the ant, eight chunks of 51,200 at least, so that there is time to kill in."""
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=PARTS, help="these parts alone")
    parser.add_argument(
        "--transitions", type=int, default=1_000_000, metavar="N", help="of the ant, in a run that is not quick"
    )


if __name__ == "__main__":
    run("does a Ray cluster give the bits of one process, whatever dies on the way?", measure, add_options)
