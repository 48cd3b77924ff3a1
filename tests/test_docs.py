"""Every Python example of the README and the docs runs as a user runs it: a page's blocks in order, in one fresh process with
JAX's default precision and kernels on."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")
OF_THE_SUITE = ("XLA_FLAGS", "FLEXOR_SIMD", "JAX_ENABLE_X64")  # settings that the suite has and a user has not


def run_examples(page: Path) -> None:
    """Runs the blocks of a page in one namespace; errors point to the line in the page."""
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": "example"}
    for found in BLOCK.finditer(text):
        line = text[: found.start(1)].count("\n")
        exec(compile("\n" * line + found.group(1), str(page), "exec"), namespace)


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text(encoding="utf-8"))], ids=lambda p: p.stem)
def test_examples_run(page, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name not in OF_THE_SUITE}
    command = [sys.executable, __file__, str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_lead_somewhere(page):
    targets = [t for t in LINK.findall(page.read_text(encoding="utf-8")) if not t.startswith("http")]
    missing = [t for t in targets if not (page.parent / t).exists()]
    assert not missing


if __name__ == "__main__":
    run_examples(Path(sys.argv[1]))
