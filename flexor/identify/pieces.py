"""Steps of a search whose pieces an executor does."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flexor.cluster import AbstractExecutor, Arrays, Kept, Work, results
from flexor.files import digest
from flexor.identify.problem import Problem, program
from flexor.identify.search import AbstractSearch


def spread(
    executor: AbstractExecutor, problem: Problem, search: AbstractSearch, folder: Path | None, mark: str, state: Any
) -> Any:
    """What the shared part of a search's step returns. With a folder, pieces are kept there until all are done."""
    pieces = {digest(mark.encode() + x.tobytes())[:32]: x for x in search.pieces(state)}
    kept = None if folder is None else Kept(folder, mark)
    found = [arrays for _, arrays in results(executor, Work(_share, (problem, search)), pieces, kept=kept)]
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    return tuple(np.concatenate([arrays[name] for arrays in found]) for name in found[0])


def _share(problem: Problem, search: AbstractSearch) -> Callable[[Any], Arrays]:
    """A function from a piece to what comes of it."""
    do = program(problem, _part, search)

    def one(piece: Any) -> Arrays:
        return {str(k): np.asarray(x) for k, x in enumerate(do(jax.device_put(piece)))}

    return one


def _part(problem: Problem, search: AbstractSearch, piece: Any) -> Any:
    return search.share(problem, piece)
