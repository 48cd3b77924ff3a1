"""Soft contacts, limits and equalities: MuJoCo's law of constraints, taken at the end of the step.

MuJoCo gives a row that is violated by r, with the rate v, the force f with

    a + b v + k d r + R f = 0,    R = (1 - d) / d A,

where a is the acceleration along the row that comes of it, d(r) the impedance, A the row's response (`Compliances`, and MuJoCo's
documentation, "Computation", equations for a_ref and R). Over a step of length h, a = (v+ - v) / h and f = y / h; with spring and
damper taken at its end, v+ and r + h v+ in place of v and r, the row is as any other,

    v+ + E y = w,    s = 1 / (1 + h b + h^2 k d),    E = s R,    w = s (v - h k d r).

At rest k d r = -R f, as in MuJoCo; in motion the two differ by the order of h, and any h is stable (MuJoCo takes v and r at
the start and lengthens time constants below 2 h instead). What is soft pushes where it overlaps at the start of the step,
without a time of impact. The tangents of a soft contact have the same E, as in MuJoCo's elliptic cone.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from flexor.model.model import Model
from flexor.spatial import take


class Soft(NamedTuple):
    """The laws of constraints of which some are soft; of hard ones the numbers say nothing."""

    soft: Bool[Array, " n"] | np.ndarray
    stiffness: Float[Array, " n"]
    damping: Float[Array, " n"]
    impedance: Float[Array, "n 5"]
    response: Float[Array, " n"]


def softness(model: Model, rows: np.ndarray, turning: np.ndarray | None = None) -> Soft | None:
    """The laws of constraints whose compliances are these rows of the table, -1 for hard ones; None where all are hard. Those
    that are `turning` have the response of rotations."""
    if not (rows >= 0).any():
        return None
    at, table = np.maximum(rows, 0), model.compliances
    response = take(table.response, at)
    if turning is not None:
        response = jnp.where(turning, take(table.rotation_response, at), response)
    return Soft(rows >= 0, take(table.stiffness, at), take(table.damping, at), take(table.impedance, at), response)


def impedance(numbers: Float[Array, "*n 5"], violation: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """d of a violation |r|: from low at zero to high at the width, along two powers that meet at the midpoint."""
    low, high, width, middle, power = (numbers[..., i] for i in range(5))
    x = jnp.minimum(violation / width, 1.0)
    below = x <= middle
    scale = jnp.where(below, middle, 1 - middle)
    part = jnp.where(below, x, 1 - x) / scale
    none = part <= 1e-12  # where a power has no slope, and no logarithm
    y = jnp.where(none, 0.0, scale * jnp.exp(power * jnp.log(jnp.where(none, 1.0, part))))
    return low + jnp.where(below, y, 1 - y) * (high - low)


def soft_row(law: Soft, gap: Array, violation: Array, before: Array, dt: Array) -> tuple[Array, Array]:
    """w and E of rows at the gap r, `violation` being the |r| that counts for the impedance, and `before` their velocity."""
    d = impedance(law.impedance, violation)
    pull = dt * law.stiffness * d
    s = 1 / (1 + dt * law.damping + dt * pull)
    return s * (before - pull * gap), s * (1 - d) / d * law.response
