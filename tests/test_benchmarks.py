"""The form of benchmarks and experiments, and what `make bench` makes of a broken one; `make bench QUICK=1` runs them all."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def form(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import _form

    return _form


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


def test_quick_runs_do_not_fail_by_the_clock(form):
    slow, wrong = form.at_least("speed", 1.0, 2.0, timed=True), form.at_most("error", 1.0, 0.5)
    assert not slow.fails(quick=True)
    assert slow.fails(quick=False)
    assert wrong.fails(quick=True)


def test_folder_must_exist(form, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["speed.py", "--json", "no/such/folder.json"])
    with pytest.raises(SystemExit) as left:
        form.run("how fast?", lambda quick: None)
    assert left.value.code == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.fixture
def whole(form):
    """A report as a benchmark writes it."""
    return {
        "name": "speed",
        "question": "how fast?",
        "quick": True,
        "date": "2026-01-01T00:00:00+00:00",
        "seconds": 1.0,
        "machine": form.machine(),
        "versions": form.versions(),
        "rows": [{"robot": "cube", "s": 0.1}],
        "checks": [{"what": "speed", "value": 1.0, "target": "<= 2", "holds": True, "timed": False}],
        "remarks": ["a remark"],
    }


def test_collection_is_one_page(form, whole):
    import _all

    html = _all.collect([whole | {"folder": "benchmarks"}]).html()
    for words in ("how fast?", "python benchmarks/speed.py", "a remark", "cube"):
        assert words in html


def ran(tmp_path, code):
    """What `make bench QUICK=1` makes of a benchmark with this code."""
    import _all

    (tmp_path / "benchmarks").mkdir()
    script = tmp_path / "benchmarks" / "speed.py"
    script.write_text(code, encoding="utf-8")
    return _all.run_script(script, tmp_path, quick=True, capture=True)


def reports(report, status=0):
    """Code of a script that writes this report and leaves with this status."""
    text = json.dumps(report)
    return f"import sys; open(sys.argv[2], 'w').write({text!r}); sys.exit({status})"


def test_sound_run_passes(form, whole, tmp_path, capsys):
    import _all

    run = ran(tmp_path, reports(whole))
    assert run.faults == ()
    assert _all.summarise([run], tmp_path) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"


@pytest.mark.parametrize(
    ("change", "status", "fault"),
    [
        ({}, 1, "ended with status 1"),
        ({"rows": []}, 0, "must have rows"),
        ({"rows": [{"a": 1}, {"b": 2}]}, 0, "all with the same keys"),
        ({"checks": []}, 0, "must have checks"),
        ({"checks": [{"what": "speed"}]}, 0, "each of its checks"),
        ({"name": "other"}, 0, "the report is of 'other'"),
        ({"machine": {}}, 0, "does not name the machine"),
        ({"more": 1}, 0, "must have the keys"),
    ],
)
def test_malformed_report_fails(form, whole, tmp_path, change, status, fault):
    run = ran(tmp_path, reports(whole | change, status))
    assert len(run.faults) == 1
    assert fault in run.faults[0]


@pytest.mark.parametrize(("timed", "status"), [(True, 0), (False, 1)])
def test_unmet_check_fails_unless_it_is_a_time(form, whole, tmp_path, timed, status, capsys):
    import _all

    check = {"what": "speed", "value": 3.0, "target": "<= 2", "holds": False, "timed": timed}
    run = ran(tmp_path, reports(whole | {"checks": [check]}, status))
    assert run.faults == (() if timed else ("does not hold: speed",))
    assert run.report is not None  # the page shows what was measured
    assert _all.summarise([run], tmp_path) == status
    assert capsys.readouterr().out.splitlines()[-1] == f"{1 - status} passed, {status} failed, 0 skipped"


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("raise ValueError('broken')", "wrote no JSON (exit status 1)"),
        ("pass", "wrote no JSON (exit status 0)"),
        ("import sys; open(sys.argv[2], 'w').write('{')", "its JSON cannot be read"),
    ],
)
def test_broken_script_fails(form, tmp_path, code, fault):
    run = ran(tmp_path, code)
    assert len(run.faults) == 1
    assert run.faults[0].startswith(fault)
    assert ("ValueError: broken" in run.output) == ("ValueError" in code)


def test_missing_recording_is_skipped(form, tmp_path, capsys):
    import _all

    run = ran(tmp_path, f"import sys; sys.exit({_all.SKIPPED})")
    assert run.skipped
    assert _all.summarise([run], tmp_path) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 0 failed, 1 skipped"
