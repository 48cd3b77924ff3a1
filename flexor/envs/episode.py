"""`Episode`: a robot on its way through a task; `start` and `advance`.

`advance` starts the next episode by itself when one is over: it ended, was cut off at its length, or diverged. A robot whose
state is not finite any more is set back and reported, and nothing of that state goes further.
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flexor.envs.task import AbstractTask, Step
from flexor.model.model import State, as_control
from flexor.solvers.recording import recorded_step

DIVERGED = 1e5  # rad, m, rad/s, m/s: no coordinate of a robot, and no speed


class Episode(eqx.Module):
    """A robot in the middle of an episode: its state and goal, what the policy sees, what it did last, how many steps are behind
    it and the sum of their rewards. All that is random comes from `key`."""

    state: State
    goal: Any
    observation: Float[Array, " n"]
    action: Float[Array, " m"]
    steps: Int[Array, ""]
    total: Float[Array, ""]
    key: PRNGKeyArray


class Transition(eqx.Module):
    """What a step brought: the observation at its end, before anything was reset; the reward and its terms; and whether the
    episode is over because it `ended`, because its time was up (`truncated`), or because the robot `diverged` (which is also an
    end). `total` and `steps` are the sum of rewards and the length of the episode up to here."""

    observation: Float[Array, " n"]
    reward: Float[Array, ""]
    terms: dict[str, Float[Array, ""]]
    ended: Bool[Array, ""]
    truncated: Bool[Array, ""]
    diverged: Bool[Array, ""]
    total: Float[Array, ""]
    steps: Int[Array, ""]

    @property
    def over(self) -> Bool[Array, ""]:
        return self.ended | self.truncated


def start(task: AbstractTask, key: PRNGKeyArray) -> Episode:
    """An episode at its beginning."""
    here, further = jax.random.split(key)
    state, goal = task.reset(here)
    sim = task.simulator(goal)
    state = sim.solver.init(sim.model, state)
    zero = jnp.zeros((), sim.model.dtype)
    action = jnp.zeros(task.actions, sim.model.dtype)
    return Episode(state, goal, task.observe(state, goal), action, jnp.zeros((), jnp.int32), zero, further)


def advance(task: AbstractTask, episode: Episode, action: Float[Array, " m"]) -> tuple[Episode, Transition]:
    """One step. The episode returned is the one that goes on: a new one where this step was the last."""
    further, follow_key, reset_key = jax.random.split(episode.key, 3)
    step = taken(task, episode, action)
    state, goal = step.after, task.follow(step, follow_key)
    sound = jnp.all(jnp.abs(state.q) < DIVERGED) & jnp.all(jnp.abs(state.qd) < DIVERGED)  # false for nan
    terms = {name: jnp.where(sound, x, 0) for name, x in task.reward(step).items()}
    reward = sum(terms.values(), jnp.zeros((), state.q.dtype))
    observation = jnp.where(sound, task.observe(state, goal), 0)
    ended = ~sound | task.ended(state, goal)
    steps, total = episode.steps + 1, episode.total + reward
    truncated = ~ended & (steps >= task.length)
    transition = Transition(observation, reward, terms, ended, truncated, ~sound, total, steps)
    same = Episode(state, goal, observation, action, steps, total, further)
    return jax.lax.cond(transition.over, lambda _: start(task, reset_key), lambda e: e, same), transition


def taken(task: AbstractTask, episode: Episode, action: Float[Array, " m"]) -> Step:
    """What the physics makes of an action."""
    sim = task.simulator(episode.goal)
    before = task.disturbed(episode.state, episode.goal)
    control = task.action.control_from(sim.model, before, action)
    sim.solver.accept(control)
    control = as_control(sim.model, control)
    after, recorded = recorded_step(sim.solver, sim.model, before, control, sim.dt, task.record)
    return Step(before, after, action, episode.action, control, episode.goal, recorded)


def check(task: AbstractTask) -> None:
    """Raises, with a sentence, where the functions of a task do not go together. Only shapes are looked at."""
    key = jax.random.key(0)
    state, goal = jax.eval_shape(task.reset, key)
    first = jax.eval_shape(lambda s, g: task.observe(s, g), state, goal)
    if len(first.shape) != 1:
        raise ValueError(f"`observe` of {task.name} must return a vector, got an array of shape {first.shape}.")
    episode = jax.eval_shape(lambda k: start(task, k), key)
    step = jax.eval_shape(lambda e: taken(task, e, e.action), episode)
    later = jax.eval_shape(task.follow, step, key)
    if _form(later) != _form(goal):
        raise ValueError(
            f"`follow` of {task.name} must return a goal of the same form as `reset` does: {_form(goal)}, got {_form(later)}."
        )
    seen = jax.eval_shape(task.observe, step.after, later)
    if seen.shape != first.shape:
        raise ValueError(
            f"the observation of {task.name} changes its size: {first.shape[0]} numbers after a reset, "
            f"{seen.shape[0]} after a step."
        )
    _check_outcome(task, jax.eval_shape(task.reward, step), jax.eval_shape(task.ended, step.after, later))


def _check_outcome(task: AbstractTask, terms: Any, ended: Any) -> None:
    if not isinstance(terms, Mapping) or not terms:
        raise TypeError(f"`reward` of {task.name} must return its terms by name, such as {{'upright': ...}}.")
    for name, term in terms.items():
        if jnp.shape(term) != ():
            raise ValueError(
                f"the term '{name}' of the reward of {task.name} must be a number, got shape {jnp.shape(term)}."
            )
    if ended.shape != () or ended.dtype != bool:
        raise TypeError(f"`ended` of {task.name} must return one truth value, got {ended.dtype} of shape {ended.shape}.")


def _form(tree: Any) -> str:
    return str(jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", tree))
