"""`Randomised`: a task whose robot and sensors differ from episode to episode (domain randomisation, Tobin et al. 2017).

What varies is declared: parameters of the model by the names that `fx.parameters` lists, noise of the observation, latency of
the actions, and pushes. Parameters are drawn where an episode is reset, for every robot by itself, and travel in the episode's
goal: loops, kernels and environments that run a task need to know nothing of them.
"""

import abc
from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PRNGKeyArray

from flexor.envs.action import with_model
from flexor.envs.task import AbstractTask, Step, uniform
from flexor.model.delay import with_delay
from flexor.model.model import Model, State
from flexor.model.parameters import parameters as parameters_of
from flexor.model.parameters import replace
from flexor.solvers import AbstractSolver, Simulator


class AbstractDraw(eqx.Module):
    """How a parameter is drawn between `low` and `high`, uniformly. Every parameter that a pattern matches has a draw of its own;
    with `together` all of them have the same."""

    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)
    together: bool = eqx.field(static=True, default=False, kw_only=True)

    def __check_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low <= self.high):
            raise ValueError(
                f"{type(self).__name__} needs two finite bounds, the lower first, got {self.low} and {self.high}."
            )

    def draw(self, key: PRNGKeyArray, value: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """A value in the place of the model's own."""
        return self.apply(uniform(key, self.low, self.high, self.like(value)), value)

    def like(self, value: Float[Array, "*n"]) -> Array:
        """An array of the shape of what is drawn: one number."""
        return jnp.zeros((), value.dtype)

    @abc.abstractmethod
    def apply(self, drawn: Array, value: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """The parameter, with what was drawn."""


class Scaled(AbstractDraw):
    """The model's own value times a factor, the same for all numbers of a vector."""

    def apply(self, drawn: Array, value: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return value * drawn


class Shifted(AbstractDraw):
    """The model's own value plus something, which differs from number to number of a vector."""

    def like(self, value: Float[Array, "*n"]) -> Array:
        return value

    def apply(self, drawn: Array, value: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return value + drawn


class Between(AbstractDraw):
    """A value between the bounds, whatever the model's own is; all numbers of a vector are the same."""

    def apply(self, drawn: Array, value: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jnp.broadcast_to(drawn, value.shape)


class Pushes(eqx.Module):
    """Sudden changes of a joint's velocity, of size up to `speed` (m/s or rad/s), with pauses drawn uniformly from `pause`, in
    seconds. A free joint, by default the robot's first, is pushed in a horizontal direction; a hinge or slide to either side."""

    speed: float = eqx.field(static=True)
    pause: tuple[float, float] = eqx.field(static=True, default=(2.0, 6.0))
    joint: str | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if not 0 <= self.speed < np.inf:
            raise ValueError(f"the speed of a push must not be negative, got {self.speed}.")
        if not 0 < self.pause[0] <= self.pause[1] < np.inf:
            raise ValueError(f"pauses between pushes must be positive seconds, the shortest first, got {self.pause}.")

    def columns(self, model: Model) -> tuple[int, ...]:
        """The velocities that a push changes: two of a free joint, one of a hinge or slide."""
        t = model.topology
        wanted = [j for j in range(len(t.joints)) if self.joint is None and t.joints[j].kind == "free"]
        wanted = wanted or [j for j in range(len(t.joints)) if t.joints[j].name == self.joint]
        if not wanted:
            lacks = "no free joint: name the `joint` to push" if self.joint is None else f"no joint '{self.joint}'"
            raise ValueError(f"'{t.name}' has {lacks}; its joints are {', '.join(j.name for j in t.joints)}.")
        joint, start = t.joints[wanted[0]], int(t.v_start[wanted[0]])
        if joint.kind not in ("free", "hinge", "slide"):
            raise ValueError(
                f"joint '{joint.name}' of '{t.name}' is a {joint.kind}; free joints, hinges and slides can be pushed."
            )
        return (start, start + 1) if joint.kind == "free" else (start,)

    def kick(self, key: PRNGKeyArray, model: Model) -> Float[Array, " nv"]:
        """A change of velocity: of random size and direction."""
        size_key, way_key = jax.random.split(key)
        zero, columns = jnp.zeros((), model.dtype), self.columns(model)
        size, way = uniform(size_key, 0, self.speed, zero), uniform(way_key, -1, 1, zero)
        parts = (
            [jnp.cos(np.pi * way), jnp.sin(np.pi * way)]
            if len(columns) == 2
            else [jnp.where(way < 0, -1, 1).astype(zero.dtype)]
        )
        return jnp.zeros(model.nv, model.dtype).at[np.array(columns)].set(size * jnp.stack(parts))


class Push(eqx.Module):
    """How long it is to the next push, in seconds, and the change of velocity with which the coming step begins."""

    wait: Float[Array, ""]
    kick: Float[Array, " nv"]


class Drawn(eqx.Module):
    """The goal of a randomised episode: the task's own, the parameters drawn for it, the noise of the present observation, the
    next push; None for what is not randomised."""

    goal: Any
    parameters: dict[str, Array]
    noise: Float[Array, " n"] | None
    push: Push | None


class Randomised(AbstractTask):
    """A task with other parameters in every episode, and disturbances:

        Randomised(task, {"body.torso.mass": Scaled(0.8, 1.2), "pair.*.friction": Between(0.4, 1.2, together=True)},
                   noise=0.01, latency=(0.0, 0.03), pushes=Pushes(0.5))

    Parameters are those of the robot with the actuators of the task's action. `noise` is the standard deviation of the numbers
    observed, one for all or one for each; rewards and ends are told from the true state. `latency` is the time in seconds from
    an action to its effect, drawn between two bounds for an episode, beside the delay that the actuators have by themselves.
    Functions of the task that look at `self.sim.model` see the drawn robot, except `reset`.
    """

    base: AbstractTask
    parameters: dict[str, AbstractDraw]
    noise: float | np.ndarray | None
    latency: tuple[float, float] | None = eqx.field(static=True)
    pushes: Pushes | None

    def __init__(
        self,
        base: AbstractTask,
        parameters: Mapping[str, AbstractDraw] | None = None,
        *,
        noise: ArrayLike | None = None,
        latency: tuple[float, float] | None = None,
        pushes: Pushes | None = None,
    ):
        self.base, self.sim, self.action, self.length = base, base.sim, base.action, base.length
        self.parameters, self.latency, self.pushes = dict(parameters or {}), latency, pushes
        self.noise = None if noise is None else np.asarray(noise, base.sim.model.dtype)
        self._check()

    def _check(self) -> None:
        if isinstance(self.base, Randomised):
            raise TypeError(f"{self.base.name} is randomised already: declare all that varies at once.")
        if self.latency is not None and not 0 <= self.latency[0] <= self.latency[1] < np.inf:
            raise ValueError(f"`latency` must be two numbers of seconds, the shorter first, got {self.latency}.")
        if self.noise is not None:
            shape, n = np.shape(self.noise), self.base.observations
            if shape not in ((), (n,)):
                raise ValueError(f"`noise` must be one number or {n}, one for each that is observed, got shape {shape}.")
            if not np.all(np.asarray(self.noise) >= 0):
                raise ValueError("`noise` must not be negative: it is a standard deviation.")
        if self.pushes is not None:
            self.pushes.columns(self.sim.model)
        jax.eval_shape(self._check_ranges, jax.random.key(0))

    def _check_ranges(self, key: PRNGKeyArray) -> None:
        _, goal = self.base.reset(key)
        with jax.ensure_compile_time_eval():
            with_ranges(self._equipped(goal).model, self._draws)

    @property
    def _draws(self) -> dict[str, AbstractDraw]:
        """All draws by pattern, the latency among them."""
        late = {} if self.latency is None else {"actuator.*.delay": Shifted(*self.latency, together=True)}
        return {**self.parameters, **late}

    def _equipped(self, goal: Any) -> Simulator:
        """The simulator of the task itself, with room for the latency."""
        sim = self.base.simulator(goal)
        if self.latency is None:
            return sim
        with jax.ensure_compile_time_eval():
            delays = {f"actuator.{a.name}.delay": float(x) for a, x in
                      zip(sim.model.topology.actuators, np.asarray(sim.model.actuators.delay), strict=True)}  # fmt: skip
            longest = max(delays.values()) + self.latency[1]
            step = sim.solver.shortest_step(float(sim.dt))
            return with_model(sim, with_delay(sim.model, delays, dt=step, longest=longest))

    def reset(self, key: PRNGKeyArray) -> tuple[State, Drawn]:
        own, parameter_key, noise_key, push_key = jax.random.split(key, 4)
        state, goal = self.base.reset(own)
        model = self._equipped(goal).model
        drawn: dict[str, Array] = {}
        for number, (pattern, draw) in enumerate(self._draws.items()):
            values, pattern_key = parameters_of(model, pattern), jax.random.fold_in(parameter_key, number)
            keys = [pattern_key] * len(values) if draw.together else list(jax.random.split(pattern_key, len(values)))
            drawn |= {name: draw.draw(k, jnp.asarray(x)) for k, (name, x) in zip(keys, values.items(), strict=True)}
        return state, Drawn(goal, drawn, self._noise(noise_key), self._first_push(push_key))

    def observe(self, state: State, goal: Drawn) -> Float[Array, " n"]:
        seen = self._of(goal).observe(state, goal.goal)
        return seen if goal.noise is None else seen + goal.noise

    def reward(self, step: Step) -> Mapping[str, Float[Array, ""]]:
        return self._of(step.goal).reward(_plain(step))

    def ended(self, state: State, goal: Drawn) -> Bool[Array, ""]:
        return self._of(goal).ended(state, goal.goal)

    def follow(self, step: Step, key: PRNGKeyArray) -> Drawn:
        own, noise_key, push_key = jax.random.split(key, 3)
        goal: Drawn = step.goal
        following = self._of(goal).follow(_plain(step), own)
        return Drawn(following, goal.parameters, self._noise(noise_key), self._next_push(push_key, goal.push))

    def disturbed(self, state: State, goal: Drawn) -> State:
        state = self.base.disturbed(state, goal.goal)
        return state if goal.push is None else eqx.tree_at(lambda s: s.qd, state, state.qd + goal.push.kick)

    def simulator(self, goal: Drawn) -> Simulator:
        """The task's own, its robot with the parameters drawn for the episode."""
        sim = self._equipped(goal.goal)
        if not goal.parameters:
            return sim
        with jax.ensure_compile_time_eval():
            prepared = with_ranges(sim.model, self._draws)
        return with_model(sim, replace(prepared, goal.parameters))

    def on(self, physics: AbstractSolver | str | Mapping[str, Any]) -> Self:
        return self._around(self.base.on(physics))

    def simplified(self) -> Self:
        return self._around(self.base.simplified())

    @property
    def name(self) -> str:
        """That of the task itself: its policies are the same."""
        return self.base.name

    def _around(self, base: AbstractTask) -> Self:
        options: dict[str, Any] = {"noise": self.noise, "latency": self.latency, "pushes": self.pushes}
        return type(self)(base, self.parameters, **options)

    def _of(self, goal: Drawn) -> AbstractTask:
        """The task itself, over the robot of an episode."""
        if not goal.parameters:
            return self.base
        return eqx.tree_at(lambda t: t.sim, self.base, self.simulator(goal))

    def _noise(self, key: PRNGKeyArray) -> Float[Array, " n"] | None:
        if self.noise is None:
            return None
        dtype = self.sim.model.dtype
        size = jnp.broadcast_to(jnp.asarray(self.noise, dtype), (self.base.observations,))
        return size * jax.random.normal(key, size.shape, dtype)

    def _first_push(self, key: PRNGKeyArray) -> Push | None:
        if self.pushes is None:
            return None
        model = self.sim.model
        return Push(uniform(key, *self.pushes.pause, jnp.zeros((), model.dtype)), jnp.zeros(model.nv, model.dtype))

    def _next_push(self, key: PRNGKeyArray, push: Push | None) -> Push | None:
        if self.pushes is None or push is None:
            return None
        pause_key, kick_key = jax.random.split(key)
        wait = push.wait - self.sim.dt
        kick, pause = self.pushes.kick(kick_key, self.sim.model), uniform(pause_key, *self.pushes.pause, wait)
        now = wait <= 0
        return Push(jnp.where(now, pause, wait), jnp.where(now, kick, jnp.zeros_like(kick)))


def with_ranges(model: Model, draws: Mapping[str, AbstractDraw]) -> Model:
    """The model with the upper end of every range, so that what a positive number switches on (dry friction, margins) is there.
    Raises for patterns that match nothing, parameters that match twice, and ranges with values that a parameter cannot have."""
    names, seen = list(parameters_of(model)), dict[str, str]()
    for pattern, draw in draws.items():
        matching = [name for name in names if fnmatchcase(name, pattern)]
        if not matching:
            close = get_close_matches(pattern, names, n=1)
            guess = f" Did you mean '{close[0]}'?" if close else ""
            raise KeyError(
                f"no parameter of '{model.topology.name}' matches '{pattern}'.{guess} `fx.parameters(model)` lists them."
            )
        for name in matching:
            if name in seen:
                raise ValueError(f"'{name}' is randomised twice: by '{seen[name]}' and by '{pattern}'.")
            seen[name] = pattern
        for end in (draw.low, draw.high):
            values = parameters_of(model, pattern)
            given = {n: draw.apply(jnp.asarray(end, model.dtype), jnp.asarray(x)) for n, x in values.items()}
            changed = replace(model, given)
        model = changed
    return model


def _plain(step: Step) -> Step:
    """The step as the task itself knows it."""
    return Step(step.before, step.after, step.action, step.previous, step.control, step.goal.goal, step.recorded)
