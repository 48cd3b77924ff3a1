"""The network: a causal transformer over the last steps, each token one step (Xu et al. 2025, after Radford et al. 2019).

Attention reaches `history` steps back and no further, in training as in use, and positions enter by rotation of queries and keys
(rotary embedding, Su et al. 2021), of which only differences matter. So keys and values of past steps stay valid as the
window slides on: a step costs one token, not a window, and gives the same numbers, after however many steps, for angles are
counted in whole 2^-32 of a turn. Inputs and outputs are normalised inside.
"""

import abc
import math
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

if TYPE_CHECKING:
    from flexor.nerd.frames import Frames

SHARPEST = 1e4  # longest wavelength of the rotary embedding, in steps over 2 pi


class AbstractSizes(eqx.Module):
    """A kind of network and how large it is."""

    name: eqx.AbstractClassVar[str]
    """What recipes and files call this kind."""

    @abc.abstractmethod
    def build(self, frames: "Frames", norms: "Norms", key: PRNGKeyArray) -> "AbstractNetwork":
        """A fresh network for a layout."""


class AbstractNetwork(eqx.Module):
    """From the inputs of steps to what a step changes beyond the base step: a whole sequence at once for training, and the same
    step by step for rollouts, with a cache."""

    norms: eqx.AbstractVar["Norms"]
    sizes: eqx.AbstractVar[AbstractSizes]

    @abc.abstractmethod
    def sequence(self, x: Float[Array, "*batch t n_in"]) -> Float[Array, "*batch t n_out"]:
        """Predictions after each step of sequences."""

    @abc.abstractmethod
    def begin(self) -> Any:
        """The cache before the first step."""

    @abc.abstractmethod
    def step(self, x: Float[Array, " n_in"], cache: Any) -> tuple[Float[Array, " n_out"], Any]:
        """The prediction after one more step, and the new cache."""

    @abc.abstractmethod
    def silenced(self) -> "AbstractNetwork":
        """The network that predicts nothing: with it the base step is alone."""

    @property
    def dtype(self) -> Any:
        """Of its numbers."""
        return self.norms.x_mean.dtype

    @property
    def members(self) -> int:
        """How many networks an ensemble has."""
        return len(self.norms.x_mean)


class Sizes(AbstractSizes):
    """Of a transformer: layers, width, heads, and history in steps."""

    name: ClassVar[str] = "transformer"
    layers: int = eqx.field(static=True, default=4)
    width: int = eqx.field(static=True, default=96)
    heads: int = eqx.field(static=True, default=4)
    history: int = eqx.field(static=True, default=10)
    head_width: int = eqx.field(static=True, default=64)

    def __check_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ValueError(f"the width {self.width} must be a multiple of twice the {self.heads} heads.")
        if min(self.layers, self.width, self.heads, self.history) < 1:
            raise ValueError("layers, width, heads and history must be positive.")

    def build(self, frames: "Frames", norms: "Norms", key: PRNGKeyArray) -> "Transformer":
        """Fresh weights."""
        return Transformer.build(self, norms, key)


class Norms(eqx.Module):
    """Mean and deviation of inputs and targets; not trained."""

    x_mean: Float[Array, "*members n_in"]
    x_std: Float[Array, "*members n_in"]
    y_mean: Float[Array, "*members n_out"]
    y_std: Float[Array, "*members n_out"]


class Cache(eqx.Module):
    """Turned keys and values of the last steps, in a ring, and how many steps there have been."""

    keys: Float[Array, "layers history heads d"]
    values: Float[Array, "layers history heads d"]
    count: Int[Array, ""]


