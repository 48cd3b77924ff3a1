"""MuJoCo's muscle: force by length and velocity, and the time constants of its activation.

    force = -F (a FL(L) FV(V) + FP(L)),   L = r0 + (l - l0) / L0,   L0 = (l1 - l0) / (r1 - r0),   V = l' / (L0 vmax)

FL is made of four parabolas and zero outside of (lmin, lmax), FV of two, FP of a parabola and a straight line; all have
continuous slopes. (MuJoCo's documentation, Modeling, "Muscles"; activation after Millard, Uchida, Seth & Delp 2013.)
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.model.model import Muscles

SMALLEST = 1e-15  # MuJoCo's mjMINVAL, its smallest divisor


def _scaled(m: Muscles, length: Array, velocity: Array) -> tuple[Array, Array]:
    """Length and velocity in the muscle's units."""
    unit = _safe((m.length_range[:, 1] - m.length_range[:, 0]) / _safe(m.range[:, 1] - m.range[:, 0]))
    return m.range[:, 0] + (length - m.length_range[:, 0]) / unit, velocity / _safe(unit * m.max_velocity)


def _safe(x: Array) -> Array:
    return jnp.maximum(x, SMALLEST)


def muscle_gain(m: Muscles, length: Float[Array, " n"], velocity: Float[Array, " n"]) -> Float[Array, " n"]:
    """Active force at full activation: -F FL(L) FV(V)."""
    L, V = _scaled(m, length, velocity)
    rest = m.lengthening_force - 1
    fast = jnp.where(rest >= V, m.lengthening_force - (rest - V) ** 2 / _safe(rest), m.lengthening_force)
    by_velocity = jnp.where(V <= -1, 0.0, jnp.where(V <= 0, (V + 1) ** 2, fast))
    return -m.peak_force * _by_length(m, L) * by_velocity


def _by_length(m: Muscles, L: Array) -> Array:
    """FL: zero at both ends, one half halfway to the optimum, one there."""
    a, b = (m.shortest + 1) / 2, (1 + m.longest) / 2
    rising, falling = (L - m.shortest) / _safe(a - m.shortest), (m.longest - L) / _safe(m.longest - b)
    below, above = (1 - L) / _safe(1 - a), (L - 1) / _safe(b - 1)
    inner = jnp.where(L <= 1, 1 - below**2 / 2, 1 - above**2 / 2)
    found = jnp.where(a >= L, rising**2 / 2, jnp.where(b >= L, inner, falling**2 / 2))
    return jnp.where((m.shortest <= L) & (m.longest >= L), found, 0.0)


def muscle_bias(m: Muscles, length: Float[Array, " n"]) -> Float[Array, " n"]:
    """Passive force -F FP(L)."""
    L, _ = _scaled(m, length, jnp.zeros_like(length))
    b = (1 + m.longest) / 2
    bent, straight = (L - 1) / _safe(b - 1), (L - b) / _safe(b - 1)
    curve = jnp.where(L <= 1, 0.0, jnp.where(b >= L, bent**2 / 2, 0.5 + straight))
    return -m.peak_force * m.passive_force * curve


def muscle_rate(u: Array, act: Array, rise: Array, release: Array, smoothing: Array) -> Array:
    """a' = (u - a) / tau, where tau is rise (0.5 + 1.5 a) if u is above a and release / (0.5 + 1.5 a) below; u and a within 0
    and 1. Within `smoothing` of u = a the one goes over into the other by a polynomial of the fifth order."""
    u, inside = jnp.clip(u, 0, 1), jnp.clip(act, 0, 1)
    slow = 0.5 + 1.5 * inside
    up, down, change = rise * slow, release / slow, u - act
    share = jnp.clip(change / _safe(smoothing) + 0.5, 0, 1)
    share = jnp.where(smoothing < SMALLEST, (change > 0).astype(u.dtype), share**3 * (3 * share * (2 * share - 5) + 10))
    return change / _safe(down + (up - down) * share)
