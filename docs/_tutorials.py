"""Tutorials: scripts in docs/tutorials in the percent format, run as notebooks when the site is built. Each becomes a page with
what its cells printed and drew, and an executed notebook (`.ipynb`) to keep. A cell that raises fails the build."""

import base64
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "tutorials"
MARK = re.compile(r"^# %%(.*)$", re.MULTILINE)
PATIENCE = 900  # s for one cell
FIRST = "%matplotlib inline\n%config InlineBackend.figure_formats = ['png']"


@dataclass(frozen=True)
class Tutorial:
    """A page in Markdown, its pictures by file name, and the executed notebook."""

    name: str
    page: str
    pictures: dict[str, bytes]
    notebook: str


def sources() -> list[Path]:
    """The scripts, in the order of their names."""
    return sorted(FOLDER.glob("*.py"))


def notebook(text: str) -> Any:
    """The notebook of a script: cells begin with `# %%`, those of words with `# %% [markdown]`."""
    parts = MARK.split(text)[1:]
    cells = []
    for kind, body in zip(parts[::2], parts[1::2], strict=True):
        if "markdown" in kind:
            lines = (line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines())
            cells.append(nbformat.v4.new_markdown_cell("\n".join(lines)))
        elif body.strip():
            cells.append(nbformat.v4.new_code_cell(body.strip()))
    return nbformat.v4.new_notebook(cells=cells)


def executed(source: Path) -> Tutorial:
    """A tutorial after all its cells have run, in an empty folder."""
    book = notebook(source.read_text(encoding="utf-8"))
    book.cells.insert(0, nbformat.v4.new_code_cell(FIRST))
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            book, timeout=PATIENCE, kernel_name="python3", coalesce_streams=True, resources={"metadata": {"path": folder}}
        ).execute()
    del book.cells[0]
    pictures: dict[str, bytes] = {}
    parts = [part for cell in book.cells for part in _shown(cell, source.stem, pictures)]
    parts.insert(
        1, f"*This page is a notebook that ran when the site was built: [{source.stem}.ipynb]({source.stem}.ipynb).*"
    )
    return Tutorial(source.stem, "\n\n".join(parts) + "\n", pictures, nbformat.writes(book))


def _shown(cell: Any, name: str, pictures: dict[str, bytes]) -> Iterator[str]:
    """Markdown of a cell and of what it printed; its pictures are added to those found before."""
    if cell.cell_type == "markdown":
        yield cell.source
        return
    yield f"```python\n{cell.source}\n```"
    for output in cell.outputs:
        data = output.get("data", {})
        if output.output_type == "stream" and output.name == "stdout":
            yield f"```text\n{output.text.rstrip()}\n```"
        elif "image/png" in data:
            file = f"{name}-{len(pictures)}.png"
            pictures[file] = base64.b64decode(data["image/png"])
            yield f"![What the cell above drew]({file})"
        elif "text/plain" in data:
            yield f"```text\n{data['text/plain'].rstrip()}\n```"


def run_all(workers: int = 2) -> list[Tutorial]:
    """All tutorials, each in a process of its own."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(executed, sources()))
