"""Networks for augmentations, as descriptions (frozen, written to JSON) and as the modules that are built from them.

A description has no sizes: they follow from the wiring. `MLP` is unconstrained. The others hold a physical law for
*any* weights: `Dissipative` never brings energy in, `Conservative` is the gradient of a potential, `Symmetric` treats left and
right alike.
"""

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "softplus": jax.nn.softplus,
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "sin": jnp.sin,
}


def _zero(*weights: Array | None) -> bool:
    """Whether all weights are concrete, and zero."""
    return not any(isinstance(w, jax.core.Tracer) or np.asarray(w).any() for w in weights if w is not None)


class Draw:
    """Hands out random numbers between -1 and 1. `numbers` holds them all; without it, they are only counted."""

    def __init__(self, numbers: Float[Array, " n"] | np.ndarray | None = None):
        self.numbers = numbers
        self.count = 0

    def __call__(self, *shape: int) -> Any:
        start = self.count
        self.count += math.prod(shape)
        return np.zeros(shape) if self.numbers is None else self.numbers[start : self.count].reshape(shape)


class Layer(eqx.Module):
    """weight x + bias."""

    weight: Float[Array, "*copies n_out n_in"]
    bias: Float[Array, "*copies n_out"]

    def __call__(self, x: Float[Array, " n_in"]) -> Float[Array, " n_out"]:
        return self.weight @ x + self.bias


class Perceptron(eqx.Module):
    """Layers of weights with one activation between them."""

    layers: tuple[Layer, ...]
    activation: str = eqx.field(static=True)

    def is_zero(self) -> bool:
        """Whether the result is zero for every input, as far as concrete weights show."""
        return _zero(self.layers[-1].weight, self.layers[-1].bias)

    def __call__(self, x: Float[Array, " n_in"], v: Float[Array, " n"] | None = None) -> Float[Array, " n_out"]:
        for layer in self.layers[:-1]:
            x = ACTIVATIONS[self.activation](layer(x))
        return self.layers[-1](x)


class Damper(eqx.Module):
    """-D(x) v with D = A(x)^T diag(max(g, 0)) A(x) and A(x) = 1 + inner(x): positive semidefinite whatever the weights."""

    inner: Perceptron
    gain: Float[Array, "*copies n"]

    def is_zero(self) -> bool:
        """Whether the force is known to be zero."""
        return not isinstance(self.gain, jax.core.Tracer) and not (np.asarray(self.gain) > 0).any()

    def __call__(self, x: Float[Array, " n_in"], v: Float[Array, " n"]) -> Float[Array, " n"]:
        n = len(self.gain)
        A = jnp.eye(n, dtype=v.dtype) + self.inner(x).reshape(n, n)
        return -(A.T @ (jnp.maximum(self.gain, 0.0) * (A @ v)))


class Potential(eqx.Module):
    """An energy of the features; the force is minus its gradient along the motion, see `Augmentation`."""

    inner: Perceptron

    def is_zero(self) -> bool:
        """Whether the force is known to be zero."""
        return self.inner.is_zero()

    def energy(self, x: Float[Array, " n_in"]) -> Float[Array, ""]:
        return self.inner(x)[0]


Network = Perceptron | Damper | Potential


def inner(network: Network) -> Perceptron:
    """The layers of a network, whatever its guarantee."""
    return network if isinstance(network, Perceptron) else network.inner


@dataclass(frozen=True, kw_only=True)
class AbstractNet(abc.ABC):
    """Description of a network. `adds_only`: the guarantee is about the force that is added, so only `Add` makes sense."""

    adds_only: ClassVar[bool] = False

    @abc.abstractmethod
    def build(self, count: int, n_in: int, n_out: int, draw: Draw, fresh: bool) -> Network:
        """`count` modules with random weights, stacked; if `fresh`, they return zeros until they are trained."""


@dataclass(frozen=True, kw_only=True)
class MLP(AbstractNet):
    """A multilayer perceptron with `depth` hidden layers of `width` neurons; depth 0 is a linear map.

    Activations: tanh, relu, elu, softplus, silu, sigmoid, sin. The last layer starts at zero where the mode of the entry wants no
    change at the start (`Add`, `Scale`).
    """

    width: int = 16
    depth: int = 2
    activation: str = "tanh"

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"{name} has no activation '{self.activation}'; there are {', '.join(ACTIVATIONS)}.")
        if not (isinstance(self.width, int) and isinstance(self.depth, int) and self.width >= 1 and self.depth >= 0):
            raise ValueError(
                f"{name} needs a `width` of at least 1 and a `depth` of at least 0, got {self.width} and {self.depth}."
            )

    def layers(self, count: int, n_in: int, n_out: int, draw: Draw, fresh: bool) -> Perceptron:
        """Layers with weights uniform within 1 / sqrt(inputs); the last one zero if `fresh`."""
        sizes = [n_in, *[self.width] * self.depth, n_out]
        layers = [Layer(draw(count, b, a) / math.sqrt(a), draw(count, b) / math.sqrt(a)) for a, b in pairwise(sizes)]
        if fresh:
            layers[-1] = jax.tree.map(lambda x: x - x, layers[-1])
        return Perceptron(tuple(layers), self.activation)

    def build(self, count: int, n_in: int, n_out: int, draw: Draw, fresh: bool) -> Network:
        return self.layers(count, n_in, n_out, draw, fresh)


