"""Solves a `ForceProblem` by a primal-dual interior-point method whose linear algebra follows the horizon.

Mehrotra's predictor and corrector (1992), every iterate strictly inside of the pyramids. A Newton step is a linear-quadratic
regulator with the forces' own 3x3 blocks R_i = effort + C^T (lambda/s) C, solved by Riccati's recursion. Forces act through six
accelerations only, so that a step of the horizon needs two 6x6 factorisations however many feet there are: with W = G R^-1 G^T =
L L^T, S = E^T P E, Y Y^T = 1 + L^T S L and F = L Y^-T,

    P <- Q + A^T (P - P E F F^T E^T P) A.

1 + L^T S L is far from singular whatever the contacts, also where all feet are in the air. Nothing but the feet's blocks depends
on the inequalities, and building the problem costs next to nothing: no matrix over the horizon is ever formed.

The derivative of the solution is implicit: one more solve with the last Newton matrix.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from flexor.control.force_problem import (
    ForceProblem,
    Scaled,
    Step,
    accelerations,
    advance,
    gradient,
    pulls,
    pushed,
    retreat,
    scaled,
    slacks,
    transposed,
)
from flexor.control.forces import AbstractForces, ForceSolution
from flexor.simd import stored


class InteriorPoint(AbstractForces):
    """The settings of the method. It stops where neither a slack times its multiplier nor the derivative of the Lagrangian is
    above `tolerance` times the weight of the effort, forces in units of the robot's weight.

    `inside` is how far from its bounds a start is moved, as a share of the normal force's range; `centring` the first slack times
    multiplier, in units of the effort; `backoff` the share of the way to the boundary that a step goes: the nearer, the fewer
    iterations, but some products then lag behind.
    """

    iterations: int = eqx.field(static=True, default=30)
    tolerance: float = 1e-5
    inside: float = 0.01
    centring: float = 0.01
    backoff: float = 0.95

    def __call__(self, problem: ForceProblem, start: Float[Array, "horizon foot 3"] | None = None) -> ForceSolution:
        """The forces; `start` are forces to begin with, those of the last time for instance. They have no derivative."""
        if start is None:
            share = problem.mass * problem.gravity / jnp.maximum(jnp.sum(problem.contact, axis=1, keepdims=True), 1)
            zero = jnp.zeros_like(problem.contact)
            start = jnp.stack([zero, zero, share * problem.contact], axis=-1)
        return _solve(self, problem, lax.stop_gradient(start))


class _Iterate(NamedTuple):
    """Forces, slacks, multipliers; largest slack times multiplier, largest residual of the Lagrangian, number of iterations."""

    f: Array
    s: Array
    z: Array
    gap: Array
    residual: Array
    turns: Array


class _Blocks(NamedTuple):
    """R of every foot as L D L^T: what its x and y rows take from z, and the inverse pivots; and friction +- l, free of
    cancellation: how much slack a normal force brings while the foot moves along the face that stops it."""

    lx: Array
    ly: Array
    dx: Array
    dy: Array
    dz: Array
    room: Float[Array, "foot 4"]


class _Newton(NamedTuple):
    """What a step of the horizon needs to solve with the Newton matrix: R of the feet; F, V = P E and S = E^T V of the state
    after it."""

    blocks: _Blocks
    F: Array
    V: Array
    S: Array


@jax.custom_jvp
def _solve(method: InteriorPoint, problem: ForceProblem, start: Array) -> ForceSolution:
    return _iterated(method, problem, start)[0]


def _iterated(method: InteriorPoint, problem: ForceProblem, start: Array) -> tuple[ForceSolution, _Iterate]:
    p = scaled(problem)
    unit = problem.mass * problem.gravity
    enough = method.tolerance * p.effort

    def unsolved(now: _Iterate) -> Array:
        return (now.turns < method.iterations) & ((now.gap > enough) | (now.residual > enough))

    last = lax.while_loop(unsolved, lambda now: _iterate(method, p, now), _inside(method, p, start / unit))
    done = (last.gap <= enough) & (last.residual <= enough)
    return ForceSolution(unit * last.f, done, last.turns), last


def _inside(method: InteriorPoint, p: Scaled, f: Array) -> _Iterate:
    """An iterate strictly inside of the inequalities, near the forces f."""
    room, gap = method.inside * (p.high - p.low), method.centring * p.effort

    def inside(_: None, item: tuple[Step, Array]) -> tuple[None, tuple[Array, Array, Array]]:
        step, f = item
        z = jnp.clip(f[:, 2], p.low + room, p.high - room)
        side = (1 - method.inside) * p.friction * z
        f = jnp.stack([jnp.clip(f[:, 0], -side, side), jnp.clip(f[:, 1], -side, side), z], axis=-1)
        f = jnp.where(step.contact[:, None] > 0, f, 0.0)
        s = slacks(p, step.contact, f)
        return None, (f, s, gap / s)

    _, (f, s, z) = lax.scan(inside, None, stored((p.steps, f)))
    return _Iterate(f, s, z, gap, jnp.full_like(gap, jnp.inf), jnp.zeros((), int))


def _iterate(method: InteriorPoint, p: Scaled, now: _Iterate) -> _Iterate:
    """Predictor and corrector. The Lagrangian's derivative is linear, so that a step of length t leaves 1 - t of it."""
    zero = jnp.zeros((), p.dt.dtype)
    factors, residuals, predictor, residual = _linearised(p, now)

    def predict(carry: Any, item: tuple[Any, ...]) -> tuple[Any, Array]:
        (x, ratio, first, second), (step, k, loads, s, z) = carry, item
        x, _, ds = _forward(p, step, k, loads, x)
        dz = -z - z / s * ds
        ratio = jnp.maximum(ratio, jnp.maximum(jnp.max(-ds / s), jnp.max(-dz / z)))
        return (x, ratio, first + jnp.sum(s * dz + z * ds), second + jnp.sum(ds * dz)), ds * dz

    start = (jnp.zeros(12, zero.dtype), zero, zero, zero)
    rows = stored((p.steps, factors, predictor, now.s, now.z))
    (_, ratio, first, second), curvature = lax.scan(predict, start, rows)
    t = 1 / jnp.maximum(ratio, 1.0)
    gap = jnp.mean(now.s * now.z)
    after = gap + (t * first + t * t * second) / curvature.size
    aim = gap * jnp.clip(after / gap, 0.0, 1.0) ** 3
    moves, t = _corrected(p, now, factors, residuals, curvature, aim)
    t = method.backoff * t
    f, s, z = (x + t * dx for x, dx in zip((now.f, now.s, now.z), moves, strict=True))
    return _Iterate(f, s, z, jnp.max(s * z), (1 - t) * residual, now.turns + 1)


