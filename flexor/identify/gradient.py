"""First-order searches, for networks: L-BFGS and Adam by optax, with proximal steps that make weights exactly zero."""

import abc
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flexor.augment import map_input_weights
from flexor.identify.problem import Problem
from flexor.identify.search import AbstractSearch, Outcome
from flexor.identify.segments import Segments


class AbstractPenalty(eqx.Module):
    """What keeps networks small: a differentiable part, and a proximal step for the rest."""

    @abc.abstractmethod
    def smooth(self, augmentation: Any) -> Float[Array, ""]:
        """The part that is added to the loss."""

    @abc.abstractmethod
    def proximal(self, augmentation: Any, rate: Array) -> Any:
        """The weights after a proximal step of the given rate on the non-smooth part."""


class SparseGroupLasso(AbstractPenalty):
    """The penalty of Heiden et al. 2021, equation 2, with the group term of Simon et al. 2013:

        kappa |W1|_1 + group sum_i sqrt(n_i) |W1_i|_2 + lam |W2...|^2

    W1_i are the first-layer weights of input i, W2 and on those of the upper layers. The first two enter by their proximal
    operator, so that inputs become exactly zero; the last is differentiated.
    """

    kappa: float = 0.0
    group: float = 0.0
    lam: float = 0.0

    def smooth(self, augmentation: Any) -> Array:
        return self.lam * upper_squares(augmentation)

    def proximal(self, augmentation: Any, rate: Array) -> Any:
        # soft thresholds, first of each number, then of each group (Simon et al. 2013, section 3)
        def shrink(w: Array) -> Array:
            w = jnp.sign(w) * jnp.maximum(jnp.abs(w) - rate * self.kappa, 0.0)
            size = jnp.sqrt(jnp.sum(w**2) + jnp.finfo(w.dtype).tiny)
            return w * jnp.maximum(1 - rate * self.group * math.sqrt(w.size) / size, 0.0)

        return map_input_weights(shrink, augmentation)


class Only(AbstractPenalty):
    """Holds chosen weights at zero: `keep` has ones and zeros in the place of weights. The upper layers cost lam |W2...|^2."""

    keep: Any
    lam: float = 0.0

    def smooth(self, augmentation: Any) -> Array:
        return self.lam * upper_squares(augmentation)

    def proximal(self, augmentation: Any, rate: Array) -> Any:
        return jax.tree.map(lambda w, k: w * k, augmentation, self.keep)


def upper_squares(augmentation: Any) -> Float[Array, ""]:
    """Sum of the squares of all weights above the first layer."""
    upper = map_input_weights(jnp.zeros_like, augmentation)
    leaves = jax.tree.leaves(eqx.filter(upper, eqx.is_inexact_array))
    return sum((jnp.sum(x**2) for x in leaves), start=jnp.zeros(()))


class _Descent(NamedTuple):
    z: Float[Array, " p"]
    memory: Any
    key: Array
    cost: Float[Array, ""]
    gain: Float[Array, ""]
    done: Int[Array, ""]


def _loss(problem: Problem, penalty: AbstractPenalty | None, z: Array, segments: Segments) -> Array:
    """Mean square of the weighted errors, halved, plus the smooth part of the penalty and the prior."""
    r = problem.residuals(z, problem.no_start(segments), segments)
    measured = jnp.maximum(jnp.sum(segments.weight > 0), 1).astype(r.dtype)
    loss = 0.5 * jnp.sum(r**2) / measured + problem.log_prior(z) / problem.count
    if penalty is not None and problem.networks:
        loss = loss + penalty.smooth(problem.augmentation(z))
    return loss


