"""`Simulator`: a model, a solver and a time step; `reset`, `step`, `rollout`."""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from flexor.augment import Augmentation, Blueprint, Layout
from flexor.dynamics.kept import keep_solutions
from flexor.model.model import Control, Model, State, as_control, check_coordinates
from flexor.model.pytree import Pytree
from flexor.solvers.compiled import by_default, compiled
from flexor.solvers.energy import EnergyBudget
from flexor.solvers.hybrid import HybridSolver, find_augmentation
from flexor.solvers.policy import AbstractPolicy, Policy, as_policy
from flexor.solvers.recording import check_record, recorded_step
from flexor.solvers.rigid import RigidSolver
from flexor.solvers.solver import AbstractSolver, class_name
from flexor.solvers.stepper import Stepper
from flexor.solvers.trajectory import Trajectory
from flexor.taps import TAPS, Tap, collect, collecting, listening


class Simulator(Pytree):
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
        number = None if isinstance(dt, jax.core.Tracer) else float(np.asarray(dt))
        if number is not None and not 0 < number < np.inf:
            raise ValueError(f"`dt` must be a positive number of seconds, got {dt}.")
        self.solver.check(model, number)

    def with_solver(self, solver: AbstractSolver) -> "Simulator":
        """The same robot and time step under other physics."""
        return Simulator(self.model, solver, dt=self.dt, simd=self.simd)

    def save(self, folder: str | os.PathLike[str], *, classes: Iterable[type] = ()) -> Path:
        """Writes model, solver and time step into a folder, whole or not at all; `fx.open(folder)` gives the same simulator, to
        the last bit. JSON and safetensors, no code; an MJCF for people beside them. Classes of your own (a solver, a contact
        model) are named in `classes`, here and when opening. Returns the folder."""
        from flexor.solvers.artefact import save

        return save(self, folder, classes=classes)

    def augment(
        self, blueprint: Blueprint | Augmentation | str | os.PathLike[str], key: PRNGKeyArray | None = None
    ) -> "Simulator":
        """The same simulator with networks among its quantities: fresh ones of a `Blueprint`, those of an `Augmentation`, or
        those that one has saved to a file. `key` draws the weights. Fresh `Add` and `Scale` networks change nothing."""
        taps = tuple((name, tuple(x.shape)) for name, x in _tap_shapes(self).items())
        if not taps:
            raise ValueError(
                f"{class_name(self.solver)} computes no named quantities, so nothing can be augmented; use RigidSolver."
            )
        layout = Layout.of(self.model, taps)
        if isinstance(blueprint, Blueprint):
            key = jax.random.key(0) if key is None else key
            augmentation = Augmentation.build(blueprint, layout, key, self.model.dtype)
        else:
            given = blueprint if isinstance(blueprint, Augmentation) else Augmentation.load(blueprint)
            augmentation = jax.tree.map(lambda x: jnp.asarray(x, self.model.dtype), given.on(layout))
        return self.with_solver(HybridSolver(self.solver, augmentation))

    @property
    def augmentation(self) -> Augmentation | None:
        """The networks among the solver's quantities, however deep it wraps them; None without. It can be replaced in place:
        `eqx.tree_at(lambda s: s.augmentation, sim, other)`."""
        return find_augmentation(self.solver)

    def reset(self, q: ArrayLike | str | None = None, qd: ArrayLike | None = None) -> State:
        """State at time zero: at the given coordinates, at a keyframe by name, or at the description's reference."""
        model = self.model
        q = model.keyframe(q) if isinstance(q, str) else model.reference if q is None else jnp.asarray(q, model.dtype)
        qd = jnp.zeros(model.nv, model.dtype) if qd is None else jnp.asarray(qd, model.dtype)
        check_coordinates(model, q, qd)
        return self.solver.init(model, State(q, qd, jnp.zeros((), model.dtype)))

    @overload
    def step(self, state: State, control: ArrayLike | Control | None = None) -> State: ...
    @overload
    def step(
        self, state: State, control: ArrayLike | Control | None = None, *, record: Sequence[str]
    ) -> tuple[State, dict[str, Array]]: ...
    def step(
        self, state: State, control: ArrayLike | Control | None = None, *, record: Sequence[str] | None = None
    ) -> State | tuple[State, dict[str, Array]]:
        """The state one time step later; with `record`, also the quantities of the step that it names (`fx.taps`), and sensors as
        `sensor.<name>` (`fx.sensors`)."""
        check_coordinates(self.model, state.q, state.qd)
        check_record(self.model, record or ())
        self.solver.accept(control)
        args = (state, as_control(self.model, control), tuple(record or ()))
        new, recorded = _step(self, *args) if listening() else self._run(_step, _step_jit, args)
        return new if record is None else (new, recorded)

    def _run(self, f: Any, f_jit: Any, args: tuple[Any, ...]) -> Any:
        """f(simplified simulator, *args), as a kernel or through XLA."""
        return compiled(f, self, args) if self._kernels else f_jit(self.simplified(), *args)

    @property
    def _kernels(self) -> bool:
        return self.simd and self.solver.compilable

    def simplified(self) -> "Simulator":
        """The same simulator, its solver without idle parts."""
        solver = self.solver.simplified()
        return self if solver is self.solver else eqx.tree_at(lambda s: s.solver, self, solver)

    def rollout(
        self,
        state: State,
        controls: ArrayLike | Control | Policy | AbstractPolicy | None = None,
        *,
        steps: int | None = None,
        record: Sequence[str] = (),
        key: PRNGKeyArray | None = None,
        memory: Any = None,
    ) -> Trajectory:
        """Trajectory from `state` under controls with a leading time axis, or under a policy: a function `state -> control`, or
        an `AbstractPolicy`, which has a memory and random keys.

        `steps` is needed if the controls do not determine it. `record` names taps to keep (`fx.taps(sim)` lists them). `key`
        is split into one for the policy's `init` and one for every step. `memory` continues the policy from another rollout
        (`Trajectory.policy_memory`), instead of `init`. Reverse mode keeps the state, the accelerations and the contact
        impulses of each step and recomputes the rest, so memory does not grow with the work in a step.
        """
        check_coordinates(self.model, state.q, state.qd)
        check_record(self.model, record)
        if collecting():
            raise ValueError("quantities cannot be collected from outside of a rollout: name them in its `record=`.")
        policy = as_policy(controls)
        if not isinstance(controls, AbstractPolicy) and (key is not None or memory is not None):
            raise ValueError("`key` and `memory` are for an `AbstractPolicy`, and the controls are not one.")
        self.solver.accept(controls)
        inputs = None if policy else _time_axis(self.model, controls, steps)
        length = _length(inputs, steps)
        args = (state, inputs, policy, memory, key, length, tuple(record))
        if policy is not None and not policy.compilable and self._kernels:
            return compiled(_rollout_of_steps, self, args, inner=True)  # type: ignore[no-any-return]
        made: Trajectory = _rollout(self, *args) if listening() else self._run(_rollout, _rollout_jit, args)
        explained = self.solver.passive and not policy and not listening() and _only_inputs(self.model, inputs)
        if not explained or any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((self.model, made.q))):
            return made
        return dataclasses.replace(made, budget=EnergyBudget(self.model))

    def compile(
        self,
        *,
        batch: int | None = None,
        controls: Sequence[str] = ("u",),
        record: Sequence[str] = (),
        parameters: Sequence[str] = (),
        threads: int | None = None,
    ) -> Stepper:
        """A `Stepper`: this simulator as one program that steps NumPy arrays in place, for loops where every microsecond
        counts.

        `batch` robots step together, by up to `threads` threads. `controls` names the parts of `Control` that are inputs; the
        others are zero. `record` names quantities to keep (`fx.taps`). The robot is compiled in, except for the `parameters`
        whose names match these patterns: they can be changed between steps.
        """
        return Stepper(self, batch=batch, controls=controls, record=record, parameters=parameters, threads=threads)