class _Loads(NamedTuple):
    """A right-hand side b of the Newton system, the accelerations G R^-1 b, and E^T of the costate from behind."""

    b: Array
    push: Array
    y: Array


def _linearised(p: Scaled, now: _Iterate) -> tuple[_Newton, Array, _Loads, Array]:
    """Riccati's recursion, backwards over the horizon: the Newton matrix, the derivative of the Lagrangian, the loads of the
    predictor (towards s z = 0), and the largest element of that derivative."""

    def back(carry: Any, item: tuple[Any, ...]) -> tuple[Any, Any]:
        (c, P, costate, worst), (step, pull, f, s, z) = carry, item
        c, h = retreat(c + pull, p.dt)
        contact = step.contact[:, None] > 0
        r = jnp.where(contact, transposed(step, h) + p.effort * f - pushed(p.friction, z), 0.0)
        k, P = _factorised(p, step, z / s, P)
        b = jnp.where(contact, -pushed(p.friction, z) - r, 0.0)
        costate, loads = _backward(p, step, k, b, costate)
        return (c, P, costate, jnp.maximum(worst, jnp.max(jnp.abs(r)))), (k, r, loads)

    zeros = jnp.zeros(12, p.dt.dtype)
    start = (zeros, _weights(p), zeros, jnp.zeros((), p.dt.dtype))
    rows = stored((p.steps, pulls(p, now.f), now.f, now.s, now.z))
    (_, _, _, worst), (factors, residuals, loads) = lax.scan(back, start, rows, reverse=True)
    return factors, residuals, loads, worst


def _corrected(
    p: Scaled, now: _Iterate, factors: _Newton, residuals: Array, curvature: Array, aim: Array
) -> tuple[tuple[Array, Array, Array], Array]:
    """Changes of forces, slacks and multipliers towards s z = aim, and the longest step that keeps both positive."""

    def back(costate: Array, item: tuple[Any, ...]) -> tuple[Array, tuple[_Loads, Array]]:
        step, k, r, bend, s, z = item
        lack = (aim - s * z - bend) / s
        b = jnp.where(step.contact[:, None] > 0, pushed(p.friction, lack) - r, 0.0)
        costate, loads = _backward(p, step, k, b, costate)
        return costate, (loads, lack)

    def forth(carry: tuple[Array, Array], item: tuple[Any, ...]) -> tuple[tuple[Array, Array], Any]:
        (x, ratio), (step, k, loads, s, z, lack) = carry, item
        x, df, ds = _forward(p, step, k, loads, x)
        dz = lack - z / s * ds
        return (x, jnp.maximum(ratio, jnp.maximum(jnp.max(-ds / s), jnp.max(-dz / z)))), (df, ds, dz)

    zeros = jnp.zeros(12, p.dt.dtype)
    rows = stored((p.steps, factors, residuals, curvature, now.s, now.z))
    _, (loads, lack) = lax.scan(back, zeros, rows, reverse=True)
    start = (zeros, jnp.zeros((), p.dt.dtype))
    (_, ratio), moves = lax.scan(forth, start, stored((p.steps, factors, loads, now.s, now.z, lack)))
    return moves, 1 / jnp.maximum(ratio, 1.0)


