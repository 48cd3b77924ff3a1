"""Proximal policy optimisation (Schulman et al. 2017) on the experience of a stretch.

    A_t = delta_t + gamma lambda (1 - over_t) A_{t+1},    delta_t = r_t + gamma V(s_{t+1}) - V(s_t)
    loss = -mean min(rho A, clip(rho, 1 - c, 1 + c) A) + value_share mean (V - R)^2 / 2 - entropy_share H

V(s_{t+1}) is zero where an episode ended, and the value of its last observation where its time was up. The rate follows the
divergence between the old and the new policy (Heess et al. 2017): down where that exceeds twice the wanted one, up below half.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from flexor.envs import AbstractTask, Episode
from flexor.learn.actor import Actor, Norm, Perceptron
from flexor.learn.algorithm import AbstractAlgorithm, AbstractLearner, Turn
from flexor.learn.loop import Experience, Loop
from flexor.learn.pieces import PIECE, mean_over


@dataclass(frozen=True)
class PPO(AbstractAlgorithm):
    """How to learn: `epochs` over a stretch in `minibatches` parts, whose gradients are summed over pieces of at most `piece`
    steps, small enough for a core's cache. `sizes` are the hidden layers of actor and critic. The rate starts at `rate` and stays
    below `highest_rate`. Other defaults are those of NeRD's experiments."""

    sizes: tuple[int, ...] = (128, 64, 32)
    activation: str = "relu"
    discount: float = 0.99
    trace: float = 0.95
    clip: float = 0.2
    epochs: int = 3
    minibatches: int = 16
    piece: int = PIECE
    rate: float = 3e-4
    highest_rate: float = 1e-2
    divergence: float = 0.008
    norm: float = 1.0
    value_share: float = 2.0
    entropy_share: float = 0.0
    first_deviation: float = 1.0

    def first(self, task: AbstractTask, key: PRNGKeyArray) -> "Learner":
        return first(self, task.observations, task.actions, key, task.sim.model.dtype)

    def turns(self, task: AbstractTask, *, steps: int, threads: int | None = None) -> Turn:
        loop = Loop(task, steps=steps, threads=threads)

        def turn(learner: Learner, episodes: Episode, key: PRNGKeyArray) -> Any:
            episodes, lived = loop(learner.actor, episodes)
            learner, figures = update(self, learner, lived, key)
            return learner, episodes, lived, figures

        return turn


class Learner(AbstractLearner):
    """What is learned, and the state of the optimiser."""

    actor: Actor
    critic: Perceptron
    memory: Any
    rate: Float[Array, ""]


def optimiser(options: PPO) -> Any:
    """Adam without its rate, on gradients of bounded norm."""
    import optax

    return optax.chain(optax.clip_by_global_norm(options.norm), optax.scale_by_adam())


def first(options: PPO, observations: int, actions: int, key: PRNGKeyArray, dtype: Any) -> Learner:
    """A learner that knows nothing: actions near zero, values zero."""
    keys = jax.random.split(key)
    hidden = options.sizes

    def net(key: PRNGKeyArray, last: float, n: int) -> Perceptron:
        return Perceptron.build((observations, *hidden, n), key, activation=options.activation, last=last, dtype=dtype)

    deviation = jnp.full(actions, np.log(options.first_deviation), dtype)
    actor, critic = Actor(Norm.fresh(observations, dtype), net(keys[0], 0.01, actions), deviation), net(keys[1], 1.0, 1)
    memory = optimiser(options).init(_trained(actor, critic))
    return Learner(actor, critic, memory, jnp.asarray(options.rate, dtype))


def _trained(actor: Actor, critic: Perceptron) -> Any:
    return actor.net, actor.log_deviation, critic


def advantages(options: Any, x: Experience, values: Array, cut: Array, last: Array) -> Array:
    """Generalised advantages (Schulman et al. 2016) of every step, from values of observations, of `x.cut` and of `x.last`.
    `options` have a `discount` and a `trace`."""
    following = jnp.concatenate([values[:, 1:], last[:, None]], axis=1)
    following = jnp.where(x.truncated, cut[:, None], jnp.where(x.ended, 0, following))
    delta = x.rewards + options.discount * following - values
    share = options.discount * options.trace * (~(x.ended | x.truncated)).astype(delta.dtype)

    def back(later: Array, here: tuple[Array, Array]) -> tuple[Array, Array]:
        new = here[0] + here[1] * later
        return new, new

    return jax.lax.scan(back, jnp.zeros_like(last), (delta.T, share.T), reverse=True)[1].T


class Lesson(eqx.Module):
    """What the epochs over a stretch learn from, for each robot and step: normalised observations, actions, the logarithms of
    their densities, advantages in units of their deviation, and returns."""

    seen: Float[Array, "robots steps n"]
    actions: Float[Array, "robots steps m"]
    chances: Float[Array, "robots steps"]
    gain: Float[Array, "robots steps"]
    wanted: Float[Array, "robots steps"]