class LBFGS(AbstractSearch):
    """Limited-memory quasi-Newton with line search (optax) on all segments at once."""

    iterations: int = 300
    tolerance: float = 1e-7
    penalty: AbstractPenalty | None = None
    block: int = 10

    def _optimiser(self) -> Any:
        import optax

        lasso = self.penalty
        if lasso is not None and not (isinstance(lasso, SparseGroupLasso) and lasso.kappa == lasso.group == 0):
            raise ValueError("L-BFGS has no proximal step, so weights cannot become zero: use Adam, or `lam` alone.")
        return optax.lbfgs()

    def init(self, problem: Problem, z: Array, key: Array) -> _Descent:
        cost = _loss(problem, self.penalty, z, problem.training)
        return _Descent(z, self._optimiser().init(z), key, cost, jnp.asarray(jnp.inf), jnp.zeros((), int))

    def step(self, problem: Problem, state: _Descent) -> _Descent:
        import optax

        optimiser = self._optimiser()

        def loss(z: Array) -> Array:
            return _loss(problem, self.penalty, z, problem.training)

        def once(_: int, carry: tuple[Array, Any]) -> tuple[Array, Any]:
            z, memory = carry
            value, gradient = optax.value_and_grad_from_state(loss)(z, state=memory)
            update, memory = optimiser.update(gradient, memory, z, value=value, grad=gradient, value_fn=loss)
            return z + update, memory

        z, memory = jax.lax.fori_loop(0, self.block, once, (state.z, state.memory))
        cost = loss(z)
        gain = (state.cost - cost) / jnp.maximum(state.cost, 1e-300)
        better = cost <= state.cost
        return _Descent(
            jnp.where(better, z, state.z), memory, state.key, jnp.where(better, cost, state.cost), gain,
            state.done + self.block,
        )  # fmt: skip

    def outcome(self, problem: Problem, state: _Descent) -> Outcome:
        count = int(state.done)
        if not np.isfinite(float(state.cost)):
            return Outcome(True, False, "the simulation diverges at the initial parameters: start from others")
        if not float(state.gain) > self.tolerance:
            return Outcome(True, True, f"converged after {count} iterations")
        return Outcome(count >= self.iterations, False, f"stopped after {count} iterations without converging")

    def best(self, problem: Problem, state: _Descent) -> tuple[Array, Array, Array]:
        return state.z, problem.no_start(problem.segments), state.cost * problem.count

    def total(self) -> int:
        return self.iterations // self.block


class Adam(AbstractSearch):
    """Adam (optax) on batches of segments, the rate falling along a cosine, gradients clipped; proximal steps after each."""

    steps: int = 2000
    rate: float = 3e-3
    batch: int | None = None
    penalty: AbstractPenalty | None = None
    clip: float = 1.0
    block: int = 50

    def _optimiser(self) -> Any:
        import optax

        return optax.chain(optax.clip_by_global_norm(self.clip), optax.adam(self._rate()))

    def _rate(self) -> Any:
        import optax

        return optax.cosine_decay_schedule(self.rate, self.steps, alpha=0.02)

    def init(self, problem: Problem, z: Array, key: Array) -> _Descent:
        return _Descent(z, self._optimiser().init(z), key, jnp.asarray(jnp.inf), jnp.asarray(jnp.inf), jnp.zeros((), int))

    def step(self, problem: Problem, state: _Descent) -> _Descent:
        optimiser, rate = self._optimiser(), self._rate()
        everything = problem.training.number
        size = everything if self.batch is None else min(self.batch, everything)

        def once(carry: tuple[Array, Any, Array, Array], _: None) -> tuple[Any, Array]:
            z, memory, key, count = carry
            key, own = jax.random.split(key)
            segments = problem.training
            if size < everything:
                segments = segments.take(jax.random.choice(own, everything, (size,), replace=False))
            value, gradient = jax.value_and_grad(lambda z: _loss(problem, self.penalty, z, segments))(z)
            gradient = jnp.where(jnp.isfinite(gradient).all(), gradient, 0.0)
            update, memory = optimiser.update(gradient, memory, z)
            z = self._proximal(problem, z + update, rate(count))
            return (z, memory, key, count + 1), value

        start = (state.z, state.memory, state.key, state.done)
        (z, memory, key, count), values = jax.lax.scan(once, start, length=self.block)
        return _Descent(z, memory, key, jnp.mean(values), jnp.asarray(jnp.inf), count)

    def _proximal(self, problem: Problem, z: Array, rate: Array) -> Array:
        if self.penalty is None or not problem.networks:
            return z
        weights = self.penalty.proximal(problem.augmentation(z), rate)
        return jnp.concatenate([z[: problem.coordinates.size], problem.flatten(weights)])

    def outcome(self, problem: Problem, state: _Descent) -> Outcome:
        count = int(state.done)
        if count and not np.isfinite(float(state.cost)):
            return Outcome(True, False, "the loss diverged: a shorter horizon or a smaller rate may help")
        return Outcome(count >= self.steps, True, f"{count} steps of Adam")

    def best(self, problem: Problem, state: _Descent) -> tuple[Array, Array, Array]:
        return state.z, problem.no_start(problem.segments), state.cost * problem.count

    def total(self) -> int:
        return -(-self.steps // self.block)