def _weights(p: Scaled) -> Array:
    return p.weights[:, None] * jnp.eye(12, dtype=p.dt.dtype)


def _blocks(p: Scaled, stiff: Float[Array, "foot 6"]) -> _Blocks:
    """R = effort + C^T diag(stiff) C; the pivot of z is written so that nothing cancels where a foot is about to slip."""
    mu, a = p.friction, p.effort

    def pair(one: Array, other: Array) -> tuple[Array, Array, Array, list[Array]]:
        inverse = 1 / (a + one + other)
        room = [mu * (a + 2 * other) * inverse, mu * (a + 2 * one) * inverse]
        return mu * (other - one) * inverse, inverse, mu * mu * (a * (one + other) + 4 * one * other) * inverse, room

    lx, dx, zx, room_x = pair(stiff[:, 0], stiff[:, 1])
    ly, dy, zy, room_y = pair(stiff[:, 2], stiff[:, 3])
    dz = 1 / (a + zx + zy + stiff[:, 4] + stiff[:, 5])
    return _Blocks(lx, ly, dx, dy, dz, jnp.stack([*room_x, *room_y], axis=-1))


def _block_solve(b: _Blocks, x: Float[Array, "foot 3"]) -> tuple[Float[Array, "foot 3"], Float[Array, "foot 6"]]:
    """df = R^-1 x of every foot, and C df. With slacks near zero, friction f_z - f_x as a difference would be rounding."""
    z, u, v = b.dz * (x[:, 2] - b.lx * x[:, 0] - b.ly * x[:, 1]), b.dx * x[:, 0], b.dy * x[:, 1]
    room = b.room * z[:, None]
    ds = jnp.stack([room[:, 0] - u, room[:, 1] + u, room[:, 2] - v, room[:, 3] + v, z, -z], axis=-1)
    return jnp.stack([u - b.lx * z, v - b.ly * z, z], axis=-1), ds


def _compliance(step: Step, b: _Blocks) -> Float[Array, "6 6"]:
    """W = G R^-1 G^T, a sum over feet and the three directions of L^-T."""
    G = jnp.concatenate([step.turning, step.lift[:, None, None] * jnp.eye(3, dtype=step.lift.dtype)[None]], axis=1)
    gz = G[..., 2] - b.lx[:, None] * G[..., 0] - b.ly[:, None] * G[..., 1]
    W = jnp.zeros((6, 6), G.dtype)
    for g, d in ((G[..., 0], b.dx), (G[..., 1], b.dy), (gz, b.dz)):
        W = W + jnp.sum((d[:, None] * g)[:, :, None] * g[:, None], axis=0)
    return W


def _factorised(p: Scaled, step: Step, stiff: Array, P: Float[Array, "12 12"]) -> tuple[_Newton, Float[Array, "12 12"]]:
    """A step of Riccati's recursion: P after it to P before it."""
    dt = p.dt
    blocks = _blocks(p, stiff)
    V = dt * dt / 2 * P[:, :6] + dt * P[:, 6:]
    S = dt * dt / 2 * V[:6] + dt * V[6:]
    L = _compliance_factor(_compliance(step, blocks))
    F = _divided(L, *_cholesky(jnp.eye(6, dtype=dt.dtype) + L.T @ (S @ L)))
    Z = V @ F
    P = P - Z @ Z.T
    right = P[:, 6:] + dt * P[:, :6]
    lower = right[6:] + dt * right[:6]
    upper = jnp.concatenate([P[:6, :6], right[:6]], axis=1)
    return _Newton(blocks, F, V, S), _weights(p) + jnp.concatenate([upper, jnp.concatenate([right[:6].T, lower], axis=1)])


def _compliance_factor(W: Float[Array, "6 6"]) -> Float[Array, "6 6"]:
    """L with L L^T = W. Two feet leave the rotation about the line between them free: W is then singular, and the order of
    elimination (velocities, then yaw, pitch and roll) leaves the vanishing pivot to the last, where rounding does no harm."""
    order = np.array([3, 4, 5, 2, 1, 0])
    return _cholesky(W[order][:, order])[0][np.argsort(order)]


