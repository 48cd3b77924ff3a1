"""Every Python example of the README and the docs runs, in order, each file in one namespace."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page.stem in ("README", "simd", "identify"):
        monkeypatch.setenv("FLEXOR_SIMD", "on")
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": "example"}
    for found in BLOCK.finditer(text):
        line = text[: found.start(1)].count("\n")
        code = compile("\n" * line + found.group(1), str(page), "exec")
        exec(code, namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_lead_somewhere(page):
    targets = [t for t in LINK.findall(page.read_text(encoding="utf-8")) if not t.startswith("http")]
    missing = [t for t in targets if not (page.parent / t).exists()]
    assert not missing
