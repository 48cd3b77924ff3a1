"""Friction laws for the penalty model: |force| / normal force, as a function of the sliding speed.

All are zero and smooth at rest, so that force and derivative exist everywhere. `static_ratio` is the static coefficient over
the kinetic one, which is the pair's `friction`. `velocity` is where the law passes from rest to sliding: the smaller, the
slower a loaded contact creeps, and the stiffer it is. An explicit integrator wants dt < 2 m / slope, with slope of the order of
4 mu force / velocity and m the mass at the contact; beyond that it chatters, and derivatives of long rollouts grow without bound.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class AbstractFriction(eqx.Module):
    """A friction law."""

    @abc.abstractmethod
    def coefficient(self, mu: Float[Array, "..."], speed: Float[Array, "..."]) -> Float[Array, "..."]:
        """Friction over normal force at a sliding speed >= 0 and a kinetic coefficient mu."""

    def force(self, mu: Array, normal_force: Array, slip: Float[Array, "... 2"]) -> Float[Array, "... 2"]:
        """Force against the slip velocity: -coefficient(|v|) v/|v| times the normal force."""
        return -self.drag(mu, normal_force, slip)[..., None] * slip

    def drag(self, mu: Array, normal_force: Array, slip: Float[Array, "... 2"]) -> Float[Array, "..."]:
        """Friction force over sliding speed, N s/m; at rest the slope of the law."""
        # |v| is rounded off below 1e-8 m/s, which keeps v/|v| differentiable and the slope at rest exact.
        speed = jnp.sqrt(jnp.sum(slip**2, axis=-1) + 1e-16)
        return normal_force * self.coefficient(mu, speed) / speed


class SmoothedCoulomb(AbstractFriction):
    """mu v / sqrt(v^2 + vs^2)."""

    velocity: float = 0.1

    def coefficient(self, mu: Array, speed: Array) -> Array:
        return mu * speed / jnp.sqrt(speed**2 + self.velocity**2)


class Andersson(AbstractFriction):
    """(mu + (mu_s - mu) exp(-(v/vs)^p)) tanh(k v) (Andersson, Soderberg & Bjorklund 2007, eq. 9)."""

    velocity: float = 0.1
    exponent: float = 1.0
    steepness: float = 40.0
    static_ratio: float = 1.0

    def coefficient(self, mu: Array, speed: Array) -> Array:
        stribeck = mu * (self.static_ratio - 1) * jnp.exp(-((speed / self.velocity) ** self.exponent))
        return (mu + stribeck) * jnp.tanh(self.steepness * speed)


class Hollars(AbstractFriction):
    """min(v/vt, 1) (mu + 2 (mu_s - mu) / (1 + (v/vt)^2)) (Sherman, Seth & Delp 2011, eq. 7)."""

    velocity: float = 0.1
    static_ratio: float = 1.0

    def coefficient(self, mu: Array, speed: Array) -> Array:
        x = speed / self.velocity
        return jnp.minimum(x, 1.0) * mu * (1 + 2 * (self.static_ratio - 1) / (1 + x**2))


class BrownMcPhee(AbstractFriction):
    """mu tanh(4 v/vt) + (mu_s - mu) (v/vt) / (v^2/(4 vt^2) + 3/4)^2 (Brown & McPhee 2016, eq. 20)."""

    velocity: float = 0.1
    static_ratio: float = 1.0

    def coefficient(self, mu: Array, speed: Array) -> Array:
        x = speed / self.velocity
        return mu * jnp.tanh(4 * x) + mu * (self.static_ratio - 1) * x / (x**2 / 4 + 0.75) ** 2
