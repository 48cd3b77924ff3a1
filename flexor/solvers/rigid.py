"""`RigidSolver`: articulated rigid bodies with penalty or NCP contact, or both."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.contact import NCP, Mixed, Penalty, detect
from flexor.contact.ncp import Impulses
from flexor.dynamics import (
    Kinematics,
    aba,
    actuator_force,
    bias_force,
    body_poses,
    body_velocities,
    crba,
    forward_kinematics,
    gravity_force,
    integrate,
    passive_force,
)
from flexor.dynamics.crba import factor_inertia, solve_inertia
from flexor.dynamics.rnea import node_wrenches
from flexor.model.model import Control, Model, State, as_control
from flexor.solvers.integrators import AbstractIntegrator, SemiImplicitEuler
from flexor.solvers.solver import AbstractSolver, named
from flexor.taps import listening, tap


class RigidSolver(AbstractSolver):
    """Rigid-body dynamics. `contact` is `NCP()` (default), `Penalty()`, `Mixed()`: both, or None: no contact, no limits, no dry
    friction."""

    contact: NCP | Penalty | Mixed | None = NCP()
    integrator: AbstractIntegrator = SemiImplicitEuler()

    def check(self, model: Model) -> None:
        if self.contact is not None and self.contact.impulsive and not self.integrator.impulses:
            raise ValueError(
                f"{named(self.contact)} works with impulses over a step, which {named(self.integrator)} has no place for: "
                "use contact=Penalty() with it, or integrator=SemiImplicitEuler()."
            )
        if isinstance(self.contact, Mixed):
            self.contact.check(model)

    def init(self, model: Model, state: State) -> State:
        self.check(model)
        if not isinstance(self.contact, NCP | Mixed):
            return eqx.tree_at(lambda s: s.memory, state, None, is_leaf=lambda x: x is None)
        contacts = eqx.filter_eval_shape(lambda m: detect(m, forward_kinematics(m, m.reference)), model)
        memory = self.contact.init(model, contacts)
        return eqx.tree_at(lambda s: s.memory, state, memory, is_leaf=lambda x: x is None)

    def step(self, model: Model, state: State, control: Control, dt: Float[Array, ""]) -> State:
        q, qd, memory = state.q, state.qd, state.memory
        staged = self.integrator.stages > 1
        if not staged:
            q, qd = tap("joint.q", q), tap("joint.qd", qd)
        if isinstance(self.contact, NCP | Mixed) and _constrained(model):
            q, qd, memory = self._impulsive(self.contact, model, q, qd, control, dt, memory)
        else:

            def acceleration(q: Array, qd: Array, extra_inertia: Array | None) -> Array:
                if staged:
                    q, qd = tap("joint.q", q), tap("joint.qd", qd)
                return self.acceleration(model, q, qd, control, extra_inertia)

            q, qd = self.integrator.advance(model, acceleration, q, qd, dt)
        return State(q, qd, state.time + dt, memory)

    def acceleration(
        self, model: Model, q: Array, qd: Array, control: Control, extra_inertia: Array | None = None
    ) -> Float[Array, " nv"]:
        """Continuous-time accelerations under actuators, passive forces and, with `Penalty`, contact; by ABA."""
        kin = forward_kinematics(model, q)
        force, wrench = self._forces(model, kin, q, qd, control)
        if listening():
            bias = bias_force(model, kin, qd)
            heard = _tapped_bias(model, kin, bias)
            force = force if heard is bias else force - (heard - bias)
        return tap("joint.acceleration", aba(model, kin, qd, force, wrench, extra_inertia))

    def _forces(
        self, model: Model, kin: Kinematics, q: Array, qd: Array, control: Control
    ) -> tuple[Float[Array, " nv"], Float[Array, "nbody 6"]]:
        """Generalised forces of everything but inertia and gravity, and the wrenches on the bodies."""
        control = as_control(model, control)
        assert control.u is not None
        assert control.tau is not None
        assert control.wrench is not None
        if listening():
            tap("link.rotation", body_poses(model, kin)[1])
            tap("link.velocity", body_velocities(model, kin, qd))
        applied = tap("joint.applied_force", actuator_force(model, q, qd, control.u) + control.tau)
        force = applied + tap("joint.passive_force", passive_force(model, q, qd))
        if isinstance(self.contact, Penalty):
            force = force + self.contact.limit_force(model, q, qd) + self.contact.friction_force(model, qd)
            force = force + self.contact.contact_force(model, kin, detect(model, kin), qd)
        return force, tap("link.external_force", control.wrench)

    def _impulsive(
        self, contact: NCP | Mixed, model: Model, q: Array, qd: Array, control: Control, dt: Array, memory: Impulses
    ) -> tuple[Float[Array, " nq"], Float[Array, " nv"], Impulses]:
        """One step with impulses: free velocity, then the NCP, then the displacement."""
        kin = forward_kinematics(model, q)
        force, wrench = self._forces(model, kin, q, qd, control)
        bias = _tapped_bias(model, kin, bias_force(model, kin, qd))
        dofs = model.topology.dofs
        pushes = jnp.where(dofs.moves.T[..., None], node_wrenches(model, kin, wrench), 0.0).sum(1)
        force = force - bias + jnp.sum(kin.S * pushes, axis=-1)
        M = crba(model, kin)
        extra = self.integrator.extra_inertia(model, dt)
        M = M if extra is None else M + jnp.diag(extra)
        contacts, resolve = detect(model, kin), cast(Callable[..., Any], contact.resolve)
        if isinstance(contact, Mixed):
            contacts, soft = contact.soft_forces(model, kin, contacts, qd)
            force, M = force + soft.force, M + dt * soft.damping
            resolve = partial(contact.resolve, soft)
        free = qd + dt * tap("joint.acceleration", solve_inertia(M, factor_inertia(M), force))
        u, displacement, memory = resolve(model, kin, contacts, q, qd, free, M, dt, memory)
        return integrate(model, q, displacement), u, memory


def _tapped_bias(model: Model, kin: Kinematics, bias: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """The bias force after its listeners; its gravity part is computed only for them. What they add enters as a difference,
    so that adding nothing changes no bit, and a listener that changes nothing leaves the very program."""
    if not listening():
        return bias
    gravity = gravity_force(model, kin)
    heard = tap("joint.gravity_force", gravity)
    return tap("joint.bias_force", bias if heard is gravity else bias + (heard - gravity))


def _constrained(model: Model) -> bool:
    """Whether anything can touch, hit a limit, or stick."""
    t = model.topology
    return bool(t.pairs) or bool(np.any([j.limited or j.dry_friction for j in t.joints]))
