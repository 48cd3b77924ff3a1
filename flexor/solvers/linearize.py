"""`linearize`: derivatives of one step with respect to state, control and parameters, in a kernel."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flexor import simd
from flexor.dynamics import difference, integrate
from flexor.model.model import Control, State, as_control, check_coordinates
from flexor.model.parameters import parameters as named_parameters
from flexor.model.parameters import replace
from flexor.solvers.compiled import compiled
from flexor.solvers.simulator import Simulator
from flexor.solvers.solver import class_name


class Linearization(NamedTuple):
    """x+ = A x + B u + C p to first order, x the displacement of q in the tangent space and the changes of qd and of the
    activations, nx = 2 nv + na numbers.

    `A` is d(x+)/dx, (nx, nx); `B` is d(x+)/du, (nx, nu); `C` by the parameter's name is d(x+)/dp, (nx, ...).
    `next` is the state after the step. The solver's memory (a warm start) and past inputs of delayed actuators are held fixed.
    """

    A: Float[Array, "nx nx"]
    B: Float[Array, "nx nu"]
    C: dict[str, Array]
    next: State


def linearize(
    sim: Simulator, state: State, control: ArrayLike | Control | None = None, *, parameters: Sequence[str] = ()
) -> Linearization:
    """Derivatives of `sim.step` at a state and a control, exact as all of JAX's (see `docs/contact.md` for those of contacts).

    Displacements of q are those of `integrate` and `difference`: for a free joint linear in the world and angular in the body,
    so that A is square, in the order of MuJoCo's `mjd_transitionFD`. `parameters` are patterns of names (`fx.parameters`), to
    differentiate by.
    """
    if not sim.solver.differentiable:
        raise ValueError(f"{class_name(sim.solver)} cannot be differentiated; use RigidSolver, or finite differences.")
    check_coordinates(sim.model, state.q, state.qd)
    sim.solver.accept(control)
    names: list[str] = []
    for pattern in parameters:
        found = list(named_parameters(sim.model, pattern))
        if not found:
            raise KeyError(f"no parameter of '{sim.model.topology.name}' matches '{pattern}'.")
        names += [n for n in found if n not in names]
    return compiled(_linearize, sim, (state, as_control(sim.model, control), tuple(names)), inner=True)


def _linearize(sim: Simulator, state: State, control: Control, names: tuple[str, ...]) -> Linearization:
    """A lane for every direction: the step itself is computed once for all, its tangents in the lanes."""
    model, nv, na = sim.model, sim.model.nv, sim.model.topology.na
    free = {name: named_parameters(model, name)[name] for name in names}
    flat, unflatten = jax.flatten_util.ravel_pytree(
        (jnp.zeros(2 * nv + na, model.dtype), jnp.zeros(model.nu, model.dtype), free)
    )

    def column(state: State, control: Control, direction: Array) -> Array:
        def after(z: Array) -> tuple[Array, ...]:
            x, u, values = unflatten(z)
            robot = replace(model, values) if names else model
            moved = dataclasses.replace(state, q=integrate(model, state.q, x[:nv]), qd=state.qd + x[nv : 2 * nv])
            moved = moved if state.act is None else dataclasses.replace(moved, act=state.act + x[2 * nv :])
            new = sim.solver.step(robot, moved, dataclasses.replace(control, u=control.u + u), sim.dt)
            moves = difference(model, jax.lax.stop_gradient(new.q), new.q), new.qd
            return moves if new.act is None else (*moves, new.act)

        _, rates = jax.jvp(after, (flat,), (direction,))
        return jnp.concatenate(rates)

    kernels = sim.simd and sim.solver.compilable
    columns = (simd.vmap if kernels else jax.vmap)(column, (None, None, 0))(
        state, control, jnp.eye(len(flat), dtype=model.dtype)
    )
    by_x, by_u, by_name = jax.vmap(unflatten)(columns.T)
    return Linearization(by_x, by_u, by_name, sim.step(state, control))
