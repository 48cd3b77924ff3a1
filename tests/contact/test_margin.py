"""Margins of pairs: two shapes touch at a distance, as in MuJoCo; margins of two geoms add up."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.contact import detect
from flexor.dynamics import forward_kinematics
from tests.contact.scenes import BALL, simulator

MARGINS = BALL.replace('name="floor"', 'name="floor" margin="0.02"').replace(
    'name="ball" size', 'name="ball" margin="0.03" size'
)


def distance(model, q):
    return detect(model, forward_kinematics(model, q)).distance


def test_distances_are_mujocos_less_their_margin():
    m, model = mujoco.MjModel.from_xml_string(MARGINS), fx.load(MARGINS)
    d = mujoco.MjData(m)
    d.qpos[2] += 0.04
    mujoco.mj_forward(m, d)
    assert d.ncon == 1
    assert float(model.pairs.margin[0]) == d.contact[0].includemargin == pytest.approx(0.05)
    assert float(distance(model, jnp.asarray(d.qpos))[0]) == pytest.approx(d.contact[0].dist - d.contact[0].includemargin)


@pytest.mark.parametrize("contact", [fx.NCP(), fx.Penalty()], ids=["NCP", "Penalty"])
def test_a_ball_rests_at_its_margin(contact):
    """NCP: exactly there; penalty: by as much lower as it sinks in without a margin."""
    high, low = (
        simulator(text, contact)
        .rollout(simulator(text, contact).reset(q=jnp.array([0, 0, 0.2, 1, 0, 0, 0])), steps=2000)
        .q[-1, 2]
        for text in (MARGINS, BALL)
    )
    assert float(high - low) == pytest.approx(0.05, abs=1e-5)  # the bounces of the penalty fade


def test_a_pair_without_margin_has_the_program_of_before():
    """And a margin given later switches it on; ignored margins are none."""
    model = fx.load(BALL)
    q = model.reference
    plain = str(jax.make_jaxpr(distance)(model, q))
    assert str(jax.make_jaxpr(distance)(fx.load(MARGINS, ignore=["margin"]), q)) == plain
    later = fx.replace(model, {"pair.*.margin": 0.05})
    np.testing.assert_array_equal(distance(later, q), distance(fx.load(MARGINS), q))
    assert str(jax.make_jaxpr(distance)(later, q)) != plain


def test_explicit_pairs_have_margins_of_their_own():
    pair = '<contact><pair geom1="floor" geom2="ball" margin="0.007"/></contact></mujoco>'
    assert float(fx.load(MARGINS.replace("</mujoco>", pair)).pairs.margin[0]) == 0.007


@pytest.mark.parametrize("ending", [".xml", ".urdf"])
@pytest.mark.parametrize("margin", [0.05, 0.0])
def test_margins_are_saved(tmp_path, ending, margin):
    model = fx.replace(fx.load(MARGINS), {"pair.*.margin": margin})
    fx.save(model, tmp_path / f"ball{ending}")
    again = fx.load(tmp_path / f"ball{ending}")
    assert again.topology == model.topology
    np.testing.assert_array_equal(again.pairs.margin, model.pairs.margin)


def test_derivative_by_the_margin():
    """The ball rests on its margin, so that its height follows it one to one."""
    model = fx.load(MARGINS)

    def height(margin):
        sim = fx.Simulator(fx.replace(model, {"pair.*.margin": margin}), dt=1e-3)
        return sim.rollout(sim.reset(q=jnp.array([0, 0, 0.15, 1.0, 0, 0, 0])), steps=50).q[-1, 2]

    assert float(jax.grad(height)(0.05)) == pytest.approx(1.0, abs=1e-3)
