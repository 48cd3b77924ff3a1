"""Every experiment runs in its quick form, prints its table and writes its results."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "experiments"
EXPERIMENTS = sorted(p.stem for p in FOLDER.glob("*.py") if not p.stem.startswith("_"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick(name, tmp_path):
    environment = os.environ | {"FLEXOR_SIMD": "on"}
    command = [sys.executable, FOLDER / f"{name}.py", "--quick", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    if done.returncode == 2 and "recording" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "result.json").read_text())
    assert report["rows"]
    assert list(tmp_path.glob("*.png"))
