"""Tosses of the cube: first states by the flight, copies by its symmetries, and the ensembles that learn from them."""

import dataclasses
from pathlib import Path

import equinox as eqx
import h5py
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import flexor as fx

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


@pytest.fixture
def real(tosses):
    import cube_toss_real

    return cube_toss_real


BODY = {**dict.fromkeys(("cx", "cy", "cz"), 0.0), **dict.fromkeys(("ix", "iy", "iz"), 1.1)}
BODY |= {"gravity": 9.6, "hx": 0.05, "hy": 0.05, "hz": 0.05}


def test_an_ensemble_begins_as_the_base_step_between_pretrained_and_random(real):
    cube = real.bodied(fx.nerd.load("cube"), real.START | BODY)
    mixed, drawn = (real.several(cube, keep).network for keep in (0.4, 0.0))
    assert not np.any(mixed.head2)
    assert not np.any(mixed.norms.y_mean)
    assert mixed.sizes.history == 1
    for network, least, most in ((mixed, 0.3, 0.7), (drawn, -0.1, 0.1)):
        assert len(network.embed) == real.MEMBERS
        flat = np.stack([np.ravel(w) for w in network.blocks[0].up])
        alike = np.corrcoef(np.concatenate([flat, np.ravel(cube.network.blocks[0].up)[None]]))
        assert least < alike[-1, 0] < most  # to the pretrained weights
        assert alike[0, 1] < 0.5  # to one another
    assert np.isclose(np.std(mixed.embed), np.std(drawn.embed), rtol=0.2)


def test_an_interrupted_run_goes_on_from_its_files(real, flown, monkeypatch, tmp_path):
    body = real.START | BODY
    cube, path, calls = real.bodied(fx.nerd.load("cube"), body), tmp_path / "tuned.safetensors", []

    def learn(nerd, logs, how, progress):
        calls.append(len(logs))
        return dataclasses.replace(nerd, network=eqx.tree_at(lambda n: n.head2, nerd.network, replace_fn=lambda w: w + 1))

    monkeypatch.setattr(real, "finetune", learn)
    rounds = [real.Finetuning(steps=2)]
    first, again = (real.tuned(cube, 0.4, flown, rounds, path) for _ in range(2))
    assert calls == [24]
    assert eqx.tree_equal(first.network, again.network)
    assert np.allclose(again.model.bodies.inertia, cube.model.bodies.inertia)  # over the identified cube, not twice so
    real.tuned(cube, 0.4, flown, [real.Finetuning(steps=3)], path)  # another recipe
    other = real.bodied(fx.nerd.load("cube"), body | {"friction": 0.3})
    real.tuned(other, 0.4, flown, [real.Finetuning(steps=3)], path)  # another cube
    thrown = dataclasses.replace(flown, q=flown.q + 0.01)
    real.tuned(other, 0.4, thrown, [real.Finetuning(steps=3)], path)  # other tosses
    path.with_suffix(".json").unlink()
    real.tuned(other, 0.4, thrown, [real.Finetuning(steps=3)], path)  # half of it lost
    assert calls == [24] * 5


def test_ratios_and_their_intervals(real):
    others = np.random.default_rng(0).uniform(1.0, 2.0, 200)
    assert np.allclose(real.ratio(0.5 * others, others), 0.5)
    value, low, high = real.ratio(others * np.tile([0.5, 1.5], 100), others)
    assert low < value < high
    assert high - low == pytest.approx(2 * 1.96 * 0.5 * np.sqrt(np.mean(others**2)) / others.mean() / np.sqrt(200), rel=0.15)


def test_a_solver_of_another_robot_and_another_rate_are_refused(real, flown):
    with pytest.raises(ValueError, match="is a solver of 'cartpole', and tosses are of the package's 'cube'"):
        real._fits(fx.nerd.load("cartpole"), Path("x"), flown)
    with pytest.raises(ValueError, match=r"trained for steps of 0\.00675676 s, and the tosses were recorded every 0\.02 s"):
        real._fits(fx.nerd.load("cube"), Path("x"), dataclasses.replace(flown, dt=0.02))
    real._fits(fx.nerd.load("cube"), Path("x"), flown)
