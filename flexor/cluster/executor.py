"""The contract of executors.

A bag of work is one `Work` and a sequence of tasks. What a task returns follows from the work and the task alone. So it may be
done anywhere, done again where a worker was lost, and left out where its result is kept. Results come in the order of the tasks,
whatever the number of workers and whichever was first.
"""

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from flexor.files import array_bytes, read_arrays, write_whole

Arrays = dict[str, np.ndarray]
MARK = "flexor work"


class ExecutorError(ConnectionError):
    """The machines failed, not the task."""


@dataclass(frozen=True)
class Work:
    """`prepare(*given)` returns the function of one task, which returns named arrays. It is called once in every process that
    takes part, so that what it compiles there serves many tasks."""

    prepare: Callable[..., Callable[[Any], Arrays]]
    given: tuple[Any, ...] = ()


class AbstractExecutor(abc.ABC):
    """Does the tasks of a bag of work."""

    @abc.abstractmethod
    def stream(self, work: Work, tasks: Iterable[Any]) -> Iterator[Arrays]:
        """Results in the order of the tasks. Tasks are taken only a bounded number ahead of the results that have been read, so
        that memory does not grow with their number."""


@final
@dataclass(frozen=True)
class Local(AbstractExecutor):
    """This process, one task after the other, each with all of the processors."""

    def stream(self, work: Work, tasks: Iterable[Any]) -> Iterator[Arrays]:
        do = work.prepare(*work.given)
        for task in tasks:
            yield do(task)


@final
@dataclass(frozen=True)
class Kept:
    """Results by key in a folder, a safetensors file for each, which appears complete or not at all.

    `mark` says what they are results of; one with another mark is refused.
    """

    folder: Path
    mark: str

    def __contains__(self, key: str) -> bool:
        return self._file(key).is_file()

    def write(self, key: str, arrays: Arrays) -> None:
        """Keeps a result."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole({self._file(key): array_bytes(arrays, {MARK: self.mark})})

    def read(self, key: str) -> Arrays:
        """A result that was kept."""
        from safetensors import SafetensorError, safe_open

        file = self._file(key)
        try:
            with safe_open(file, "np") as opened:
                mark = (opened.metadata() or {}).get(MARK)
            arrays = read_arrays(file)
        except SafetensorError as error:
            raise ValueError(f"'{file}' is corrupt ({error}); remove it.") from error
        if mark != self.mark:
            raise ValueError(f"'{file}' is a result of other work; remove it, or name another folder.")
        return arrays

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"


def results(
    executor: AbstractExecutor,
    work: Work,
    tasks: Mapping[str, Any],
    *,
    kept: Kept | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[str, Arrays]]:
    """Keys and results of a bag of work, in the order of the tasks. With `kept`, results that are there are read instead, and new
    ones are written before they are returned: the same call after an interruption does what is missing."""
    missing = {key for key in tasks if kept is None or key not in kept}
    fresh = executor.stream(work, (task for key, task in tasks.items() if key in missing))
    for done, key in enumerate(tasks, 1):
        if key not in missing and kept is not None:
            arrays = kept.read(key)
        else:
            arrays = next(fresh)
            if kept is not None:
                kept.write(key, arrays)
        if progress is not None:
            progress(done, len(tasks))
        yield key, arrays