def _only_inputs(model: Model, controls: Control | None) -> bool:
    """Whether the robot is driven only by actuators whose work follows from their inputs."""
    if model.topology.na or model.topology.compensated or model.topology.media:
        return False
    return controls is None or all(
        x is None for x in (controls.tau, controls.wrench, controls.mocap_pos, controls.mocap_quat)
    )


def _time_axis(model: Model, controls: Any, steps: int | None) -> Control | None:
    """Controls as a `Control` with a leading time axis, shapes checked; None where there are none."""
    if controls is None:
        return None
    given = controls if isinstance(controls, Control) else Control(u=jnp.asarray(controls, model.dtype))
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
        raise ValueError(f"`steps` must be a positive number unless the controls have a time axis, got {steps}.")
    return steps


def _step(sim: Simulator, state: State, control: Control, record: tuple[str, ...]) -> tuple[State, dict[str, Array]]:
    """The next state, and the quantities of the step that `record` names."""
    return recorded_step(sim.solver, sim.model, state, control, sim.dt, record)


def _rollout(
    sim: Simulator, state: State, inputs: Control | None, policy: AbstractPolicy | None, memory: Any,
    key: PRNGKeyArray | None, steps: int, record: tuple[str, ...], step: Any = None,
) -> Trajectory:  # fmt: skip
    """States and controls over `steps`; `step` is what makes one, `_step` itself where there is no other."""
    step = _step if step is None else step
    init_key, step_key = (None, None) if key is None else jax.random.split(key)
    if policy is not None and memory is None:
        memory = policy.init(init_key)

    def advance(carry: tuple[State, Any], xs: tuple[Any, Any]) -> tuple[tuple[State, Any], tuple[Any, ...]]:
        (state, memory), (given, k) = carry, xs
        if policy is not None:
            given, memory = policy(state, memory, None if step_key is None else jax.random.fold_in(step_key, k))
        sim.solver.accept(given)
        control = as_control(sim.model, given)
        new, recorded = step(sim, state, control, record)
        return (new, memory), (new.q, new.qd, new.time, control.u, recorded)

    numbers = None if key is None else jnp.arange(steps, dtype=jnp.uint32)
    body = jax.checkpoint(advance, policy=keep_solutions())
    (final, memory), (q, qd, time, u, taps) = jax.lax.scan(body, (state, memory), (inputs, numbers), length=steps)

    def first(x: Array, y: Array) -> Array:
        return jnp.concatenate([x[None], y])

    t = sim.model.topology
    return Trajectory(first(state.time, time), first(state.q, q), first(state.qd, qd), u, taps, final, t, memory)


