"""Derivatives of simulated segments with respect to many free numbers, by the chain rule over their steps.

    qd+ = f(q, qd, z, u),    q+ = q + h qd+
    dqd+/dx = f_q dq/dx + f_qd dqd/dx + f_z dz/dx        x = (z, d): the free numbers and the segment's own start

Forward mode through a rollout costs a simulation for each of the p numbers. Here a row of [f_z f_q f_qd] is one reverse pass
through one step, so a step costs nv of them however many numbers are free; the rest are products of small matrices. A row is
a lane of a SIMD kernel. The derivatives are the same up to the order of summation.

This works for robots of hinges and slides without contact and limits, under semi-implicit Euler, where q+ follows from qd+
as above.

Errors without derivatives, for many z, use the same kernel and skip its reverse pass, so there is nothing more to compile.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor import simd
from flexor.identify.segments import Segments
from flexor.model.model import State, as_control
from flexor.solvers import Simulator

if TYPE_CHECKING:
    from flexor.identify.problem import Problem

WORTH = 3  # free numbers for each velocity from which the chain is cheaper


def applies(sim: Simulator, p: int) -> bool:
    """Whether q+ = q + h qd+ holds for this simulator, and p is large enough for the chain to be cheaper."""
    t = sim.model.topology
    return t.nq == t.nv and sim.solver.moves_by_velocity(sim.model) and p >= WORTH * t.nv


def rows(problem: "Problem") -> Callable[..., Any]:
    """The kernel: `_row` in many lanes, which share the charts' numbers, z and the flag that asks for derivatives."""
    lanes = simd.vmap if problem.sim.simd else jax.vmap
    axes = (None, None, None, 0, 0, 0)
    return lanes(lambda numbers, *lane: _row(problem.with_numbers(numbers), *lane), in_axes=axes)


def residuals(problem: "Problem", z: Array, d: Array, segments: Segments) -> Float[Array, "s rows m"]:
    """Weighted errors of segments."""
    sim, extra = problem.simulator(z)
    begin, u = _begin(problem, sim, d, segments)
    weights = jnp.zeros((segments.number, problem.sim.model.nv))

    def step(state: State, u: Array) -> tuple[State, tuple[Array, Array]]:
        return problem.rows(problem.coordinates.numbers, z, False, state, u, weights)[0], (state.q, state.qd)

    q, qd = jax.lax.scan(step, begin, u)[1]
    return jax.vmap(lambda *x: problem.compare(sim, extra, *x), (1, 1, 0))(q, qd, segments)


def linearized(problem: "Problem", z: Array, d: Array, segments: Segments) -> tuple[Array, Array]:
    """Weighted errors of segments, and their derivatives with respect to (z, d), a column for each number."""
    sim, extra = problem.simulator(z)
    q, qd, Q, V = _trajectories(problem, sim, z, d, segments)

    def errors(z: Array, q: Array, qd: Array, segment: Segments) -> Array:
        made = (sim, extra) if problem.observes_state_only else problem.simulator(z)
        return problem.compare(*made, q, qd, segment).ravel()

    def column(q: Array, qd: Array, segment: Segments, dz: Array, dq: Array, dqd: Array) -> Array:
        return jax.jvp(lambda z, q, qd: errors(z, q, qd, segment), (z, q, qd), (dz, dq, dqd))[1]

    columns = jax.vmap(column, (None, None, None, 1, 2, 2), 1)
    r = jax.vmap(lambda *x: problem.compare(sim, extra, *x), (1, 1, 0))(q, qd, segments)
    return r, jax.vmap(columns, (1, 1, 0, None, 1, 1))(q, qd, segments, jnp.eye(problem.p, Q.shape[-1]), Q, V)


def _trajectories(
    problem: "Problem", sim: Simulator, z: Array, d: Array, segments: Segments
) -> tuple[Array, Array, Array, Array]:
    """q and qd of all segments, time first, and their derivatives with respect to (z, d), a column for each number."""
    n, p, s = problem.sim.model.nv, problem.p, segments.number
    weights = jnp.tile(jnp.eye(n), (s, 1))

    def step(carry: tuple[State, Array, Array], u: Array) -> tuple[Any, Any]:
        state, Q, V = carry
        many = jax.tree.map(lambda x: jnp.repeat(x, n, axis=0), (state, u))
        new, fz, fq, fv = problem.rows(problem.coordinates.numbers, z, True, *many, weights)
        new = jax.tree.map(lambda x: x[::n], new)
        fz, fq, fv = (x.reshape(s, n, -1) for x in (fz, fq, fv))
        V = jnp.pad(fz, ((0, 0), (0, 0), (0, problem.k))) + _product(fq, Q) + _product(fv, V)
        return (new, Q + problem.sim.dt * V, V), (state.q, state.qd, *carry[1:])

    state, u = _begin(problem, sim, d, segments)
    own = jnp.zeros((2, n, p + problem.k)).at[:, :, p:].set(jnp.eye(problem.k).reshape(2, n, -1) if problem.k else 0.0)
    Q, V = jnp.broadcast_to(own[:, None], (2, s, *own.shape[1:]))
    return jax.lax.scan(step, (state, Q, V), u)[1]


def _begin(problem: "Problem", sim: Simulator, d: Array, segments: Segments) -> tuple[State, Array]:
    """Initial states and controls of the segments, time first. One more step follows the end, since the scans return the
    state before each step."""
    state = jax.vmap(lambda d, segment: problem.begin(sim, d, segment))(d, segments)
    return state, jnp.pad(jnp.swapaxes(segments.u, 0, 1), ((0, 1), (0, 0), (0, 0)))


def _product(a: Float[Array, "s n n"], b: Float[Array, "s n x"]) -> Float[Array, "s n x"]:
    """a b for every segment, written out: XLA makes one loop over x of it instead of calling a routine for each product."""
    return sum((a[:, :, i, None] * b[:, None, i] for i in range(a.shape[2])), jnp.zeros(()))


def _row(
    problem: "Problem", z: Float[Array, " p"], derive: Array, state: State, u: Array, weight: Float[Array, " nv"]
) -> Any:
    """The state one step later, and the derivatives of weight . qd+ with respect to z, q and qd; zeros unless `derive`."""

    def velocity(z: Array, q: Array, qd: Array) -> tuple[Array, State]:
        sim = problem.simulator(z)[0]
        new = sim.solver.step(
            sim.model, State(q, qd, state.time, state.memory, state.history, state.act), as_control(sim.model, u), sim.dt
        )
        return new.qd, new

    at = (z, state.q, state.qd)
    _, pull, new = jax.vjp(velocity, *at, has_aux=True)
    return new, *jax.lax.cond(derive, pull, lambda _: tuple(jnp.zeros_like(x) for x in at), weight)
