"""The loop in the kernel: physics, observation, policy, sampling, reward, end and reset of a stretch of steps, in one call.

A lane is a robot; the weights of the policy are shared by all. Nothing returns to Python between the steps of a stretch.
"""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flexor.envs import AbstractTask, Episode, Transition, advance, batched, check, start
from flexor.learn.actor import Actor


class Tally(eqx.Module):
    """Sums over a stretch: episodes that came to an end, their returns and lengths, robots that diverged, and the terms of the
    reward."""

    episodes: Int[Array, "*robots"]
    returns: Float[Array, "*robots"]
    lengths: Int[Array, "*robots"]
    diverged: Int[Array, "*robots"]
    terms: dict[str, Float[Array, "*robots"]]


class Experience(eqx.Module):
    """What robots lived through in a stretch of steps. `noise` is the action's distance from the policy's mean, in deviations.

    `cut` is the observation at the end of the one episode that can have been cut off in a stretch, zeros where none was; `last`
    the one after the stretch.
    """

    observations: Float[Array, "*robots steps n"]
    actions: Float[Array, "*robots steps m"]
    noise: Float[Array, "*robots steps m"]
    rewards: Float[Array, "*robots steps"]
    ended: Bool[Array, "*robots steps"]
    truncated: Bool[Array, "*robots steps"]
    cut: Float[Array, "*robots n"]
    last: Float[Array, "*robots n"]
    tally: Tally


def stretch(task: AbstractTask, actor: Actor, episode: Episode, steps: int) -> tuple[Episode, Experience]:
    """`steps` steps of one robot under a policy that draws its actions. `steps` must not exceed the length of an episode."""

    def turn(carry: tuple[Episode, Array, Tally], _: None) -> tuple[tuple[Episode, Array, Tally], tuple[Array, ...]]:
        episode, cut, tally = carry
        further, own = jax.random.split(episode.key)
        noise = jax.random.normal(own, actor.log_deviation.shape, episode.observation.dtype)
        action = actor(episode.observation) + jnp.exp(actor.log_deviation) * noise
        new, t = advance(task, eqx.tree_at(lambda e: e.key, episode, further), action)
        cut = jnp.where(t.truncated, t.observation, cut)
        tally = added(tally, t)
        return (new, cut, tally), (episode.observation, action, noise, t.reward, t.ended, t.truncated)

    begin = (episode, jnp.zeros_like(episode.observation), no_tally(task, episode))
    (episode, cut, tally), kept = jax.lax.scan(turn, begin, length=steps)
    observations, actions, noise, rewards, ended, truncated = kept
    last = episode.observation
    return episode, Experience(observations, actions, noise, rewards, ended, truncated, cut, last, tally)


def no_tally(task: AbstractTask, episode: Episode) -> Tally:
    """The sums before a stretch."""
    none, zero = jnp.zeros((), jnp.int32), jnp.zeros((), episode.total.dtype)
    names = jax.eval_shape(lambda e: advance(task, e, e.action)[1].terms, episode)
    return Tally(none, zero, none, none, dict.fromkeys(names, zero))


def added(tally: Tally, t: Transition) -> Tally:
    """The sums with a further step."""
    over = t.over.astype(jnp.int32)
    return Tally(
        tally.episodes + over,
        tally.returns + jnp.where(t.over, t.total, 0),
        tally.lengths + over * t.steps,
        tally.diverged + t.diverged.astype(jnp.int32),
        {name: tally.terms[name] + x for name, x in t.terms.items()},
    )


class Loop:
    """Many robots at one task. `start` puts them at the beginning of an episode; calling it makes them live through a stretch."""

    def __init__(self, task: AbstractTask, *, steps: int, threads: int | None = None):
        check(task)
        check_stretch(task, steps)
        self.task, self.steps = task, steps
        self._start: Callable[..., Any] = batched(lambda t, _, key: start(t, key), task, threads=threads)
        self._run: Callable[..., Any] = batched(lambda t, actor, e: stretch(t, actor, e, steps), task, threads=threads)

    def start(self, key: PRNGKeyArray, robots: int) -> Episode:
        """Robots at the beginning of their first episodes."""
        episodes: Episode = self._start(None, jax.random.split(key, robots))
        return episodes

    def __call__(self, actor: Actor, episodes: Episode) -> tuple[Episode, Experience]:
        """Where the robots are after a stretch, and what they lived through."""
        out: tuple[Episode, Experience] = self._run(actor, episodes)
        return out


def check_stretch(task: AbstractTask, steps: int) -> None:
    """Raises where a stretch is longer than an episode."""
    if not 1 <= steps <= task.length:
        raise ValueError(f"a stretch of {task.name} must have between 1 and {task.length} steps, got {steps}.")


def check_terms(task: AbstractTask, tally: Tally) -> None:
    """Raises about a reward that is not a number, by the name of its term."""
    check_finite(task, tally.terms)


def check_finite(task: AbstractTask, terms: Mapping[str, Float[Array, " robots"]]) -> None:
    """Raises about the first term of a reward, summed over steps, that is not a number."""
    for name, x in terms.items():
        bad = int(jnp.sum(~jnp.isfinite(x)))
        if bad:
            raise FloatingPointError(
                f"the term '{name}' of the reward of {task.name} is not finite for {bad} of {x.size} robots, whose states are."
            )