class Block(eqx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), without biases. In an ensemble, weights have a leading axis."""

    qkv: Float[Array, "*members width3 width"]
    out: Float[Array, "*members width width"]
    up: Float[Array, "*members width4 width"]
    down: Float[Array, "*members width width4"]
    gain1: Float[Array, "*members width"]
    gain2: Float[Array, "*members width"]


class Transformer(AbstractNetwork):
    """`sequence` for training, and the same function as `step` with a cache for rollouts."""

    embed: Float[Array, "*members width n_in"]
    blocks: tuple[Block, ...]
    gain: Float[Array, "*members width"]
    head1: Float[Array, "*members head width"]
    head2: Float[Array, "*members n_out head"]
    norms: Norms
    sizes: Sizes = eqx.field(static=True)

    @staticmethod
    def build(sizes: Sizes, norms: Norms, key: PRNGKeyArray, dtype: Any = jnp.float32) -> "Transformer":
        """Fresh weights: Gaussian of deviation 1/sqrt(inputs), residual branches end smaller by sqrt(2 layers)."""
        w, n_in, n_out = sizes.width, len(norms.x_mean), len(norms.y_mean)
        keys = iter(jax.random.split(key, 3 + 4 * sizes.layers))

        def weight(rows: int, columns: int, shrink: float = 1.0) -> Array:
            return (shrink / np.sqrt(columns) * jax.random.normal(next(keys), (rows, columns))).astype(dtype)

        last = 1 / np.sqrt(2 * sizes.layers)
        ones = jnp.ones(w, dtype)
        embed = weight(w, n_in)
        blocks = tuple(
            Block(weight(3 * w, w), weight(w, w, last), weight(4 * w, w), weight(w, 4 * w, last), ones, ones)
            for _ in range(sizes.layers)
        )
        head = weight(sizes.head_width, w)
        norms = jax.tree.map(lambda x: jnp.asarray(x, dtype), norms)
        head2 = weight(n_out, sizes.head_width, 0.1)
        return Transformer(embed=embed, blocks=blocks, gain=ones, head1=head, head2=head2, norms=norms, sizes=sizes)

    def _tokens(self, x: Float[Array, "n n_in"]) -> Float[Array, "n width"]:
        return (x - self.norms.x_mean[None]) / self.norms.x_std[None] @ self.embed.T

    def _heads(self, h: Float[Array, "n width"]) -> Float[Array, "n n_out"]:
        y = jax.nn.gelu(_normed(h, self.gain) @ self.head1.T) @ self.head2.T
        return y * self.norms.y_std[None] + self.norms.y_mean[None]

    def sequence(self, x: Float[Array, "*batch t n_in"]) -> Float[Array, "*batch t n_out"]:
        """Predictions after each step of sequences, each from the `history` steps up to it."""
        s, t = self.sizes, x.shape[-2]
        age = np.arange(t)[:, None] - np.arange(t)
        visible = jnp.asarray((age >= 0) & (age < s.history))
        # products of two matrices each, however many sequences there are
        h = self._tokens(jnp.asarray(x, self.embed.dtype).reshape(-1, x.shape[-1]))
        for block in self.blocks:
            q, k, v = (z.reshape(-1, t, *z.shape[1:]) for z in self._qkv(block, h))
            q, k = (_turned(z, _angles(jnp.arange(t), z)) for z in (q, k))
            scores = jnp.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
            share = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1)
            h = h + jnp.einsum("bhij,bjhd->bihd", share, v).reshape(h.shape) @ block.out.T
            h = h + _mlp(block, h)
        return self._heads(h).reshape(*x.shape[:-1], -1)

    def silenced(self) -> "Transformer":
        return eqx.tree_at(lambda n: (n.head2, n.norms.y_mean), self, replace_fn=jnp.zeros_like)

    def begin(self) -> Cache:
        """The cache before the first step."""
        s = self.sizes
        empty = jnp.zeros((s.layers, s.history, s.heads, s.width // s.heads), self.embed.dtype)
        return Cache(empty, empty, jnp.zeros((), jnp.int32))

    def step(self, x: Float[Array, " n_in"], cache: Cache) -> tuple[Float[Array, " n_out"], Cache]:
        """The prediction after one more step, from the cached window."""
        s = self.sizes
        slot = cache.count % s.history
        age = (slot - jnp.arange(s.history, dtype=jnp.int32)) % s.history  # of what a place of the ring holds, in steps
        valid = age <= cache.count
        here = (age == 0)[:, None, None]
        h = self._tokens(x[None])
        angles = _angles(cache.count[None], cache.keys[0])
        keys, values = [], []
        for i, block in enumerate(self.blocks):
            q, k, v = self._qkv(block, h)
            keys.append(jnp.where(here, _turned(k, angles), cache.keys[i]))
            values.append(jnp.where(here, v, cache.values[i]))
            scores = jnp.einsum("hd,jhd->hj", _turned(q, angles)[0], keys[-1]) / math.sqrt(q.shape[-1])
            share = jax.nn.softmax(jnp.where(valid, scores, -jnp.inf), axis=-1)
            h = h + jnp.einsum("hj,jhd->hd", share, values[-1]).reshape(1, -1) @ block.out.T
            h = h + _mlp(block, h)
        return self._heads(h)[0], Cache(jnp.stack(keys), jnp.stack(values), cache.count + 1)

    def _qkv(self, block: Block, h: Array) -> tuple[Array, Array, Array]:
        s = self.sizes
        qkv = (_normed(h, block.gain1) @ block.qkv.T).reshape(len(h), 3, s.heads, s.width // s.heads)
        return qkv[:, 0], qkv[:, 1], qkv[:, 2]


Network = TypeVar("Network", bound=AbstractNetwork)


def member(ensemble: Network, i: int) -> Network:
    """One network of an ensemble, which has a leading axis in every weight."""
    return jax.tree.map(lambda w: w[i] if eqx.is_array(w) else w, ensemble)


def trainable(network: AbstractNetwork) -> Any:
    """The weights without the normalisation."""
    weights = eqx.filter(network, eqx.is_inexact_array)
    return eqx.tree_at(lambda n: n.norms, weights, None)


def _normed(h: Float[Array, "n width"], gain: Float[Array, " width"]) -> Float[Array, "n width"]:
    """Root-mean-square normalisation (Zhang & Sennrich 2019)."""
    return h * jax.lax.rsqrt(jnp.mean(h**2, axis=-1, keepdims=True) + 1e-6) * gain[None]


def _mlp(block: Block, h: Array) -> Array:
    return jax.nn.gelu(_normed(h, block.gain2) @ block.up.T) @ block.down.T


def _angles(position: Int[Array, " t"], like: Float[Array, "*batch heads d"]) -> Float[Array, "t half"]:
    """How far pairs of numbers are turned at a position: fast in the first pairs and slowly in the last. In whole 2^-32 of a
    turn, whose overflow is a turn: as exact after a million steps as after one."""
    half = like.shape[-1] // 2
    turns = SHARPEST ** (-np.arange(half) / half) / (2 * np.pi)
    parts = position.astype(jnp.int32)[:, None] * np.round(turns * 2**32).astype(np.int64).astype(np.int32)[None]
    return parts.astype(like.dtype) * np.asarray(2 * np.pi / 2**32, like.dtype)


def _turned(x: Float[Array, "*batch t heads d"], angles: Float[Array, "t half"]) -> Float[Array, "*batch t heads d"]:
    """Pairs of numbers turned by an angle, the same for all heads."""
    a, b = jnp.split(x, 2, axis=-1)
    c, s = (f(angles).reshape(*[1] * (x.ndim - 3), len(angles), 1, -1) for f in (jnp.cos, jnp.sin))
    return jnp.concatenate([a * c - b * s, a * s + b * c], axis=-1)
