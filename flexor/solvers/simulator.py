"""`Simulator`: a model, a solver and a time step; `reset`, `step`, `rollout`."""

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from flexor.augment import Augmentation, Blueprint, Layout
from flexor.dynamics.kept import keep_solutions
from flexor.model.model import Control, Model, State, as_control, check_coordinates
from flexor.solvers.compiled import by_default, compiled
from flexor.solvers.hybrid import HybridSolver
from flexor.solvers.rigid import RigidSolver
from flexor.solvers.solver import AbstractSolver, named
from flexor.solvers.trajectory import Trajectory
from flexor.taps import TAPS, Tap, collect, listening

Policy = Callable[[State], ArrayLike | Control]


class Simulator(eqx.Module):
    """Steps a robot. All methods are pure, so `jax.jit`, `vmap` and `grad` apply to them and to the model inside.

    On CPUs a step, or a whole rollout, is one SIMD kernel (`flexor.simd`) with the robot compiled in; a batch by `jax.vmap` has
    a robot in every lane. `simd=False` goes through XLA instead, as does everything where FLEXOR_SIMD=off.
    """

    model: Model
    solver: AbstractSolver
    dt: Float[Array, ""]
    simd: bool = eqx.field(static=True)

    def __init__(
        self, model: Model, solver: AbstractSolver | None = None, *, dt: ArrayLike = 0.002, simd: bool | None = None
    ):
        self.model = model
        self.simd = by_default() if simd is None else simd
        self.solver = RigidSolver() if solver is None else solver
        self.dt = jnp.asarray(dt, model.dtype)
        if self.dt.shape != ():
            raise ValueError(f"`dt` must be a number of seconds, got an array of shape {self.dt.shape}.")
        if not isinstance(self.dt, jax.core.Tracer) and not 0 < float(self.dt) < np.inf:
            raise ValueError(f"`dt` must be a positive number of seconds, got {dt}.")
        self.solver.check(model)

    def with_solver(self, solver: AbstractSolver) -> "Simulator":
        """The same robot and time step under other physics."""
        return Simulator(self.model, solver, dt=self.dt, simd=self.simd)

    def augment(
        self, blueprint: Blueprint | Augmentation | str | os.PathLike[str], key: PRNGKeyArray | None = None
    ) -> "Simulator":
        """The same simulator with networks among its quantities: fresh ones of a `Blueprint`, those of an `Augmentation`, or
        those that one has saved to a file. `key` draws the weights. Fresh `Add` and `Scale` networks change nothing."""
        taps = tuple((name, tuple(x.shape)) for name, x in _heard(self).items())
        if not taps:
            raise ValueError(
                f"{named(self.solver)} computes no quantities that have a name, so nothing can be augmented; use RigidSolver."
            )
        layout = Layout.of(self.model, taps)
        if isinstance(blueprint, Blueprint):
            key = jax.random.key(0) if key is None else key
            augmentation = Augmentation.build(blueprint, layout, key, self.model.dtype)
        else:
            given = blueprint if isinstance(blueprint, Augmentation) else Augmentation.load(blueprint)
            augmentation = jax.tree.map(lambda x: jnp.asarray(x, self.model.dtype), given.on(layout))
        return self.with_solver(HybridSolver(self.solver, augmentation))

    def reset(self, q: ArrayLike | str | None = None, qd: ArrayLike | None = None) -> State:
        """State at time zero: at the given coordinates, at a keyframe by name, or at the description's reference."""
        model = self.model
        q = model.keyframe(q) if isinstance(q, str) else model.reference if q is None else jnp.asarray(q, model.dtype)
        qd = jnp.zeros(model.nv, model.dtype) if qd is None else jnp.asarray(qd, model.dtype)
        check_coordinates(model, q, qd)
        return self.solver.init(model, State(q, qd, jnp.zeros((), model.dtype)))

    def step(self, state: State, control: ArrayLike | Control | None = None) -> State:
        """The state one time step later."""
        check_coordinates(self.model, state.q, state.qd)
        self.solver.accept(control)
        full = as_control(self.model, control)
        if listening():
            return _step(self, state, full)
        sim = self._known
        return compiled(_step, sim, (state, full)) if self._kernels else _step_jit(sim, state, full)

    @property
    def _kernels(self) -> bool:
        return self.simd and self.solver.kernels

    @property
    def _known(self) -> "Simulator":
        """Itself, the solver without what is known to be idle."""
        solver = self.solver.known()
        return self if solver is self.solver else eqx.tree_at(lambda s: s.solver, self, solver)

    def rollout(
        self,
        state: State,
        controls: ArrayLike | Control | Policy | None = None,
        *,
        steps: int | None = None,
        record: Sequence[str] = (),
    ) -> Trajectory:
        """Trajectory from `state` under controls with a leading time axis, or under a policy `state -> control`.

        `steps` is needed where the controls do not tell. `record` names taps to keep (`fx.taps(sim)` lists them).
        Reverse mode keeps the state, the accelerations and the contact impulses of each step and recomputes the rest, so memory
        does not grow with the work in a step.
        """
        check_coordinates(self.model, state.q, state.qd)
        unknown = [name for name in record if name not in TAPS]
        if unknown:
            raise KeyError(f"'{unknown[0]}' is not a tap; the names are {', '.join(TAPS)}.")
        policy = controls if callable(controls) else None
        self.solver.accept(controls)
        inputs = None if policy else _time_axis(self.model, controls, steps)
        length = _length(inputs, steps)
        args = (state, inputs, policy, length, tuple(record))
        if listening():
            return _rollout(self, *args)
        sim = self._known
        return compiled(_rollout, sim, args) if self._kernels else _rollout_jit(sim, *args)


