"""Global searches of pagmo (pygmo, an extra): its algorithms on our loss.

Algorithms that evaluate a whole generation at once (`pso_gen`, `gaco`, ...) do so in the lanes of a kernel.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flexor.identify.problem import Problem
from flexor.identify.search import AbstractSearch, BasinHopping, Outcome


class _Evolution(NamedTuple):
    members: Any
    costs: Any
    rounds: Any


class Pagmo(AbstractSearch):
    """`algorithm` names one of pygmo's (`sade`, `cmaes`, `de1220`, ...); a step evolves it by `generations`.

    Members move in the charts' coordinates: within `width` of the start, or of zero for numbers with bounds, or of both for
    positive numbers.
    """

    algorithm: str = "sade"
    population: int = 64
    generations: int = 20
    rounds: int = 10
    width: float = 6.0
    seed: int = 0
    compiled: ClassVar[bool] = False
    polished: ClassVar[bool] = True

    def init(self, problem: Problem, z: Array, key: Array) -> _Evolution:
        pg = _pygmo()
        if not hasattr(pg, self.algorithm):
            raise ValueError(f"pygmo has no algorithm '{self.algorithm}'.")
        members = np.asarray(BasinHopping(starts=self.population).init(problem, z, key).members)
        members = np.clip(members, *_box(problem, self.width))
        return _Evolution(members, _costs(problem)(members), np.zeros((), int))

    def step(self, problem: Problem, state: _Evolution) -> _Evolution:
        pg = _pygmo()
        population = pg.population(_Adapter(problem, self.width), size=0, seed=self.seed + int(state.rounds))
        for x, f in zip(np.asarray(state.members), np.asarray(state.costs), strict=True):
            population.push_back(x, [float(f)])
        algorithm = getattr(pg, self.algorithm)(gen=self.generations, seed=self.seed + int(state.rounds))
        if hasattr(algorithm, "set_bfe"):
            algorithm.set_bfe(pg.bfe())
        population = pg.algorithm(algorithm).evolve(population)
        return _Evolution(population.get_x(), population.get_f()[:, 0], state.rounds + 1)

    def outcome(self, problem: Problem, state: _Evolution) -> Outcome:
        rounds = int(state.rounds)
        message = f"the best of {self.population} members after {rounds * self.generations} generations of {self.algorithm}"
        return Outcome(rounds >= self.rounds, bool(np.min(state.costs) < HUGE), message)

    def best(self, problem: Problem, state: _Evolution) -> tuple[Array, Array, Array]:
        top = int(np.argmin(state.costs))
        return jnp.asarray(state.members[top]), problem.no_start(problem.segments), jnp.asarray(state.costs[top])

    def total(self) -> int:
        return self.rounds


HUGE = 1e30  # what pagmo sees where the cost is not a number


class _Adapter:
    """pygmo's user-defined problem."""

    def __init__(self, problem: Problem, width: float):
        low, high = _box(problem, width)
        self._bounds = low.tolist(), high.tolist()
        self._costs = _costs(problem)

    def get_bounds(self) -> tuple[list[float], list[float]]:
        return self._bounds

    def fitness(self, x: np.ndarray) -> list[float]:
        return [float(self._costs(x[None])[0])]

    def batch_fitness(self, xs: np.ndarray) -> np.ndarray:
        return self._costs(xs.reshape(-1, len(self._bounds[0])))

    def __deepcopy__(self, memory: Any) -> "_Adapter":
        return self


def _box(problem: Problem, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Where members may be."""
    start, zero = problem.start, np.zeros(problem.p)
    low = np.where(problem.bounded | problem.positive, np.minimum(start, -width), start - width)
    high = np.where(
        problem.bounded, np.maximum(start, width), np.where(problem.positive, np.maximum(start, zero), start) + width
    )
    return low, high


def _costs(problem: Problem) -> Any:
    """Costs of many members at once, compiled once for a problem."""
    if not hasattr(problem, "_pagmo_costs"):
        many = jax.jit(jax.vmap(problem.cost))

        def costs(members: np.ndarray) -> np.ndarray:
            values = np.asarray(many(jnp.asarray(members)))
            return np.where(np.isfinite(values), values, HUGE)

        problem._pagmo_costs = costs  # type: ignore[attr-defined]
    return problem._pagmo_costs  # type: ignore[attr-defined]


def _pygmo() -> Any:
    try:
        import pygmo
    except ImportError as error:
        raise ImportError("the search `Pagmo` needs the package pygmo: install flexor[pagmo].") from error
    return pygmo
