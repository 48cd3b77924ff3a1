"""Walks under pushes from random starts, in flexor (a batch in one kernel) and in MuJoCo (its own step beside the pilot)."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np

import flexor as fx
from flexor.control import Quadruped, Walked, Walker, on_its_feet
from flexor.model.model import Control
from flexor.solvers.mujoco import mujoco_model

DT = 0.002
PUSH, LASTS, EVERY = 30.0, 0.2, 4.0  # N, s, s
COMMANDS = {"forwards": (0.6, 0.0, 0.0), "sideways": (0.0, 0.2, 0.0), "turning": (0.0, 0.0, 0.8)}


class Pushed(fx.AbstractPolicy):
    """A walker whose trunk is pushed for `LASTS` every `EVERY` seconds, in a direction of its own each time."""

    walker: Walker
    force: jax.Array

    def init(self, key: Any) -> Any:
        return self.walker.init(key)

    def __call__(self, state: Any, memory: Any, key: Any) -> tuple[Control, Any]:
        control, memory = self.walker(state, memory, None)
        force, now = push_at(state.time, jnp)
        model = self.walker.robot.model
        row = jnp.asarray(np.arange(len(model.topology.bodies)) == model.topology.joints[0].body, now.dtype)
        wrench = jnp.concatenate([jnp.zeros(3, now.dtype), self.force * now * force])
        return Control(u=control.u, wrench=row[:, None] * wrench[None]), memory


def push_at(time: Any, np_: Any) -> tuple[Any, Any]:
    """Direction of the push in the world, and whether it acts at this time (1 or 0)."""
    turn = np_.floor(time / EVERY)
    angle = 2.4 * turn  # the golden angle: directions never repeat
    now = 1.0 * ((time - EVERY * turn > EVERY / 2) & (time - EVERY * turn < EVERY / 2 + LASTS))
    return np_.stack([np_.cos(angle), np_.sin(angle), 0 * angle]), now


class Starts(NamedTuple):
    """Rows of coordinates, velocities and times in the gait."""

    q: np.ndarray
    qd: np.ndarray
    time: np.ndarray


def robot_named(name: str) -> Quadruped:
    """The robot with the contacts of its feet."""
    bundled = name == "quadruped"
    options = {} if bundled else {"floating": True, "ground": True}
    return Quadruped.of(on_its_feet(fx.load(name, dtype=jnp.float32, **options)))


def random_starts(robot: Quadruped, count: int, period: float, seed: int) -> Starts:
    """Standing, within 0.1 rad and 0.1 rad/s or m/s in each joint and the trunk, looking anywhere, anywhere in the gait."""
    rng = np.random.default_rng(seed)
    q = np.repeat(robot.stand[None].astype(float), count, axis=0)
    q[:, 7:] += rng.uniform(-0.1, 0.1, (count, q.shape[1] - 7))
    q[:, 2] += 0.02
    half = rng.uniform(-np.pi, np.pi, count) / 2
    q[:, 3], q[:, 6] = np.cos(half), np.sin(half)
    qd = rng.uniform(-0.1, 0.1, (count, robot.model.nv))
    return Starts(q, qd, rng.uniform(0, period, count))


class Walks:
    """All walks of a robot in flexor: one program, whatever the command, the push and the network's weights."""

    def __init__(self, walker: Walker, seconds: float):
        self.walker, self.steps = walker, round(seconds / DT)
        self.sim = fx.Simulator(walker.robot.model, dt=DT)

        def one(q: Any, qd: Any, time: Any, command: Any, force: Any, weights: Any) -> tuple[Any, ...]:
            w = eqx.tree_at(lambda w: (w.command, w.forces), walker, (command, weights))
            policy = Pushed(eqx.tree_at(lambda w: w.start, w, time), force)
            made = self.sim.rollout(self.sim.reset(q, qd), policy, steps=self.steps)
            return made.time, made.q, made.qd, made.policy_memory.refused

        self._all = fx.simd.vmap(one, (0, 0, 0, 0, 0, None))

    def __call__(self, starts: Starts, commands: np.ndarray, forces: np.ndarray, weights: Any) -> tuple[np.ndarray, ...]:
        """Times, coordinates and velocities of each walk, and how often it had no plan."""
        rows = (jnp.asarray(x, jnp.float32) for x in (*starts, commands, forces))
        return tuple(np.asarray(x) for x in self._all(*rows, weights))


def in_mujoco(walker: Walker, starts: Starts, commands: np.ndarray, forces: np.ndarray, seconds: float) -> list[Walked]:
    """The same walks in MuJoCo: its own step and contacts, torques by the compiled walker."""
    model = walker.robot.model
    m = mujoco_model(model)
    m.opt.timestep = DT
    pilot, trunk, found = walker.compile(), model.topology.joints[0].body, []
    for q, qd, time, command, force in zip(*starts, commands, forces, strict=True):
        d = mujoco.MjData(m)
        d.qpos[:], d.qvel[:] = q, qd
        pilot.reset()
        pilot.order(command)
        pilot.memory.time[...] = time
        rows = np.zeros((round(seconds / DT), 1 + model.nq + model.nv))
        for row in rows:
            row[0], row[1 : 1 + model.nq], row[1 + model.nq :] = d.time, d.qpos, d.qvel
            d.ctrl[:] = pilot(d.qpos, d.qvel)
            direction, now = push_at(d.time, np)
            d.xfrc_applied[trunk, :3] = force * now * direction
            mujoco.mj_step(m, d)
        found.append(Walked.of(walker.robot, rows[:, 0], rows[:, 1 : 1 + model.nq], rows[:, 1 + model.nq :]))
    return found
