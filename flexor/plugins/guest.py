"""`Guest`: a solver that moves a state which belongs to another program.

The other program owns coordinates and velocities and may change them at any time. What the solver remembers between steps (a
window, a warm start) is the guest's own, and begins anew for every robot whose coordinates or velocities are not those that the
guest has left behind.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flexor.model.model import Control, Model
from flexor.solvers import AbstractSolver, Simulator
from flexor.solvers.table import solver as solver_named

PARTS = ("u", "tau", "wrench", "mocap_pos", "mocap_quat")


class Guest:
    """`n` robots of a simulator, for a program with NumPy arrays of `n` rows.

    A state that comes back within `rounding` of what was left behind, relative to one and its size, counts as unchanged: programs
    with other coordinates than flexor's cannot give them back to the last bit.
    """

    def __init__(self, sim: Simulator, n: int, *, threads: int | None = None, rounding: float = 0.0):
        given = tuple(name for name in PARTS if _takes(sim, name))
        self.sim, self._rounding = sim, rounding
        self._stepper = sim.compile(batch=n, controls=given, threads=threads)
        self._left = (np.full_like(self._stepper.q, np.nan), np.full_like(self._stepper.qd, np.nan))
        self.inputs = {name: getattr(self._stepper, name) for name in given}

    def advance(
        self, q: np.ndarray, qd: np.ndarray, *, steps: int = 1, act: np.ndarray | None = None, **inputs: Any
    ) -> None:
        """Moves the robots by so many time steps under constant inputs; `q`, `qd` and activations are overwritten."""
        stepper = self._stepper
        self._take(q, qd)
        for name, value in inputs.items():
            if name in self.inputs:
                self.inputs[name][...] = value
            elif np.any(value):
                self.sim.solver.accept(Control(**{name: value[0]}))
                raise ValueError(f"'{self.sim.model.topology.name}' has nothing that takes the input '{name}'.")
        if act is not None and stepper.act is not None:
            stepper.act[...] = act
        for _ in range(steps):
            stepper.step()
        for mine, left, theirs in zip((stepper.q, stepper.qd), self._left, (q, qd), strict=True):
            theirs[...] = mine
            left[...] = theirs
        if act is not None and stepper.act is not None:
            act[...] = stepper.act

    def restart(self) -> None:
        """Forgets what the solver remembers of all robots."""
        for left in self._left:
            left[...] = np.nan

    def _take(self, q: np.ndarray, qd: np.ndarray) -> None:
        """The program's coordinates and velocities; memories begin anew where they were changed."""
        dtype = self._stepper.q.dtype
        q, qd = np.asarray(q, dtype), np.asarray(qd, dtype)
        same = [np.abs(x - left) <= self._rounding * (1 + np.abs(left)) for x, left in zip((q, qd), self._left, strict=True)]
        rows = np.flatnonzero(~np.all(np.concatenate(same, axis=-1), axis=-1))  # nothing is the same as nan
        if len(rows):
            self._stepper.reset(q[rows], qd[rows], where=rows)


def _takes(sim: Simulator, name: str) -> bool:
    """Whether the solver and the robot have such an input."""
    t = sim.model.topology
    shape = {"u": (t.nu,), "tau": (t.nv,), "wrench": (len(t.bodies), 6), "mocap_pos": (len(t.mocap), 3)}.get(
        name, (len(t.mocap), 4)
    )
    if not shape[0]:
        return False
    try:
        sim.solver.accept(Control(**{name: np.zeros(shape)}))  # type: ignore[arg-type]
    except ValueError:
        return False
    return True


def simulator(model: Model, solver: AbstractSolver | str | Mapping[str, Any], dt: float) -> Simulator:
    """A simulator whose solver may be given by its name (`fx.solver`)."""
    return Simulator(model, solver if isinstance(solver, AbstractSolver) else solver_named(solver), dt=dt)
