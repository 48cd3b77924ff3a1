"""Gymnasium's tasks beside Gymnasium's own environments, which step MuJoCo, along the same actions from the same states.

In flight, with every contact and limit of the description there and none acting, observations and rewards are to agree within
1e-6 in double precision. Gymnasium rewards by the kinematics that MuJoCo's Runge-Kutta step leaves in place, those of its last
stage; `stale` is how far its rewards are from those of the state that was reached, which are the ones compared.

On the ground contact is another model (hard with friction cones here, soft in MuJoCo): the medians over robots of the largest
difference of an observed coordinate or speed are printed after some steps, and what episodes of random actions are worth.
"""

import argparse
import warnings
from dataclasses import replace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from _form import Check, Result, at_most, run, tell

import flexor as fx
from flexor.envs import AbstractTask, Episode, batched
from flexor.envs.episode import taken
from flexor.envs.gymnasium import PREFIX
from flexor.envs.gymnasium_table import TABLE

THEIRS = {
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
    "half-cheetah": "HalfCheetah-v5",
    "swimmer": "Swimmer-v5",
    "ant": "Ant-v5",
    "humanoid": "Humanoid-v5",
    "inverted-pendulum": "InvertedPendulum-v5",
    "inverted-double-pendulum": "InvertedDoublePendulum-v5",
}
LIFT = {"hopper": 1, "walker2d": 1, "half-cheetah": 1, "ant": 2, "humanoid": 2}
QUICK = ("hopper", "inverted-double-pendulum")
AFTER = (1, 10, 50)  # steps after which differences on the ground are printed
FLIGHT = 3  # steps
GENTLE = 0.1  # of the largest action, so that no limit of a joint is met in flight


def original(title: str, *, refreshed: bool) -> Any:
    """Gymnasium's environment with its default options; `refreshed`, its kinematics are those of the state that was reached."""
    env: Any = gymnasium.make(THEIRS[title]).unwrapped
    plain = env._step_mujoco_simulation

    def step(ctrl: Any, frames: int) -> None:
        plain(ctrl, frames)
        mujoco.mj_forward(env.model, env.data)
        mujoco.mj_rnePostConstraint(env.model, env.data)

    if refreshed:
        env._step_mujoco_simulation = step
    env.reset(seed=0)
    return env


def along(env: Any, q: Any, qd: Any, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observations, rewards and ends of Gymnasium's environment along actions between -1 and 1; it goes on where it ended."""
    env.set_state(q, qd)
    high = env.model.actuator_ctrlrange[:, 1]
    rows = [env.step(a * high)[:3] for a in actions]
    return tuple(np.array(x) for x in zip(*rows, strict=True))  # type: ignore[return-value]


def ours(task: AbstractTask, q: Any, qd: Any, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same of a task, for many robots in one kernel."""

    def whole(task: AbstractTask, _: None, each: Any) -> Any:
        q, qd, actions = each
        begin = fx.envs.start(task, jax.random.key(0))
        state = task.sim.solver.init(task.sim.model, task.sim.reset(q, qd))

        def step(episode: Episode, action: Any) -> Any:
            done = taken(task, episode, action)
            goal = task.follow(done, episode.key)
            reward = sum(task.reward(done).values(), jnp.zeros((), q.dtype))
            seen = task.observe(done.after, goal), reward, task.ended(done.after, goal)
            return replace(episode, state=done.after, goal=goal, action=action), seen

        return jax.lax.scan(step, replace(begin, state=state), actions)[1]

    return tuple(np.asarray(x) for x in batched(whole, task)(None, (q, qd, actions)))  # type: ignore[return-value]


def lifted(title: str, env: Any) -> tuple[np.ndarray, np.ndarray]:
    """A start in the air, joints in the middle half of their ranges."""
    q, m = env.init_qpos.copy(), env.model
    if title in LIFT:
        q[LIFT[title]] += 1
    for j in range(m.njnt):
        if m.jnt_limited[j]:
            (low, high), at = m.jnt_range[j], m.jnt_qposadr[j]
            q[at] = np.clip(q[at], (3 * low + high) / 4, (low + 3 * high) / 4)
    return q, np.random.default_rng(1).uniform(-0.1, 0.1, m.nv)


def flight(title: str) -> tuple[dict[str, Any], list[Check]]:
    """Differences without contact."""
    env, plain = (original(title, refreshed=x) for x in (True, False))
    q, qd = lifted(title, env)
    task = fx.envs.make(PREFIX + title, full=True)
    actions = GENTLE * np.random.default_rng(2).uniform(-1, 1, (FLIGHT, task.actions))
    observed, rewarded, over = along(env, q, qd, actions)
    touched = env.data.nefc
    seen, reward, ended = (x[0] for x in ours(task, q[None], qd[None], actions[None]))
    apart, worth = float(abs(seen - observed).max()), float(abs(reward - rewarded).max())
    stale = float(abs(along(plain, q, qd, actions)[1] - rewarded).max())
    row = {"task": title, "observations": task.observations, "flight: observation": apart, "reward": worth, "stale": stale}
    checks = [at_most(f"{title}: observations in flight", apart, 1e-6), at_most(f"{title}: rewards in flight", worth, 1e-6)]
    agree = bool((ended == over).all()) and touched == 0
    checks.append(Check(f"{title}: ends in flight, nothing touched", "equal" if agree else "not equal", "equal", agree))
    return row, checks


def ground(title: str, robots: int) -> dict[str, Any]:
    """Differences on the ground, from Gymnasium's own starts, and mean returns of random actions until the first end."""
    env, task = original(title, refreshed=True), fx.envs.make(PREFIX + title)
    starts = []
    for seed in range(robots):
        env.reset(seed=seed)
        starts.append((env.data.qpos.copy(), env.data.qvel.copy()))
    q, qd = (np.array(x) for x in zip(*starts, strict=True))
    actions = np.random.default_rng(3).uniform(-1, 1, (robots, max(AFTER), task.actions))
    seen, reward, ended = ours(task, q, qd, actions)
    rows = [along(env, *start, a) for start, a in zip(starts, actions, strict=True)]
    observed, rewarded, over = (np.array(x) for x in zip(*rows, strict=True))
    apart = abs(seen - observed[:, :, : task.observations]).max(axis=2)
    found: dict[str, Any] = {f"ground: after {k}": float(np.median(apart[:, k - 1])) for k in AFTER}
    for name, rewards, ends in (("here", reward, ended), ("Gymnasium", rewarded, over)):
        alive = np.cumsum(ends, axis=1) - ends == 0
        found[f"return {name}"], found[f"steps {name}"] = float((rewards * alive).sum(1).mean()), float(alive.sum(1).mean())
    return found


def measure(quick: bool, task: str | None) -> Result:
    """All tasks, two in a quick run, or one that is asked for."""
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore", UserWarning)
    rows, checks = [], list[Check]()
    for title in [task] if task else QUICK if quick else TABLE:
        tell(title)
        row, some = flight(title)
        rows.append({**row, **ground(title, 4 if quick else 64)})
        checks += some
    remarks = ["Rewards on the ground are without the contact costs of ant and humanoid here, and with them in Gymnasium's."]
    return Result(rows, checks, remarks)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=tuple(TABLE), help="one task")


if __name__ == "__main__":
    run("Are Gymnasium's tasks what Gymnasium's environments are?", measure, _add)
