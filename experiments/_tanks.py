"""Two tanks in cascade with a pump, as a structure: Bernoulli's outflow, what runs over, a sensor that saturates."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import flexor as fx

STEP, PAST = 4.0, 5  # s; samples at the start of which outputs may be used
FULL = 10.0  # V: a full tank, and the sensor's limit
SOFT = 4.0  # 1/V: how sharply a tank begins to run over


class Tanks(fx.ode.AbstractSystem):
    """Levels x1, x2 in V of the sensor:

    dx1/dt = k0 (u - u0) - k1 sqrt(x1) - k2 x1 - over1,    over1 = sigmoid(SOFT (x1 - FULL)) max(dx1/dt without it, 0)
    dx2/dt = k3 sqrt(x1) + k4 x1 - k5 sqrt(x2) - k6 x2 + k7 over1 - over2
    y = min(x2 + y0, FULL)

    Attributes:
        k: logarithms of k0 to k7 in 1/s.
        shift: u0, y0 and by how much the second tank is higher than full, in V.
    """

    k: Float[Array, "8"]
    shift: Float[Array, "3"]

    @staticmethod
    def guess() -> "Tanks":
        """Time constants of a minute, half of what runs over arriving below."""
        return Tanks(jnp.log(jnp.array([0.05, 0.05, 0.002, 0.05, 0.002, 0.05, 0.002, 0.5])), jnp.array([0.0, 0.0, 1.0]))

    def rate(self, t: Array, x: Array, u: Array) -> Array:
        k, (u0, _, higher) = jnp.exp(self.k), self.shift
        r1, r2 = (jnp.sqrt(jnp.maximum(x, 0.0) + 1e-3)[i] for i in (0, 1))
        fill = k[0] * (u[0] - u0) - k[1] * r1 - k[2] * x[0]
        over = jax.nn.sigmoid(SOFT * (x[0] - FULL)) * jnp.maximum(fill, 0.0)
        below = k[3] * r1 + k[4] * x[0] - k[5] * r2 - k[6] * x[1] + k[7] * over
        over2 = jax.nn.sigmoid(SOFT * (x[1] - FULL - higher)) * jnp.maximum(below, 0.0)
        return jnp.stack([fill - over, below - over2])

    def output(self, x: Array, u: Array) -> Array:
        return jnp.minimum(x[1:] + self.shift[1], FULL)

    def settle(self, x: Array) -> Array:
        return jnp.clip(x, 0.0, 2 * FULL)


class Levels(fx.ode.AbstractEncoder):
    """Both levels as linear functions of the first outputs and inputs, within the tanks."""

    W: Float[Array, "2 n"]
    past: int = eqx.field(static=True, default=PAST)

    @staticmethod
    def guess() -> "Levels":
        """Both tanks as full as the lower one was last."""
        W = np.zeros((2, 2 * PAST + 1))
        W[:, PAST - 1] = 1.0
        return Levels(jnp.asarray(W))

    def start(self, t: Array, y: Array, seen: Array, u: Array) -> Array:
        z = jnp.concatenate([y[:, 0] - FULL / 2, u[:, 0] - 3.0, jnp.ones(1)])
        return jnp.clip(self.W @ z + FULL / 2, 0.01, 2 * FULL)
