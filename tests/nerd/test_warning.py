"""A learned solver says from which step on it should not be believed."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.nerd import Doubt, Frames, Nerd, NoBase, Ranges, Warnings, calibrate, doubt
from flexor.nerd.warning import FEWEST, conformal, fitted, separation, state_inputs
from tests.nerd.test_solver import network


@pytest.fixture(scope="module")
def cart():
    """A network of random weights, whose warning reads nothing but the speed of the cart."""
    model = fx.load("cartpole").astype(jnp.float32)
    frames = Frames(model.topology, 1 / 60, base=NoBase())
    n = state_inputs(frames)
    only = jnp.zeros((n, n), jnp.float32).at[0, frames.labels.index("velocity slider")].set(1.0)
    net = network(len(frames.labels), frames.outputs, dtype=jnp.float32)
    net = eqx.tree_at(lambda w: w.norms, net, jax.tree.map(lambda x: x.astype(jnp.float32), net.norms))
    return Nerd(model, net, frames, doubt=Doubt(jnp.zeros(n, jnp.float32), only, jnp.asarray(0.1, jnp.float32)))


def test_a_status_names_the_first_step_that_should_not_be_believed(cart):
    sim = fx.Simulator(cart.model, cart.solver(), dt=cart.dt)
    run = sim.rollout(sim.reset([0.0, 1.0], [0.05, 0.0]), steps=40)
    begun_fast = np.flatnonzero(np.abs(run.qd[:-1, 0]) > 0.1)
    assert len(begun_fast)
    assert begun_fast[0] > 2
    status = run.status
    assert (status.ok, status.doubtful, status.step) == (False, True, begun_fast[0] + 1)
    assert f"from step {status.step} on the state is unlike anything" in status.message
    assert run.raise_if_bad() is run
    assert float(doubt(run.final)) == pytest.approx(abs(float(run.qd[-2, 0])) / 0.1, rel=1e-5)


def test_a_rollout_that_goes_on_remembers_and_a_file_keeps_the_warning(cart, tmp_path):
    again = fx.nerd.load(cart.save(tmp_path / "cart.safetensors"))
    assert eqx.tree_equal(again.doubt, cart.doubt)
    sim = fx.Simulator(again.model, again.solver(), dt=again.dt, simd=False)
    early = sim.rollout(sim.reset([0.0, 1.0], [0.05, 0.0]), steps=40)
    assert sim.rollout(early.final, steps=40).status.step == 0
    assert sim.rollout(sim.reset([0.0, 1.0], [0.5, 0.0]), steps=40).status.step == 1
    silent = dataclasses.replace(cart, doubt=None)
    assert fx.nerd.load(silent.save(tmp_path / "old.safetensors")).doubt is None
    other = sim.with_solver(silent.solver())
    plain = other.rollout(other.reset([0.0, 1.0], [0.5, 0.0]), steps=40)
    assert plain.status.ok
    assert np.isnan(doubt(plain.final))
    with pytest.raises(ValueError, match=r"has no warning: `fx\.nerd\.calibrate` adds"):
        fx.nerd.evaluate_warning(silent)


def test_a_distance_in_units_of_the_spread_that_few_exceed(cart):
    """For Gaussian data the squared distance is chi-squared: the limit is its quantile, and of 2,000 further trajectories 5 %
    raise a doubt, to within four standard errors of both samples."""
    from scipy.stats import chi2

    rng, n = np.random.default_rng(0), state_inputs(cart.frames)
    mix = np.linalg.qr(rng.normal(size=(n, n)))[0] * np.linspace(1, 2, n)
    learned, held_out, further = (rng.normal(size=(k, 1, n)) @ mix.T + 3.0 for k in (20_000, 2_000, 2_000))
    found = fitted(learned, held_out, np.ones((2_000, 1), bool), cart.frames, jnp.float64)
    assert float(found.limit) == pytest.approx(np.sqrt(chi2.ppf(0.95, n)), rel=0.03)
    raised = float(np.mean(np.asarray(jax.vmap(found.of)(jnp.asarray(further[:, 0]))) > 1))
    assert abs(raised - 0.05) < 4 * np.sqrt(2 * 0.05 * 0.95 / 2_000)
    silent = fitted(learned, held_out, np.zeros((2_000, 1), bool), cart.frames, jnp.float64)
    assert float(silent.limit) < 1e-30


def test_the_conformal_rank_and_the_area():
    assert conformal(np.arange(19.0)) == 18  # the ceil(20 * 0.95)-th of 19
    assert conformal(np.arange(1.0, 100.0)) == 95
    with pytest.raises(
        ValueError, match=f"18 held-out trajectories are too few to calibrate the warning; it takes {FEWEST}"
    ):
        conformal(np.arange(18.0))
    inside, outside = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0])
    pairs = [(b > a) + (a == b) / 2 for a in inside for b in outside]
    assert separation(inside, outside) == pytest.approx(np.mean(pairs))


def test_states_twice_as_far_out():
    model = fx.load("cartpole")
    ranges = Ranges(qd={"slider": (-2.0, 2.0), "hinge": (0.0, 2.0)}, draws=1)
    draw = jax.jit(jax.vmap(lambda k: (ranges.draw(model, k), ranges.beyond(model, k))))
    (q, qd), ((far, fast), outside) = draw(jax.random.split(jax.random.key(0), 64))
    low, high = ranges.bounds(model)
    assert np.allclose(far[:, 1], q[:, 1])  # the pole goes round
    assert np.allclose(np.asarray(fast) - [0.0, 1.0], 2 * (np.asarray(qd) - [0.0, 1.0]), atol=1e-5)
    x = np.concatenate([far, fast], axis=1)
    assert np.array_equal(outside, ((x < low) | (x > high))[:, [0, 2, 3]].any(1))


def test_a_solver_without_a_warning_gets_one_from_data(cart, tmp_path):
    sim = fx.Simulator(cart.model, dt=1 / 60)
    path = fx.nerd.sample(sim, Ranges(), 800, tmp_path / "cart.h5", length=20)
    bare = dataclasses.replace(cart, doubt=None, truth=sim.solver, ranges=Ranges(draws=1))
    judged = fx.nerd.evaluate_warning(calibrate(bare, path), steps=5, rollouts=256)
    assert judged.separation > 0.8  # of velocities twice as fast, from those of a few trajectories
    assert judged.false_alarms < 0.4
    assert judged.bad[1] >= judged.announced[1]
    found = Warnings(0.97, 0.05, (4, 5), (1, 3), 100).rows()
    assert [line[1] for line in found] == [0.97, "5.0%", "1 of 4", "3 of 5"]
