"""Calls that may crash or hang, each in a worker process with a limit of time; the rest of a survey goes on."""

import multiprocessing
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

PATIENCE = 120.0  # s that a worker has to start, beyond the limit of its first call


class Worker:
    """A process that calls one function again and again; it is started anew after a crash, a time-out, or `lifetime` calls."""

    def __init__(self, function: Callable[[Any], dict], limit: float, lifetime: int = 40):
        self.function, self.limit, self.lifetime = function, limit, lifetime
        self.process: Any = None
        self.calls = 0

    def __call__(self, argument: Any) -> dict:
        """What the function returns, or {"fault": sentence} where it does not return."""
        fresh = self.process is None or self.calls >= self.lifetime
        if fresh:
            self.close()
            self._start()
        self.calls += 1
        try:
            self.pipe.send(argument)
            if not self.pipe.poll(self.limit + (PATIENCE if fresh else 0.0)):
                self.close()
                return {"fault": f"took more than {self.limit:g} s"}
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            status = self.process.exitcode
            self.close()
            return {"fault": f"crashed, exit status {status}"}

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(self.function, other), daemon=True)
        self.process.start()
        other.close()
        self.calls = 0

    def close(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None


def _serve(function: Callable[[Any], dict], pipe: Any) -> None:
    while True:
        try:
            argument = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(function(argument))
        except Exception as error:  # whatever one case raises is its result
            pipe.send({"fault": f"{type(error).__name__}: {' '.join(str(error).split())}"})


def guarded_map(
    function: Callable[[Any], dict], arguments: Sequence[Any], *, limit: float, workers: int
) -> Iterator[tuple[int, dict]]:
    """(place, result) of every argument, as they come, from `workers` processes at a time."""
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    done: queue.SimpleQueue = queue.SimpleQueue()
    for item in enumerate(arguments):
        waiting.put(item)

    def attend() -> None:
        worker = Worker(function, limit)
        try:
            while True:
                try:
                    place, argument = waiting.get_nowait()
                except queue.Empty:
                    return
                done.put((place, worker(argument)))
        finally:
            worker.close()

    for _ in range(min(workers, len(arguments))):
        threading.Thread(target=attend, daemon=True).start()
    for _ in arguments:
        yield done.get()
