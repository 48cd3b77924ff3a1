"""`Stepper`: a simulator as one program over NumPy arrays in place, for control loops, single environments and estimators."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from flexor.model.model import Control, State, as_control
from flexor.model.parameters import parameters as named_parameters
from flexor.model.parameters import replace
from flexor.simd import Direct
from flexor.solvers.recording import check_record, recorded_step
from flexor.solvers.solver import class_name

if TYPE_CHECKING:
    from flexor.solvers.simulator import Simulator

PARTS = ("u", "tau", "wrench", "mocap_pos", "mocap_quat")


class Stepper:
    """Steps a simulator in place; made by `sim.compile()`. A call of `step` is one call of compiled code: no JAX, no copies.

    `q`, `qd`, `time`, `act` (None without activations), the parts of the control (`u`, `tau`, `wrench`, `mocap_pos`,
    `mocap_quat`), `recorded` (by tap) and `parameters` (by name) are NumPy arrays that stay the same objects and may be written
    to; with a `batch`, each has a row for every robot. `recorded` holds quantities of the last step. Values are not checked: a
    state that diverges becomes nan.

    Results are those of `Simulator.step`, to the bit. One stepper belongs to one thread; make several for several threads.
    """

    def __init__(
        self,
        sim: "Simulator",
        *,
        batch: int | None = None,
        controls: Sequence[str] = ("u",),
        record: Sequence[str] = (),
        parameters: Sequence[str] = (),
        threads: int | None = None,
    ):
        _check(sim, batch, controls, record, threads)
        self.sim, self.batch = sim, batch
        inner = sim.simplified()
        model, dtype = inner.model, inner.model.dtype
        free = {name: x for pattern in parameters for name, x in _matching(model, pattern).items()}
        start = jax.eval_shape(sim.reset)
        self._leaves, self._tree = jax.tree.flatten(start)

        def advance(leaves: list[Any], given: list[Any], values: list[Any]) -> tuple[list[Any], list[Any]]:
            robot = replace(model, dict(zip(free, values, strict=True))) if free else model
            control = as_control(robot, Control(**dict(zip(controls, given, strict=True))))
            state = jax.tree.unflatten(self._tree, leaves)
            new, found = recorded_step(inner.solver, robot, state, control, inner.dt, record)
            return jax.tree.leaves(new), [found[name] for name in record]

        t, n = model.topology, len(self._leaves)
        shapes = {"u": (t.nu,), "tau": (t.nv,), "wrench": (len(t.bodies), 6)}
        shapes.update(mocap_pos=(len(t.mocap), 3), mocap_quat=(len(t.mocap), 4))
        given = [jax.ShapeDtypeStruct(shapes[name], dtype) for name in controls]
        values = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in free.values()]
        program = Direct(advance, self._leaves, given, values, feeds=range(n), size=batch, threads=threads)
        self._program, self._run = program, program.run
        self._state = program.inputs[:n]
        named = jax.tree.unflatten(self._tree, self._state)
        self.q, self.qd, self.time, self.act = named.q, named.qd, named.time, named.act
        self._controls = dict(zip(controls, program.inputs[n:], strict=False))
        self.parameters = dict(zip(free, program.inputs[n + len(controls) :], strict=True))
        self.recorded = dict(zip(record, program.outputs[n:], strict=True))
        for name, x in free.items():
            self.parameters[name][...] = np.asarray(x)
        self.u, self.tau, self.wrench, self.mocap_pos, self.mocap_quat = (self._controls.get(name) for name in PARTS)
        for poses, table in ((self.mocap_pos, model.bodies.pos), (self.mocap_quat, model.bodies.quat)):
            if poses is not None:
                poses[...] = np.asarray(table)[list(t.mocap)]
        self._shape = None if self.u is None else self.u.shape
        self.reset()

    def step(self, u: ArrayLike | None = None) -> None:
        """One time step, in place; `u`, where it is given, becomes the actuators' input first."""
        if u is not None:
            if self._shape is None or getattr(u, "shape", None) != self._shape:
                u = self._checked(u)
            self.u[...] = u  # type: ignore[index]
        self._run()

    def reset(self, state: State | ArrayLike | str | None = None, qd: ArrayLike | None = None, *, where: Any = None) -> None:
        """Sets the state: a `State`, or coordinates, a keyframe or None as in `Simulator.reset`.

        In a batch, arrays with a row for each robot are taken row by row, and others for all; `where` selects the robots to reset
        (a mask, or their numbers), and rows are then those of the selected ones.
        """
        if self.batch is None and where is not None:
            raise ValueError("`where` selects robots of a batch, and this stepper has one robot.")
        new = state if isinstance(state, State) else self._initial(state, qd)
        leaves, tree = jax.tree.flatten(new)
        if tree != self._tree:  # type: ignore[operator]
            raise ValueError(f"the state does not belong to {class_name(self.sim.solver)}: start from `sim.reset()`.")
        rows = slice(None) if where is None else where
        for mine, x in zip(self._state, leaves, strict=True):
            if self.batch is None:
                mine[...] = np.asarray(x)
            else:
                mine[rows] = np.asarray(x)

    def _initial(self, q: Any, qd: Any) -> State:
        """`Simulator.reset`, over the rows where there are rows."""
        if isinstance(q, str) or (q is None and qd is None):
            return self.sim.reset(q)
        axes = [None if x is None or np.ndim(x) < 2 else 0 for x in (q, qd)]
        if self.batch is None or axes == [None, None]:
            return self.sim.reset(q, qd)
        dtype = self.sim.model.dtype
        arrays = [None if x is None else jnp.asarray(x, dtype) for x in (q, qd)]
        return jax.vmap(self.sim.reset, in_axes=axes)(*arrays)

    @property
    def state(self) -> State:
        """A copy of the state in JAX's arrays, with the solver's memory: for `Simulator.step`, `rollout` and `reset`."""
        return jax.tree.unflatten(self._tree, [jnp.asarray(x.copy()) for x in self._state])

    def _checked(self, u: Any) -> np.ndarray:
        if self._shape is None:
            raise ValueError("this stepper has no input `u`: `sim.compile(controls=...)` names the inputs.")
        u = np.asarray(u)
        if u.shape != self._shape:
            raise ValueError(f"`u` of '{self.sim.model.topology.name}' must have shape {self._shape}, got {u.shape}.")
        return u


def _matching(model: Any, pattern: str) -> dict[str, Any]:
    found = named_parameters(model, pattern)
    if not found:
        raise KeyError(f"no parameter of '{model.topology.name}' matches '{pattern}'; `fx.parameters(model)` lists them.")
    return found


def _check(sim: "Simulator", batch: int | None, controls: Sequence[str], record: Sequence[str], threads: int | None) -> None:
    if not sim.solver.compilable:
        raise ValueError(
            f"{class_name(sim.solver)} does not compile to a kernel, so it has no stepper; use `sim.step` or `sim.rollout`."
        )
    reason = Direct.unsupported()
    if reason:
        raise ValueError(f"there is no stepper on this machine: {reason}; use `sim.step` or `sim.rollout`.")
    for what, value in (("batch", batch), ("threads", threads)):
        if value is not None and value < 1:
            raise ValueError(f"`{what}` must be a positive number, got {value}.")
    for name in controls:
        if name not in PARTS:
            raise ValueError(f"a control has no part '{name}'; its parts are {', '.join(PARTS)}.")
    check_record(sim.model, record)
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(sim)):
        raise ValueError("a simulator with traced values cannot be compiled to a stepper: call `compile` outside `jax.jit`.")