@dataclass(frozen=True, kw_only=True)
class Dissipative(MLP):
    """A force -D(x) v against the velocity v that is conjugate to it, D(x) positive semidefinite: its power is never positive.

    v is joint.qd for forces in joints, link.velocity for link.external_force, and the parts of contact.relative_velocity for
    contact forces; it need not be among the inputs x. D = A^T diag(max(g, 0)) A with A = 1 + MLP(x); the gains g start at zero,
    where their derivative is not zero, so that a fresh network changes nothing and can still learn.
    """

    adds_only: ClassVar[bool] = True

    def build(self, count: int, n_in: int, n_out: int, draw: Draw, fresh: bool) -> Network:
        inner = self.layers(count, n_in, n_out * n_out, draw, False)
        bias = inner.layers[-1].bias[:, :n_out]
        return Damper(inner, bias - bias)


@dataclass(frozen=True, kw_only=True)
class Conservative(MLP):
    """A force -dV/dq of a learned potential V(q): its work around any closed path is zero. It reads only joint.q.

    V = MLP(features of q) with a last layer that starts at zero. Rotations count as displacements along the velocities, so
    ball and free joints work too. Choose a smooth activation: relu makes V a polyhedron and the force a staircase.
    """

    adds_only: ClassVar[bool] = True

    def build(self, count: int, n_in: int, n_out: int, draw: Draw, fresh: bool) -> Network:
        return Potential(self.layers(count, n_in, 1, draw, fresh))


@dataclass(frozen=True, kw_only=True)
class Symmetric(AbstractNet):
    """A network that commutes with the mirror: swap the joints of `pairs`, turn the sign of those in `flip`, and the result does
    the same.

    `of` is the network within, `MLP` or `Dissipative`. `pairs` names mirrored joints, `flip` those whose coordinate changes sign
    in the mirror (for a pair, naming one of the two is enough); all others are their own mirror image. With `Whole` the network
    is averaged over the mirror, f_s(x) = (f(x) + P f(P x)) / 2; with `Each` mirrored joints share their weights.
    """

    of: AbstractNet = MLP()
    pairs: tuple[tuple[str, str], ...] = ()
    flip: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.of, MLP) or isinstance(self.of, Conservative):
            raise ValueError(f"Symmetric takes an MLP or a Dissipative as `of`, got {type(self.of).__name__}.")
        pairs: Sequence[Any] = [tuple(p) if isinstance(p, list | tuple) else p for p in self.pairs]
        bad = [p for p in pairs if not (isinstance(p, tuple) and len(p) == 2 and all(isinstance(n, str) for n in p))]
        if bad:
            raise ValueError(f"`pairs` of Symmetric are pairs of joint names such as ('hip_l', 'hip_r'), got {bad[0]!r}.")
        object.__setattr__(self, "pairs", tuple(pairs))
        object.__setattr__(self, "flip", (self.flip,) if isinstance(self.flip, str) else tuple(self.flip))

    def build(self, count: int, n_in: int, n_out: int, draw: Draw, fresh: bool) -> Network:
        return self.of.build(count, n_in, n_out, draw, fresh)


def guarantee(net: AbstractNet) -> AbstractNet:
    """The network behind a symmetry: what decides which inputs and outputs make sense."""
    return net.of if isinstance(net, Symmetric) else net


NETS: dict[str, type[AbstractNet]] = {c.__name__: c for c in (MLP, Dissipative, Conservative, Symmetric)}


def to_json(net: AbstractNet) -> dict[str, Any]:
    """Class name and fields."""
    values = {f.name: getattr(net, f.name) for f in fields(net)}
    return {"class": type(net).__name__, **{k: to_json(v) if isinstance(v, AbstractNet) else v for k, v in values.items()}}


def from_json(data: dict[str, Any]) -> AbstractNet:
    """The inverse of `to_json`."""
    values = {k: from_json(v) if isinstance(v, dict) else v for k, v in data.items() if k != "class"}
    return NETS[data["class"]](**values)
