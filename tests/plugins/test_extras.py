"""A plug-in whose program is not installed says what to install."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("program", "extra"), [("newton", "newton"), ("gymnasium", "gym")])
def test_a_missing_extra_is_a_sentence(program, extra):
    code = f"import sys; sys.modules[{program!r}] = None; import flexor as fx; fx.plugins.{program}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f'pip install "flexor[{extra}]"' in done.stderr.splitlines()[-1]