def _time_axis(model: Model, controls: Any, steps: int | None) -> Control | None:
    """Controls as a `Control` with a leading time axis, shapes checked; None where there are none."""
    if controls is None:
        return None
    given = controls if isinstance(controls, Control) else Control(u=controls)
    given = jax.tree.map(lambda x: jnp.asarray(x, model.dtype), given)
    lengths = {x.shape[0] if x.ndim else None for x in jax.tree.leaves(given)}
    if None in lengths or len(lengths) > 1:
        raise ValueError("controls of a rollout need a leading time axis of one length: (steps, nu).")
    if 0 in lengths:
        raise ValueError("controls of a rollout have no time steps.")
    as_control(model, jax.tree.map(lambda x: x[0], given))
    if steps is not None and lengths and steps not in lengths:
        raise ValueError(f"`steps` is {steps}, but the controls have {lengths.pop()} rows.")
    return given


def _length(inputs: Control | None, steps: int | None) -> int:
    leaves = jax.tree.leaves(inputs)
    if leaves:
        return int(leaves[0].shape[0])
    if steps is None or steps < 1:
        raise ValueError(f"`steps` must be a positive number when the controls do not tell how many, got {steps}.")
    return steps


def _step(sim: Simulator, state: State, control: Control) -> State:
    return sim.solver.step(sim.model, state, control, sim.dt)


def _rollout(
    sim: Simulator, state: State, inputs: Control | None, policy: Policy | None, steps: int, record: tuple[str, ...]
) -> Trajectory:
    def advance(state: State, control: Control | None) -> tuple[State, tuple[Any, ...]]:
        given = policy(state) if policy else control
        sim.solver.accept(given)
        control = as_control(sim.model, given)
        if record:
            new, heard = collect(_step)(sim, state, control)
            missing = [name for name in record if name not in heard]
            if missing:
                raise ValueError(f"{type(sim.solver).__name__} does not compute '{missing[0]}' for this model.")
        else:
            new, heard = _step(sim, state, control), {}
        return new, (new.q, new.qd, new.time, control.u, {name: heard[name] for name in record})

    final, (q, qd, time, u, taps) = jax.lax.scan(
        jax.checkpoint(advance, policy=keep_solutions()), state, inputs, length=steps
    )

    def first(x: Array, y: Array) -> Array:
        return jnp.concatenate([x[None], y])

    t = sim.model.topology
    return Trajectory(first(state.time, time), first(state.q, q), first(state.qd, qd), u, taps, final, t)


_step_jit = eqx.filter_jit(_step)
_rollout_jit = eqx.filter_jit(_rollout)


def taps(sim: Simulator) -> dict[str, Tap]:
    """Names of the quantities that this simulator computes in a step, each with its shape as numbers, unit and meaning."""
    heard = _heard(sim)
    return {name: TAPS[name]._replace(shape=str(tuple(heard[name].shape))) for name in TAPS if name in heard}


def _heard(sim: Simulator) -> dict[str, Any]:
    """Shapes of the quantities of a step, in the order of their computation."""
    leaves, tree = jax.tree.flatten(sim)
    return _heard_of(tree, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) if eqx.is_array(x) else x for x in leaves))


@lru_cache(maxsize=64)
def _heard_of(tree: Any, leaves: tuple[Any, ...]) -> dict[str, Any]:
    sim = jax.tree.unflatten(tree, leaves)
    state = eqx.filter_eval_shape(lambda s: s.reset(), sim)
    control = as_control(sim.model, None)
    order: list[str] = []

    def step(s: Simulator, x: State, u: Control) -> dict[str, Array]:
        _, heard = collect(_step)(s, x, u)
        order.extend(heard)
        return heard

    heard = eqx.filter_eval_shape(step, sim, state, control)
    return {name: heard[name] for name in order}