def _rollout_of_steps(
    sim: Simulator, state: State, inputs: Any, policy: Any, memory: Any, key: Any, steps: int, record: tuple[str, ...]
) -> Trajectory:
    """The same, each step a kernel of its own."""

    def step(sim: Simulator, *args: Any) -> Any:
        return compiled(_step, sim, args)

    return _rollout(sim, state, inputs, policy, memory, key, steps, record, step=step)


_step_jit = eqx.filter_jit(_step)
_rollout_jit = eqx.filter_jit(_rollout)


def taps(sim: Simulator) -> dict[str, Tap]:
    """Names of the quantities that this simulator computes in a step, each with its shape as numbers, unit and meaning."""
    shapes = _tap_shapes(sim)
    return {name: TAPS[name]._replace(shape=str(tuple(shapes[name].shape))) for name in TAPS if name in shapes}


def _tap_shapes(sim: Simulator) -> dict[str, Any]:
    """Shapes of the quantities of a step, in the order of their computation."""
    leaves, tree = jax.tree.flatten(sim)
    return _tap_shapes_of(tree, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) if eqx.is_array(x) else x for x in leaves))


@lru_cache(maxsize=64)
def _tap_shapes_of(tree: Any, leaves: tuple[Any, ...]) -> dict[str, Any]:
    sim = jax.tree.unflatten(tree, leaves)
    state = eqx.filter_eval_shape(lambda s: s.reset(), sim)
    control = as_control(sim.model, None)
    order: list[str] = []

    def step(s: Simulator, x: State, u: Control) -> dict[str, Array]:
        _, quantities = collect(s.solver.step)(s.model, x, u, s.dt)
        order.extend(quantities)
        return quantities

    shapes = eqx.filter_eval_shape(step, sim, state, control)
    return {name: shapes[name] for name in order}
