"""`RigidSolver`: articulated rigid bodies under forces, contact and the constraints of their joints."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.contact import NCP, AbstractContact, FreeStep, Instant, NoContact
from flexor.dynamics import (
    aba,
    actuator_force,
    actuator_forces,
    bias_force,
    body_poses,
    body_velocities,
    crba,
    fluid_wrenches,
    forward_kinematics,
    gravity_force,
    integrate,
    passive_force,
)
from flexor.dynamics.activation import no_activation
from flexor.dynamics.crba import factor_inertia, solve_inertia
from flexor.dynamics.rnea import from_nodes, node_wrenches
from flexor.model.delay import check_delays, delayed, empty_history
from flexor.model.mocap import with_mocap
from flexor.model.model import Control, Model, State, as_control
from flexor.solvers.integrators import AbstractIntegrator, SemiImplicitEuler
from flexor.solvers.solver import AbstractSolver, class_name
from flexor.spatial import take
from flexor.taps import listening, tap


class RigidSolver(AbstractSolver):
    """Rigid-body dynamics. `contact` is `NCP()` (default), `Penalty()`, `Mixed()`: both, or None: no contact between shapes;
    limits, dry friction and equalities of the joints then hold as with `NCP()`."""

    passive: ClassVar[bool] = True
    contact: AbstractContact | None = NCP()
    integrator: AbstractIntegrator = SemiImplicitEuler()

    @property
    def _contact(self) -> AbstractContact:
        return NoContact() if self.contact is None else self.contact

    def check(self, model: Model, dt: float | None) -> None:
        sources = self._contact.sources(model)
        if sources and not self.integrator.impulses:
            raise ValueError(
                f"{class_name(self._contact)} works with impulses over a step, which {class_name(self.integrator)} does not "
                f"support: use contact=Penalty() with it, or integrator=SemiImplicitEuler(). '{model.topology.name}' has "
                f"{', '.join(sources)}; `load` with `ignore` leaves out what is not wanted."
            )
        self._contact.check(model)
        check_delays(model, dt)

    def init(self, model: Model, state: State) -> State:
        memory, history, act = self._contact.init(model), empty_history(model), no_activation(model)
        return dataclasses.replace(state, memory=memory, history=history, act=act)

    def step(self, model: Model, state: State, control: Control, dt: Float[Array, ""]) -> State:
        advance = self._with_impulses if self._contact.sources(model) else self._without_impulses
        control, history = delayed(model, state.history, control, dt)
        controls, act = self.integrator.activate(model, state.act, control, dt)
        q, qd, memory = advance(model, state, controls, dt)
        return State(q, qd, state.time + dt, memory, history, act)

    def _without_impulses(
        self, model: Model, state: State, controls: tuple[Control, ...], dt: Float[Array, ""]
    ) -> tuple[Float[Array, " nq"], Float[Array, " nv"], Any]:
        """A step under forces alone, by any integrator: coordinates, velocities, memory."""
        staged = self.integrator.stages > 1

        def acceleration(stage: int, q: Array, qd: Array, extra_inertia: Array | None) -> Array:
            if staged:
                q, qd = tap("joint.q", q), tap("joint.qd", qd)
            return self.acceleration(model, q, qd, controls[stage], extra_inertia)

        q, qd = (state.q, state.qd) if staged else (tap("joint.q", state.q), tap("joint.qd", state.qd))
        return *self.integrator.advance(model, acceleration, q, qd, dt), state.memory

    def _with_impulses(
        self, model: Model, state: State, controls: tuple[Control, ...], dt: Float[Array, ""]
    ) -> tuple[Float[Array, " nq"], Float[Array, " nv"], Any]:
        """A step with impulses: forces, the velocity without impulses, the velocity with them, the displacement."""
        if self.integrator.stages > 1:
            return self._split(model, state, controls, dt)
        control = controls[0]
        model = with_mocap(model, control)
        now = _instant(model, tap("joint.q", state.q), tap("joint.qd", state.qd))
        force, wrench = _joint_forces(now, control), _wrench(now, control)
        force = force - _tapped_bias(now, bias_force(model, now.kin, now.qd)) + _generalised(now, wrench)
        loads = self._contact.forces(now)
        M, extra = crba(model, now.kin), self.integrator.extra_inertia(model, dt)
        M = M if extra is None else M + jnp.diag(extra)
        M = M if loads.damping is None else M + dt * loads.damping
        force = force if loads.force is None else force + loads.force
        free = now.qd + dt * tap("joint.acceleration", solve_inertia(M, factor_inertia(M), force))
        after = self._contact.resolve(FreeStep(now, free, M, dt, _pull(now, control)), loads, state.memory)
        return integrate(model, now.q, after.displacement), after.velocity, after.memory

    def _split(
        self, model: Model, state: State, controls: tuple[Control, ...], dt: Float[Array, ""]
    ) -> tuple[Float[Array, " nq"], Float[Array, " nv"], Any]:
        """A step under forces by an integrator of several stages, and the impulses of the whole step on top of it."""
        q, free, _ = self._without_impulses(model, state, controls, dt)
        model = with_mocap(model, controls[0])
        now = _instant(model, state.q, state.qd)
        M, loads = crba(model, now.kin), self._contact.forces(now)
        step = FreeStep(now, free, M, dt, _pull(now, controls[0]))
        after = self._contact.resolve(step, loads, state.memory)
        return integrate(model, q, after.displacement - dt * free), after.velocity, after.memory

    def moves_by_velocity(self, model: Model) -> bool:
        t = model.topology
        stops = any(j.limited for j in t.joints) or len(t.limited_tendons) > 0
        return self.integrator.moves_by_velocity and not t.pairs and not stops and not t.na

    def acceleration(
        self, model: Model, q: Array, qd: Array, control: Control, extra_inertia: Array | None = None
    ) -> Float[Array, " nv"]:
        """Continuous-time accelerations under actuators, passive forces and those of contact, without impulses; by ABA. Of
        actuators with an activation, `control.u` is that activation."""
        model = with_mocap(model, control)
        now = _instant(model, q, qd)
        force, load = _joint_forces(now, control), self._contact.forces(now).force
        force = force if load is None else force + load
        wrench = _wrench(now, control)
        if listening():
            bias = bias_force(model, now.kin, qd)
            tapped_bias = _tapped_bias(now, bias)
            force = force if tapped_bias is bias else force - (tapped_bias - bias)
        return tap("joint.acceleration", aba(model, now.kin, qd, force, wrench, extra_inertia))


def _instant(model: Model, q: Array, qd: Array) -> Instant:
    return Instant(model, forward_kinematics(model, q), q, qd)


def _joint_forces(now: Instant, control: Control) -> Float[Array, " nv"]:
    """Forces of actuators, springs and dampers, and those given from outside."""
    model, kin, q, qd = now
    control = as_control(model, control)
    assert control.u is not None
    assert control.tau is not None
    if listening():
        tap("link.rotation", body_poses(model, kin)[1])
        tap("link.velocity", body_velocities(model, kin, qd))
    applied = tap("joint.applied_force", actuator_force(model, q, qd, control.u, kin) + control.tau)
    return applied + tap("joint.passive_force", passive_force(model, q, qd, kin))


def _pull(now: Instant, control: Control) -> Float[Array, " npull"] | None:
    """Forces of the actuators that pull bodies against what they touch; None where there are none."""
    model, kin, q, qd = now
    if not len(model.topology.adhesive):
        return None
    u = as_control(model, control).u
    assert u is not None
    return take(actuator_forces(model, q, qd, u, kin), model.topology.adhesive)


def _wrench(now: Instant, control: Control) -> Float[Array, "nbody 6"]:
    """External wrenches on the bodies, and those of a fluid around them."""
    wrench = as_control(now.model, control).wrench
    assert wrench is not None
    wrench = tap("link.external_force", wrench)
    if not now.model.topology.media:
        return wrench
    return wrench + tap("link.fluid_force", fluid_wrenches(now.model, now.kin, now.qd))


def _generalised(now: Instant, wrench: Float[Array, "nbody 6"]) -> Float[Array, " nv"]:
    """Generalised forces of wrenches on the bodies."""
    return from_nodes(now.model, now.kin, node_wrenches(now.model, now.kin, wrench))


def _tapped_bias(now: Instant, bias: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """The bias force after its listeners; its gravity part is computed only for them. What they add enters as a difference,
    so that adding zero changes no bit, and a listener that changes nothing leaves the program as it was."""
    if not listening():
        return bias
    gravity = gravity_force(now.model, now.kin)
    tapped_gravity = tap("joint.gravity_force", gravity)
    return tap("joint.bias_force", bias if tapped_gravity is gravity else bias + (tapped_gravity - gravity))
