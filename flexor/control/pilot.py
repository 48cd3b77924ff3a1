"""`Pilot`: a walker as one program over NumPy arrays in place, for control loops from Python."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flexor.model.model import State
from flexor.simd import Direct

if TYPE_CHECKING:
    from flexor.control.walker import Memory, Walker


class Pilot:
    """Inputs of the motors from coordinates and velocities, in one call of compiled code; made by `Walker.compile`.

    `command` and what the walker remembers (`memory`) are NumPy arrays that stay the same objects and may be written to; with a
    `batch`, each has a row for every robot.
    """

    def __init__(self, walker: "Walker", *, batch: int | None = None, threads: int | None = None):
        reason = Direct.unsupported()
        if reason:
            raise ValueError(f"there is no pilot on this machine: {reason}; use the walker as a policy of `sim.rollout`.")
        model = walker.robot.model
        start, tree = jax.tree.flatten(walker.init(None))
        q, qd = (jnp.zeros(n, model.dtype) for n in (model.nq, model.nv))

        def control(q, qd, command, leaves):  # type: ignore[no-untyped-def]
            pilot = eqx.tree_at(lambda w: w.command, walker, command)
            made, memory = pilot(State(q, qd, jnp.zeros((), model.dtype)), jax.tree.unflatten(tree, leaves), None)
            return jax.tree.leaves(memory), made.u

        examples = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (q, qd, walker.command, start))
        feeds = range(3, 3 + len(start))
        program = Direct(control, *examples, feeds=feeds, size=batch, threads=threads)
        self._program, self._run = program, program.run  # the program owns the code
        self.q, self.qd, self.command = program.inputs[:3]
        self.memory: Memory = jax.tree.unflatten(tree, program.inputs[3:])
        self.u: np.ndarray = program.outputs[-1]
        self._start, self._walker = [np.asarray(x) for x in start], walker
        self.command[...] = np.asarray(walker.command)
        self.reset()

    def reset(self) -> None:
        """Forgets the past: the gait begins anew, the last plan is an even share of the weight."""
        for mine, x in zip(jax.tree.leaves(self.memory), self._start, strict=True):
            mine[...] = x

    def order(self, command: np.ndarray) -> None:
        """Another command; raises, with a sentence, for one that the legs cannot follow."""
        for row in np.atleast_2d(np.asarray(command, float)):
            self._walker.check(row)
        self.command[...] = command

    def __call__(self, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
        """The motors' inputs, in an array that the next call overwrites."""
        self.q[...], self.qd[...] = q, qd
        self._run()
        return self.u
