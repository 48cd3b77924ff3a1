"""The demo's chapter on control: a quadruped walks by convex MPC, and by a network that learned from its quadratic program."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from flexor.cli.demo_runs import Run
from flexor.control import InteriorPoint, Quadruped, Twin, Walked, Walker, on_its_feet
from flexor.robots import load
from flexor.solvers import Simulator, Trajectory

DT = 0.002
COMMAND = (0.5, 0.0, 0.2)  # m/s forwards and to the left, rad/s


@dataclass(frozen=True)
class Walks:
    """A walk by each, how it went, and the median time of a control that plans, in microseconds."""

    runs: list[Run]
    walked: list[Walked]
    planning: list[float]


def chapter(quick: bool, tell: Callable[[str], None]) -> Walks:
    """The same robot and command, with the quadratic program and with the network in its place."""
    robot = Quadruped.of(on_its_feet(load("quadruped", dtype=jnp.float32)))
    sim = Simulator(robot.model, dt=DT)
    runs, walked, planning = [], [], []
    for label, forces in (("QP", InteriorPoint()), ("network", Twin.pretrained())):
        tell(f"quadruped walks: {label}")
        begun = time.perf_counter()
        walker = Walker(robot, jnp.asarray(COMMAND, jnp.float32), DT, forces=forces)
        made, times = _walk(sim, walker, 0.5 if quick else 4.0)
        runs.append(Run(label, robot.model, made, time.perf_counter() - begun))
        walked.append(Walked.of(robot, *(np.asarray(x) for x in (made.time, made.q, made.qd))))
        every = round(walker.plan.every / DT)
        planning.append(float(np.median(times[every::every])) * 1e6)
    return Walks(runs, walked, planning)


def _walk(sim: Simulator, walker: Walker, seconds: float) -> tuple[Trajectory, np.ndarray]:
    """A walk from standing, and the seconds that each control took."""
    pilot, stepper = walker.compile(), sim.compile()
    stepper.reset(jnp.asarray(walker.robot.stand))
    steps = round(seconds / DT)
    q, qd = np.zeros((steps + 1, sim.model.nq)), np.zeros((steps + 1, sim.model.nv))
    u, times = np.zeros((steps, sim.model.nu)), np.zeros(steps)
    q[0], qd[0] = stepper.q, stepper.qd
    for k in range(steps):
        begun = time.perf_counter()
        u[k] = pilot(stepper.q, stepper.qd)
        times[k] = time.perf_counter() - begun
        stepper.step(u[k])
        q[k + 1], qd[k + 1] = stepper.q, stepper.qd
    time_, q_, qd_, u_ = (jnp.asarray(x) for x in (DT * np.arange(steps + 1), q, qd, u))
    return Trajectory(time_, q_, qd_, u_, {}, None, sim.model.topology), times
