"""`flexor ode`: a recipe and CSV files in, an ode and a table out."""

import numpy as np
import pytest
from typer.testing import CliRunner

from flexor.cli.app import app

RECIPE = """outputs = ["level"]
inputs = ["pump"]
states = 1
width = 2
past = 2
time = 2.0
[[stages]]
length = 10
stride = 5
steps = 3
method = "levenberg-marquardt"
"""


@pytest.fixture
def files(tmp_path):
    """A recipe, and a leaking tank's levels, of which one is not measured."""
    rng, x = np.random.default_rng(0), 0.0
    lines = ["time,level,pump"]
    for k in range(60):
        u = float(rng.uniform())
        lines.append(f"{0.5 * k},{'' if k == 7 else x},{u}")
        x += 0.5 * (u - 0.5 * x)
    (tmp_path / "tank.toml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "one.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def flexor(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_train_and_evaluate(files):
    trained = flexor("ode", "train", files / "tank.toml", files / "one.csv", "--out", files / "ode")
    assert trained.exit_code == 0, trained.output
    assert str(files / "ode" / "tank") in trained.stdout
    run = flexor("ode", "evaluate", files / "ode" / "tank", files / "one.csv", "--csv", files / "run.csv")
    assert run.exit_code == 0, run.output
    share = float(run.stdout.splitlines()[-1].split()[-1])
    assert share < 0.2, "a line fits a leaking tank"
    table = np.genfromtxt(files / "run.csv", delimiter=",", names=True)
    assert table["level"].shape == (60,)
    assert np.isnan(table["level"]).sum() == 1  # before the start


def test_what_is_wrong_is_said(files):
    (files / "other.csv").write_text("time,height\n0,1\n1,2\n", encoding="utf-8")
    failed = flexor("ode", "train", files / "tank.toml", files / "other.csv", "--out", files / "ode")
    assert failed.exit_code == 2
    assert "'other.csv' has no column 'level'; it has time, height" in failed.output
