"""`expand`: motion and cost to first and second order along a trajectory, in a kernel with a direction in every lane."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor import simd
from flexor.control.objective import Objective
from flexor.control.tangent import displacement, moved, tangent_size
from flexor.model.model import State
from flexor.solvers import Simulator


class Expansion(NamedTuple):
    """x+ = A x + B u and a cost l_x.x + l_u.u + (x.l_xx x + 2 u.l_ux x + u.l_uu u) / 2 at each of T steps about a
    trajectory, and V_x.x + x.V_xx x / 2 at its end."""

    A: Float[Array, "T nx nx"]
    B: Float[Array, "T nx nu"]
    lx: Float[Array, "T nx"]
    lu: Float[Array, "T nu"]
    lxx: Float[Array, "T nx nx"]
    lux: Float[Array, "T nu nx"]
    luu: Float[Array, "T nu nu"]
    Vx: Float[Array, " nx"]
    Vxx: Float[Array, "nx nx"]


def lanes(sim: Simulator) -> Any:
    """`simd.vmap`, or `jax.vmap` for physics that does not compile to kernels."""
    return simd.vmap if sim.simd and sim.solver.compilable else jax.vmap


def expand(sim: Simulator, objective: Objective, states: State, controls: Float[Array, "T nu"]) -> Expansion:
    """The expansion about `states`, T + 1 of them, and `controls`. Lanes are the directions of all steps: 2 nv + na + nu each."""
    model = sim.model
    nx, dtype = tangent_size(model), model.dtype
    running, final = objective.shapes(sim)

    def along(state: State, u: Array, direction: Array) -> tuple[Array, Array, Array]:
        def after(z: Array) -> tuple[Array, Array]:
            new, cost = objective.step(sim, moved(model, state, z[:nx]), u + z[nx:])
            x = displacement(model, jax.lax.stop_gradient(new), new)
            return x, slope(z) if running.ndim == 0 else cost

        def slope(z: Array) -> Array:
            return jax.grad(lambda z: objective.running(moved(model, state, z[:nx]), u + z[nx:]))(z)

        (_, parts), (x, rates) = jax.jvp(after, (jnp.zeros_like(direction),), (direction,))
        return x, parts, rates

    def at_end(state: State, direction: Array) -> tuple[Array, Array]:
        def cost(x: Array) -> Array:
            return objective.at_end(moved(model, state, x))

        return jax.jvp(jax.grad(cost) if final.ndim == 0 else cost, (jnp.zeros_like(direction),), (direction,))

    before = jax.tree.map(lambda x: x[:-1], states)
    last = jax.tree.map(lambda x: x[-1], states)
    eye = jnp.eye(nx + model.nu, dtype=dtype)
    x, parts, rates = jax.vmap(lanes(sim)(along, (None, None, 0)), (0, 0, None))(before, controls, eye)
    J = jnp.swapaxes(x, 1, 2)
    slope, curve = _cost(parts[:, 0], rates, running.ndim == 0)
    parts, rates = lanes(sim)(at_end, (None, 0))(last, eye[:nx, :nx])
    Vx, Vxx = _cost(parts[0], rates, final.ndim == 0)
    return Expansion(J[..., :nx], J[..., nx:], slope[:, :nx], slope[:, nx:], curve[:, :nx, :nx], curve[:, nx:, :nx],
                     curve[:, nx:, nx:], Vx, Vxx)  # fmt: skip


def _cost(parts: Array, rates: Array, exact: bool) -> tuple[Array, Array]:
    """Slope and curvature: the gradient and its rates along the directions, or those of residuals, J^T r and J^T J."""
    if exact:
        return parts, (rates + jnp.swapaxes(rates, -1, -2)) / 2
    return jnp.einsum("...im,...m->...i", rates, parts), jnp.einsum("...im,...jm->...ij", rates, rates)
