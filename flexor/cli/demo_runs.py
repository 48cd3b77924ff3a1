"""What the demo simulates: two robots, with both contact models, beside MuJoCo; and how well they agree."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.contact import NCP, Penalty
from flexor.model.model import Model, State
from flexor.solvers import ImplicitDamping, MujocoSolver, RigidSolver, Simulator, Trajectory, taps
from flexor.solvers.solver import AbstractSolver

DT = 0.002
PENALTY_DT = 0.00025  # a stiff spring under a light foot needs short steps; impulses do not
DROP = 0.15  # m that the quadruped falls
FORCES = ("contact.normal_force", "contact.friction_force")


@dataclass(frozen=True)
class Run:
    """A trajectory, who computed it, and the seconds that took, compilation included."""

    label: str
    model: Model
    trajectory: Trajectory
    seconds: float


@dataclass(frozen=True)
class Check:
    """A figure and what it should be at most."""

    what: str
    value: float
    target: float

    @property
    def holds(self) -> bool:
        return bool(self.value <= self.target)


class HoldPose(eqx.Module):
    """Motor torques kp (target - q) - kd qd that hold the joints above a free base."""

    target: Float[Array, " nu"]
    kp: float = 200.0
    kd: float = 8.0

    def __call__(self, state: State) -> Float[Array, " nu"]:
        return self.kp * (self.target - state.q[7:]) - self.kd * state.qd[6:]


def solvers() -> dict[str, tuple[AbstractSolver, float]]:
    """Label, solver and time step; the integrator of ours is that of MuJoCo."""
    euler = ImplicitDamping()
    return {
        "MuJoCo": (MujocoSolver(), DT),
        "NCP": (RigidSolver(contact=NCP(), integrator=euler), DT),
        "Penalty": (RigidSolver(contact=Penalty(), integrator=euler), PENALTY_DT),
    }


def swing(model: Model, seconds: float, tell: Callable[[str], None]) -> list[Run]:
    """The double pendulum let go from level; it touches nothing, so both contact models take MuJoCo's time step."""
    runs = []
    for label, (solver, _) in solvers().items():
        tell(f"double pendulum: {label}")
        sim = Simulator(model, solver, dt=DT)
        runs.append(_run(label, sim, sim.reset("level"), None, seconds, ()))
    return runs


@dataclass(frozen=True)
class Drop:
    """The quadruped's runs, MuJoCo first, and MuJoCo's fall with Penalty's time step."""

    runs: list[Run]
    short_steps: Run


def drop(model: Model, seconds: float, tell: Callable[[str], None]) -> Drop:
    """The quadruped dropped on the ground, turning, its legs pulled towards a stance by a servo."""
    stand = model.keyframe("stand")
    policy = HoldPose(stand[7:])
    q = stand.at[2].add(DROP).at[7:].add(0.2 * jnp.sin(jnp.arange(model.nq - 7)))
    qd = jnp.zeros(model.nv, model.dtype).at[3:6].set(jnp.array([0.4, 0.8, 0.3], model.dtype))
    runs = []
    for label, (solver, dt) in solvers().items():
        tell(f"quadruped: {label}")
        sim = Simulator(model, solver, dt=dt)
        record = [name for name in FORCES if name in taps(sim)]
        runs.append(_run(label, sim, sim.reset(q, qd), policy, seconds, record))
    sim = Simulator(model, MujocoSolver(), dt=PENALTY_DT)
    return Drop(runs, _run("MuJoCo", sim, sim.reset(q, qd), policy, 0.2, ()))


def _run(label: str, sim: Simulator, state: State, policy: HoldPose | None, seconds: float, record: Sequence[str]) -> Run:
    start = time.perf_counter()
    trajectory = sim.rollout(state, policy, steps=round(seconds / float(sim.dt)), record=record)
    jax.block_until_ready(trajectory.q)
    return Run(label, sim.model, trajectory.raise_if_bad(), time.perf_counter() - start)


def swing_checks(runs: Sequence[Run]) -> list[Check]:
    """Largest difference of an angle from MuJoCo's; rounding grows in a chaotic swing, hence not 1e-15."""
    peer = np.asarray(runs[0].trajectory.q)
    return [
        Check(f"double pendulum, {r.label}: angles (rad)", float(np.abs(r.trajectory.q - peer).max()), 1e-9)
        for r in runs[1:]
    ]


def touch_step(run: Run) -> int:
    """The first step with a contact force."""
    force = np.asarray(run.trajectory.taps[FORCES[0]]).max(axis=-1)
    touched = np.flatnonzero(force > 0)
    return int(touched[0]) if touched.size else len(run.trajectory)


def fall_checks(drop: Drop) -> list[Check]:
    """Largest difference of a coordinate from MuJoCo's with the same time step, before anything touches the ground."""
    checks = []
    for run in drop.runs[1:]:
        same_dt = [r for r in (drop.runs[0], drop.short_steps) if np.isclose(r.trajectory.time[1], run.trajectory.time[1])]
        peer = same_dt[0].trajectory
        n = min(touch_step(run), len(peer))
        off = np.abs(np.asarray(run.trajectory.q[:n]) - np.asarray(peer.q[:n]))
        checks.append(Check(f"quadruped, {run.label}: falling (m, rad)", float(off.max()), 1e-9))
    return checks


def rest_checks(drop: Drop) -> list[Check]:
    """Height at rest against MuJoCo's, whose contacts are softer, and the floor's forces against the weight."""
    checks = []
    for run in drop.runs[1:]:
        sunk = abs(rest_height(run) - rest_height(drop.runs[0]))
        checks.append(Check(f"quadruped, {run.label}: height at rest (m)", sunk, 5e-3))
    for run in drop.runs[1:]:
        lift = abs(support(run)[-_tail(run) :].mean() - 1)
        checks.append(Check(f"quadruped, {run.label}: floor's force / weight, less 1", float(lift), 1e-2))
    return checks


def _tail(run: Run) -> int:
    return max(1, len(run.trajectory) // 10)


def rest_height(run: Run) -> float:
    """Height of the base over the last tenth of the time."""
    return float(np.asarray(run.trajectory.q)[-_tail(run) :, 2].mean())


def support(run: Run) -> np.ndarray:
    """Sum of the normal forces on the floor over the weight, at every step."""
    weight = float(jnp.sum(run.model.bodies.mass) * jnp.linalg.norm(run.model.gravity))
    return np.asarray(run.trajectory.taps[FORCES[0]]).sum(axis=-1) / weight
