"""The peers of `learning.py`: tasks of the ant and the quadruped in NumPy over `mujoco.batch`; Gymnasium's vector environments.

The robots, time steps, observations, rewards, ends and policies are those of flexor's tasks; physics and contact are MuJoCo's.
"""

import os
from typing import Any

import gymnasium
import numpy as np
from mujoco.batch import Batch

from flexor.envs import AbstractTask
from flexor.learn import Policy
from flexor.solvers.mujoco import mujoco_model

CORES = os.cpu_count() or 1


def rotations(quat: np.ndarray) -> np.ndarray:
    """Matrices of unit quaternions, from the body to the world."""
    w, x, y, z = quat.T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), 2, 0)


class Robots:
    """Many robots of a task with a free base. A subclass has the task's formulas."""

    def __init__(self, task: AbstractTask, robots: int):
        sim = task.simulator(None)
        self.task, self.rng = task, np.random.default_rng(0)
        model = mujoco_model(sim.model)
        self.substeps = round(float(sim.dt) / sim.solver.shortest_step(float(sim.dt)))
        model.opt.timestep = float(sim.dt) / self.substeps
        self.batch = Batch(model, robots, CORES)
        self.q, self.qd, self.u = (self.batch.bind(name) for name in ("qpos", "qvel", "ctrl"))
        self.steps = np.zeros(robots, int)
        self.total = np.zeros(robots)
        self.start(np.arange(robots))

    def step(self, policy: Policy) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A step of all robots, those that are through with their episodes set back; the observations that the policy saw, the
        rewards and the ends."""
        seen = self.observe().astype(np.float32)
        deviation = np.exp(np.asarray(policy.actor.log_deviation))
        action = policy(seen) + deviation * self.rng.standard_normal((len(seen), len(deviation)), np.float32)
        self.act(np.clip(action, -1, 1))
        self.batch.step(nstep=self.substeps)
        reward, ended = self.outcome()
        self.steps += 1
        self.total += reward
        over = np.flatnonzero(ended | (self.steps >= self.task.length))
        if len(over):
            self.start(over)
            self.steps[over], self.total[over] = 0, 0
        return seen, reward, ended

    def start(self, who: np.ndarray) -> None:
        """Puts robots at the start of an episode."""
        raise NotImplementedError

    def act(self, action: np.ndarray) -> None:
        """Hands over actions between -1 and 1."""
        raise NotImplementedError

    def observe(self) -> np.ndarray:
        """What the policy sees."""
        raise NotImplementedError

    def outcome(self) -> tuple[np.ndarray, np.ndarray]:
        """Rewards and ends."""
        raise NotImplementedError


class Ants(Robots):
    """`AntRun`."""

    def start(self, who: np.ndarray) -> None:
        noise = self.task.noise  # type: ignore[attr-defined]
        stand = np.asarray(self.task.sim.model.keyframe("stand"), float)
        q = np.tile(stand, (len(who), 1))
        q[:, 7:] += self.rng.uniform(-noise, noise, (len(who), len(stand) - 7))
        self.q[who], self.qd[who] = q, self.rng.uniform(-noise, noise, (len(who), self.qd.shape[1]))

    def act(self, action: np.ndarray) -> None:
        low, high = np.asarray(self.task.sim.model.actuators.ctrl_range).T
        self.u[:] = (low + high) / 2 + (high - low) / 2 * action

    def observe(self) -> np.ndarray:
        q, qd, R = self.q, self.qd, rotations(self.q[:, 3:7])
        turning = np.einsum("nij,nj->ni", R, qd[:, 3:6])
        return np.concatenate([q[:, 2:7], qd[:, :3], turning, q[:, 7:], qd[:, 6:], R[:, 2, 2:], R[:, 0, :1]], axis=1)

    def outcome(self) -> tuple[np.ndarray, np.ndarray]:
        R = rotations(self.q[:, 3:7])
        return self.qd[:, 0] + R[:, 0, 0] + 0.1 * R[:, 2, 2], self.q[:, 2] < self.task.lowest  # type: ignore[attr-defined]


class Quadrupeds(Robots):
    """`Walk`, forwards. The robots look along x when they start, so that their axes are the world's."""

    def __init__(self, task: Any, robots: int):
        legs, t = task.legs, task.sim.model.topology
        self.stand = np.asarray(task.stand, float)
        names = [[t.bodies[b] for b in dict.fromkeys(some)] for some in (legs.hips, legs.knees)]
        super().__init__(task, robots)
        ids = [[self.batch.model.body(name).id for name in some] for some in names]
        self.hips, self.knees = ids
        self.places, self.forces = self.batch.bind("xpos"), self.batch.bind("actuator_force")
        self.level = float(legs.level(task.sim.model))

    def start(self, who: np.ndarray) -> None:
        noise = self.task.noise  # type: ignore[attr-defined]
        q = np.tile(self.stand, (len(who), 1))
        q[:, :2] = 0
        q[:, 3:7] = [1, 0, 0, 0]
        q[:, 7:] += self.rng.uniform(-noise, noise, (len(who), len(self.stand) - 7))
        self.q[who], self.qd[who] = q, self.rng.uniform(-noise, noise, (len(who), self.qd.shape[1]))

    def act(self, action: np.ndarray) -> None:
        servo: Any = self.task.action
        self.u[:] = np.asarray(self.task.sim.model.actuators.gear) * (np.asarray(servo.rest) + servo.scale * action)

    def observe(self) -> np.ndarray:
        q, qd, R = self.q, self.qd, rotations(self.q[:, 3:7])
        turning = np.einsum("nij,nj->ni", R, qd[:, 3:6])
        height = q[:, 2:3] - self.level
        return np.concatenate([height, q[:, 3:7], qd[:, :3], turning, q[:, 7:], qd[:, 6:], R[:, 2, 2:], R[:, 0, :1]], axis=1)

    def outcome(self) -> tuple[np.ndarray, np.ndarray]:
        task: Any = self.task
        q, qd, R = self.q, self.qd, rotations(self.q[:, 3:7])
        turning = np.einsum("nj,nj->n", R[:, 2], qd[:, 3:6])
        good = np.exp(-((qd[:, 0] - task.wanted[0]) ** 2) - (qd[:, 1] - task.wanted[1]) ** 2)
        good += 0.5 * np.exp(-(turning**2))
        tall, heights = self.stand[2], self.places[:, :, 2] - self.level
        low = q[:, 2] - self.level < task.lowest * tall
        low |= (heights[:, self.hips] < task.hip * tall).any(axis=1) | (heights[:, self.knees] < task.knee * tall).any(
            axis=1
        )
        return good - np.minimum(2.5e-5 * np.sum(self.forces**2, axis=1), good), low


def gymnasium_rate(kind: str, count: int, policy: Policy, steps: int) -> Any:
    """A function that steps Gymnasium's own vector environments of Ant-v5 under a policy, and how many steps that makes."""
    how: dict[str, Any] = {"vector_kwargs": {"context": "spawn"}} if kind == "async" else {}
    envs: Any = gymnasium.make_vec(
        "Ant-v5", num_envs=count, vectorization_mode=kind, include_cfrc_ext_in_observation=False, **how
    )
    observations = [envs.reset(seed=0)[0]]
    rng = np.random.default_rng(0)

    def run() -> None:
        for _ in range(steps):
            seen = observations[0].astype(np.float32)
            action = policy(seen) + rng.standard_normal((count, 8), np.float32)
            observations[0] = envs.step(np.clip(action, -1, 1))[0]

    return run, count * steps, envs.close