def _cholesky(M: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], list[Array]]:
    """The lower factor of a matrix that may be singular, and the inverse of its diagonal; zero where a pivot is rounding."""
    columns: list[Array] = []
    inverses: list[Array] = []
    floors = [8 * jnp.finfo(M.dtype).eps * M[k, k] for k in range(len(M))]
    for k, floor in enumerate(floors):
        pivot = M[0, 0]
        inverses.append(jnp.where(pivot > floor, lax.rsqrt(jnp.where(pivot > floor, pivot, 1.0)), 0.0))
        column = M[:, 0] * inverses[-1]
        columns.append(jnp.concatenate([jnp.zeros(k, M.dtype), column]))
        M = M[1:, 1:] - column[1:, None] * column[None, 1:]
    return jnp.stack(columns, axis=1), inverses


def _divided(L: Float[Array, "m n"], Y: Float[Array, "n n"], inverses: list[Array]) -> Float[Array, "m n"]:
    """L Y^-T for a lower factor Y."""
    columns: list[Array] = []
    for j, inverse in enumerate(inverses):
        column = L[:, j]
        for k, done in enumerate(columns):
            column = column - Y[j, k] * done
        columns.append(column * inverse)
    return jnp.stack(columns, axis=1)


def _response(k: _Newton, push: Array, h: Array) -> Array:
    """Accelerations where forces are pushed by `push` and the future pulls back with h."""
    return push - k.F @ (k.F.T @ (k.S @ push + h))


def _backward(p: Scaled, step: Step, k: _Newton, b: Array, costate: Array) -> tuple[Array, _Loads]:
    """The regulator pushed by b, backwards."""
    push, y = accelerations(step, _block_solve(k.blocks, b)[0]), retreat(costate, p.dt)[1]
    return retreat(k.V @ _response(k, push, y) + costate, p.dt)[0], _Loads(b, push, y)


def _forward(p: Scaled, step: Step, k: _Newton, loads: _Loads, x: Array) -> tuple[Array, Array, Array]:
    """And forwards: the next state, the changes of the forces, and those of the slacks."""
    h = k.V.T @ advance(x, jnp.zeros_like(loads.push), p.dt) + loads.y
    h = h + k.S @ _response(k, loads.push, h)
    df, ds = _block_solve(k.blocks, jnp.where(step.contact[:, None] > 0, loads.b - transposed(step, h), 0.0))
    return advance(x, accelerations(step, df), p.dt), df, ds


def _newton(p: Scaled, stiff: Array, b: Array) -> Array:
    """(H + C^T stiff C)^-1 b."""

    def factor(P: Array, item: tuple[Step, Array]) -> tuple[Array, _Newton]:
        k, P = _factorised(p, *item, P)
        return P, k

    def back(costate: Array, item: tuple[Step, _Newton, Array]) -> tuple[Array, _Loads]:
        return _backward(p, *item, costate)

    def forth(x: Array, item: tuple[Step, _Newton, _Loads]) -> tuple[Array, Array]:
        return _forward(p, *item, x)[:2]

    zeros = jnp.zeros(12, p.dt.dtype)
    _, factors = lax.scan(factor, _weights(p), stored((p.steps, stiff)), reverse=True)
    _, loads = lax.scan(back, zeros, stored((p.steps, factors, b)), reverse=True)
    return lax.scan(forth, zeros, stored((p.steps, factors, loads)))[1]


@_solve.defjvp
def _solve_jvp(primals: Any, tangents: Any) -> tuple[ForceSolution, ForceSolution]:
    """(H + C^T (z/s) C) df = -d(derivative of the Lagrangian) - C^T (z/s) d(slacks), both at fixed forces and multipliers."""
    problem = primals[1]
    solution, last = jax.tree.map(lax.stop_gradient, _iterated(*primals))

    def conditions(problem: ForceProblem) -> tuple[Array, Array]:
        p = scaled(problem)
        f = solution.forces / (problem.mass * problem.gravity)
        r = gradient(p, f) - jax.vmap(pushed, (None, 0))(p.friction, last.z)
        return r, jax.vmap(slacks, (None, 0, 0))(p, problem.contact, f)

    _, (dr, ds) = jax.jvp(conditions, (problem,), (tangents[1],))
    p, stiff = scaled(problem), last.z / last.s
    b = -dr - jax.vmap(pushed, (None, 0))(p.friction, stiff * ds)
    b = jnp.where(problem.contact[..., None] > 0, b, 0.0)
    none: Any = np.zeros((), jax.dtypes.float0)
    return solution, ForceSolution(problem.mass * problem.gravity * _newton(p, stiff, b), none, none)
