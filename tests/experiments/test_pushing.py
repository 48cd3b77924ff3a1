"""Pushes: the reader and the calibration on a small file of the same layout, the geometry, and the saved model."""

import sys
from pathlib import Path

import equinox as eqx
import h5py
import jax.numpy as jnp
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "experiments"))

import _pushing as pushing
from _pushing_file import Learned, fresh
from _pushing_model import Parameters, Training, descend, objects, weakened
from _pushing_validation import aside

SQUARE = np.array([[-0.04, -0.04], [0.04, -0.04], [0.04, 0.04], [-0.04, 0.04]])
SESSION, BODY = np.array([-1.2e-3, 0.7e-3]), np.array([0.4e-3, -0.3e-3, 0.0])


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Pushes of a square whose outline lies `SESSION` and `BODY` away from where it is measured; the tip starts where the
    measurement has the outline, or where it met the outline before."""
    rng = np.random.default_rng(0)
    rows = []
    for k in range(120):
        angle = rng.uniform(-3, 3)
        side, along = k % 4, rng.uniform(-0.03, 0.03)
        normal = pushing.turned(np.pi / 2 * side, np.array([1.0, 0.0]))
        touch = (0.04 + pushing.RADIUS) * normal + along * np.array([-normal[1], normal[0]])
        before = np.array([0.35, -0.03, 0.0]) + np.array([*rng.uniform(-0.05, 0.05, 2), angle])
        world = pushing.turned(angle, normal)
        shift = max(0.0, world @ (SESSION + pushing.turned(angle, BODY[:2])))
        tip = before[:2] + pushing.turned(angle, touch) + shift * world
        rows.append(np.concatenate([before, before + [0.01, 0, 0.1], tip, tip - 0.05 * world, before]))
    path = tmp_path_factory.mktemp("pushes") / "push.h5"
    with h5py.File(path, "w") as out:
        shape = out.create_dataset("shapes/square", data=SQUARE)
        shape.attrs.update({"mass": 0.8, "inertia": 1e-3, "centroid": np.zeros(2), "thickness": 0.013})
        out.create_dataset("abs/square/v20", data=np.array(rows))
    return path


def test_reader_and_division(file):
    shapes, (table,) = pushing.read(file)
    assert table.name == "abs/square/v20"
    assert table.speed == pytest.approx(0.02)
    assert shapes["square"].mass == 0.8
    assert np.abs(table.before[:, :2]).max() < 0.06  # about the middle of the table
    train, test = pushing.divide(table)
    assert (len(train), len(test)) == (84, 36)
    assert not {tuple(r) for r in train.before} & {tuple(r) for r in test.before}
    distance, angle = pushing.errors(table.before, table.after)
    assert distance == pytest.approx(0.01)
    assert angle == pytest.approx(0.1)


def test_calibration_finds_the_frames_from_the_starts(file):
    shapes, tables = pushing.read(file)
    frames = pushing.calibrate(shapes, tables)
    # the ridge of about one push in a hundred draws the shifts a little towards where they are looked for
    assert frames.session["abs/square/v20"] == pytest.approx(SESSION, abs=5e-5)
    assert frames.body["square"] == pytest.approx(BODY, abs=5e-5)
    there = frames.true(tables[0], tables[0].before)
    assert frames.measured(tables[0], there) == pytest.approx(tables[0].before, abs=1e-15)


def test_points_bear_the_weight_about_the_centroid():
    triangle = np.array([[-0.08, -0.03], [0.05, -0.03], [0.05, 0.08]])
    shape = pushing.Shape("triangle", triangle, 1.0, 1e-3, triangle.mean(axis=0), 0.013)
    points = pushing.grid(triangle)
    assert pushing.inside(triangle, points).all()
    at = pushing.support(shape, len(points) + 3)
    for spread in (0.0, 0.5):
        loads = np.asarray(pushing.loads(at, spread), float)
        assert loads.sum() == pytest.approx(1, abs=1e-5)
        assert loads @ np.asarray(at.points) == pytest.approx(shape.centroid, abs=1e-6)
        assert (loads[-3:] == 0).all()


def test_outlines_with_more_corners_keep_their_shape():
    outline = pushing.corners(SQUARE, 10)
    assert len(outline) == 10
    assert {tuple(c) for c in SQUARE} <= {tuple(c) for c in outline}
    assert pushing.gap(SQUARE, outline)[0] == pytest.approx(0, abs=1e-11)
    assert pushing.kind(SQUARE) == "cornered"
    around = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    assert pushing.kind(np.column_stack([np.cos(around), np.sin(around)])) == "smooth"


def test_a_model_survives_its_file(file, tmp_path):
    shapes, tables = pushing.read(file)
    bodies = objects(shapes, 0.04)
    learned = Learned(4, 1, pushing.calibrate(shapes, tables), {"": Parameters.untuned(bodies)})
    learned.parameters["abs"] = Parameters.of(0.2, 0.5, (0.1, 0.0), (0.3, -0.1), bodies["square"])
    learned.networks["abs"] = fresh(bodies, 4, 1, seed=3)
    again = Learned.load(learned.save(tmp_path / "model.safetensors"), bodies)
    assert again.parameters_of("abs", shapes["square"]).tip == pytest.approx(0.2)
    assert again.parameters_of("sand", shapes["square"]).tip == pytest.approx(0.25)
    assert np.asarray(again.parameters["abs"].bias)[:2] == pytest.approx([0.3, -0.1])
    first = [np.asarray(n.networks[0][0].layers[0].weight) for n in (learned.networks["abs"], again.networks["abs"])]
    assert (first[0] == first[1]).all()
    assert again.frames.session["abs/square/v20"] == pytest.approx(learned.frames.session["abs/square/v20"])


def test_a_weakened_network_gives_a_share_of_its_result(file):
    shapes, _ = pushing.read(file)
    net = fresh(objects(shapes, 0.04), 4, 1)
    net = eqx.tree_at(lambda n: n.networks[0][0].layers[-1].bias, net, replace_fn=lambda b: b + 0.5)
    net = eqx.tree_at(lambda n: n.networks[0][0].layers[-1].weight, net, replace_fn=lambda w: w + 0.1)
    whole, part, none = (weakened(net, s).networks[0][0] for s in (1.0, 0.6, 0.0))
    for name in ("weight", "bias"):
        first, last = ([np.asarray(getattr(n.layers[k], name)) for n in (whole, part)] for k in (0, -1))
        assert (first[0] == first[1]).all()
        assert np.abs(last[0]).max() > 0.05
        assert last[1] == pytest.approx(0.6 * last[0], rel=1e-6)  # a rounding in single precision
    assert none.is_zero()


def test_pushes_left_aside_are_none_that_are_fitted(file):
    _, (table,) = pushing.read(file)
    train, _ = pushing.divide(table)
    fitted, left = aside(train)
    assert (len(fitted), len(left)) == (56, 28)
    assert {tuple(r) for r in fitted.before} | {tuple(r) for r in left.before} == {tuple(r) for r in train.before}


def test_descent_leaves_out_gradients_that_are_not_finite(file):
    shapes, tables = pushing.read(file)
    frames, count = pushing.calibrate(shapes, tables), iter(range(100))

    def gradient(x, table, some):
        return 2 * x if next(count) % 3 else np.nan * x

    x = descend(jnp.ones(2), gradient, tables, frames, Training(60, 0.1, 2))
    assert np.abs(np.asarray(x)).max() < 0.1
