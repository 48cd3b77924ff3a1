"""`Problem`: the least-squares problem of an identification, as functions of z, the free numbers.

    r_s(z, d) = W_s (y(simulate(model(z), x_s (+) d_s)) - y_s)        for every segment s with start x_s

z holds the charts' coordinates of parameters and the weights of networks; d_s moves the start of segment s, where that is free.
A segment is a lane of a SIMD kernel, and so is a column of its Jacobian.
"""

import copy
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from flexor.dynamics import integrate
from flexor.identify import chain
from flexor.identify.segments import Segments
from flexor.model.charts import Coordinates
from flexor.model.model import Control, Model, State
from flexor.simd import store
from flexor.solvers import Simulator
from flexor.spatial import take

Observe = Callable[[Model, State, dict[str, Array]], Array]
Build = Callable[[Model, dict[str, Array]], Model]
MOST = 2**20  # numbers of a Jacobian at a time
HASTE = {"xla_backend_optimization_level": 0}
START_RIDGE = 1e-6  # precision of a start in units of a chart: keeps its equations solvable where the data say nothing


class Normal(NamedTuple):
    """The normal equations at a point: with the starts' own blocks apart, since they touch only their segment; and the
    weighted errors `r` of the segments that have derivatives. Held-out ones have no part in A, g, B and the cost."""

    cost: Float[Array, ""]
    r: Float[Array, "s rows m"]
    A: Float[Array, "p p"]
    g: Float[Array, " p"]
    B: Float[Array, "s p k"]
    C: Float[Array, "s k k"]
    h: Float[Array, "s k"]


class Data(NamedTuple):
    """What may change from one identification to the next without compiling anew: the logs, and where the search starts."""

    segments: Segments
    start: Any
    prior: Any
    numbers: tuple[tuple[Any, ...], ...]


