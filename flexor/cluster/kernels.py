"""One compilation of each kernel for each type of processor, whatever the number of workers.

Workers look for object code on their own disk first. What is not there they ask of one actor: the first to ask compiles, the
others wait for what it compiled. The key of a kernel holds the type of the processor, so each type has its own.
"""

import asyncio
from typing import Any

from flexor.simd import cache

PATIENCE = 300.0  # seconds after which a compilation counts as lost with its worker


class Kernels:
    """The actor: object code by key, and who has been asked to make what."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._files: dict[str, bytes] = {}
        self._under_way: dict[str, asyncio.Event] = {}
        self._patience = patience
        self._made = 0

    async def fetch(self, key: str) -> bytes | None:
        """The file of a kernel; None where the caller is to make it."""
        while key not in self._files:
            event = self._under_way.get(key)
            if event is None:
                self._under_way[key] = asyncio.Event()
                return None
            try:
                await asyncio.wait_for(event.wait(), self._patience)
            except TimeoutError:
                if self._under_way.get(key) is event:
                    del self._under_way[key]
        return self._files[key]

    async def offer(self, key: str, file: bytes) -> None:
        """Takes what was made."""
        self._files[key] = file
        self._made += 1
        event = self._under_way.pop(key, None)
        if event is not None:
            event.set()

    async def count(self) -> int:
        """How many kernels were compiled in the cluster."""
        return self._made


class Exchange:
    """The actor as the compiler's cache sees it. Without the actor, every worker compiles for itself."""

    def __init__(self, actor: Any):
        self._actor = actor

    def fetch(self, key: str) -> bytes | None:
        """The file of a kernel; None where this process is to make it."""
        return self._asked(self._actor.fetch.remote(key))

    def offer(self, key: str, file: bytes) -> None:
        """Gives others what was made here."""
        self._asked(self._actor.offer.remote(key, file))

    def _asked(self, reference: Any) -> Any:
        import ray

        try:
            return ray.get(reference)
        except ray.exceptions.RayError:
            return None


def exchange(ray: Any) -> Any:
    """The actor of this driver."""
    name = "flexor-kernels"
    return (
        ray.remote(Kernels)
        .options(name=name, get_if_exists=True, num_cpus=0, max_restarts=-1, max_concurrency=1000)
        .remote()
    )


def use(actor: Any) -> None:
    """Makes this process ask the actor."""
    cache.share(Exchange(actor))
