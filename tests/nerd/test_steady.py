"""Steady instants of recordings, and predictions in units of the closing speed."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.contact import detect
from flexor.dynamics import forward_kinematics
from flexor.nerd import FineContact, Frames, Nerd, NoBase, Norms, Sizes, SteadyStarts, Transformer
from flexor.nerd.examples import norms_of
from flexor.nerd.steady import lift, steady_states
from flexor.nerd.windows import windows

DT = 0.005
NOISE = 2e-5


@pytest.fixture(scope="module")
def toss():
    """A cube that turns and falls on a corner after 0.1 s and a bit."""
    model = fx.load("cube")
    sim = fx.Simulator(model, fx.Substeps(fx.RigidSolver(), 4), dt=DT)
    turned = np.array([0.9, 0.3, 0.25, 0.1])
    start = sim.reset([0.0, 0.0, 0.17, *turned / np.linalg.norm(turned)], [0.4, -0.2, -0.1, 1.0, -2.0, 1.5])
    return sim.rollout(start, steps=60)


@pytest.fixture(scope="module")
def frames(toss):
    return Frames(toss.topology, DT, base=FineContact(2), proportional=True)


def test_states_of_a_noisy_flight_and_none_at_the_impact(toss, frames):
    model, rng = fx.load("cube"), np.random.default_rng(0)
    q = np.asarray(toss.q) + NOISE * rng.normal(size=toss.q.shape)
    found = steady_states(frames, model, [q], 3)[0]
    speed = np.asarray(toss.qd)
    jump = np.abs(np.diff(speed[:, 2]))
    impact = int(np.argmax(jump > 0.3))  # gravity alone makes 0.05
    assert 15 < impact < 40
    flight = found.at <= impact
    assert set(found.at[flight]) >= set(range(impact - 1))
    # a parabola through 7 instants, also at its end: deviation of the slope there 0.7 noise / dt, and five of them; rotation
    # vectors are twice the quaternion's imaginary part
    off = np.abs(found.qd - speed[found.at])[flight]
    assert off[:, :3].max() < 5 * 0.7 * NOISE / DT
    assert off[:, 3:].max() < 2 * 5 * 0.7 * NOISE / DT
    differences = np.abs((q[1 : impact + 1, :3] - q[:impact, :3]) / DT - speed[:impact, :3])
    assert off[:, :3].mean() < 0.5 * differences.mean()
    # nor does an impact smear them, as it smears central differences
    central = np.abs((q[2:, :3] - q[:-2, :3]) / (2 * DT) - speed[1:-1, :3])
    assert np.abs(found.qd - speed[found.at])[:, :3].max() < 0.25 * central.max()


def test_a_recording_without_steady_instants_is_refused(toss, frames):
    with pytest.raises(ValueError, match="the recordings have no steady instants"):
        windows(Nerd(fx.load("cube"), None, frames), [toss], 8, SteadyStarts(40))  # parabolas over 81 instants, of 61


def test_overlap_is_lifted(toss, frames):
    model = fx.load("cube")
    lowest = jax.jit(lambda q: detect(model, forward_kinematics(model, q)).distance.min())
    lifted = jax.jit(lambda q: lift(frames, model, q))
    flat = toss.q[0].at[3:].set(jnp.array([1.0, 0, 0, 0]))
    for depth in (0.0, 0.002):
        q = flat.at[2].add(-lowest(flat) - depth)
        assert np.allclose(lifted(q), [0, 0, depth, 0, 0, 0, 0], atol=1e-6)
        assert abs(lowest(q + lifted(q))) < 1e-6
    assert not np.any(lifted(flat))
    pendulum = fx.load("double_pendulum_contact")
    fixed = Frames(pendulum.topology, DT)
    assert not np.any(jax.jit(lambda q: lift(fixed, pendulum, q))(jnp.zeros(2)))


def test_predictions_in_units_of_the_closing_speed(toss, frames):
    """What is decoded fades with the closing speed, and `target` undoes it."""
    model, plain = fx.load("cube"), dataclasses.replace(frames, proportional=False)
    y = jnp.asarray(np.random.default_rng(0).normal(size=frames.outputs) * 1e-2)

    @jax.jit
    @jax.vmap
    def there_and_back(q, qd):
        scene = frames.look(model, q, qd, jnp.zeros(0))
        ahead = frames.foresee(model, scene)
        new = frames.decode(model, scene, ahead, y)
        same = plain.decode(model, scene, ahead, ahead.closing * y)
        return ahead.closing, ahead.qd, new[1], same[1], frames.target(scene, ahead, *new)

    closing, base, qd, same, back = (np.asarray(z) for z in there_and_back(toss.q[:40], toss.qd[:40]))
    asked = closing > 0
    assert 3 <= asked.sum() <= 35
    assert np.array_equal(qd[~asked], base[~asked])
    assert np.allclose(qd, same, atol=1e-6)
    assert np.allclose(back[asked], y, atol=3e-5)
    with pytest.raises(ValueError, match="units of the closing speed need a base step"):
        Frames(model.topology, DT, base=NoBase(), proportional=True)


def test_windows_begin_at_steady_instants(frames):
    """A cube that slides to rest; its recorded velocities are wrong altogether, and not read."""
    model, rng = fx.load("cube"), np.random.default_rng(0)
    sim = fx.Simulator(model, fx.Substeps(fx.RigidSolver(), 2), dt=DT)
    slide = jax.jit(lambda v: sim.rollout(sim.reset([0, 0, 0.0524, 1, 0, 0, 0], jnp.zeros(6).at[:2].set(v)), steps=40))
    runs = [slide(rng.normal(size=2)) for _ in range(3)]
    logs = [eqx.tree_at(lambda r: r.qd, run, jnp.zeros_like(run.qd)) for run in runs]
    data = windows(Nerd(model, None, frames), logs, 8, SteadyStarts(3), encode=False)
    assert data.x is None
    assert 30 <= len(data.r) <= 51  # every other instant from which eight steps follow, but where the cube comes to rest
    nearest = [np.abs(np.concatenate([run.q for run in runs]) - r[0, :7]).sum(1).argmin() for r in data.r]
    speed = np.concatenate([run.qd for run in runs])[nearest]
    assert np.abs(speed).max() > 0.5
    # positions go with the velocities after a substep: half of its 1.8 m/s^2
    assert np.allclose(data.r[:, 0, 7:13], speed, atol=1.5 * 1.8 * DT / 4)


def test_layout_is_kept_in_the_card(frames, tmp_path):
    sizes = Sizes(layers=1, width=16, heads=2, history=1)
    n, m = len(frames.labels), frames.outputs
    norms = Norms(jnp.zeros(n), jnp.ones(n), jnp.zeros(m), jnp.ones(m))
    network = jax.jit(jax.vmap(lambda k: Transformer.build(sizes, norms, k)))(jax.random.split(jax.random.key(0), 1))
    path = Nerd(fx.load("cube"), network, frames).save(tmp_path / "cube.safetensors")
    assert fx.nerd.load(path).frames == frames


def test_rounding_is_not_normalised():
    """An input that changes by rounding alone counts as constant."""
    x = np.stack([np.linspace(-1, 1, 64), 1 + 1e-7 * np.random.default_rng(0).normal(size=64)], axis=1)
    std = norms_of(x, x).x_std
    assert 0.5 < std[0] < 0.7
    assert std[1] == 1.0
