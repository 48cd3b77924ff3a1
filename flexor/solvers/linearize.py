"""`linearize`: derivatives of one step with respect to state, control and parameters, in a kernel."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

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
    """x+ = A x + B u + C p to first order, x the displacement of q in the tangent space and the change of qd.

    `A` is d(x+)/dx, (2 nv, 2 nv); `B` is d(x+)/du, (2 nv, nu); `C` by the parameter's name is d(x+)/dp, (2 nv, ...).
    `next` is the state after the step. The solver's memory (a warm start) is held fixed.
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
    so that A is square, as in MuJoCo's `mjd_transitionFD`. `parameters` are patterns of names (`fx.parameters`), to
    differentiate by.
    """
    if not sim.solver.differentiable:
        raise ValueError(f"{class_name(sim.solver)} cannot be differentiated; use RigidSolver, or finite differences.")
    if (t := sim.model.topology).na:
        raise ValueError(
            f"actuator '{t.activations[0].name}' of '{t.name}' has an activation, but `linearize` "
            "differentiates only with respect to coordinates and velocities; use `jax.jacfwd` over `sim.step`."
        )
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
    model, nv = sim.model, sim.model.nv
    free = {name: named_parameters(model, name)[name] for name in names}
    flat, unflatten = jax.flatten_util.ravel_pytree((jnp.zeros(2 * nv, model.dtype), jnp.zeros(model.nu, model.dtype), free))

    def column(state: State, control: Control, direction: Array) -> Array:
        def after(z: Array) -> tuple[Array, Array]:
            x, u, values = unflatten(z)
            robot = replace(model, values) if names else model
            moved = State(integrate(model, state.q, x[:nv]), state.qd + x[nv:], state.time, *_rest(state))
            new = sim.solver.step(robot, moved, dataclasses.replace(control, u=control.u + u), sim.dt)
            return difference(model, jax.lax.stop_gradient(new.q), new.q), new.qd

        _, rates = jax.jvp(after, (flat,), (direction,))
        return jnp.concatenate(rates)

    kernels = sim.simd and sim.solver.compilable
    columns = (simd.vmap if kernels else jax.vmap)(column, (None, None, 0))(
        state, control, jnp.eye(len(flat), dtype=model.dtype)
    )
    by_x, by_u, by_name = jax.vmap(unflatten)(columns.T)
    return Linearization(by_x, by_u, by_name, sim.step(state, control))


def _rest(state: State) -> tuple[Any, ...]:
    """The parts of a state other than coordinates, velocities and time, in the order of its fields."""
    return tuple(getattr(state, name) for name in State.__dataclass_fields__ if name not in ("q", "qd", "time"))
