"""Fits in folders, and in reports: what is loaded is what was saved, what the page says to type works, nothing is `nan`."""

import html
import json
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import flexor as fx
from flexor.identify.fit_files import VERSION
from flexor.model.charts import LAWS, coordinates
from flexor.viz.identification import identification_report
from tests.identify.test_identify import FREE, TRAINING, measure, simulator


@pytest.fixture(scope="module")
def fit():
    """Without contact, as nothing in its description says; one parameter of every kind of chart."""
    free = [*FREE, "body.link.inertia", "joint.hinge.axis", "joint.hinge.armature", "body.link.com[2]"]
    logs = measure(simulator())
    bounds, search = {"joint.hinge.armature": (0.0, 1.0)}, fx.LevenbergMarquardt(iterations=3)
    return fx.identify(simulator(TRAINING), logs, free, bounds=bounds, search=search)


@pytest.fixture(scope="module")
def folder(fit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    fit.save(folder)
    return folder


@pytest.fixture(scope="module")
def wide():
    """Networks with more weights than intervals are computed for, and a parameter."""
    blueprint = fx.Blueprint().add("joint.passive_force", inputs=["joint.qd"], net=fx.nets.MLP(width=20, depth=2))
    return fx.identify(
        simulator(TRAINING).augment(blueprint), measure(simulator()), ["augment", "body.link.mass"], search=fx.Adam(steps=2)
    )


def assert_equal(a, b):
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key, value in a.items():
            assert_equal(value, b[key])
    elif isinstance(a, tuple | list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    elif hasattr(a, "__dataclass_fields__") and not isinstance(a, fx.Simulator):
        for name in a.__dataclass_fields__:
            assert_equal(getattr(a, name), getattr(b, name))
    elif isinstance(a, fx.Simulator):
        assert jax.tree.structure(a) == jax.tree.structure(b)
        assert_equal([np.asarray(x) for x in jax.tree.leaves(a)], [np.asarray(x) for x in jax.tree.leaves(b)])
    else:
        assert a == b or a is b


def test_everything_of_a_fit_returns(fit, folder):
    again = fx.Fit.load(folder)
    assert_equal(again, fit)
    assert_equal(again.posterior.intervals(0.5), fit.posterior.intervals(0.5))
    assert str(again) == str(fit)
    assert (again.ok, again.unit, again.held_out.weighted) == (fit.ok, "noise", fit.held_out.weighted)


def test_every_law_of_a_chart_has_a_name():
    model = fx.load("quadruped")
    found = {
        c.law
        for c in coordinates(model, ["body.*", "joint.*.axis", "joint.*.damping"], bounds={"*.mass": (0.0, 1e3)}).charts
    }
    assert found <= set(LAWS.values())
    assert len(found) == len(LAWS)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda f: (f / "fit.json").unlink(), r"is not a fit: there is no 'fit.json' in it"),
        (lambda f: (f / "fit.safetensors").unlink(), r"the fit '.*' is incomplete: its file 'fit.safetensors' is missing"),
        (lambda f: (f / "fit.safetensors").write_bytes(b"x"), r"fit.safetensors' was altered after it was written"),
        (lambda f: (f / "simulator" / "arrays.safetensors").unlink(), r"its file 'arrays.safetensors' is missing"),
        (lambda f: shutil.rmtree(f / "simulator"), r"there is no folder '.*simulator'"),
        (lambda f: simulator().save(f / "simulator"), r"does not belong to 'fit.json' beside it: it comes from another fit"),
        (lambda f: _version(f, VERSION + 1), "written by a newer flexor"),
    ],
)
def test_what_is_missing_altered_or_too_new_is_named(folder, tmp_path, spoil, text):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    spoil(copy)
    with pytest.raises((ValueError, FileNotFoundError), match=text):
        fx.Fit.load(copy)


def _version(folder, number):
    data = json.loads((folder / "fit.json").read_text())
    (folder / "fit.json").write_text(json.dumps({**data, "version": number}))


def test_a_fit_is_no_simulator(folder):
    with pytest.raises(FileNotFoundError, match=r"is a fit: open '.*simulator', or load all of it with `Fit.load`"):
        fx.open(folder)


def test_what_the_report_says_to_type_works(fit, folder):
    """In another process, and to the same bits: with the contact, the solver and the step that were fitted."""
    names = [p.name for p in folder.iterdir()]
    page = identification_report(fit, files=names).html()
    snippet = html.unescape(re.findall(r"<pre>(.*?)</pre>", page, re.DOTALL)[-1])
    assert "fx.open(" in snippet
    code = f"{snippet}\nassert sim.solver.contact is None\nprint(bytes(trajectory.q.tobytes()).hex())"
    code = code.replace("trajectory.q.tobytes()", "__import__('numpy').asarray(trajectory.q).tobytes()")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    q = fit.sim.rollout(fit.sim.reset(), steps=100).q
    assert done.stdout.strip() == np.asarray(q).tobytes().hex()


def test_no_interval_is_none_and_said_why(wide, tmp_path):
    (row,) = wide.rows()
    assert (row["low"], row["high"]) == (None, None)
    assert any(
        re.match(r"no intervals: \d+ free numbers, those of the networks among them, are more than", r) for r in wide.remarks
    )
    assert "(no interval)" in str(wide)
    wide.save(tmp_path)
    page = identification_report(wide).html()
    assert "no intervals: " in page
    for text in (str(wide), (tmp_path / "fit.json").read_text(), page.split("<script>")[0]):
        assert not re.search(r"\bnan\b", text, re.IGNORECASE)


def test_logs_in_degrees_are_not_a_success():
    """A hinge without limits, angles alone: nothing forbids them, but nothing is explained, and it is said why."""
    logs = [
        fx.Log(log.time, np.rad2deg(log.values[:, :1]), ("q.hinge",), log.controls, start=None)
        for log in measure(simulator(), runs=2)
    ]
    found = fx.identify(simulator(TRAINING), logs, FREE, held_out=0)
    assert not found.ok
    assert "no better than a constant" in found.message
    assert any("are q.hinge in degrees?" in r and 'units={"q.hinge": "deg"}' in r for r in found.remarks)
    right = [fx.Log(log.time, np.deg2rad(log.values), log.columns, log.controls) for log in logs]
    found = fx.identify(simulator(TRAINING), right, FREE, held_out=0)
    assert found.ok
    assert found.unexplained < 0.1
    assert found.unit == "motion"
