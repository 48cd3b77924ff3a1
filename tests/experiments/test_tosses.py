"""Tosses of the cube: first states by the flight, and copies by its symmetries."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

DT, GRAVITY = 1 / 148, 9.6


@pytest.fixture
def tosses(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent.parent / "experiments"))
    import _tosses

    return _tosses


@pytest.fixture
def flown(tosses):
    """Three cubes in free fall that turn evenly, and touch the ground after some twenty steps."""
    rng, t = np.random.default_rng(0), DT * np.arange(30)[None, :, None]
    v, w = rng.normal(size=(3, 1, 3)) * [1, 1, 0.3], 4 * rng.normal(size=(3, 3))
    p = np.array([0.0, 0.0, 0.2]) + v * t - t**2 / 2 * np.array([0, 0, GRAVITY])
    first = Rotation.random(3, random_state=0)
    turned = [Rotation.from_rotvec(w[i] * t[0]) * first[i] for i in range(3)]
    q = np.concatenate([p, np.stack([r.as_quat(scalar_first=True) for r in turned])], axis=2)
    body = np.stack([r.inv().apply(w[i]) for i, r in enumerate(turned)])
    qd = np.concatenate([v - t * np.array([0, 0, GRAVITY]), body], axis=2)
    return tosses.Tosses(q, qd, np.full(3, 29), DT)


def test_the_flight_gives_the_first_state(tosses, flown):
    rng, noise = np.random.default_rng(1), 3e-5
    q = flown.q.copy()
    q[..., :3] += noise * rng.normal(size=q[..., :3].shape)
    rough = tosses.Tosses(q, flown.qd + 0.1, flown.steps, DT)
    n = tosses.first_impacts(rough) - 1
    assert n.min() >= 8
    found = tosses.from_flight(rough, GRAVITY)
    # deviation of a slope through n instants: noise / dt sqrt(12 / n^3); five of them
    assert (np.abs(found.qd[:, 0, :3] - flown.qd[:, 0, :3]).max(1) < 5 * noise / DT * np.sqrt(12 / n**3)).all()
    assert np.abs(found.qd[:, 0, 3:] - flown.qd[:, 0, 3:]).max() < 1e-4  # single precision: 6e-8 over the flight
    assert np.array_equal(found.q[:, 1:], rough.q[:, 1:].astype(np.float32))


def test_copies_are_motions_of_a_cube(tosses, flown):
    """Eight of each, all different, with the velocities of their positions, and the same heights of the lowest corner."""
    made = tosses.copies(flown)
    assert len(made) == 24
    firsts = made.q[::3, 0]
    assert len(np.unique(np.round(firsts, 5), axis=0)) == 8
    turned = Rotation.from_quat(made.q[..., 3:].reshape(-1, 4), scalar_first=True)
    steps = (turned[:-1].inv() * turned[1:]).as_rotvec() / DT
    inside = np.arange(len(turned) - 1) % 30 != 29
    assert np.allclose(
        steps[inside], made.qd[..., 3:].reshape(-1, 3)[:-1][inside], atol=1e-3
    )  # 6e-8 over dt, and ten of them
    speed = (made.q[:, 2:, :3] - made.q[:, :-2, :3]) / (2 * DT)
    assert np.allclose(speed, made.qd[:, 1:-1, :3], atol=1e-3)
    assert np.allclose(tosses.lowest_corner(made.q), np.tile(tosses.lowest_corner(flown.q), (8, 1)), atol=1e-5)
    up = turned.inv().apply([0.0, 0.0, 1.0])[:, 2].reshape(8, -1)  # the centre of mass lies on the body's z axis
    assert np.allclose(up, up[0], atol=1e-6)


def test_files_of_another_layout_are_refused(tosses, tmp_path):
    path = tmp_path / "other.h5"
    with pytest.raises(FileNotFoundError, match="there is no file"):
        tosses.read(path)
    path.write_text("time,q")
    with pytest.raises(ValueError, match="is not a file of tosses"):
        tosses.read(path)
    with h5py.File(path, "w") as file:
        file["runs/0000"] = np.zeros((3, 13))
    with pytest.raises(ValueError, match="is not a file of tosses: HDF5 with tables in a group 'tosses'"):
        tosses.read(path)
