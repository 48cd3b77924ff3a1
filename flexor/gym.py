"""Tasks as Gymnasium environments (extra `gym`): `gymnasium.make("flexor/AntRun-v0")`, `gymnasium.make_vec(..., num_envs=4096)`.

Importing this module registers every task of `fx.envs.TASKS`; `import flexor` does so too where Gymnasium was imported before.
All robots of a vector environment take their step in one kernel. Where an episode is over, the next one begins in the same
step (`AutoresetMode.SAME_STEP`), and the last observation is in `infos["final_obs"]`.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from flexor.envs import TASKS, AbstractTask, Episode, advance, batched, check, make, start
from flexor.envs.gymnasium import PREFIX
from flexor.learn.loop import check_finite
from flexor.viz.scene import body_motion
from flexor.viz.video import Stage

try:
    import gymnasium
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise ImportError('environments of Gymnasium need it: `pip install "flexor[gym]"`.') from error

SEEDS = 2**31  # how many seeds environments draw theirs from


class Robots:
    """Robots at a task, moved together by one kernel: what single and vector environments have in common."""

    def __init__(self, task: AbstractTask | str, count: int, options: dict[str, Any]):
        if isinstance(task, AbstractTask) and options:
            raise TypeError(f"options go with the name of a task, and a task was given: {', '.join(options)}.")
        self.task = make(task, **options) if isinstance(task, str) else task
        check(self.task)
        self.count = count
        self._start = batched(lambda t, _, key: start(t, key), self.task)
        self._advance = batched(lambda t, _, each: advance(t, *each), self.task)
        self._episodes: Episode | None = None

    @property
    def spaces(self) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Box]:
        """Of one robot's observations and actions."""
        dtype = self.task.sim.model.dtype
        seen = gymnasium.spaces.Box(-np.inf, np.inf, (self.task.observations,), dtype)
        return seen, gymnasium.spaces.Box(-1, 1, (self.task.actions,), dtype)

    @property
    def frames_per_second(self) -> int:
        return round(1 / float(self.task.sim.dt))

    def reset(self, seeds: np.ndarray) -> Float[np.ndarray, "robots n"]:
        """First observations of new episodes, one from each seed."""
        keys = jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))
        self._episodes = self._start(None, keys)
        return _own(self._episodes.observation)

    def step(self, actions: np.ndarray) -> tuple[Float[np.ndarray, "robots n"], Any]:
        """What is observed next, of new episodes where one is over, and the robots' `Transition` in NumPy."""
        if self._episodes is None:
            raise gymnasium.error.ResetNeeded("call `reset` before the first `step`.")
        seen, shape = np.asarray(actions, self.task.sim.model.dtype), (self.count, self.task.actions)
        if seen.shape != shape:
            raise ValueError(f"actions of {self.task.name} must have shape {shape}, got {seen.shape}.")
        if not np.isfinite(seen).all():
            raise ValueError(f"an action of {self.task.name} is not finite.")
        self._episodes, transition = self._advance(None, (self._episodes, seen))
        if not np.isfinite(transition.reward).all():
            check_finite(self.task, transition.terms)
        return _own(self._episodes.observation), jax.tree.map(_own, transition)

    def q(self, robot: int) -> np.ndarray:
        """Coordinates of a robot."""
        if self._episodes is None:
            raise gymnasium.error.ResetNeeded("call `reset` before `render`.")
        return np.asarray(self._episodes.state.q[robot], float)


class Window:
    """Images of robots, made when the first is asked for."""

    def __init__(self, robots: Robots, size: tuple[int, int] = (480, 480)):
        self._robots, self._size = robots, size
        self._stage: Stage | None = None

    def image(self, robot: int) -> np.ndarray:
        """What a camera that goes along with a robot sees of it."""
        q, model = self._robots.q(robot), self._robots.task.sim.model
        if self._stage is None:
            self._stage = Stage.of(model, q, self._size)
        (pos,), (quat,) = body_motion(model, q[None])
        return self._stage.image(pos, quat, pos[1:].mean(axis=0))

    def close(self) -> None:
        if self._stage is not None:
            self._stage.close()
            self._stage = None


class TaskEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One robot at a task of `fx.envs`: by name with its options, or a task of one's own."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012 (as Gymnasium declares it)

    def __init__(self, task: AbstractTask | str, *, render_mode: str | None = None, **options: Any):
        _check_render_mode(render_mode)
        self._robots = Robots(task, 1, options)
        self.render_mode, self._window = render_mode, Window(self._robots)
        self.metadata = {**self.metadata, "render_fps": self._robots.frames_per_second}
        self.observation_space, self.action_space = self._robots.spaces

    @property
    def task(self) -> AbstractTask:
        return self._robots.task

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        drawn = self.np_random.integers(SEEDS) if seed is None else seed
        return self._robots.reset(np.array([drawn]))[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        _, t = self._robots.step(np.asarray(action)[None])
        info = {"diverged": bool(t.diverged[0]), **{f"reward_{name}": float(x[0]) for name, x in t.terms.items()}}
        return t.observation[0], float(t.reward[0]), bool(t.ended[0]), bool(t.truncated[0]), info

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        return None if self.render_mode is None else self._window.image(0)

    def close(self) -> None:
        self._window.close()


class TaskVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Many robots at a task, a step of all in one kernel. The first has the episodes that `TaskEnv` has with the same seed, as
    long as nobody's seed is drawn."""

    metadata: dict[str, Any] = {  # noqa: RUF012 (as Gymnasium declares it)
        "render_modes": ["rgb_array"],
        "render_fps": 60,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(self, task: AbstractTask | str, *, num_envs: int = 1, render_mode: str | None = None, **options: Any):
        _check_render_mode(render_mode)
        if num_envs < 1:
            raise ValueError(f"`num_envs` must be positive, got {num_envs}.")
        self._robots = Robots(task, num_envs, options)
        self.num_envs, self.render_mode, self._window = num_envs, render_mode, Window(self._robots)
        self.metadata = {**self.metadata, "render_fps": self._robots.frames_per_second}
        self.single_observation_space, self.single_action_space = self._robots.spaces
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    @property
    def task(self) -> AbstractTask:
        return self._robots.task

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        first = seed if isinstance(seed, int) else None
        super().reset(seed=first)
        if first is not None:
            seeds = first + np.arange(self.num_envs)
        else:
            seeds = self.np_random.integers(SEEDS, size=self.num_envs)
            given = [None] * self.num_envs if seed is None else list(seed)  # type: ignore[arg-type]
            if len(given) != self.num_envs:
                raise ValueError(f"`seed` must have an entry for each of {self.num_envs} robots, got {len(given)}.")
            seeds = np.array([drawn if own is None else own for drawn, own in zip(seeds, given, strict=True)])
        return self._robots.reset(seeds), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        seen, t = self._robots.step(actions)
        terms = {"diverged": t.diverged, **{f"reward_{name}": x for name, x in t.terms.items()}}
        over = t.ended | t.truncated
        infos: dict[str, Any] = _masked(terms, ~over)
        if over.any():
            last = np.full(self.num_envs, None, dtype=object)
            for robot in np.flatnonzero(over):
                last[robot] = t.observation[robot]
            infos |= {"final_obs": last, "_final_obs": over, "final_info": _masked(terms, over), "_final_info": over}
        return seen, np.asarray(t.reward, np.float64), t.ended, t.truncated, infos

    def render(self) -> tuple[np.ndarray, ...] | None:
        if self.render_mode is None:
            return None
        return tuple(self._window.image(robot) for robot in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        self._window.close()


def identifier(name: str) -> str:
    """The identifier of a task: 'ant-run' is 'flexor/AntRun-v0'; Gymnasium's have their version: 'flexor/HalfCheetah-v5'."""
    own = name.removeprefix(PREFIX)
    return f"flexor/{''.join(word.capitalize() for word in own.split('-'))}-v{0 if own == name else 5}"


def register() -> None:
    """Makes the tasks known to Gymnasium."""
    for name in TASKS:
        if identifier(name) not in gymnasium.registry:
            gymnasium.register(
                identifier(name),
                entry_point="flexor.gym:TaskEnv",
                vector_entry_point="flexor.gym:TaskVectorEnv",
                kwargs={"task": name},
            )


def _masked(values: dict[str, np.ndarray], there: Bool[np.ndarray, " robots"]) -> dict[str, np.ndarray]:
    """Infos as Gymnasium has them: zeros where a robot has none, and a mask beside each."""
    infos = {name: np.where(there, x, np.zeros_like(x)) for name, x in values.items()}
    return {**infos, **{f"_{name}": there for name in values}}


def _check_render_mode(mode: str | None) -> None:
    if mode not in (None, "rgb_array"):
        raise ValueError(f"there is no render mode '{mode}'; there is 'rgb_array'.")


def _own(x: Any) -> np.ndarray:
    """A NumPy array that callers may change."""
    return np.array(x)


register()