def update(options: PPO, learner: Learner, x: Experience, key: PRNGKeyArray) -> tuple[Learner, dict[str, Array]]:
    """The learner after all epochs over a stretch, and figures about them. A minibatch is all steps of some robots. The norm of
    observations moves after the epochs, so that the policy that is improved is the one that acted."""
    robots = x.rewards.shape[0]
    if robots % options.minibatches:
        raise ValueError(f"{robots} robots do not divide into {options.minibatches} minibatches.")
    lesson, norm, facts = prepared(options, learner, x)
    weights, figures = eqx.tree_at(lambda o: o.actor.norm, learner, None), []
    for k in jax.random.split(key, options.epochs):
        for rows in jax.random.permutation(k, robots).reshape(options.minibatches, -1):
            weights, found = _minibatch(options, weights, lesson, rows)
            figures.append(found)
        far = jnp.mean(jnp.stack([f["divergence"] for f in figures[-options.minibatches :]]))
        rate = adapted(weights.rate, far, options.divergence, options.highest_rate)
        weights = eqx.tree_at(lambda o: o.rate, weights, rate)
    means = {name: jnp.mean(jnp.stack([f[name] for f in figures])) for name in figures[0]}
    learner = eqx.tree_at(lambda o: o.actor.norm, weights, norm, is_leaf=lambda z: z is None)
    deviation = jnp.mean(jnp.exp(learner.actor.log_deviation))
    return learner, {**facts, **means, "rate": learner.rate, "deviation": deviation}


@eqx.filter_jit
def prepared(options: PPO, learner: Learner, x: Experience) -> tuple[Lesson, Norm, dict[str, Array]]:
    """What is to be learned, the norm with these observations, and the share of the returns' variance that values explain."""
    norm = learner.actor.norm

    def value(observations: Array) -> Array:
        return learner.critic(norm(observations))[..., 0]

    values = value(x.observations)
    gain = advantages(options, x, values, value(x.cut), value(x.last))
    wanted = gain + values
    scaled = (gain - jnp.mean(gain)) / (jnp.std(gain) + 1e-8)
    chances = _log_chance(x.noise, learner.actor.log_deviation)
    explained = 1 - jnp.mean(gain**2) / jnp.maximum(jnp.var(wanted), 1e-8)
    merged = norm.merged(x.observations)
    return Lesson(norm(x.observations), x.actions, chances, scaled, wanted), merged, {"explained": explained}


def _log_chance(noise: Float[Array, "*n m"], log_deviation: Float[Array, " m"]) -> Float[Array, "*n"]:
    """Logarithm of the density of a Gaussian, without its constant."""
    return -0.5 * jnp.sum(noise**2, axis=-1) - jnp.sum(log_deviation)


@eqx.filter_jit
def _minibatch(options: PPO, learner: Learner, lesson: Lesson, rows: Array) -> tuple[Learner, dict[str, Array]]:
    import optax

    weights = _trained(learner.actor, learner.critic)
    gradient, figures = _gradient(options, weights, lesson, rows)
    step, memory = optimiser(options).update(gradient, learner.memory, weights)
    net, deviation, critic = optax.apply_updates(weights, jax.tree.map(lambda s: -learner.rate * s, step))
    actor = Actor(learner.actor.norm, net, deviation)
    return Learner(actor, critic, memory, learner.rate), figures


def _gradient(options: PPO, weights: Any, lesson: Lesson, rows: Array) -> tuple[Any, dict[str, Array]]:
    """The gradient of the loss over all steps of some robots, and figures: the mean of those of pieces."""

    def one(some: Array) -> tuple[Any, dict[str, Array]]:
        part = jax.tree.map(lambda z: z[some].reshape(-1, *z.shape[2:]), lesson)
        gradient, figures = jax.grad(_loss, argnums=1, has_aux=True)(options, weights, part)
        return gradient, figures

    return mean_over(one, rows, steps=lesson.gain.shape[1], piece=options.piece)  # type: ignore[no-any-return]


def adapted(rate: Array, divergence: Array, wanted: float, highest: float) -> Array:
    """The rate after steps whose mean divergence this was."""
    factor = jnp.where(divergence > 2 * wanted, 1 / 1.5, jnp.where(divergence < 0.5 * wanted, 1.5, 1.0))
    return jnp.clip(rate * factor.astype(rate.dtype), 1e-6, highest)


def _loss(options: PPO, weights: Any, some: Lesson) -> tuple[Array, dict[str, Array]]:
    net, log_deviation, critic = weights
    noise = (some.actions - net(some.seen)) * jnp.exp(-log_deviation)[None]
    change = _log_chance(noise, log_deviation) - some.chances
    ratio = jnp.exp(change)
    bounded = jnp.clip(ratio, 1 - options.clip, 1 + options.clip)
    policy = -jnp.mean(jnp.minimum(ratio * some.gain, bounded * some.gain))
    value = 0.5 * jnp.mean((critic(some.seen)[:, 0] - some.wanted) ** 2)
    entropy = jnp.sum(log_deviation)
    divergence = jax.lax.stop_gradient(jnp.mean(ratio - 1 - change))  # Schulman's estimator, never negative
    return policy + options.value_share * value - options.entropy_share * entropy, {"divergence": divergence, "value": value}
