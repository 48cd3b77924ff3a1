"""Several processes that are one JAX program (`jax.distributed`), to train one network: joining them, and watching over them.

Bags of work need none of this: they have executors.
"""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

MOMENT = 0.1  # s between looks at the processes
LEAVE = 10.0  # s that they get to end after Ctrl-C


def join(address: str, processes: int, process: int) -> None:
    """Makes this process number `process` of `processes` that compute together. `address` is a host and a free port of process 0.

    It must be called before JAX is used. On CPUs the processes talk through Gloo.
    """
    if not 0 <= process < processes:
        raise ValueError(f"a process of {processes} has a number from 0 to {processes - 1}, got {process}.")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(address, processes, process)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConnectionError(f"process {process} could not join the others at '{address}': {reason}") from error


def join_as(text: str) -> None:
    """`join` with `HOST:PORT,PROCESSES,PROCESS`."""
    address, *numbers = text.split(",")
    if ":" not in address or len(numbers) != 2 or not all(x.isdigit() for x in numbers):
        raise ValueError(f"processes are joined by HOST:PORT,PROCESSES,PROCESS, such as 10.0.0.1:7000,4,0; got '{text}'.")
    join(address, int(numbers[0]), int(numbers[1]))


def supervise(
    command: Callable[[str], Sequence[str]],
    processes: int,
    *,
    restarts: int = 8,
    started: Callable[[Sequence[subprocess.Popen[Any]]], None] | None = None,
) -> int:
    """Runs `command(text)` in so many processes of this machine, each with its own text for `join_as`; the exit status.

    If one dies by a signal, the others are ended and all start again, up to `restarts` times: the command resumes from its
    checkpoint. An exit status that is not zero ends all; it is an error that would come again. `started` gets the processes.
    """
    share = str(max(1, (os.cpu_count() or 1) // processes))
    for left in range(restarts, -1, -1):
        address = f"127.0.0.1:{_free_port()}"
        environment = {**os.environ, "NPROC": share}  # how many threads XLA starts
        running = [subprocess.Popen(command(f"{address},{processes},{i}"), env=environment) for i in range(processes)]
        try:
            with _ended_by_sigterm():
                if started is not None:
                    started(running)
                status = _watch(running)
        except KeyboardInterrupt:  # which the processes have got too: they write their checkpoint
            _leave(running)
            raise
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                process.wait()
        if status >= 0 or not left:
            return status
    return status


def _leave(running: Sequence[subprocess.Popen[Any]]) -> None:
    until = time.monotonic() + LEAVE
    while any(process.poll() is None for process in running) and time.monotonic() < until:
        time.sleep(MOMENT)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Within this context SIGTERM is an exception, so that the processes are ended first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _watch(running: Sequence[subprocess.Popen[Any]]) -> int:
    """Waits until all have ended well, or one has not: its status. What a death does to the others soon after is not an error of
    theirs: the signal counts."""
    while True:
        found = [process.poll() for process in running]
        if any(status is not None and status != 0 for status in found):
            time.sleep(MOMENT)
            later = [status for status in (process.poll() for process in running) if status]
            return min(later)
        if all(status == 0 for status in found):
            return 0
        time.sleep(MOMENT)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
