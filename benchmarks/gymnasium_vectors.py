"""flexor's vector environments as others use them: an unchanged PPO of Stable-Baselines3 learns in them, and their rate beside
the loop in the kernel.

Stable-Baselines3 (2.9, with torch==2.13.0) is a peer and no dependency. It has a vector interface of its own, `VecEnv`; the
adapter below hands arrays through and does nothing else. Without Stable-Baselines3 its part is left out, and says so.
"""

import importlib.util
import time
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from _form import Check, Result, at_least, run, tell

import flexor as fx
import flexor.gym

PEER = "Stable-Baselines3 is not installed (pip install stable-baselines3 torch==2.13.0): no third-party learner was run."


def adapted(envs: Any) -> Any:
    """A vector environment of Gymnasium that resets in the same step, as Stable-Baselines3 wants it."""
    from stable_baselines3.common.vec_env import VecEnv

    class Adapted(VecEnv):
        """`step`, `reset` and the last observations of episodes; there is nothing else to hand through."""

        def __init__(self) -> None:
            super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
            self._actions: Any = None

        def reset(self) -> Any:
            return envs.reset(seed=int(self._seeds[0] or 0))[0]

        def step_async(self, actions: Any) -> None:
            self._actions = actions

        def step_wait(self) -> Any:
            seen, rewards, ended, truncated, infos = envs.step(self._actions)
            notes: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
            for robot in np.flatnonzero(ended | truncated):
                notes[robot] = {
                    "terminal_observation": infos["final_obs"][robot],
                    "TimeLimit.truncated": bool(truncated[robot] and not ended[robot]),
                }
            return seen, rewards, ended | truncated, notes

        def close(self) -> None:
            envs.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [getattr(envs, attr_name, None)] * self.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise NotImplementedError

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **options: Any) -> list[Any]:
            raise NotImplementedError

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * self.num_envs

    return Adapted()


def learned(steps: int, robots: int, wanted: float) -> tuple[dict[str, Any], list[Check]]:
    """Mean return of the first and last episodes of a pole on a cart under an unchanged PPO of Stable-Baselines3."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import VecMonitor

    envs = VecMonitor(adapted(gymnasium.make_vec("flexor/InvertedPendulum-v5", num_envs=robots)))

    class Returns(BaseCallback):
        """Keeps the returns of all episodes."""

        def _on_step(self) -> bool:
            found.extend(note["episode"]["r"] for note in self.locals["infos"] if "episode" in note)
            return True

    torch.set_num_threads(1)  # networks of 64-64 are too small for more
    found: list[float] = []
    learner = PPO("MlpPolicy", envs, n_steps=32, batch_size=512, n_epochs=10, learning_rate=1e-3, seed=0, device="cpu")
    begun = time.perf_counter()
    learner.learn(steps, callback=Returns())
    seconds = time.perf_counter() - begun
    envs.close()
    first, last = (float(np.mean(some)) for some in (found[:robots], found[-robots:]))
    row = {"what": "Stable-Baselines3 PPO, inverted pendulum", "robots": robots, "steps/s": round(steps / seconds),
           "seconds": round(seconds, 1), "return at first": first, "return at last": last}  # fmt: skip
    return row, [at_least("Stable-Baselines3: return of its last episodes over that of its first", last / first, wanted)]


def rates(name: str, robots: int, steps: int) -> tuple[list[dict[str, Any]], Check]:
    """Steps per second of a vector environment, and of the same task in the loop, with a policy of 128-64-32 in the kernel: that
    is what a learner gains by it."""
    envs: Any = gymnasium.make_vec(flexor.gym.identifier(name), num_envs=robots)
    task = envs.task
    envs.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, (robots, task.actions)).astype(np.float32)
    envs.step(actions)
    begun = time.perf_counter()
    for _ in range(steps):
        envs.step(actions)
    vector = robots * steps / (time.perf_counter() - begun)
    dtype = task.sim.model.dtype
    net = fx.learn.Perceptron.build(
        [task.observations, 128, 64, 32, task.actions], jax.random.key(0), activation="relu", last=0.01, dtype=dtype
    )
    actor = fx.learn.Actor(fx.learn.Norm.fresh(task.observations, dtype), net, jnp.zeros(task.actions, dtype))
    loop = fx.learn.Loop(task, steps=steps)
    start = loop.start(jax.random.key(0), robots)
    jax.block_until_ready(loop(actor, start))
    begun = time.perf_counter()
    jax.block_until_ready(loop(actor, start))
    inner = robots * steps / (time.perf_counter() - begun)
    rows = [{"what": f"{name}: {kind}", "robots": robots, "steps/s": round(x)} for kind, x in
            (("vector environment, actions from outside", vector), ("loop in the kernel, with a policy", inner))]  # fmt: skip
    return rows, at_least(f"{name}: rate of the loop over that of the vector environment", inner / vector, 1.0, timed=True)


def measure(quick: bool) -> Result:
    """The cart and the ant; in a quick run the cart."""
    rows, checks, remarks = list[dict[str, Any]](), list[Check](), []
    for name in ("cartpole",) if quick else ("cartpole", "ant-run", "gymnasium/ant"):
        tell(name)
        more, check = rates(name, 256 if quick else 4096, 16 if quick else 32)
        rows, checks = [*rows, *more], [*checks, check]
    if importlib.util.find_spec("stable_baselines3") is None or importlib.util.find_spec("torch") is None:
        remarks.append(PEER)
    else:
        row, found = learned(*((24_576, 64, 2.0) if quick else (200_000, 64, 20.0)))
        rows, checks = [*rows, row], checks + found
    return Result(rows, checks, remarks)


if __name__ == "__main__":
    run("Do flexor's vector environments serve other people's learners, and how fast?", measure)
