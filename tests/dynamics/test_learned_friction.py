"""Friction with a network on top: it never gives energy, is odd, and is the known law where the weights are zero."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.dynamics.friction import LAWS, Quadratic
from flexor.dynamics.learned_friction import MOST, LearnedFriction

DRAW = np.random.default_rng(3)
QD, MOTOR, LOAD = (jnp.asarray(s * DRAW.normal(size=200)) for s in (3.0, 4.0, 2.0))


def learned(base, scale=2.0):
    """Weights far from zero."""
    draw = np.random.default_rng(1)
    arrays = [jnp.asarray(scale * draw.normal(size=n)) for n in ((8, 6), (8,), (8,), ())]
    return LearnedFriction(base=base, weights=arrays[0], bias=arrays[1], out=arrays[2], shift=arrays[3])


@pytest.mark.parametrize("name", sorted(LAWS))
def test_zero_network_is_the_law(name):
    base = LAWS[name]()
    needed = 3 * MOTOR
    np.testing.assert_allclose(
        jax.vmap(LearnedFriction(base=base).stopping)(needed, QD, MOTOR, LOAD),
        jax.vmap(base.stopping)(needed, QD, MOTOR, LOAD), rtol=1e-12,
    )  # fmt: skip


def test_it_is_odd_and_takes_energy_whatever_the_weights():
    law = learned(Quadratic())
    torque = jax.vmap(law.torque)(QD, MOTOR, LOAD)
    assert float(jnp.min(torque * QD)) >= 0.0
    np.testing.assert_allclose(jax.vmap(law.torque)(-QD, -MOTOR, -LOAD), -torque, rtol=1e-12)


def test_the_network_changes_a_law_by_a_bounded_factor():
    base = Quadratic(viscous=0.0)
    ratio = jax.vmap(learned(base, 20.0).limit)(QD, MOTOR, LOAD) / jax.vmap(base.limit)(QD, MOTOR, LOAD)
    assert float(ratio.max()) <= np.exp(MOST) * (1 + 1e-12)
    assert float(ratio.min()) >= np.exp(-MOST) * (1 - 1e-12)


def test_a_passive_pendulum_under_it_loses_energy_and_stops():
    """Without a motor the energy at the ends of steps of 1 ms falls but for the integrator's own error, and it comes to rest."""
    law, inertia, weight, dt = learned(Quadratic(), 0.5), 0.02, 1.0, 1e-3

    def step(state, _):
        q, qd = state
        load = -weight * jnp.sin(q)
        qd = qd + dt / inertia * (load - law.stopping(inertia / dt * qd + load, qd, jnp.zeros(()), load))
        q = q + dt * qd
        return (q, qd), 0.5 * inertia * qd**2 + weight * (1 - jnp.cos(q))

    (_, qd), energy = fx.simd.jit(lambda q: jax.lax.scan(step, (q, jnp.zeros(())), None, length=4000))(jnp.asarray(1.5))
    assert abs(float(qd)) < 1e-9
    # semi-implicit Euler's energy error of a step: dt^2 (load' qd^2 + load^2 / inertia) / 2
    assert float(jnp.max(jnp.diff(energy))) < dt**2 * (weight * 10**2 + weight**2 / inertia) / 2


def test_derivatives_against_differences():
    law = learned(Quadratic(), 0.3)
    point = jnp.asarray([0.7, 1.5, -0.8])

    def total(law):
        return law.limit(*point)

    def shifted(h):
        return eqx.tree_at(lambda l: (l.weights, l.out), law, (law.weights + h, law.out + h))

    h = 1e-6
    slope = jax.jit(jax.grad(lambda h: total(shifted(h))))(0.0)
    value = jax.jit(lambda h: total(shifted(h)))
    # central differences of a function of size 1: h^2 and eps / h
    np.testing.assert_allclose(slope, (value(h) - value(-h)) / (2 * h), rtol=1e-7, atol=1e-9)