class Problem:
    """See the head of this file. `p` numbers in z, of which the first `coordinates.size` are parameters; `k` in each d_s.

    `noise_known`: whether weights are those of measured noise, so that weighted errors of one are the best possible.
    """

    def __init__(
        self, sim: Simulator, coordinates: Coordinates, segments: Segments, observe: Observe, build: Build | None,
        *, held_out: np.ndarray, networks: bool, free_start: bool, prior: np.ndarray | None = None,
        noise_known: bool = True,
    ):  # fmt: skip
        self.sim, self.coordinates, self.segments = sim, coordinates, jax.device_put(segments)
        self.observe, self.build, self.networks = observe, build, networks
        self.noise_known = noise_known
        self.interpolates = bool(np.any(np.asarray(segments.ahead)))
        self.every_step = not self.interpolates and bool(np.all(segments.at == np.arange(segments.at.shape[1])))
        self.k = 2 * sim.model.nv if free_start else 0
        weights = np.zeros(0)
        if networks:
            flat, self._unravel = ravel_pytree(eqx.filter(sim.augmentation, eqx.is_inexact_array))
            weights = np.asarray(flat)
        self.start = np.concatenate([coordinates.start, weights])
        self.p = len(self.start)
        no, yes = np.zeros(len(weights), bool), np.ones(len(weights), bool)
        self.bounded = np.concatenate([coordinates.which("bounded"), no])
        self.positive = np.concatenate([coordinates.which("positive"), no])
        self.linear = np.concatenate([coordinates.which("linear"), yes])
        self.prior = None if prior is None else np.concatenate([prior, np.zeros(len(weights))])
        self.held_out = np.asarray(held_out, bool)
        training = jax.tree.map(np.asarray, segments).take(np.flatnonzero(~self.held_out))
        self.training: Segments = jax.device_put(training)
        self.count = int(np.sum(training.weight > 0))
        self.rows: Any = chain.rows(self) if self.chained else None

    def __copy__(self) -> "Problem":
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        """Travels to other processes as what it is made of."""
        prior = None if self.prior is None else self.prior[: self.coordinates.size]
        options: dict[str, Any] = {"held_out": self.held_out, "networks": self.networks, "free_start": self.k > 0}
        made = partial(type(self), prior=prior, noise_known=self.noise_known, **options)
        return made, (self.sim, self.coordinates, jax.device_get(self.segments), self.observe, self.build)

    @property
    def chained(self) -> bool:
        """Whether derivatives are taken by the chain of the steps (`chain`)."""
        return self.build is None and chain.applies(self.sim, self.p)

    @property
    def observes_state_only(self) -> bool:
        """Whether the observations depend on the free numbers only through the state."""
        return isinstance(self.observe, Columns)

    @property
    def data(self) -> Data:
        return Data(self.segments, self.start, self.prior, self.coordinates.numbers)

    def bind(self, data: Data) -> "Problem":
        """The same problem with other data."""
        new = self.with_numbers(data.numbers)
        new.segments, new.start, new.prior = data[:3]
        new.training = data.segments.take(np.flatnonzero(~self.held_out))
        return new

    def with_numbers(self, numbers: tuple[tuple[Any, ...], ...]) -> "Problem":
        """The same problem with other numbers in the laws of its charts."""
        new = copy.copy(self)
        new.coordinates = self.coordinates.with_numbers(numbers)
        return new

    @cached_property
    def blank(self) -> "Problem":
        """The same problem with a simulator whose free numbers are blanked out, since they come from z. All programs use
        this one, so that they share the kernel `rows`."""
        new = copy.copy(self)
        sim = eqx.tree_at(lambda s: s.model, self.sim, self.coordinates.blank(self.sim.model))
        if self.networks:
            nothing = jax.tree.map(lambda x: 0 * x if eqx.is_inexact_array(x) else x, sim.augmentation)
            sim = eqx.tree_at(lambda s: s.augmentation, sim, nothing)
        new.sim = sim
        new.rows = chain.rows(new) if new.chained else None
        return new

    def key(self) -> Hashable:
        """Equal for problems that differ only in their data."""
        leaves, form = jax.tree.flatten((self.sim, self.coordinates.extra))
        arrays = tuple((x.shape, str(x.dtype), np.asarray(x).tobytes()) if eqx.is_array(x) else x for x in leaves)
        charts = tuple((c.name, c.size, c.law, c.bounded) for c in self.coordinates.charts)
        shapes = tuple(np.shape(x) for x in jax.tree.leaves(self.data))
        flags = (
            self.networks,
            self.k,
            self.interpolates,
            self.every_step,
            self.count,
            self.prior is None,
            self.held_out.tobytes(),
        )
        return arrays, form, charts, shapes, flags, self.observe, self.build

    def simulator(self, z: Float[Array, " p"]) -> tuple[Simulator, dict[str, Array]]:
        """The simulator at z, and the numbers beside the model."""
        model, extra = self.coordinates.apply(self.sim.model, z[: self.coordinates.size])
        model = model if self.build is None else self.build(model, extra)
        sim = eqx.tree_at(lambda s: s.model, self.sim, model)
        if self.networks:
            sim = eqx.tree_at(lambda s: s.augmentation, sim, self.augmentation(z))
        return sim, extra

    def augmentation(self, z: Float[Array, " p"]) -> Any:
        """The networks at z."""
        fixed = eqx.filter(self.sim.augmentation, eqx.is_inexact_array, inverse=True)
        return eqx.combine(self._unravel(z[self.coordinates.size :]), fixed)

    def flatten(self, augmentation: Any) -> Float[Array, " w"]:
        """Weights of the networks as they stand in z; the inverse of `augmentation`."""
        return ravel_pytree(eqx.filter(augmentation, eqx.is_inexact_array))[0]

    def residual(self, z: Float[Array, " p"], d: Float[Array, " k"], segment: Segments) -> Float[Array, "rows m"]:
        """Weighted errors of one segment."""
        sim, extra = self.simulator(z)
        run = sim.rollout(self.begin(sim, d, segment), Control(u=segment.u), steps=len(segment.u))
        return self.compare(sim, extra, run.q, run.qd, segment)

    def begin(self, sim: Simulator, d: Float[Array, " k"], segment: Segments) -> State:
        """The state from which a segment is simulated."""
        q, qd = segment.q, segment.qd
        if self.k:
            half = self.k // 2
            q, qd = integrate(sim.model, q, d[:half]), qd + d[half:]
        state = sim.solver.init(sim.model, State(q, qd, jnp.zeros((), q.dtype)))
        return state if segment.past is None else dataclasses.replace(state, history=segment.past)

    def compare(
        self, sim: Simulator, extra: dict[str, Array], q: Array, qd: Array, segment: Segments
    ) -> Float[Array, "rows m"]:
        """Weighted differences between the observations along a trajectory and the measurements."""
        q, qd = self._sample(q, segment), self._sample(qd, segment)
        seen = jax.vmap(lambda q, qd: self.observe(sim.model, State(q, qd, jnp.zeros((), q.dtype)), extra))(q, qd)
        return segment.weight * (seen - segment.measured)

    def _sample(self, x: Array, segment: Segments) -> Array:
        if self.every_step:
            return x[: len(segment.at)]
        here = x[segment.at]
        if not self.interpolates:
            return here
        return here + segment.ahead[:, None] * (x[jnp.minimum(segment.at + 1, len(x) - 1)] - here)

    def residuals(self, z: Array, d: Array, segments: Segments) -> Float[Array, "s rows m"]:
        """Weighted errors of many segments."""
        return jax.vmap(lambda d, s: self.residual(z, d, s))(d, segments)

    def no_start(self, segments: Segments) -> Float[Array, "s k"]:
        """Displacements d that leave every start where it is: zeros."""
        return jnp.zeros((segments.number, self.k))

    def log_prior(self, z: Array) -> Float[Array, ""]:
        """Half the squared distance from the start, in units of the prior's deviations; zero without a prior."""
        return jnp.zeros(()) if self.prior is None else 0.5 * jnp.sum(self.prior * (z - self.start) ** 2)

    def cost(self, z: Array, d: Array | None = None) -> Float[Array, ""]:
        """Half the sum of squares over the training segments, from their measured starts or those moved by d, and the prior."""
        d = self.no_start(self.training) if d is None else d[np.flatnonzero(~self.held_out)]
        return 0.5 * self._squares(self.residuals(z, d, self.training), d) + self.log_prior(z)

    def _squares(self, r: Array, d: Array) -> Float[Array, ""]:
        return jnp.sum(r**2) + START_RIDGE * jnp.sum(d**2)

    def costs(self, z: Float[Array, "n p"], d: Float[Array, "n s k"], *, most: int) -> Float[Array, " n"]:
        """The cost at several points, estimated from at most `most` training segments, evenly spaced."""
        trains = np.flatnonzero(~self.held_out)
        some = np.unique(np.linspace(0, len(trains) - 1, min(most, len(trains))).astype(int))
        d = d[:, trains[some]]
        squares = jax.vmap(self._squares)(self.errors(z, d, self.training.take(some)), d)
        return 0.5 * len(trains) / len(some) * squares + jax.vmap(self.log_prior)(z)

    def errors(self, z: Float[Array, "n p"], d: Float[Array, "n s k"], segments: Segments) -> Float[Array, "n s rows m"]:
        """Weighted errors of many segments at several points: all at once, or by the kernel that also computes their
        derivatives."""
        if self.chained:
            return jax.lax.map(lambda point: chain.residuals(self, point[0], point[1], segments), (z, d))
        return jax.vmap(lambda z, d: self.residuals(z, d, segments))(z, d)

    def linearized(
        self, z: Array, d: Array, segments: Segments
    ) -> tuple[Float[Array, "s rows m"], Float[Array, "s n columns"]]:
        """Errors of each segment and their derivatives with respect to z and its own d: by the chain rule over the steps
        where that applies (`chain`), else by forward mode, a column in each lane."""
        if self.chained:
            return chain.linearized(self, z, d, segments)

        def one(d: Array, segment: Segments) -> Array:
            def flat(x: Array) -> Array:
                return self.residual(x[: self.p], x[self.p :], segment).ravel()

            return jax.jacfwd(flat)(jnp.concatenate([z, d]))

        return self.residuals(z, d, segments), jax.vmap(one)(d, segments)

    @property
    def derived(self) -> np.ndarray:
        """Segments whose derivatives are needed: held-out ones only where their starts are free."""
        return np.arange(len(self.held_out)) if self.k else np.flatnonzero(~self.held_out)

    def normal(self, z: Array, d: Array) -> Normal:
        """J^T J and J^T r, summed over groups of segments, so that the whole J is never formed."""
        rows = self.derived
        groups = max(1, -(-len(rows) * self.segments.measured[0].size * (self.p + self.k) // MOST))
        size = -(-len(rows) // groups)
        index = np.resize(rows, (groups, size))  # the last group repeats some segments, which are masked out
        counts = (np.arange(groups * size) < len(rows)).reshape(groups, size) & ~self.held_out[index]

        def add(carry: tuple[Array, Array], group: tuple[Array, Array]) -> tuple[tuple[Array, Array], Any]:
            A, g, *own = self._group(z, d[group[0]], self.segments.take(group[0]), group[1])
            return (carry[0] + A, carry[1] + g), own

        prior = jnp.zeros(self.p) if self.prior is None else jnp.asarray(self.prior)
        start = (jnp.diag(prior), prior * (z - self.start))
        (A, g), own = jax.lax.scan(add, start, (jnp.asarray(index), jnp.asarray(counts)))
        r, B, C, h = (x.reshape(groups * size, *x.shape[2:])[: len(rows)] for x in own)
        trains = ~self.held_out[rows]
        squares = jnp.sum(r[trains] ** 2) + START_RIDGE * jnp.sum(d[rows][trains] ** 2)
        blocks = (x if self.k else jnp.zeros((len(d), *x.shape[1:])) for x in (B, C, h))
        return Normal(0.5 * squares + self.log_prior(z), r, A, g, *blocks)

    def _group(self, z: Array, d: Array, segments: Segments, counts: Array) -> tuple[Array, ...]:
        """A and g of the segments that count, and of every segment its errors and what belongs to its own start."""
        errors, J = self.linearized(z, d, segments)
        r = errors.reshape(len(d), -1)
        # `where`, not a product: a held-out segment may diverge, and 0 * nan is nan
        Jz, Jd = jnp.where(counts[:, None, None], J[..., : self.p], 0.0), J[..., self.p :]
        flat = Jz.reshape(-1, self.p)
        return (
            flat.T @ flat,
            flat.T @ jnp.where(counts[:, None], r, 0.0).ravel(),
            errors,
            jnp.einsum("snp,snk->spk", Jz, jnp.where(counts[:, None, None], Jd, 0.0)),
            jnp.einsum("snk,snl->skl", Jd, Jd) + START_RIDGE * jnp.eye(self.k, dtype=Jd.dtype)[None],
            jnp.einsum("snk,sn->sk", Jd, r) + START_RIDGE * d,
        )


def program(problem: Problem, f: Callable[..., Any], *fixed: Any, hasty: bool = False) -> Callable[..., Any]:
    """f(problem, *fixed, ...) compiled. Problems that differ only in their data share one program, so that the second log
    of a robot, or the second start, costs no compilation. `hasty` switches off
    XLA's optimisations, which shortens the compilation."""
    plain = type(problem) is Problem
    blank = problem.blank if plain else problem
    key = ("identification", f, fixed, blank.key() if plain else problem)

    def make() -> Callable[..., Any]:
        options = HASTE if hasty else None
        return jax.jit(lambda data, *args: f(blank.bind(data), *fixed, *args), compiler_options=options)

    return partial(store.keep(key, make), problem.data)


class Columns(eqx.Module):
    """Picks coordinates and velocities out of a state."""

    rows: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, model: Model, state: State, extra: dict[str, Array]) -> Any:
        return take(jnp.concatenate([state.q, state.qd]), np.array(self.rows, dtype=int))


def observe_columns(model: Model, columns: Sequence[str]) -> Observe:
    """Picks the named coordinates and velocities out of a state."""
    t = model.topology
    place: Mapping[str, int] = {
        **{f"q.{t.q_name(i)}": i for i in range(t.nq)},
        **{f"qd.{t.dof_name(i)}": t.nq + i for i in range(t.nv)},
    }
    return Columns(tuple(place[c] for c in columns))
