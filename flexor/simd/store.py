"""The one store of programs that are kept in memory: traces and compiled functions, the least recently used dropped first."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Programs:
    """Figures of the store: programs kept and how many may be, requests that found theirs (`hits`) or had it made (`misses`),
    programs dropped for others; kernels compiled and read from disk since the process began, and the seconds each took."""

    size: int
    capacity: int
    hits: int
    misses: int
    dropped: int
    compiled: int
    compile_seconds: float
    from_disk: int
    load_seconds: float


CAPACITY = 256
_lock = threading.RLock()
_kept: OrderedDict[Hashable, Any] = OrderedDict()
_figures = Programs(0, CAPACITY, 0, 0, 0, 0, 0.0, 0, 0.0)


def programs() -> Programs:
    """Figures of the programs that this process keeps, and of the kernels it has compiled."""
    with _lock:
        return replace(_figures, size=len(_kept))


def keep(key: Hashable, make: Callable[[], Any]) -> Any:
    """The entry for `key`; made now, and kept, if there is none."""
    found = find(key)
    return store(key, make()) if found is None else found


def find(key: Hashable) -> Any:
    """The entry for `key`, or None."""
    global _figures
    with _lock:
        found = _kept.get(key)
        if found is None:
            _figures = replace(_figures, misses=_figures.misses + 1)
        else:
            _kept.move_to_end(key)
            _figures = replace(_figures, hits=_figures.hits + 1)
        return found


def store(key: Hashable, value: Any) -> Any:
    """Keeps `value` under `key`; returns what another thread has stored there in the meantime, if it has."""
    global _figures
    with _lock:
        value = _kept.setdefault(key, value)
        while len(_kept) > _figures.capacity:
            _kept.popitem(last=False)
            _figures = replace(_figures, dropped=_figures.dropped + 1)
        return value


def clear() -> None:
    """Drops all programs that are kept; figures of compilation go on."""
    with _lock:
        _kept.clear()


def count(*, warm: bool, seconds: float) -> None:
    """Counts a kernel that was read from disk (`warm`) or compiled."""
    global _figures
    with _lock:
        f = _figures
        _figures = (
            replace(f, from_disk=f.from_disk + 1, load_seconds=f.load_seconds + seconds)
            if warm
            else replace(f, compiled=f.compiled + 1, compile_seconds=f.compile_seconds + seconds)
        )
