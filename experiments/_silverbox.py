"""Silverbox as a structure: an oscillator with a spring that hardens, driven by an input that is band-limited between samples."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import flexor as fx

RATE = 610.3515625  # Hz
AROUND = 2  # samples to either side from which the input at a sample is made
PAST = 12  # of the 50 samples that may be used for a start
SIZE, FORCE = 0.05, 0.02  # V: deviations of output and input
INPUTS = 2 * AROUND + 1


def inputs(u: np.ndarray) -> np.ndarray:
    """The input and its neighbours, a column each."""
    padded = np.pad(u, AROUND, mode="edge")
    return np.stack([padded[k : k + len(u)] for k in range(INPUTS)], axis=1)


class Oscillator(fx.ode.AbstractSystem):
    """x = (y, v) in units of SIZE, v per sample:

        dy/ds = v,    dv/ds = a . (1, y, y^2, y^3, v) + w . (u[k-2], .., u[k+2]) / FORCE,    s = RATE t

    Between samples the driving force is interpolated linearly; the weights w make up for what that loses.

    Attributes:
        a: spring, damping and offset.
        w: weights of the input.
    """

    a: Float[Array, "5"]
    w: Float[Array, "5"]

    @staticmethod
    def guess() -> "Oscillator":
        """A linear oscillator of about 70 Hz, slightly damped."""
        return Oscillator(jnp.array([0.0, -0.5, 0.0, -0.005, -0.07]), jnp.zeros(INPUTS).at[AROUND].set(0.2))

    def rate(self, t: Array, x: Array, u: Array) -> Array:
        y, v = x
        terms = jnp.stack([jnp.ones_like(y), y, y**2, y**3, v])
        return RATE * jnp.stack([v, self.a @ terms + self.w @ u / FORCE])

    def output(self, x: Array, u: Array) -> Array:
        return SIZE * x[:1]


class Swing(fx.ode.AbstractEncoder):
    """Position and speed as linear functions of the outputs and inputs just before the start."""

    W: Float[Array, "2 n"]
    past: int = eqx.field(static=True, default=PAST)

    @staticmethod
    def guess() -> "Swing":
        """The last output, and its difference to the one before."""
        W = np.zeros((2, 2 * PAST))
        W[0, PAST - 1] = W[1, PAST - 1] = 1.0
        W[1, PAST - 2] = -1.0
        return Swing(jnp.asarray(W))

    def start(self, t: Array, y: Array, seen: Array, u: Array) -> Array:
        return self.W @ jnp.concatenate([y[:, 0] / SIZE, u[:, AROUND] / FORCE])
