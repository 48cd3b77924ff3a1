"""What is minimised. In training: errors of one step, and of several. In fine-tuning, a sum of terms, each with its weight:

OneStepLoss     mean huber(one step)
RolloutLoss     mean huber(several steps on the network's own predictions)
PositionLoss    mean soft(|dq| / |dq|_0), how far positions are off along rollouts, in units of what it was before;
                soft(e) = 3 log(1 + e / 3). Of recorded velocities it reads the first, and with `SteadyStarts` none
AnchorLoss      |w - w_0|^2, which holds the weights near those before
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.model.model import Model
from flexor.nerd.artefact import Nerd
from flexor.nerd.frames import Frames
from flexor.nerd.network import AbstractNetwork, member, trainable
from flexor.nerd.unrolled import path_errors, unrolled_errors
from flexor.nerd.windows import Windows, over_pieces

Term = Callable[[AbstractNetwork, AbstractNetwork, Windows], Array]


def huber(error: Array, h: float) -> Array:
    """h^2 (sqrt(1 + (e / h)^2) - 1): quadratic for what is learned well, linear beyond h, for impacts are rare and large and
    would drown the rest."""
    return h**2 * (jnp.sqrt(1 + (error / h) ** 2) - 1)


def one_step_loss(network: AbstractNetwork, x: Any, y: Any, h: float) -> Array:
    """Mean over all positions that have targets, of errors in units of the targets' deviations."""
    y = jnp.asarray(y, network.dtype)
    has_target = jnp.isfinite(y)
    errors = jnp.where(has_target, network.sequence(x) - jnp.where(has_target, y, 0.0), 0.0)
    scaled = errors / jnp.broadcast_to(network.norms.y_std, errors.shape)
    return jnp.sum(huber(scaled, h)) / jnp.maximum(jnp.sum(has_target), 1).astype(y.dtype)


def rollout_loss(network: AbstractNetwork, frames: Frames, model: Model, raw: Any, h: float) -> Array:
    """The loss of several steps; `raw` are states and torques (batch, steps + 1, n)."""
    errors = jax.vmap(lambda q, qd, push: unrolled_errors(network, frames, model, q, qd, push))(*_split(frames, raw))
    return jnp.mean(huber(errors, h)).astype(network.dtype)


def position_errors(
    network: AbstractNetwork, frames: Frames, model: Model, raw: Any, limit: float = np.inf
) -> Float[Array, "batch steps kinds"]:
    """How far positions are off along windows, by kind of coordinate; see `path_errors`."""
    return jax.vmap(lambda q, qd, push: path_errors(network, frames, model, q, qd, push, limit))(*_split(frames, raw))


def soft(error: Array) -> Array:
    """3 log(1 + e / 3): the error itself while it is small; large ones count less."""
    return 3 * jnp.log1p(error / 3)


def _split(frames: Frames, raw: Any) -> tuple[Any, Any, Any]:
    t = frames.topology
    return raw[..., : t.nq], raw[..., t.nq : t.nq + t.nv], raw[:, :-1, t.nq + t.nv :]


@dataclass(frozen=True, eq=False)
class Before:
    """A solver before fine-tuning, and the windows that it is to learn from."""

    nerd: Nerd
    windows: Windows

    @cached_property
    def errors(self) -> np.ndarray:
        """How far positions are off along each window, in the mean, by kind of coordinate: (n, kinds); of the first member."""
        network, frames, model = member(self.nerd.network, 0), self.nerd.frames, self.nerd.model
        mean = eqx.filter_jit(lambda r: jnp.mean(position_errors(network, frames, model, r), axis=1))
        return np.nan_to_num(over_pieces(mean, self.windows.r), nan=0.0, posinf=0.0)

    @cached_property
    def scale(self) -> np.ndarray:
        """Their mean over the windows: (kinds)."""
        return self.errors.mean(axis=0)


@dataclass(frozen=True)
class AbstractLoss(abc.ABC):
    """A term of the loss of fine-tuning, which counts by `weight`."""

    weight: float = 1.0
    needs_examples: ClassVar[bool] = False
    """Whether it reads inputs and targets, which must be encoded then."""

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(
                f"the weight of a {type(self).__name__} must be positive, got {self.weight}; leave the term out."
            )

    @abc.abstractmethod
    def term(self, before: Before) -> Term:
        """The term as a function of one network, the same network before fine-tuning, and a batch of windows; not weighted."""

    def interest(self, before: Before) -> Float[np.ndarray, " n"]:
        """How often each window is to be drawn, in relation to the others."""
        return np.ones(len(before.windows.r))


@final
@dataclass(frozen=True)
class OneStepLoss(AbstractLoss):
    """Errors of all single steps of a window, linear beyond `huber` standard deviations of the target."""

    huber: float = 0.05
    needs_examples: ClassVar[bool] = True

    def term(self, before: Before) -> Term:
        return lambda network, first, rows: one_step_loss(network, rows.x, rows.y, self.huber)


@final
@dataclass(frozen=True)
class RolloutLoss(AbstractLoss):
    """Errors of positions and velocities along the rollout from the first state of a window, linear beyond `huber` standard
    deviations of the velocities."""

    huber: float = 0.05

    def term(self, before: Before) -> Term:
        frames, model = before.nerd.frames, before.nerd.model
        return lambda network, first, rows: rollout_loss(network, frames, model, rows.r, self.huber)


@final
@dataclass(frozen=True)
class PositionLoss(AbstractLoss):
    """Errors of positions along the rollout from the first state of a window. Gradients by the state are cut to norm `limit` at
    every step back. Windows are drawn by how far the solver was off along them, up to `most` times as often as the average."""

    limit: float = 1e3
    most: float = 2.0

    def term(self, before: Before) -> Term:
        frames, model, scale = before.nerd.frames, before.nerd.model, jnp.asarray(before.scale, before.nerd.model.dtype)

        def term(network: AbstractNetwork, first: AbstractNetwork, rows: Windows) -> Array:
            limit = self.limit * self.weight / len(rows.r)  # of the gradient of a mean
            errors = position_errors(network, frames, model, rows.r, limit) / scale[None, None]
            return jnp.mean(soft(errors)).astype(network.dtype)

        return term

    def interest(self, before: Before) -> Float[np.ndarray, " n"]:
        return np.minimum((before.errors / before.scale).mean(axis=1), self.most) + 1e-6


@final
@dataclass(frozen=True)
class AnchorLoss(AbstractLoss):
    """The squared distance of the weights from those before fine-tuning."""

    weight: float = 1e-3

    def term(self, before: Before) -> Term:
        def term(network: AbstractNetwork, first: AbstractNetwork, rows: Windows) -> Array:
            pairs = zip(jax.tree.leaves(trainable(network)), jax.tree.leaves(trainable(first)), strict=True)
            return jnp.asarray(sum(jnp.sum((a - b) ** 2) for a, b in pairs))

        return term
