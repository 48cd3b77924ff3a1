"""What MkDocs does besides Markdown: pages that are written elsewhere in the repository, tutorials, which run now, a page of the
API for every package that users import, and formulas as MathML, which browsers draw without a script."""

import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
from _tutorials import run_all

ROOT = Path(__file__).parent.parent
ELSEWHERE = {
    "CONTRIBUTING.md": "about/contributing.md",
    "CHANGELOG.md": "about/changelog.md",
    "flexor/simd/README.md": "about/compiler.md",
}
"""Pages by their places in the repository, and in the site."""
PACKAGES = (
    "flexor",
    *(f"flexor.{name}" for name in ("model", "spatial", "dynamics", "contact", "solvers", "simd", "augment", "certify")),
    *(
        f"flexor.{name}"
        for name in (
            "identify",
            "adapt",
            "ode",
            "nerd",
            "control",
            "envs",
            "learn",
            "gym",
            "cluster",
            "viz",
            "files",
            "taps",
        )
    ),
    *(f"flexor.plugins.{name}" for name in ("mujoco", "gymnasium", "newton")),
)
"""Modules with a page of the API: their public names."""
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the API to the navigation."""
    nav: list[Any] = config.nav or []
    config.nav = [*nav, {"API": [{name: reference(name)} for name in PACKAGES]}]
    return config


def reference(module: str) -> str:
    """The page of a module."""
    return f"api/{module}.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in docs/, and the tutorials with what they draw."""
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for tutorial in run_all():
        files.append(File.generated(config, f"tutorials/{tutorial.name}.md", content=tutorial.page))
        files.append(File.generated(config, f"tutorials/{tutorial.name}.ipynb", content=tutorial.notebook))
        for name, picture in tutorial.pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=picture))
    for module in PACKAGES:
        files.append(File.generated(config, reference(module), content=f"# {module}\n\n::: {module}\n"))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links between files of the repository become links between pages."""
    uri = page.file.src_uri
    here = next((source for source, target in ELSEWHERE.items() if target == uri), f"docs/{uri}")
    return LINK.sub(lambda link: _link(link[1], here, uri), markdown)


def _link(target: str, here: str, uri: str) -> str:
    """A link of a file `here` of the repository, as a link of the page at `uri` of the site."""
    parts: list[str] = []
    for part in [*here.split("/")[:-1], *target.split("/")]:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    path = "/".join(parts)
    page = ELSEWHERE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    if page is not None and page.startswith("tutorials/"):
        page = page.removesuffix(".py") + ".md"
    return target if page is None else "../" * uri.count("/") + page


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as MathML."""
    return FORMULA.sub(lambda f: convert(f[3], display="inline" if f[2] == "(" else "block"), html)
