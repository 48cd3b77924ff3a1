"""`Problem`: the least-squares problem of an identification, as functions of z, the free numbers.

    r_s(z, d) = W_s (y(simulate(model(z), x_s (+) d_s)) - y_s)        for every segment s with start x_s

z holds the charts' coordinates of parameters and the weights of networks; d_s moves the start of segment s, where that is free.
A segment is a lane of a SIMD kernel, and so is a column of its Jacobian.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from flexor.dynamics import integrate
from flexor.identify.segments import Segments
from flexor.model.charts import Coordinates
from flexor.model.model import Control, Model, State
from flexor.solvers import HybridSolver, Simulator

Observe = Callable[[Model, State, dict[str, Array]], Array]
Build = Callable[[Model, dict[str, Array]], Model]
START_RIDGE = 1e-6  # precision of a start in units of a chart: keeps its equations solvable where the data say nothing


class Normal(NamedTuple):
    """The normal equations at a point: with the starts' own blocks apart, since they touch only their segment; and the
    weighted errors `r`. Held-out segments have errors and a start, but no part in A, g, B and the cost."""

    cost: Float[Array, ""]
    r: Float[Array, "s rows m"]
    A: Float[Array, "p p"]
    g: Float[Array, " p"]
    B: Float[Array, "s p k"]
    C: Float[Array, "s k k"]
    h: Float[Array, "s k"]


class Problem:
    """See the head of this file. `p` numbers in z, of which the first `coordinates.size` are parameters; `k` in each d_s.

    `noise_known`: whether weights are those of measured noise, so that weighted errors of one are as good as it gets.
    """

    def __init__(
        self, sim: Simulator, coordinates: Coordinates, segments: Segments, observe: Observe, build: Build | None,
        *, held_out: np.ndarray, networks: bool, free_start: bool, prior: np.ndarray | None = None,
        noise_known: bool = True,
    ):  # fmt: skip
        self.sim, self.coordinates, self.segments = sim, coordinates, jax.tree.map(jnp.asarray, segments)
        self.observe, self.build, self.networks = observe, build, networks
        self.noise_known = noise_known
        self.interpolates = bool(np.any(np.asarray(segments.ahead)))
        self.k = 2 * sim.model.nv if free_start else 0
        weights = np.zeros(0)
        if networks:
            assert isinstance(sim.solver, HybridSolver)
            flat, self._unravel = ravel_pytree(eqx.filter(sim.solver.augmentation, eqx.is_inexact_array))
            weights = np.asarray(flat)
        self.start = np.concatenate([coordinates.start, weights])
        self.p = len(self.start)
        no, yes = np.zeros(len(weights), bool), np.ones(len(weights), bool)
        self.bounded = np.concatenate([coordinates.which("bounded"), no])
        self.positive = np.concatenate([coordinates.which("positive"), no])
        self.linear = np.concatenate([coordinates.which("linear"), yes])
        self.prior = None if prior is None else np.concatenate([prior, np.zeros(len(weights))])
        self.held_out = np.asarray(held_out, bool)
        self.training: Segments = self.segments.take(np.flatnonzero(~self.held_out))
        self.count = int(np.sum(np.asarray(self.training.weight) > 0))

    def simulator(self, z: Float[Array, " p"]) -> tuple[Simulator, dict[str, Array]]:
        """The simulator at z, and the numbers beside the model."""
        model, extra = self.coordinates.apply(self.sim.model, z[: self.coordinates.size])
        model = model if self.build is None else self.build(model, extra)
        sim = eqx.tree_at(lambda s: s.model, self.sim, model)
        if self.networks:
            sim = eqx.tree_at(lambda s: s.solver.augmentation, sim, self.augmentation(z))
        return sim, extra

    def augmentation(self, z: Float[Array, " p"]) -> Any:
        """The networks at z."""
        assert isinstance(self.sim.solver, HybridSolver)
        fixed = eqx.filter(self.sim.solver.augmentation, eqx.is_inexact_array, inverse=True)
        return eqx.combine(self._unravel(z[self.coordinates.size :]), fixed)

    def flatten(self, augmentation: Any) -> Float[Array, " w"]:
        """Weights of the networks as they stand in z; the inverse of `augmentation`."""
        return ravel_pytree(eqx.filter(augmentation, eqx.is_inexact_array))[0]

    def residual(self, z: Float[Array, " p"], d: Float[Array, " k"], segment: Segments) -> Float[Array, "rows m"]:
        """Weighted errors of one segment."""
        sim, extra = self.simulator(z)
        q, qd = segment.q, segment.qd
        if self.k:
            half = self.k // 2
            q, qd = integrate(sim.model, q, d[:half]), qd + d[half:]
        state = sim.solver.init(sim.model, State(q, qd, jnp.zeros((), q.dtype)))
        trajectory = sim.rollout(state, Control(u=segment.u), steps=len(segment.u))
        q, qd = self._sample(trajectory.q, segment), self._sample(trajectory.qd, segment)
        seen = jax.vmap(lambda q, qd: self.observe(sim.model, State(q, qd, jnp.zeros((), q.dtype)), extra))(q, qd)
        return segment.weight * (seen - segment.measured)

    def _sample(self, x: Array, segment: Segments) -> Array:
        here = x[segment.at]
        if not self.interpolates:
            return here
        return here + segment.ahead[:, None] * (x[jnp.minimum(segment.at + 1, len(x) - 1)] - here)

    def residuals(self, z: Array, d: Array, segments: Segments) -> Float[Array, "s rows m"]:
        """Weighted errors of many segments."""
        return jax.vmap(lambda d, s: self.residual(z, d, s))(d, segments)

    def no_start(self, segments: Segments) -> Float[Array, "s k"]:
        """Starts that were not moved."""
        return jnp.zeros((segments.number, self.k))

    def log_prior(self, z: Array) -> Float[Array, ""]:
        """Half the squared distance from the start, in units of the prior's deviations; zero without a prior."""
        return jnp.zeros(()) if self.prior is None else 0.5 * jnp.sum(self.prior * (z - self.start) ** 2)

    def cost(self, z: Array) -> Float[Array, ""]:
        """Half the sum of squares over the training segments from their measured starts, and the prior."""
        return 0.5 * jnp.sum(self.residuals(z, self.no_start(self.training), self.training) ** 2) + self.log_prior(z)

    def normal(self, z: Array, d: Array) -> Normal:
        """J^T J and J^T r, by forward mode: a column of the Jacobian is a lane."""

        def one(d: Array, segment: Segments) -> tuple[Array, Array]:
            def flat(x: Array) -> tuple[Array, Array]:
                r = self.residual(x[: self.p], x[self.p :], segment)
                return r.ravel(), r

            return jax.jacfwd(flat, has_aux=True)(jnp.concatenate([z, d]))[::-1]

        full, J = jax.vmap(one)(d, self.segments)
        r = full.reshape(len(d), -1)
        Jz, Jd = J[..., : self.p], J[..., self.p :]
        trains = jnp.asarray(~self.held_out, r.dtype)
        prior = jnp.zeros(self.p) if self.prior is None else jnp.asarray(self.prior)
        ridge = START_RIDGE * trains @ jnp.sum(d**2, axis=1)
        return Normal(
            0.5 * (trains @ jnp.sum(r**2, axis=1) + ridge) + self.log_prior(z),
            full,
            jnp.einsum("s,snp,snq->pq", trains, Jz, Jz) + jnp.diag(prior),
            jnp.einsum("s,snp,sn->p", trains, Jz, r) + prior * (z - self.start),
            jnp.einsum("s,snp,snk->spk", trains, Jz, Jd),
            jnp.einsum("snk,snl->skl", Jd, Jd) + START_RIDGE * jnp.eye(self.k),
            jnp.einsum("snk,sn->sk", Jd, r) + START_RIDGE * d,
        )


def observe_columns(model: Model, columns: Sequence[str]) -> Observe:
    """Picks the named coordinates and velocities out of a state."""
    t = model.topology
    place: Mapping[str, int] = {
        **{f"q.{t.q_name(i)}": i for i in range(t.nq)},
        **{f"qd.{t.dof_name(i)}": t.nq + i for i in range(t.nv)},
    }
    rows = np.array([place[c] for c in columns], dtype=int)

    def observe(model: Model, state: State, extra: dict[str, Array]) -> Any:
        return jnp.concatenate([state.q, state.qd])[rows]

    return observe
