"""A position servo with its own controller: what it makes of a goal, and the torque of its motor.

The firmware of hobby and Feetech-like servos moves an inner goal towards the one that it was given at a bounded rate, sets the
duty of the bridge in proportion to the error, and saturates:

    inner += clip(goal - inner, -slew dt, slew dt)
    e      = inner - q
    duty   = clip(kp gain (e + kick tanh(e / corner)), -limit, limit)
    torque = (stall supply duty - back qd) powered

`kick` makes the gain larger for small errors (integer arithmetic rounds away from zero). With a motor constant kt and a
resistance R, stall = kt / R and back = kt^2 / R.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

Number = float | Float[Array, ""]


class PositionServo(eqx.Module):
    """Numbers of the servo and its motor, all positive.

    Attributes:
        gain: duty per rad of error and unit of the proportional gain `kp`.
        kick: rad that are added to an error, with its sign.
        limit: largest duty.
        slew: rate of the inner goal, rad/s.
        stall: torque per volt and unit of duty at rest, N m/V.
        back: torque lost per speed, N m s/rad.
        corner: rad over which the sign of the error is rounded.
    """

    gain: Number = 0.164
    kick: Number = 0.0
    limit: Number = 1.0
    slew: Number = 10.0
    stall: Number = 1.0
    back: Number = 1.0
    corner: float = eqx.field(static=True, default=1e-3)

    def follow(self, inner: Float[Array, ""], goal: Float[Array, ""], dt: Number) -> Float[Array, ""]:
        """The inner goal a time dt later."""
        most = self.slew * dt
        return inner + jnp.clip(goal - inner, -most, most)

    def duty(self, error: Float[Array, ""], kp: Number) -> Float[Array, ""]:
        """Duty of the bridge in -limit..limit for an error of position."""
        kicked = error + self.kick * jnp.tanh(error / self.corner)
        return jnp.clip(kp * self.gain * kicked, -self.limit, self.limit)

    def torque(
        self, duty: Float[Array, ""], qd: Float[Array, ""], *, supply: Number, powered: Number = 1.0
    ) -> Float[Array, ""]:
        """Torque of the motor in N m along +q; `powered` is 1, or 0 when the bridge is open and the joint turns freely."""
        return (self.stall * supply * duty - self.back * qd) * powered
