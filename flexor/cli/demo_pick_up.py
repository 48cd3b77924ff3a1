"""The demo's chapter on adaptation: an arm picks up a weight that nobody told it of, and finds it out."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flexor.adapt import Adapter, Event, History
from flexor.cli.demo_runs import Run
from flexor.control import ComputedTorque, Sines
from flexor.model.model import Model
from flexor.robots.load import load
from flexor.solvers import RigidSolver, Simulator, Trajectory

DT = 0.002
NOISE = np.array([1e-4, 1e-4, 1e-3, 1e-3])  # rad, rad/s
HAND, WEIGHT, WHERE, RADIUS = 0.4, 1.9, 0.35, 0.06  # kg; kg, m from the elbow, m
DESCRIPTION = f"""
<mujoco model="arm">
  <compiler angle="radian"/>
  <default><joint axis="0 1 0" damping="0.2"/><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <body name="upper">
      <joint name="shoulder" armature="0.05"/>
      <inertial pos="0.2 0 0" mass="2" diaginertia="0.002 0.03 0.03"/>
      <geom type="capsule" fromto="0 0 0 0.4 0 0" size="0.03" contype="1"/>
      <body name="hand" pos="0.4 0 0">
        <joint name="elbow" armature="0.02"/>
        <inertial pos="0.15 0 0" mass="{HAND}" diaginertia="0.0005 0.004 0.004"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.025" contype="1"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="shoulder" joint="shoulder"/><motor name="elbow" joint="elbow"/></actuator>
</mujoco>
"""


@dataclass(frozen=True)
class PickUp:
    """What happened: the motion of both arms beside the wanted one, errors in rad, estimates, the change that was told, and when
    the weight was really taken."""

    runs: list[Run]
    errors: dict[str, np.ndarray]
    history: History
    events: list[Event]
    taken: float
    mass: float
    seconds: float


def loaded() -> dict[str, Any]:
    """Parameters of the hand with a ball in it."""
    mass = HAND + WEIGHT
    centre = (HAND * 0.15 + WEIGHT * WHERE) / mass
    ball = 0.4 * WEIGHT * RADIUS**2
    across = 0.004 + ball + HAND * (0.15 - centre) ** 2 + WEIGHT * (WHERE - centre) ** 2
    inertia = np.array([0.0005 + ball, across, across, 0.0, 0.0, 0.0])
    return {"body.hand.mass": mass, "body.hand.com": np.array([centre, 0.0, 0.0]), "body.hand.inertia": inertia}


def chapter(quick: bool, tell: Callable[[str], None]) -> PickUp:
    """Two arms follow the same motion and take the same weight: one keeps its model, the other adapts it."""
    tell("an arm picks up an unknown weight")
    begun = time.perf_counter()
    model = load(DESCRIPTION)
    sim = Simulator(model, RigidSolver(contact=None), dt=DT)
    steps = 1500 if quick else 3000
    arrays = ([-0.6, 0.5], [0.5, 0.7], [0.45, 0.7], [0.0, 1.0])
    goal = Sines(*(jnp.asarray(x, model.dtype) for x in arrays))  # type: ignore[arg-type]
    adapter = Adapter(sim, ["body.hand.*"], noise={"q.*": 1e-4, "qd.*": 1e-3})
    policies = {
        "frozen model": ComputedTorque(model, goal),
        "adapting model": ComputedTorque(model, goal, place=adapter.place),
    }
    history, runs, at = History(), [], round(0.45 * steps)
    stepper = sim.compile(parameters=["body.hand.mass", "body.hand.com", "body.hand.inertia"])
    for label, policy in policies.items():
        adapts = adapter if policy.place is not None else None
        runs.append(_follow(label, stepper, policy, adapts, history, steps, at))
    wanted = np.asarray(jax.jit(jax.vmap(lambda t: goal(t)[0]))(jnp.asarray(DT * np.arange(steps + 1), model.dtype)))
    errors = {r.label: np.linalg.norm(np.asarray(r.trajectory.q) - wanted, axis=1) for r in runs}
    return PickUp(runs, errors, history, list(adapter.events), DT * at, HAND + WEIGHT, time.perf_counter() - begun)


def _follow(
    label: str, stepper: Any, policy: ComputedTorque, adapter: Adapter | None, history: History, steps: int, at: int
) -> Run:
    begun, rng, loop = time.perf_counter(), np.random.default_rng(0), policy.compile()
    model: Model = stepper.sim.model
    weights = {name: np.asarray(x) for name, x in loaded().items()}
    empty = {name: x.copy() for name, x in stepper.parameters.items()}
    q, qd, u = np.zeros((steps + 1, 2)), np.zeros((steps + 1, 2)), np.zeros((steps, 2))
    stepper.reset(np.asarray(policy.goal(jnp.zeros((), model.dtype))[0]))
    for k in range(steps):
        if k == at:
            for name, x in weights.items():
                stepper.parameters[name][...] = x
        q[k], qd[k] = stepper.q, stepper.qd
        measured = np.concatenate([q[k], qd[k]]) + NOISE * rng.normal(size=4)
        u[k] = loop(DT * k, measured[:2], measured[2:])
        if adapter is not None:
            estimate = adapter.update(DT * k, measured, u[k])
            history.add(estimate)
            loop.memory[...] = estimate.z
        stepper.step(u[k])
    q[steps], qd[steps] = stepper.q, stepper.qd
    for name, x in empty.items():  # the next arm begins without the weight
        stepper.parameters[name][...] = x
    time_, q_, qd_, u_ = (jnp.asarray(x) for x in (DT * np.arange(steps + 1), q, qd, u))
    moved = Trajectory(time_, q_, qd_, u_, {}, None, model.topology)
    return Run(label, model, moved, time.perf_counter() - begun)
