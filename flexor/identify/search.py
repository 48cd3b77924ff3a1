"""Searches for the minimum: one step is a pure function of a state, so that any of them can be watched, stopped and resumed."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flexor.identify.levenberg import LADDER, Point, Proposal, accept, begin, choose, iterate, proposals
from flexor.identify.problem import Problem

STUCK = 1e10  # damping at which no step lowers the cost
TOGETHER = 8  # members of a population that are one task of an executor
AT_ZERO = -2.0  # of a positive number in z: about a tenth of its size, from where it can go anywhere


class Outcome(NamedTuple):
    """Where a search stands: whether it has ended, whether that is a success, and a sentence."""

    done: bool
    ok: bool
    message: str


class AbstractSearch(eqx.Module):
    """`init` and `step` make and advance a pytree of arrays; `outcome` and `best` read it."""

    compiled: ClassVar[bool] = True
    """Whether `step` is written in JAX throughout."""
    parts: ClassVar[Mapping[str, bool | None]] = {"step": False}
    """The methods that make up a step, in order; each takes the problem, the state and the results of those before it. The
    value says whether it is compiled without XLA's optimisations (True, where kernels do the work), or runs in numpy
    uncompiled (None)."""
    shared: ClassVar[str] = ""
    """The part that an executor shares out: it concatenates what `share` returns for `pieces`. Empty where there is none."""
    free_starts: ClassVar[bool] = False
    """Whether it can estimate the starts of the segments."""
    polished: ClassVar[bool] = False
    """Whether its best point is to be polished by Levenberg-Marquardt."""

    @abc.abstractmethod
    def init(self, problem: Problem, z: Float[Array, " p"], key: Array) -> Any:
        """The state before the first step."""

    @abc.abstractmethod
    def step(self, problem: Problem, state: Any) -> Any:
        """The state after one more step."""

    @abc.abstractmethod
    def outcome(self, problem: Problem, state: Any) -> Outcome:
        """Where it stands."""

    @abc.abstractmethod
    def best(self, problem: Problem, state: Any) -> tuple[Array, Array, Array]:
        """z, the moved starts d, and the cost."""

    @abc.abstractmethod
    def total(self) -> int:
        """Largest number of steps."""

    def pieces(self, state: Any) -> list[np.ndarray]:
        """What a step does independently of each other: arrays with a row for each, few enough for a task."""
        raise NotImplementedError

    def share(self, problem: Problem, piece: Array) -> Any:
        """What the shared part makes of a piece: a tree of arrays with a row for each."""
        raise NotImplementedError


class LevenbergMarquardt(AbstractSearch):
    """Least squares from one start (`levenberg.py`). Ends when a step lowers the cost by less than `tolerance` of it."""

    iterations: int = 100
    tolerance: float = 1e-8
    parts: ClassVar[Mapping[str, bool | None]] = {"propose": None, "choose": True, "accept": False}
    free_starts: ClassVar[bool] = True

    def init(self, problem: Problem, z: Array, key: Array) -> Point:
        return begin(problem, z)

    def step(self, problem: Problem, state: Point) -> Point:
        proposed = self.propose(problem, state)
        return self.accept(problem, state, proposed, self.choose(problem, state, proposed))

    def propose(self, problem: Problem, state: Point) -> Proposal:
        return proposals(problem, state, LADDER)

    def choose(self, problem: Problem, state: Point, proposed: Proposal) -> Proposal:
        return choose(problem, proposed)

    def accept(self, problem: Problem, state: Point, proposed: Proposal, chosen: Proposal) -> Point:
        return accept(problem, state, chosen, LADDER)

    def outcome(self, problem: Problem, state: Point) -> Outcome:
        count = int(state.done)
        if count and not np.isfinite(float(state.normal.cost)):
            return Outcome(True, False, "the simulation diverges at the initial parameters: start from others")
        if float(state.gain) < self.tolerance:
            return Outcome(True, True, f"converged after {count} iterations")
        if float(state.damping) >= STUCK:
            return Outcome(True, True, f"converged after {count} iterations: no step lowers the cost further")
        return Outcome(count >= self.iterations, False, f"stopped after {count} iterations without converging")

    def best(self, problem: Problem, state: Point) -> tuple[Array, Array, Array]:
        return state.z, state.d, state.normal.cost

    def total(self) -> int:
        return self.iterations


class _Population(NamedTuple):
    members: Float[Array, "n p"]
    z: Float[Array, " p"]
    d: Float[Array, "s k"]
    cost: Float[Array, ""]
    key: Array
    rounds: Int[Array, ""]
    since: Int[Array, ""]


class BasinHopping(AbstractSearch):
    """Monotonic basin hopping by a population (McCarty, Burke & McGuire 2018; Heiden et al. 2021, section III-B).

    In a round each of `starts` members goes `local` Levenberg-Marquardt iterations downhill, all of them in the lanes of one
    kernel. The next round starts around the best point so far: half of the members mutate it by a Gaussian of `spread` of each
    parameter's range (of its size, where it has no bounds), one goes on from it, the rest are drawn from everywhere. Ends after
    `rounds`, or when the errors are down to the noise (where that is given: mean square of the weighted errors below `enough`),
    or after `patience` rounds without improvement.
    """

    starts: int = 64
    rounds: int = 10
    local: int = 12
    spread: float = 0.2
    enough: float = 1.2
    patience: int = 4
    parts: ClassVar[Mapping[str, bool | None]] = {"descend": False, "gather": False}
    shared: ClassVar[str] = "descend"
    free_starts: ClassVar[bool] = True
    polished: ClassVar[bool] = True

    def init(self, problem: Problem, z: Array, key: Array) -> _Population:
        key, own = jax.random.split(key)
        members = self._draw(problem, z, own).at[0].set(z)
        zero = jnp.zeros((), int)
        return _Population(members, z, problem.no_start(problem.segments), jnp.asarray(jnp.inf), key, zero, zero)

    def step(self, problem: Problem, state: _Population) -> _Population:
        return self.gather(problem, state, self.descend(problem, state))

    def descend(self, problem: Problem, state: _Population) -> tuple[Array, Array, Array]:
        """Where all members arrive, with their starts and costs."""
        return self.share(problem, state.members)

    def pieces(self, state: _Population) -> list[np.ndarray]:
        members = np.asarray(state.members)
        return [members[k : k + TOGETHER] for k in range(0, len(members), TOGETHER)]

    def share(self, problem: Problem, piece: Float[Array, "n p"]) -> tuple[Array, Array, Array]:
        def downhill(z: Array) -> tuple[Array, Array, Array]:
            point = jax.lax.fori_loop(0, self.local + 1, lambda _, p: iterate(problem, p), begin(problem, z))
            return point.z, point.d, point.normal.cost

        return jax.vmap(downhill)(piece)

    def gather(self, problem: Problem, state: _Population, descended: tuple[Array, Array, Array]) -> _Population:
        """The state after a round, from where its members have arrived."""
        found, moved, costs = descended
        costs = jnp.where(jnp.isfinite(costs), costs, jnp.inf)
        top = jnp.argmin(costs)
        better = costs[top] < state.cost
        z, d = jnp.where(better, found[top], state.z), jnp.where(better, moved[top], state.d)
        cost = jnp.minimum(costs[top], state.cost)
        since = jnp.where(costs[top] < 0.999 * state.cost, 0, state.since + 1)
        key, near, far = jax.random.split(state.key, 3)
        members = self._mutate(problem, z, near)
        members = jnp.where((jnp.arange(self.starts) % 2 == 0)[:, None], members, self._draw(problem, z, far)).at[0].set(z)
        return _Population(members, z, d, cost, key, state.rounds + 1, since)

    def _draw(self, problem: Problem, z: Array, key: Array) -> Float[Array, "n p"]:
        """Anywhere: uniform between bounds, a factor of e either way for sizes, more for those that started at zero."""
        shape = (self.starts, problem.p)
        a, b = jax.random.split(key)
        anywhere = _logit(jax.random.uniform(a, shape, minval=0.01, maxval=0.99))
        at_zero = problem.positive & (problem.start < AT_ZERO)
        centre, width = jnp.where(at_zero, AT_ZERO, problem.start), jnp.where(at_zero, 2.0, 1.0)
        return jnp.where(problem.bounded, anywhere, centre[None] + width[None] * jax.random.normal(b, shape))

    def _mutate(self, problem: Problem, z: Array, key: Array) -> Float[Array, "n p"]:
        noise = self.spread * jax.random.normal(key, (self.starts, problem.p))
        share = jnp.clip(jax.nn.sigmoid(z)[None] + noise, 0.005, 0.995)
        return jnp.where(problem.bounded, _logit(share), z[None] + noise)

    def outcome(self, problem: Problem, state: _Population) -> Outcome:
        rounds, cost = int(state.rounds), float(state.cost)
        if rounds and problem.noise_known and 2 * cost / problem.count < self.enough:
            return Outcome(True, True, f"the errors are down to the noise after {rounds} rounds of {self.starts} starts")
        if int(state.since) >= self.patience and np.isfinite(cost):
            return Outcome(
                True, True, f"{self.patience} rounds of {self.starts} starts found nothing better, {rounds} in all"
            )
        if rounds >= self.rounds and not np.isfinite(cost):
            return Outcome(True, False, "no start gave a finite simulation")
        return Outcome(rounds >= self.rounds, True, f"the best of {rounds} rounds of {self.starts} starts")

    def best(self, problem: Problem, state: _Population) -> tuple[Array, Array, Array]:
        return state.z, state.d, state.cost

    def total(self) -> int:
        return self.rounds


def _logit(x: Array) -> Array:
    return jnp.log(x / (1 - x))
