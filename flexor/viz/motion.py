"""What a viewer plays: a trajectory, and how to simulate it again from another start or with other parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np

from flexor.model.model import Model
from flexor.model.parameters import parameters, replace
from flexor.solvers import Simulator, Stepper, Trajectory

FORCES = ("contact.normal_force", "contact.friction_force")
Simulate = Callable[[np.ndarray | None, Mapping[str, np.ndarray]], Trajectory]
"""The trajectory from coordinates q (None: the motion's own start), with parameters by name."""


@dataclass(frozen=True)
class Motion:
    """A robot that moves: a label, its model, its trajectory; and `simulate`, where it can be simulated again. It is `steerable`
    where its start may be chosen."""

    label: str
    model: Model
    trajectory: Trajectory
    simulate: Simulate | None = None
    steerable: bool = True


@dataclass
class Replay:
    """Simulates a robot again under the same inputs, and keeps the taps `record`.

    The kernel of a solver that compiles takes the parameters as inputs: after the first time with these parameters, a
    simulation takes no longer than its steps.
    """

    sim: Simulator
    u: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    record: tuple[str, ...] = ()
    steppers: dict[tuple[str, ...], Stepper] = field(default_factory=dict)

    def __call__(self, q: np.ndarray | None, values: Mapping[str, np.ndarray]) -> Trajectory:
        start = self.q if q is None else q
        if self.sim.simd and self.sim.solver.compilable:
            return self._stepped(start, values)
        sim = Simulator(replace(self.sim.model, values), self.sim.solver, dt=self.sim.dt, simd=self.sim.simd)
        return sim.rollout(sim.reset(start, self.qd), self.u, record=self.record)

    def _stepped(self, q: np.ndarray, values: Mapping[str, np.ndarray]) -> Trajectory:
        key = tuple(sorted(values))
        if key not in self.steppers:
            self.steppers[key] = self.sim.compile(record=self.record, parameters=key)
        stepper, steps = self.steppers[key], len(self.u)
        for name in key:
            stepper.parameters[name][...] = values[name]
        stepper.reset(q, self.qd)
        states = {name: np.empty((steps + 1, *x.shape), x.dtype) for name, x in self._states(stepper).items()}
        taps = {name: np.empty((steps, *x.shape), x.dtype) for name, x in stepper.recorded.items()}
        for k in range(steps + 1):
            for name, x in self._states(stepper).items():
                states[name][k] = x
            if k < steps:
                stepper.step(self.u[k])
                for name, x in stepper.recorded.items():
                    taps[name][k] = x
        made = {name: jnp.asarray(x) for name, x in states.items()}
        recorded = {name: jnp.asarray(x) for name, x in taps.items()}
        u, topology = jnp.asarray(self.u), self.sim.model.topology
        return Trajectory(made["time"], made["q"], made["qd"], u, recorded, None, topology)

    @staticmethod
    def _states(stepper: Stepper) -> dict[str, np.ndarray]:
        return {"time": stepper.time, "q": stepper.q, "qd": stepper.qd}


def numbers(model: Model, pattern: str) -> dict[str, np.ndarray]:
    """The parameters that match a pattern, as arrays; raises where there is none."""
    found = {name: np.asarray(x, float) for name, x in parameters(model, pattern).items()}
    if not found:
        raise KeyError(f"no parameter of '{model.topology.name}' matches '{pattern}'; `flexor info` lists them.")
    widths = {x.shape for x in found.values()}
    if len(widths) > 1:
        raise ValueError(f"the parameters that match '{pattern}' have different shapes, so one slider cannot set them all.")
    return found


def still(model: Model, q: np.ndarray | None = None) -> Trajectory:
    """A robot that stands at coordinates q, or at its reference, for one instant and a millisecond."""
    rest = np.repeat(np.asarray(model.reference if q is None else q, float)[None], 2, axis=0)
    zero = np.zeros((2, model.nv))
    made = (np.array([0.0, 1e-3]), rest, zero, np.zeros((1, model.nu)))
    time, places, rates, u = (jnp.asarray(x, model.dtype) for x in made)
    return Trajectory(time, places, rates, u, {}, None, model.topology)


def series(motion: Motion) -> dict[str, tuple[np.ndarray, np.ndarray, list[str]]]:
    """What may be plotted of a motion: by name the times, the values (times, columns) and the columns' names."""
    t, run = motion.model.topology, motion.trajectory
    time = np.asarray(run.time, float)
    found = {
        "q": (time, np.asarray(run.q, float), [t.q_name(i) for i in range(t.nq)]),
        "qd": (time, np.asarray(run.qd, float), [t.dof_name(i) for i in range(t.nv)]),
    }
    if t.nu:
        found["u"] = (time[1:], np.asarray(run.u, float), [a.name for a in t.actuators])
    for name, x in run.taps.items():
        values = np.asarray(x, float).reshape(len(x), -1)
        found[name] = (time[1:], values, [str(i) for i in range(values.shape[1])])
    return found
