"""`box_qp`: a quadratic program with bounds, by the projected Newton method (Tassa, Mansard, Todorov 2014, section III-B)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float


class BoxSolution(NamedTuple):
    """The minimum, which of its coordinates are free (at no bound that holds them), and the Cholesky factor of H on those, of the
    identity elsewhere."""

    x: Float[Array, " n"]
    free: Bool[Array, " n"]
    factor: Float[Array, "n n"]


def box_qp(
    H: Float[Array, "n n"],
    g: Float[Array, " n"],
    low: Float[Array, " n"],
    high: Float[Array, " n"],
    *,
    iterations: int = 20,
    halvings: int = 8,
) -> BoxSolution:
    """The x between `low` and `high` with the least x.H x / 2 + g.x; H symmetric and positive definite, nan where it is not."""
    tolerance = 10 * jnp.finfo(g.dtype).eps
    eye = jnp.eye(len(g), dtype=g.dtype)

    def held(x: Array) -> tuple[Array, Array]:
        slope = g + H @ x
        return slope, ~(((x <= low) & (slope > 0)) | ((x >= high) & (slope < 0)))

    def factor_of(free: Array) -> Array:
        some = free.astype(g.dtype)
        return jnp.linalg.cholesky(H * some[:, None] * some[None] + eye * (1 - some)[None])

    def better(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, k, _ = carry
        slope, free = held(x)
        step = -solved(factor_of(free), jnp.where(free, slope, 0)[:, None])[:, 0]
        best, least, first = x, jnp.zeros((), g.dtype), x
        for halving in range(halvings):
            tried = jnp.clip(x + 0.5**halving * step, low, high)
            move = tried - x
            change = slope @ move + move @ (H @ move) / 2
            best, least = jnp.where(change < least, tried, best), jnp.minimum(least, change)
            first = tried if halving == 0 else first
        size = jnp.max(jnp.abs(best - x))
        more = (size > tolerance * (1 + jnp.max(jnp.abs(x)))) & (k + 1 < iterations)
        return jnp.where(jnp.isfinite(first), best, first), k + 1, more

    x = jnp.clip(jnp.zeros_like(g), low, high)
    x, _, _ = jax.lax.while_loop(lambda c: c[2], better, (x, jnp.zeros((), jnp.int32), jnp.ones((), bool)))
    free = held(x)[1]
    return BoxSolution(x, free, factor_of(free))


def solved(factor: Float[Array, "n n"], b: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """(L L^T)^-1 b."""
    return solve_triangular(factor, solve_triangular(factor, b, lower=True), lower=True, trans=1)
