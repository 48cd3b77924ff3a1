"""Laws of joint friction, with one interface: the largest dry friction at an instant, and the viscous coefficient.

The six laws M1 to M6 are those of Duclusaud & Passault, *Extended friction models for the physics simulation of servo actuators*
(ICRA 2025). With the torque `motor` of the motor and `load` of everything else (both along +q), and s = exp(-|qd / v|^a), which
falls from one at rest to zero in motion,

    M1  Coulomb                b
    M2  Stribeck               b + s c
    M3  LoadDependent          b + k |load - motor|
    M4  StribeckLoad           b + s c + (k + s l) |load - motor|
    M5  Directional            b + s c + |k_e load - k_m motor| + s |l_e load - l_m motor|
    M6  Quadratic              M5 + s (q_e load^2 where the motor drives, q_m motor^2 where the load does)

bound the dry friction; d |qd| comes on top. At rest friction is what is needed to stay, up to the bound. In motion it opposes
the velocity; `torque` rounds the corner over the speed `creep`, so that it has derivatives everywhere.

All fields are numbers, or arrays with one for every degree of freedom.
"""

import abc
import dataclasses
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

Numbers = float | Float[Array, "..."]


class AbstractFriction(eqx.Module):
    """Friction of joints. `viscous` in N m s/rad (N s/m of slides), `creep` in rad/s: the speed of the rounded corner."""

    viscous: Numbers = 0.1
    creep: Numbers = 0.02
    held: ClassVar[tuple[str, ...]] = ("creep",)
    """Fields that are not fitted."""

    def fitted(self) -> tuple[str, ...]:
        """Names of the numbers that may be fitted."""
        return tuple(f.name for f in dataclasses.fields(self) if f.name not in self.held)

    @abc.abstractmethod
    def limit(self, qd: Array, motor: Array, load: Array) -> Array:
        """Largest dry friction in N m, for the torques of motor and load along +q."""

    def torque(self, qd: Array, motor: Array, load: Array) -> Array:
        """Friction in motion, along -qd: limit tanh(qd / creep) + viscous qd. It never gives energy."""
        return self.limit(qd, motor, load) * jnp.tanh(qd / self.creep) + self.viscous * qd

    def stopping(self, needed: Array, qd: Array, motor: Array, load: Array) -> Array:
        """Friction that would stop the joint if it may: `needed` clipped to limit + viscous |qd|. For time-stepping, where
        `needed` is the torque that brings the joint to rest within the step."""
        most = self.limit(qd, motor, load) + self.viscous * jnp.abs(qd)
        return jnp.clip(needed, -most, most)


class Viscous(AbstractFriction):
    """No dry friction at all."""

    def limit(self, qd: Array, motor: Array, load: Array) -> Array:
        return jnp.zeros_like(qd)


class Coulomb(AbstractFriction):
    """M1: a constant b."""

    base: Numbers = 0.05

    def limit(self, qd: Array, motor: Array, load: Array) -> Array:
        return self.base + jnp.zeros_like(qd)


class Stribeck(Coulomb):
    """M2: more at rest than in motion; `speed` v in rad/s, `exponent` a."""

    stribeck: Numbers = 0.05
    speed: Numbers = 0.2
    exponent: Numbers = 1.35

    def rest(self, qd: Array) -> Array:
        """s: one at rest, zero in fast motion. The corner of |qd|^a is rounded, for derivatives at rest."""
        ratio = jnp.sqrt((qd / self.speed) ** 2 + 1e-12)
        return jnp.exp(-(ratio**self.exponent))

    def limit(self, qd: Array, motor: Array, load: Array) -> Array:
        return self.base + self.rest(qd) * self.stribeck


class LoadDependent(Coulomb):
    """M3: proportional to what the gears carry."""

    load_share: Numbers = 0.05

    def limit(self, qd: Array, motor: Array, load: Array) -> Array:
        return self.base + self.load_share * jnp.abs(load - motor)


class StribeckLoad(Stribeck):
    """M4: M2 and M3, the share of the load larger at rest by `load_stribeck`."""

    load_share: Numbers = 0.05
    load_stribeck: Numbers = 0.05

    def limit(self, qd: Array, motor: Array, load: Array) -> Array:
        s = self.rest(qd)
        return self.base + s * self.stribeck + (self.load_share + s * self.load_stribeck) * jnp.abs(load - motor)


class Directional(Stribeck):
    """M5: motor and load with shares of their own, for gears that are not equally easy to drive from both sides."""

    motor_share: Numbers = 0.05
    load_share: Numbers = 0.05
    motor_stribeck: Numbers = 0.05
    load_stribeck: Numbers = 0.05

    def limit(self, qd: Array, motor: Array, load: Array) -> Array:
        s = self.rest(qd)
        moving = jnp.abs(self.load_share * load - self.motor_share * motor)
        resting = jnp.abs(self.load_stribeck * load - self.motor_stribeck * motor)
        return self.base + s * self.stribeck + moving + s * resting


class Quadratic(Directional):
    """M6: where motor and load oppose each other, the square of the weaker one of the two, at rest."""

    motor_square: Numbers = 0.001
    load_square: Numbers = 0.001

    def limit(self, qd: Array, motor: Array, load: Array) -> Array:
        drives = jnp.abs(load) < jnp.abs(motor)
        square = jnp.where(drives, self.load_square * load**2, self.motor_square * motor**2)
        opposed = motor * load < 0
        return super().limit(qd, motor, load) + jnp.where(opposed, self.rest(qd) * square, 0.0)


LAWS: dict[str, type[AbstractFriction]] = {
    "viscous": Viscous, "M1": Coulomb, "M2": Stribeck, "M3": LoadDependent, "M4": StribeckLoad, "M5": Directional,
    "M6": Quadratic,
}  # fmt: skip
"""All laws by the names of the literature, for configurations."""
