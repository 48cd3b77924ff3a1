"""The filmed double pendulum: its camera, its file and its filter, on a film of our own making."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent.parent / "experiments"
UNITS = 589.0  # picture units of the upper arm
FRAMES = 300


@pytest.fixture
def pendulum(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import _pendulum

    return _pendulum


@pytest.fixture
def camera(pendulum):
    return pendulum.Camera(roll=0.01, tilt=(-0.005, -0.002), depth=-0.003, shift=(0.13, 0.04), pivot=(-0.03, -0.29))


@pytest.fixture
def swing(pendulum):
    sim = pendulum.simulator(exact=False)
    path = sim.rollout(sim.reset(jnp.array([2.0, 0.5]), jnp.array([1.0, -3.0])), steps=FRAMES - 1)
    return sim, np.asarray(path.q), np.asarray(path.qd)


def test_angles_undo_the_projection(pendulum, camera, swing):
    _, q, _ = swing
    markers = np.asarray(jax.vmap(camera.project)(jnp.asarray(q)))
    found = camera.angles(markers)
    # exact but for rounding: the projection is undone in closed form
    np.testing.assert_allclose(found - found[0] + q[0], q, atol=1e-9)


def test_a_file_is_read_in_millimetres(pendulum, camera, swing, tmp_path):
    h5py = pytest.importorskip("h5py")
    _, q, _ = swing
    markers = np.asarray(jax.vmap(camera.project)(jnp.asarray(q)))
    rows = np.concatenate([np.zeros((FRAMES, 2)), markers * UNITS / 91.0], axis=1) + 1200
    with h5py.File(tmp_path / pendulum.FILE, "w") as file:
        file["runs/0000"] = np.round(rows).astype(np.int16)
    (run,) = pendulum.read(tmp_path / pendulum.FILE)
    # half a unit of rounding, and the arm's length in the picture, which the tilt changes by less than 0.1 %
    np.testing.assert_allclose(run, markers, atol=0.5 * 91.0 / UNITS + 2e-3 * 161)


def test_the_filter_finds_velocities(pendulum, camera, swing):
    sim, q, qd = swing
    markers = np.asarray(jax.vmap(camera.project)(jnp.asarray(q)))
    noisy = markers + pendulum.NOISE * np.random.default_rng(0).normal(size=markers.shape)
    start = np.concatenate([q[0], qd[0] + 0.3])
    found = pendulum.track(sim, camera, jnp.asarray(noisy)[None, 1:], jnp.asarray(start)[None])
    # a line through n frames of angle noise s has a slope of deviation s sqrt(12 / n^3) / dt; the filter's memory is about 40
    # frames, the noise 1.3 mrad for the lower arm: 0.007 rad/s, and some times more at the end of the line
    error = np.asarray(found.qd)[0, 100:] - qd[101:]
    assert np.sqrt(np.mean(error**2)) < 0.1
