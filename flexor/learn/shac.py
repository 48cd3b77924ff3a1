"""Short-horizon actor-critic (Xu et al. 2022): policies by the gradient of the return through the simulator's own kernels.

    J = sum_k gamma^k r_k + gamma^h V'(s_h)        over a stretch of h steps, or to the end of an episode, in each robot
    dJ/dtheta = sum_k (dJ/da_k) d pi_theta(s_k)/dtheta

dJ/da_k, which holds what an action does to all later states and actions of the stretch, is computed robot by robot in the kernel
that also steps them; the weights' share is a few products of matrices outside. V' follows the critic, which learns TD(lambda).

Contact can make a derivative of a state so large that it says nothing about a finite step. Where the derivative of the return
with respect to what an episode carries exceeds `steepest`, the horizon ends: the slope of V' takes its place, and for the steps
before it is as if the stretch had ended there (the adaptive horizons of Georgiev et al. 2024, but decided for each robot and in
reverse mode, where the derivatives are at hand).
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from flexor.dynamics.kept import keep_solutions
from flexor.envs import AbstractTask, Episode, advance, batched, check
from flexor.learn.actor import Actor, Norm, Perceptron
from flexor.learn.algorithm import AbstractAlgorithm, AbstractLearner, Turn
from flexor.learn.loop import Experience, added, check_stretch, no_tally
from flexor.learn.pieces import mean_over
from flexor.learn.ppo import adapted, advantages
from flexor.solvers.solver import class_name


@dataclass(frozen=True)
class SHAC(AbstractAlgorithm):
    """How to learn: a step of the actor for each stretch, at a rate that follows the divergence between old and new policy as in
    PPO, and `epochs` of the critic in `minibatches` parts at `critic_rate`. `follow` is how far V' moves towards the critic in a
    turn. `steepest` bounds the derivative of the return with respect to a state, in units of the reward. Defaults are those of Xu
    et al. 2022 where they have them."""

    sizes: tuple[int, ...] = (128, 64, 32)
    activation: str = "elu"
    discount: float = 0.99
    trace: float = 0.95
    steepest: float = 1e3
    rate: float = 1e-2
    highest_rate: float = 1e-2
    divergence: float = 1.0
    norm: float = 1.0
    moments: tuple[float, float] = (0.7, 0.95)
    epochs: int = 16
    minibatches: int = 4
    critic_rate: float = 1e-3
    follow: float = 0.8
    first_deviation: float = 0.4

    def first(self, task: AbstractTask, key: PRNGKeyArray) -> "ShacLearner":
        keys, n, dtype = jax.random.split(key), task.observations, task.sim.model.dtype

        def net(key: PRNGKeyArray, last: float, m: int) -> Perceptron:
            return Perceptron.build((n, *self.sizes, m), key, activation=self.activation, last=last, dtype=dtype)

        deviation = jnp.full(task.actions, np.log(self.first_deviation), dtype)
        actor, critic = Actor(Norm.fresh(n, dtype), net(keys[0], 0.01, task.actions), deviation), net(keys[1], 1.0, 1)
        memory, critic_memory = (adam(self).init(x) for x in ((actor.net, actor.log_deviation), critic))
        return ShacLearner(actor, critic, critic, memory, critic_memory, jnp.asarray(self.rate, dtype))

    def turns(self, task: AbstractTask, *, steps: int, threads: int | None = None) -> Turn:
        check(task)
        check_stretch(task, steps)
        if not task.sim.solver.differentiable:
            raise ValueError(f"{class_name(task.sim.solver)} has no derivatives, and SHAC learns by them; learn by PPO.")
        run = batched(lambda t, nets, e: sloped(t, self, nets[0], nets[1], e, steps), task, threads=threads)

        def turn(learner: ShacLearner, episodes: Episode, key: PRNGKeyArray) -> Any:
            robots = len(episodes.steps)
            if robots % self.minibatches:
                raise ValueError(f"{robots} robots do not divide into {self.minibatches} minibatches.")
            episodes, lived, slopes, steepness = run((learner.actor, learner.target), episodes)
            learner, figures = update(self, learner, lived, slopes, steepness, key)
            return learner, episodes, lived, figures

        return turn


class ShacLearner(AbstractLearner):
    """Actor and critic, the `target` V' that follows it, the states of both optimisers, and the actor's rate."""

    actor: Actor
    critic: Perceptron
    target: Perceptron
    memory: Any
    critic_memory: Any
    rate: Float[Array, ""]


def adam(options: SHAC) -> Any:
    """Adam without its rate, on gradients of bounded norm."""
    import optax

    return optax.chain(optax.clip_by_global_norm(options.norm), optax.scale_by_adam(*options.moments))


@jax.custom_vjp
def horizon(
    observation: Array, rest: list[Array], critic: tuple[Perceptron, Norm], weight: Array, steepest: Array, mark: Array
) -> tuple[Array, list[Array]]:
    """The observation and the `rest` of what an episode carries, unchanged. In reverse mode, where the derivative with respect
    to them is longer than `steepest` times `weight`, or not finite, it is replaced by that of `weight` times the critic. The
    derivative with respect to `mark` is its length over `weight`."""
    return observation, rest


def _forward(observation: Array, rest: list[Array], *others: Any) -> Any:
    return (observation, rest), (observation, rest, *others)


def _back(kept: Any, slopes: Any) -> Any:
    observation, rest, (critic, norm), weight, steepest, _ = kept
    squares = [jnp.sum(x**2) for x in jax.tree.leaves(slopes)]
    length = jnp.sqrt(sum(squares, jnp.zeros_like(weight))) / weight

    def valued(_: Any) -> Any:
        return weight * jax.grad(lambda o: critic(norm(o))[0])(observation), [jnp.zeros_like(x) for x in rest]

    own, others = jax.lax.cond(length <= steepest, lambda s: s, valued, slopes)
    nothing = jax.tree.map(jnp.zeros_like, ((critic, norm), weight, steepest))
    return own, others, *nothing, length


horizon.defvjp(_forward, _back)


def sloped(
    task: AbstractTask, options: SHAC, actor: Actor, critic: Perceptron, episode: Episode, steps: int
) -> tuple[Episode, Experience, Float[Array, "steps m"], Float[Array, " steps"]]:
    """A stretch of one robot: where it is afterwards, what it lived through, dJ/da for every step, and the lengths of the
    derivatives of J with respect to what was carried into every step."""
    dtype = episode.observation.dtype
    none = jnp.zeros((steps, task.actions), dtype), jnp.zeros(steps, dtype)

    def objective(none: tuple[Array, Array]) -> tuple[Array, tuple[Episode, Experience]]:
        return returned(task, options, actor, critic, episode, *none)

    (slopes, steepness), (after, lived) = jax.grad(objective, has_aux=True)(none)
    return after, lived, slopes, steepness


def returned(
    task: AbstractTask,
    options: SHAC,
    actor: Actor,
    critic: Perceptron,
    episode: Episode,
    nudges: Float[Array, "steps m"],
    marks: Float[Array, " steps"],
) -> tuple[Float[Array, ""], tuple[Episode, Experience]]:
    """J of one robot whose actions are nudged, and what it lived through."""
    dtype = episode.observation.dtype
    steepest = jnp.asarray(options.steepest, dtype)

    def value(observation: Array) -> Array:
        return critic(actor.norm(observation))[0]

    def turn(carry: Any, given: tuple[Array, Array]) -> Any:
        episode, weight, total, cut, tally = carry
        nudge, mark = given
        episode = _within(episode, (critic, actor.norm), weight, steepest, mark)
        further, own = jax.random.split(episode.key)
        noise = jax.random.normal(own, actor.log_deviation.shape, dtype)
        action = actor(episode.observation) + jnp.exp(actor.log_deviation) * noise + nudge
        new, t = advance(task, eqx.tree_at(lambda e: e.key, episode, further), action)
        later = weight * options.discount
        total = (
            total
            + weight * t.reward
            + jax.lax.cond(t.truncated, lambda o: later * value(o), lambda o: 0 * later, t.observation)
        )
        cut = jnp.where(t.truncated, t.observation, cut)
        lived = (episode.observation, action, noise, t.reward, t.ended, t.truncated)
        return (new, jnp.where(t.over, 1, later), total, cut, added(tally, t)), lived

    one = jnp.ones((), dtype)
    begin = (episode, one, jnp.zeros((), dtype), jnp.zeros_like(episode.observation), no_tally(task, episode))
    body = jax.checkpoint(turn, policy=keep_solutions())
    (episode, weight, total, cut, tally), kept = jax.lax.scan(body, begin, (nudges, marks))
    fresh = episode.steps == 0  # after the end of an episode: what comes is no consequence of what was
    total = total + jnp.where(fresh, 0, weight) * value(episode.observation)
    observations, actions, noise, rewards, ended, truncated = kept
    last = episode.observation
    return total, (episode, Experience(observations, actions, noise, rewards, ended, truncated, cut, last, tally))


def _within(episode: Episode, critic: tuple[Perceptron, Norm], weight: Array, steepest: Array, mark: Array) -> Episode:
    """An episode whose derivatives are bounded by `horizon`."""
    floats, others = eqx.partition(episode, eqx.is_inexact_array)
    leaves, form = jax.tree.flatten(eqx.tree_at(lambda e: e.observation, floats, None))
    observation, leaves = horizon(episode.observation, leaves, critic, weight, steepest, mark)
    rest = eqx.combine(jax.tree.unflatten(form, leaves), others)
    return eqx.tree_at(lambda e: e.observation, rest, observation, is_leaf=lambda x: x is None)


def update(
    options: SHAC, learner: ShacLearner, x: Experience, slopes: Array, steepness: Array, key: PRNGKeyArray
) -> tuple[ShacLearner, dict[str, Array]]:
    """The learner after a stretch, and figures about it."""
    robots, norm = len(x.rewards), learner.actor.norm
    actor, memory, rate, facts = _acted(options, learner, x, slopes, steepness)
    seen, wanted = _targets(options, learner, x)
    orders = jnp.concatenate([
        jax.random.permutation(k, robots).reshape(options.minibatches, -1) for k in jax.random.split(key, options.epochs)
    ])  # fmt: skip
    critic, critic_memory, loss = _valued(options, learner.critic, learner.critic_memory, seen, wanted, orders)
    target = jax.tree.map(lambda a, b: a + options.follow * (b - a), learner.target, critic)
    actor = eqx.tree_at(lambda a: a.norm, actor, _merged(norm, x.observations))
    return ShacLearner(actor, critic, target, memory, critic_memory, rate), {**facts, "value": loss}


@eqx.filter_jit
def _acted(
    options: SHAC, learner: ShacLearner, x: Experience, slopes: Array, steepness: Array
) -> tuple[Actor, Any, Array, dict[str, Array]]:
    """The actor after a step up the gradient."""
    import optax

    seen = learner.actor.norm(x.observations)
    weights = (learner.actor.net, learner.actor.log_deviation)
    sound = jnp.all(jnp.isfinite(slopes), axis=-1)  # a robot that diverged leaves none
    slopes = jnp.where(sound[..., None], slopes, 0)

    def loss(weights: Any, some: Array) -> Array:
        net, log_deviation = weights
        spread = jnp.exp(log_deviation)[None, None]
        return -jnp.sum(slopes[some] * (net(seen[some]) + spread * x.noise[some])) / some.shape[0]

    robots, steps = jnp.arange(len(slopes)), slopes.shape[1]
    gradient = mean_over(lambda some: jax.grad(loss)(weights, some), robots, steps=steps)
    step, memory = adam(options).update(gradient, learner.memory, weights)
    net, log_deviation = optax.apply_updates(weights, jax.tree.map(lambda s: -learner.rate * s, step))
    moved = (net(seen) - learner.actor.net(seen)) * jnp.exp(-learner.actor.log_deviation)[None, None]
    change = log_deviation - learner.actor.log_deviation
    divergence = 0.5 * jnp.mean(jnp.sum(moved**2, axis=-1)) + jnp.sum(jnp.expm1(2 * change) / 2 - change)
    figures = {
        "gradient": optax.tree.norm(gradient),
        "cut": 1 - jnp.mean((steepness <= options.steepest).astype(seen.dtype)),
        "dropped": jnp.sum(~sound),
        "steepness": jnp.median(steepness),
        "divergence": divergence,
        "rate": learner.rate,
        "deviation": jnp.mean(jnp.exp(log_deviation)),
    }
    rate = adapted(learner.rate, divergence, options.divergence, options.highest_rate)
    return Actor(learner.actor.norm, net, log_deviation), memory, rate, figures


@eqx.filter_jit
def _targets(options: SHAC, learner: ShacLearner, x: Experience) -> tuple[Array, Array]:
    """Normalised observations, and the TD(lambda) returns that the critic is to learn, by values of the target."""
    norm = learner.actor.norm

    def value(observations: Array) -> Array:
        return learner.target(norm(observations))[..., 0]

    values = value(x.observations)
    gain = advantages(options, x, values, value(x.cut), value(x.last))
    return norm(x.observations), gain + values


@eqx.filter_jit
def _valued(
    options: SHAC, critic: Perceptron, memory: Any, seen: Array, wanted: Array, orders: Array
) -> tuple[Perceptron, Any, Array]:
    """The critic after a step for every minibatch, a row of robots each, and the mean loss."""
    import optax

    def one(carry: tuple[Perceptron, Any], rows: Array) -> tuple[tuple[Perceptron, Any], Array]:
        critic, memory = carry

        def loss(critic: Perceptron, some: Array) -> Array:
            return jnp.mean((critic(seen[some])[..., 0] - wanted[some]) ** 2)

        off, gradient = mean_over(lambda some: jax.value_and_grad(loss)(critic, some), rows, steps=wanted.shape[1])
        step, memory = adam(options).update(gradient, memory, critic)
        return (optax.apply_updates(critic, jax.tree.map(lambda s: -options.critic_rate * s, step)), memory), off

    (critic, memory), losses = jax.lax.scan(one, (critic, memory), orders)
    return critic, memory, jnp.mean(losses)


_merged = eqx.filter_jit(lambda norm, x: norm.merged(x))
