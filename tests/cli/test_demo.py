"""The demo: agreement with MuJoCo, and a page with everything in it."""

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from flexor.cli import demo_pendulum
from flexor.cli.app import app
from flexor.cli.demo_runs import Check

RUNNER = CliRunner()


def test_quick_demo_agrees_and_writes_the_page(tmp_path, monkeypatch):
    page = tmp_path / "report.html"
    monkeypatch.setenv("FLEXOR_DATA", str(tmp_path))  # without recordings, so that all machines test the same
    monkeypatch.setattr(demo_pendulum, "DEFAULTS", {"simd": True})  # kernels, which compile faster here
    result = RUNNER.invoke(app, ["demo", "--quick", "--report", str(page)])
    assert result.exit_code == 0, result.output
    assert "quadruped, NCP: falling" in result.stdout
    text = page.read_text()
    assert text.count('class="flexor-animation"') == 6
    assert "Double pendulum" in text
    assert "From a recording to a simulator" in text
    assert "A robot learns" in text
    assert "A quadruped walks" in text
    assert "Quadruped that walks, time of a control that plans: QP" in result.stdout
    assert "An arm picks something up" in text
    assert "An arm picks up 1.9 kg at 1.35 s: payload on 'hand' changed at 1." in result.stdout
    assert "Cartpole that learns: return" in result.stdout
    assert "Synthetic: a synthetic recording (FLEXOR_DATA names no folder with the real one)" in text
    assert "Double pendulum from a synthetic recording" in result.stdout
    assert "http" not in text


def test_report_folder_must_exist(tmp_path):
    result = RUNNER.invoke(app, ["demo", "--report", str(tmp_path / "none" / "report.html")])
    assert result.exit_code == 2
    assert "does not exist" in " ".join(result.stderr.split())


@pytest.mark.parametrize(("value", "holds"), [(0.5, True), (1.5, False), (float("nan"), False)])
def test_check_holds_up_to_its_target(value, holds):
    assert Check("x", value, 1.0).holds is holds


def test_angles_of_a_filmed_pendulum(tmp_path):
    """Markers at known angles, in a file of the recording's layout: pivot, elbow, tip, the picture's first axis downwards."""
    time = np.arange(200) / demo_pendulum.RATE
    q = np.stack([0.5 + 9 * time, -12 * time], axis=1)  # beyond a turn, so that they must be unwrapped
    elbow = 910 * np.stack([np.cos(q[:, 0]), np.sin(q[:, 0])], axis=1)
    arm = 700 * np.stack([np.cos(q.sum(1)), np.sin(q.sum(1))], axis=1)
    pivot = np.tile([1000.0, 2000.0], (200, 1))
    with h5py.File(tmp_path / demo_pendulum.FILE, "w") as file:
        file["runs/0000"] = np.round(np.concatenate([pivot, pivot + elbow, pivot + elbow + arm], axis=1)).astype(np.int16)
    (found,) = demo_pendulum._read(tmp_path / demo_pendulum.FILE, 1)
    np.testing.assert_allclose(found, q, atol=3e-3)  # half a unit of 700, three times over


def test_stretches_start_where_the_recording_does():
    time = np.arange(200) / demo_pendulum.RATE
    run = 7.0 + np.stack([np.sin(5 * time), np.cos(3 * time)], axis=1)
    first, *_ = demo_pendulum._stretches(run, 60, 50)
    at = demo_pendulum.WINDOW
    np.testing.assert_allclose(first.start[0], first.values[0], atol=1e-6)
    np.testing.assert_allclose(first.start[1], [5 * np.cos(5 * time[at]), -3 * np.sin(3 * time[at])], atol=1e-3)
    np.testing.assert_allclose(first.values + 2 * np.pi, run[at : at + 61])  # a turn was taken off


def test_nothing_outside_the_package_is_looked_for(monkeypatch):
    monkeypatch.delenv("FLEXOR_DATA", raising=False)
    monkeypatch.setattr(demo_pendulum.Path, "is_file", lambda self: pytest.fail(f"looked for {self}"))
    assert demo_pendulum._recording() is None


def test_the_real_recording_is_named_where_it_is_present(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEXOR_DATA", str(tmp_path))
    assert demo_pendulum._recording() is None
    (tmp_path / demo_pendulum.FILE).touch()
    assert demo_pendulum._recording() == tmp_path / demo_pendulum.FILE
