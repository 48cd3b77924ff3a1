"""Gaits as data: which feet are on the ground, and when."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Gait(eqx.Module):
    """A foot's phase is time / `period` + its offset, without whole numbers; it stands while that is below `duty`, and swings for
    the rest. Offsets are of the feet front right, front left, rear right, rear left."""

    period: float = eqx.field(static=True)
    duty: float = eqx.field(static=True)
    offsets: tuple[float, float, float, float] = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.period <= 0 or not 0 < self.duty <= 1:
            raise ValueError(f"a gait needs a positive period and a duty in (0, 1], got {self.period} s and {self.duty}.")

    @property
    def stance(self) -> float:
        """How long a foot stands, in s."""
        return self.duty * self.period

    @property
    def swing(self) -> float:
        """How long a foot swings, in s."""
        return self.period - self.stance

    def phases(self, time: Float[Array, "*n"]) -> Float[Array, "*n 4"]:
        """The feet's phases, from 0 to 1."""
        phase = time[..., None] / self.period + jnp.broadcast_to(jnp.asarray(self.offsets, time.dtype), (*time.shape, 4))
        return phase - jnp.floor(phase)

    def stands(self, phases: Float[Array, "*n 4"]) -> Bool[Array, "*n 4"]:
        """Whether each foot is on the ground."""
        return phases < self.duty

    def progress(self, phases: Float[Array, "*n 4"]) -> Float[Array, "*n 4"]:
        """How much of its swing a foot has behind it, from 0 to 1; 0 on the ground."""
        return jnp.maximum(phases - self.duty, 0.0) / max(1 - self.duty, 1e-6)


GAITS = {
    "trot": Gait(period=0.5, duty=0.6, offsets=(0.0, 0.5, 0.5, 0.0)),
    "pace": Gait(period=0.4, duty=0.6, offsets=(0.0, 0.5, 0.0, 0.5)),
    "bound": Gait(period=0.36, duty=0.55, offsets=(0.0, 0.0, 0.5, 0.5)),
    "walk": Gait(period=0.8, duty=0.78, offsets=(0.0, 0.5, 0.75, 0.25)),
    "stand": Gait(period=1.0, duty=1.0, offsets=(0.0, 0.0, 0.0, 0.0)),
}
"""Gaits by name: diagonal feet together, feet of a side together, front and rear, one after the other, none."""
