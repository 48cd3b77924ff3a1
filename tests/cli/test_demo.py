"""The demo: agreement with MuJoCo, and a page with everything in it."""

import pytest
from typer.testing import CliRunner

from flexor.cli.app import app
from flexor.cli.demo_runs import Check

RUNNER = CliRunner()


def test_quick_demo_agrees_and_writes_the_page(tmp_path):
    page = tmp_path / "report.html"
    result = RUNNER.invoke(app, ["demo", "--quick", "--report", str(page)])
    assert result.exit_code == 0, result.output
    assert "quadruped, NCP: falling" in result.stdout
    text = page.read_text()
    assert text.count('class="flexor-animation"') == 2
    assert "Double pendulum" in text
    assert "http" not in text


def test_report_folder_must_exist(tmp_path):
    result = RUNNER.invoke(app, ["demo", "--report", str(tmp_path / "none" / "report.html")])
    assert result.exit_code == 2
    assert "does not exist" in " ".join(result.stderr.split())


@pytest.mark.parametrize(("value", "holds"), [(0.5, True), (1.5, False), (float("nan"), False)])
def test_check_holds_up_to_its_target(value, holds):
    assert Check("x", value, 1.0).holds is holds
