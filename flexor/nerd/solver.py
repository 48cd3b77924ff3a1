"""`NerdSolver`: a learned step behind the ordinary interface. Its window lives in `State.memory`."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.model.model import Control, Model, State, as_control
from flexor.nerd.frames import Frames
from flexor.nerd.network import AbstractNetwork
from flexor.nerd.warning import Doubt
from flexor.solvers import AbstractMemory, AbstractSolver


class Memory(AbstractMemory):
    """Windows of all members, and how much these disagreed in the last step: the deviation of their predictions, root mean
    square over the targets, in units of the targets' own deviation; zero for a single network. `doubt` is that of the last step
    (`Doubt`), and `since` when the first state came about that should not be believed; nan and infinite where the solver has no
    warning."""

    cache: Any
    disagreement: Float[Array, ""]
    doubt: Float[Array, ""]
    since: Float[Array, ""]

    @property
    def doubted_since(self) -> Float[Array, ""]:
        return self.since


class NerdSolver(AbstractSolver):
    """A robot's dynamics and contact as a network, or the mean of an ensemble (a leading axis of every weight).

    The time step is the one it was trained for: any other raises, and so does a traced one, since it cannot be checked. A
    state without memory starts with an empty window.
    """

    network: AbstractNetwork
    frames: Frames = eqx.field(static=True)
    doubt: Doubt | None = None

    def check(self, model: Model, dt: float | None) -> None:
        if model.topology != self.frames.topology:
            ours, theirs = self.frames.topology, model.topology
            what = "names, joints or contacts differ" if ours.name == theirs.name else f"this is '{theirs.name}'"
            raise ValueError(f"the learned solver was trained for '{ours.name}', and {what}.")
        if dt is None:
            raise ValueError(
                f"the learned solver of '{self.frames.topology.name}' steps by {self.frames.dt:g} s, and a traced `dt` cannot be "
                f"checked: build the simulator with the number dt={self.frames.dt:g}, not inside `jax.jit` or `jax.grad` over dt."
            )
        self._check_step(dt)

    def _check_step(self, dt: float) -> None:
        if abs(dt / self.frames.dt - 1) > 1e-4:
            raise ValueError(
                f"the learned solver of '{self.frames.topology.name}' was trained for time steps of {self.frames.dt:g} s "
                f"and cannot step by {dt:g} s."
            )

    def accept(self, control: Any) -> None:
        if not self.frames.base.integrates_forces and isinstance(control, Control) and control.wrench is not None:
            raise ValueError(
                f"this learned solver of '{self.frames.topology.name}' reads joint torques only: wrenches on bodies act through "
                "a base step, and it has none. Train it with a base step such as `FreeFlight()`."
            )

    def init(self, model: Model, state: State) -> State:
        begin = eqx.filter_vmap(lambda n: n.begin())(self.network)
        nothing = jnp.zeros((), self.network.dtype)
        doubt = jnp.full_like(nothing, jnp.nan) if self.doubt is None else nothing
        memory = Memory(begin, nothing, doubt, jnp.full((), jnp.inf, state.time.dtype))
        return eqx.tree_at(lambda s: s.memory, state, memory, is_leaf=lambda x: x is None)

    def step(self, model: Model, state: State, control: Control, dt: Float[Array, ""]) -> State:
        if not isinstance(dt, jax.core.Tracer):
            self._check_step(float(dt))
        memory = state.memory if isinstance(state.memory, Memory) else self.init(model, state).memory
        full = as_control(model, control)
        scene = self.frames.observe(model, state.q, state.qd, full)
        ahead = self.frames.foresee(model, scene, full.wrench)
        x = self.frames.features(scene, ahead).astype(self.network.dtype)
        y, cache = eqx.filter_vmap(lambda n, c: n.step(x, c))(self.network, memory.cache)
        mean = jnp.mean(y, axis=0)
        spread = jnp.sqrt(jnp.mean(((y - mean[None]) / self.network.norms.y_std) ** 2))
        q, qd = self.frames.decode(model, scene, ahead, mean.astype(state.q.dtype))
        time, doubt, since = state.time + dt, memory.doubt, memory.since
        if self.doubt is not None:
            acts = ahead.closing > 0 if self.frames.gated else True  # elsewhere a step is the base step's alone
            doubt = jnp.where(acts, self.doubt.of(x), 0.0).astype(doubt.dtype)
            since = jnp.where(doubt > 1, jnp.minimum(since, time), since)
        return dataclasses.replace(state, q=q, qd=qd, time=time, memory=Memory(cache, spread, doubt, since))


def disagreement(state: State) -> Array:
    """How much the ensemble disagreed in the last step; see `Memory`."""
    return _memory(state, "disagreement").disagreement


def doubt(state: State) -> Array:
    """How unlike the training data the last step began; above one it should not be believed. See `Doubt`. It is nan where the
    solver's file has no warning."""
    return _memory(state, "doubt").doubt


def _memory(state: State, what: str) -> Memory:
    if not isinstance(state.memory, Memory):
        raise TypeError(f"this state has no {what}: it was not computed by a NerdSolver.")
    return state.memory
