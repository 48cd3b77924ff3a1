"""Penalty contact: the Hunt-Crossley force and the friction laws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from tests.contact.scenes import BALL, simulator

LAWS = [fx.SmoothedCoulomb(), fx.Andersson(), fx.Hollars(), fx.BrownMcPhee()]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_friction_laws_oppose_slip_and_reach_coulomb(law):
    slip = jnp.array([[3.0, -4.0], [0.02, 0.0], [0.0, 0.0]])
    force = np.asarray(law.force(jnp.full(3, 0.5), jnp.full(3, 10.0), slip))
    assert force[0] == pytest.approx([-3.0, 4.0], rel=1e-3)
    assert (np.sum(force * np.asarray(slip), axis=1) <= 0).all()
    assert (force[2] == 0).all()
    slope = jax.jacobian(lambda v: law.force(jnp.asarray(0.5), jnp.asarray(10.0), v))(jnp.zeros(2))
    assert np.isfinite(slope).all()
    assert slope[0, 0] < -10


@pytest.mark.parametrize(
    "law", [fx.Andersson(static_ratio=1.5), fx.Hollars(static_ratio=1.5), fx.BrownMcPhee(static_ratio=1.5)]
)
def test_static_friction_exceeds_kinetic(law):
    speed = jnp.linspace(0, 2.0, 2001)
    coefficient = np.asarray(law.coefficient(jnp.asarray(0.4), speed))
    assert coefficient.max() > 1.15 * 0.4
    assert coefficient.max() < 1.6 * 0.4
    assert coefficient[-1] == pytest.approx(0.4, rel=0.02)


def test_brown_mcphee_peaks_at_the_static_coefficient_at_its_transition_velocity():
    law = fx.BrownMcPhee(velocity=0.02, static_ratio=1.5)
    assert law.coefficient(jnp.asarray(0.4), jnp.asarray(0.02)) == pytest.approx(0.4 * np.tanh(4) + 0.2, rel=1e-12)


def test_hunt_crossley_force():
    sim = simulator(BALL, fx.Penalty())
    pair = sim.model.pairs
    depth, rate = 2e-3, 0.1
    state = sim.reset(q=sim.model.reference.at[2].add(-depth), qd=jnp.zeros(6).at[2].set(-rate))
    taps = sim.rollout(state, steps=1, record=["contact.normal_force", "contact.depth"]).taps
    assert taps["contact.depth"][0, 0] == pytest.approx(depth, rel=1e-9)
    expected = float(pair.stiffness[0]) * depth**1.5 * (1 + float(pair.damping[0]) * rate)
    assert taps["contact.normal_force"][0, 0] == pytest.approx(expected, rel=1e-9)


def test_contact_never_pulls():
    sim = simulator(BALL, fx.Penalty(), **{"pair.*.damping": 100.0})
    state = sim.reset(q=sim.model.reference.at[2].add(-1e-3), qd=jnp.zeros(6).at[2].set(5.0))
    force = sim.rollout(state, steps=1, record=["contact.normal_force"]).taps["contact.normal_force"]
    assert force[0, 0] == 0.0


def test_ball_rests_at_its_compliance():
    """m g = k d^1.5 at rest, whatever the path there."""
    sim = simulator(BALL, fx.Penalty())
    end = sim.rollout(sim.reset(), steps=4000)
    depth = (1.3 * 9.81 / float(sim.model.pairs.stiffness[0])) ** (2 / 3)
    assert 0.1 - end.q[-1, 2] == pytest.approx(depth, rel=1e-3)
