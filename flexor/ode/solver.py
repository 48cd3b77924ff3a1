"""`OdeSolver`: a differential equation in continuous time behind the ordinary interface."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.dynamics import integrate
from flexor.dynamics.integrate import coordinate_rows
from flexor.model.model import Control, Model, State, as_control
from flexor.ode.field import AbstractField, RigidField
from flexor.ode.stepping import AbstractStepping, Rate, RungeKutta4
from flexor.solvers import AbstractSolver
from flexor.spatial import cross
from flexor.taps import collect_in_loop, collecting


class OdeSolver(AbstractSolver):
    """The motion of a field, known, learned or both, carried over a time step on the robot's manifold: within a step the unknown
    is the displacement from the step's beginning, so that quaternions stay unit (Munthe-Kaas 1998). Controls are held."""

    field: AbstractField = RigidField()
    stepping: AbstractStepping = RungeKutta4()

    @property
    def compilable(self) -> bool:  # type: ignore[override]
        """With steps of fixed length."""
        return self.stepping.compilable

    @property
    def passive(self) -> bool:  # type: ignore[override]
        """Of the rigid body alone: the energy of a learned field is not the one that a trajectory's status computes."""
        return self.field.passive and self.field.wrenches

    def check(self, model: Model, dt: float | None) -> None:
        self.field.check(model, dt)

    def accept(self, control: Any) -> None:
        if not self.field.wrenches and isinstance(control, Control) and control.wrench is not None:
            raise ValueError(
                f"{type(self.field).__name__} knows generalised forces only: wrenches on bodies act in `RigidField`."
            )

    def init(self, model: Model, state: State) -> State:
        return state

    def step(self, model: Model, state: State, control: Control, dt: Float[Array, ""]) -> State:
        control = as_control(model, control)
        begin = jnp.zeros_like(state.time)  # t from the step's beginning: its length does not lose digits to a late hour

        def rate(t: Any, y: tuple[Array, Array]) -> tuple[Array, Array]:
            moved, w = y
            v, change = self.field.rates(model, state.time + t, integrate(model, state.q, moved), w, control)
            return displacement_rate(model, moved, v), change

        start = jnp.zeros_like(state.qd), self.field.enter(model, state.q, state.qd)
        moved, w = self.stepping.advance(self._quiet(rate, begin, start), begin, begin + dt, start)
        q = integrate(model, state.q, moved)
        return State(q, self.field.leave(model, q, w), state.time + dt, state.memory, state.history, state.act)

    def _quiet(self, rate: Rate, t: Any, start: Any) -> Rate:
        """The rate without recorders where nothing can be recorded; the quantities at the start of the step are recorded here."""
        if not self.stepping.loops:
            return rate
        if collecting():
            rate(t, start)
        return lambda t, y: collect_in_loop(rate)(t, y)[0]


def displacement_rate(model: Model, moved: Float[Array, " nv"], v: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """Rate of the displacement from a fixed q: v + x X v / 2 + c x X (x X v) for a rotation vector x, with
    c = (1 - (a / 2) cot(a / 2)) / a^2 of its length a as a series, to 1e-8 for steps that turn by less than 1 rad."""
    rows = coordinate_rows(model)[3]
    if not len(rows):
        return v
    x, w = moved[rows], v[rows]
    a = jnp.sum(x * x, axis=-1, keepdims=True)
    turn = cross(x, w)
    c = 1 / 12 + a * (1 / 720 + a * (1 / 30240 + a / 1209600))
    return v.at[rows].add(turn / 2 + c * cross(x, turn))
