"""`Ray`: tasks on the machines of a Ray cluster.

Ray moves tasks and results, and repeats tasks whose worker or node was lost. What is here: how many tasks are under way, in which
surroundings they run, and who compiles a kernel (`kernels.py`).
"""

import hashlib
import logging
import os
import platform
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import jax

from flexor.cluster import kernels
from flexor.cluster.executor import AbstractExecutor, Arrays, ExecutorError, Work
from flexor.simd import machine, store

SETTINGS = ("FLEXOR_", "XLA_")
"""Beginnings of the variables by which results or compilations change: workers have the driver's."""
CONFIGURATION = ("jax_default_prng_impl", "jax_threefry_partitionable", "jax_default_matmul_precision")
"""Settings of JAX by which results change, besides its precision."""


@final
@dataclass(frozen=True)
class Ray(AbstractExecutor):
    """A Ray cluster: the one at `address` ("auto" is the one that runs on this machine), or without it the one that the variable
    RAY_ADDRESS names, or else the processors of this machine.

    A task computes with `cpus` threads. At most `ahead` tasks are under way, by default twice as many as there is room for. A
    task whose worker or node was lost is repeated up to `retries` times.
    """

    address: str | None = None
    cpus: int = 1
    ahead: int | None = None
    retries: int = 8

    def __post_init__(self) -> None:
        if self.cpus < 1 or (self.ahead is not None and self.ahead < 1) or self.retries < 0:
            raise ValueError(
                f"`cpus` and `ahead` must be positive and `retries` not negative, got {self.cpus}, {self.ahead}, {self.retries}."
            )

    def stream(self, work: Work, tasks: Iterable[Any]) -> Iterator[Arrays]:
        ray = connected(self.address)
        packed = _packed(work)
        digest = hashlib.sha256(packed).hexdigest()
        bag = [ray.put(packed), kernels.exchange(ray)]  # in a list, so that workers get them only when they need them
        do = ray.remote(task_on_worker).options(num_cpus=self.cpus, max_retries=self.retries)
        surroundings = Surroundings(
            {**_settings(), "NPROC": str(self.cpus)},  # NPROC is how many threads XLA starts
            {name: getattr(jax.config, name) for name in CONFIGURATION},
            bool(jax.config.read("jax_enable_x64")),
        )
        types, under_way = set[str](), deque[Any]()
        try:
            for task in tasks:
                while len(under_way) >= self._room(ray):
                    yield _taken(ray, under_way.popleft(), types)
                under_way.append(do.remote(bag, digest, surroundings, task))
            while under_way:
                yield _taken(ray, under_way.popleft(), types)
        finally:
            for reference in under_way if ray.is_initialized() else ():
                ray.cancel(reference)

    def _room(self, ray: Any) -> int:
        """How many tasks may be under way, now that the cluster is as large as it is; where all workers are lost, those that wait
        for new ones."""
        nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
        largest = max(nodes, default=0)
        if 0 < largest < self.cpus:
            raise ExecutorError(f"no node of the Ray cluster has {self.cpus} processors; the largest has {largest:g}.")
        return self.ahead or max(2, 2 * sum(int(n // self.cpus) for n in nodes))


@dataclass(frozen=True)
class Surroundings:
    """What a worker has in common with the driver: variables, settings of JAX, and whether it computes in double precision."""

    variables: Mapping[str, str]
    settings: Mapping[str, Any]
    x64: bool


def connected(address: str | None) -> Any:
    """The module `ray`, connected to a cluster."""
    try:
        import ray
    except ImportError as error:
        raise ImportError('the executor `Ray` needs the package ray: `pip install "flexor[ray]"`.') from error
    if not ray.is_initialized():
        here = address is None and not os.environ.get("RAY_ADDRESS")
        own = {"address": "local", "include_dashboard": False} if here else {"address": address}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*os.fork.*", RuntimeWarning)  # Ray starts programs, and forks nothing
                ray.init(logging_level=logging.ERROR, **own)
        except (ConnectionError, ValueError) as error:
            at = address or os.environ.get("RAY_ADDRESS")
            raise ExecutorError(f"there is no Ray cluster at '{at}'; `ray start --head` starts one on a machine.") from error
    return ray


def _packed(work: Work) -> bytes:
    import ray.cloudpickle as cloudpickle

    try:
        packed: bytes = cloudpickle.dumps(work)
    except Exception as error:
        raise ValueError(f"the work cannot be sent to other processes: {' '.join(str(error).split())}.") from error
    return packed


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}


def _taken(ray: Any, reference: Any, types: set[str]) -> Arrays:
    """A result. An error of the task is raised as it was there."""
    try:
        arrays, processor = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause or error) from error
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())
        raise ExecutorError(f"a task was given up, since the workers that tried it were all lost: {reason}") from error
    types.add(processor)
    if len(types) == 2:
        types.add("")  # warned
        warnings.warn(
            "the nodes of the cluster have different processors: last bits depend on where a task runs.",
            stacklevel=3,
        )
    return arrays  # type: ignore[no-any-return]


def task_on_worker(bag: list[Any], digest: str, surroundings: Surroundings, task: Any) -> tuple[Arrays, str]:
    """Runs in a worker: the result of one task, and the type of the processor. What was prepared stays for further tasks."""
    os.environ.update(surroundings.variables)  # XLA reads them at the first array, which comes with the work
    for name, value in surroundings.settings.items():
        jax.config.update(name, value)

    def prepare() -> Any:
        import ray

        kernels.use(bag[1])
        work = ray.cloudpickle.loads(ray.get(bag[0]))
        return work.prepare(*work.given)

    with jax.enable_x64(surroundings.x64):
        arrays = store.keep(("cluster", digest, surroundings.x64), prepare)(task)
    return arrays, platform.machine() if machine.supported() else machine.identity()
