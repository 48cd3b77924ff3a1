"""Every benchmark has the one form: it runs with --quick and writes JSON that says what it found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(p for p in (ROOT / "benchmarks").glob("*.py") if not p.name.startswith("_"))


@pytest.fixture
def form(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import _form

    return _form


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_quick_run_has_the_form(script, tmp_path):
    target = tmp_path / "out.json"
    command = [sys.executable, str(script), "--quick", "--json", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert target.is_file(), done.stderr[-2000:]
    report = json.loads(target.read_text())
    assert report["name"] == script.stem
    assert report["quick"] is True
    assert {"cores", "processor", "python"} <= set(report["machine"])
    assert {"jax", "mujoco"} <= set(report["versions"])
    assert report["rows"]
    assert all(set(row) == set(report["rows"][0]) for row in report["rows"])
    assert report["checks"]
    assert all(set(check) == {"what", "value", "target", "holds"} for check in report["checks"])
    # the exit status says what the checks say; whether a time holds depends on the machine
    assert done.returncode == (0 if all(c["holds"] for c in report["checks"]) else 1)
    assert script.stem in done.stdout


def test_checks_compare(form):
    assert form.at_most("x", 1.0, 2.0).holds
    assert not form.at_most("x", 3.0, 2.0).holds
    assert not form.at_most("x", float("nan"), 2.0).holds
    assert form.equals("x", 1, 1).holds


def test_failed_check_ends_with_status_one(form, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["speed.py", "--quick"])
    result = form.Result([{"a": 1.0}], [form.at_most("a", 1.0, 0.5)])
    with pytest.raises(SystemExit) as left:
        form.run("how fast?", lambda quick: result)
    assert left.value.code == 1
    assert "DOES NOT HOLD" in capsys.readouterr().out


def test_folder_must_exist(form, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["speed.py", "--json", "no/such/folder.json"])
    with pytest.raises(SystemExit) as left:
        form.run("how fast?", lambda quick: None)
    assert left.value.code == 2
    assert "does not exist" in capsys.readouterr().err


def test_collection_is_one_page(form):
    import _all

    check = {"what": "speed", "value": 1.0, "target": "<= 2", "holds": True}
    report = {
        "name": "speed",
        "folder": "benchmarks",
        "question": "how fast?",
        "quick": False,
        "seconds": 1.0,
        "machine": form.machine(),
        "versions": form.versions(),
        "rows": [{"robot": "cube", "s": 0.1}],
        "checks": [check],
        "remarks": ["a remark"],
    }
    html = _all.collect([report]).html()
    for words in ("how fast?", "python benchmarks/speed.py", "a remark", "cube"):
        assert words in html
