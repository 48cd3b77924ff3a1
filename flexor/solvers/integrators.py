"""Time integrators of the rigid solver.

Each takes `acceleration(stage, q, qd, extra_inertia)`, the forward dynamics under the controls of a stage, and returns q and qd a
time dt later. `activate` says what these controls are: they differ by the activations of actuators.
"""

import abc
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from flexor.dynamics import displacement_rate, integrate
from flexor.dynamics.activation import activated, stage_activations
from flexor.model.model import Control, Model

Acceleration = Callable[[int, Array, Array, Array | None], Array]
Activated = tuple[tuple[Control, ...], Float[Array, " na"] | None]


class AbstractIntegrator(eqx.Module):
    """A one-step method. `impulses` says whether velocity-level contact can be solved within its step, `moves_by_velocity`
    whether q+ = q (+) dt qd+, and `stages` how often it asks for accelerations."""

    impulses: ClassVar[bool] = False
    moves_by_velocity: ClassVar[bool] = False
    stages: ClassVar[int] = 1

    @abc.abstractmethod
    def advance(
        self, model: Model, acceleration: Acceleration, q: Array, qd: Array, dt: Float[Array, ""]
    ) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
        """Coordinates and velocities after dt."""

    def activate(self, model: Model, act: Array | None, control: Control, dt: Float[Array, ""]) -> Activated:
        """The controls of the stages, in which activations stand in the place of inputs, and the activations after dt. Here they
        are held over the step."""
        held, new = activated(model, act, control, dt)
        return (held,) * self.stages, new

    def extra_inertia(self, model: Model, dt: Float[Array, ""]) -> Float[Array, " nv"] | None:
        """What is added to the diagonal of M in the step, or None."""
        return None


class SemiImplicitEuler(AbstractIntegrator):
    """qd+ = qd + h a(q, qd), q+ = q (+) h qd+. Order one, symplectic for conservative systems."""

    impulses: ClassVar[bool] = True
    moves_by_velocity: ClassVar[bool] = True

    def advance(
        self, model: Model, acceleration: Acceleration, q: Array, qd: Array, dt: Float[Array, ""]
    ) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
        qd = qd + dt * acceleration(0, q, qd, self.extra_inertia(model, dt))
        return integrate(model, q, dt * qd), qd


class ImplicitDamping(SemiImplicitEuler):
    """Semi-implicit Euler with the joints' damping D taken at the end of the step: M + h D in place of M.

    Stable for any damping; what MuJoCo's `Euler` integrator does.
    """

    def extra_inertia(self, model: Model, dt: Float[Array, ""]) -> Float[Array, " nv"]:
        return dt * model.joints.damping[model.topology.dof_joint]


class RK4(AbstractIntegrator):
    """The classical Runge-Kutta method, on the group for rotations (Munthe-Kaas 1998). Order four for smooth forces."""

    stages: ClassVar[int] = 4

    def advance(
        self, model: Model, acceleration: Acceleration, q: Array, qd: Array, dt: Float[Array, ""]
    ) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
        moved, v = 0 * qd, qd
        rates, accelerations = [], []
        for stage, ahead in enumerate((0.5, 0.5, 1.0, None)):
            rates.append(displacement_rate(model, moved, v))
            accelerations.append(acceleration(stage, integrate(model, q, moved), v, None))
            if ahead is not None:
                moved, v = ahead * dt * rates[-1], qd + ahead * dt * accelerations[-1]
        (r1, r2, r3, r4), (a1, a2, a3, a4) = rates, accelerations
        step = dt / 6 * (r1 + 2 * r2 + 2 * r3 + r4)
        return integrate(model, q, step), qd + dt / 6 * (a1 + 2 * a2 + 2 * a3 + a4)

    def activate(self, model: Model, act: Array | None, control: Control, dt: Float[Array, ""]) -> Activated:
        return stage_activations(model, act, control, dt)


class SplitRK4(RK4):
    """RK4 for all smooth forces, then the impulses of contacts, limits and equalities over the whole step, which are of order
    one. Where nothing touches, a step is MuJoCo's `RK4`, exact filters of actuators included (`RK4` takes these exactly)."""

    impulses: ClassVar[bool] = True

    def activate(self, model: Model, act: Array | None, control: Control, dt: Float[Array, ""]) -> Activated:
        return stage_activations(model, act, control, dt, mean_rates=True)
