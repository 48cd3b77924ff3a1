"""A law of friction with a small network on top that can never feed energy in.

The largest friction of a known law is multiplied by a positive number that a network reads from speed and torques,

    limit = (base.limit + base.viscous |qd|) exp(clip(W2 tanh(W1 x + b1) + b2, -3, 3)),

and friction opposes the velocity up to that limit, whatever the weights. The inputs x do not change when speed and torques all
change sign, so friction is odd in them: |qd|, the torques of motor and load along the velocity, their sizes, and their product.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.dynamics.friction import AbstractFriction, Coulomb

INPUTS = 6
MOST = 3.0  # of the exponent: the network changes a law by at most a factor of 20


class LearnedFriction(AbstractFriction):
    """A law times a positive network. With last weights of zero it is the law. `viscous` is unused: viscosity is the base's.

    Attributes:
        base: the law that is multiplied.
        weights, bias: of the hidden layer.
        out, shift: of the exponent.
        speed, size: sizes of speeds (rad/s) and torques (N m) that the inputs are divided by.
        slow: speed over which the direction of motion is rounded in the inputs, rad/s.
    """

    viscous: float = 0.0
    base: AbstractFriction = eqx.field(default_factory=Coulomb)
    weights: Float[Array, "width 6"] = eqx.field(default_factory=lambda: jnp.zeros((1, INPUTS)))
    bias: Float[Array, " width"] = eqx.field(default_factory=lambda: jnp.zeros(1))
    out: Float[Array, " width"] = eqx.field(default_factory=lambda: jnp.zeros(1))
    shift: float | Float[Array, ""] = 0.0
    speed: float = eqx.field(static=True, default=4.0)
    size: float = eqx.field(static=True, default=2.0)
    slow: float = eqx.field(static=True, default=0.05)

    def inputs(self, qd: Float[Array, ""], motor: Float[Array, ""], load: Float[Array, ""]) -> Float[Array, "6"]:
        """What the network reads."""
        along = qd / jnp.sqrt(qd**2 + self.slow**2)
        m, l = motor / self.size, load / self.size
        return jnp.stack([jnp.abs(qd) / self.speed, along * m, along * l, _absolute(m), _absolute(l), m * l])

    def limit(self, qd: Array, motor: Array, load: Array) -> Array:
        known = self.base.limit(qd, motor, load) + self.base.viscous * jnp.abs(qd)
        hidden = jnp.tanh(self.weights @ self.inputs(qd, motor, load) + self.bias)
        return known * jnp.exp(jnp.clip(self.out @ hidden + self.shift, -MOST, MOST))


def _absolute(x: Array) -> Array:
    """|x| with a rounded corner."""
    return jnp.sqrt(x**2 + 2.5e-3) - 0.05
