"""One self-contained HTML page: sections of text, tables, plots and animations. Everything it shows is inside the file."""

import abc
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib.figure

from flexor.files import write_text
from flexor.viz.animation import animate, script, style
from flexor.viz.plots import inline_svg
from flexor.viz.scene import Actor


class AbstractBlock(abc.ABC):
    """A part of a section."""

    @abc.abstractmethod
    def html(self) -> str:
        """The block as an HTML element."""


@dataclass(frozen=True)
class Table(AbstractBlock):
    """Rows of cells under column heads. True and False become marks. `folded` hides the table under that line."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    folded: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of the table has {len(row)} cells for {len(self.columns)} columns: {list(row)}.")

    def html(self) -> str:
        head = "".join(f"<th>{escape(c)}</th>" for c in self.columns)
        body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in self.rows)
        table = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        if self.folded:
            table = f"<details><summary>{escape(self.folded)}</summary>{table}</details>"
        return _captioned(table, self.caption)


@dataclass(frozen=True)
class Interval:
    """A cell of a table that draws an estimate (dot), its interval (bar) and where it started (line across)."""

    start: float
    low: float
    estimate: float
    high: float

    def svg(self) -> str:
        """The drawing. Very wide intervals, as of undetermined parameters, are cut off at the edge."""
        size = max(abs(self.start - self.estimate), 0.02 * abs(self.estimate), 1e-12)
        ends = [x if math.isfinite(x) else self.estimate for x in (self.low, self.high)]
        far = 2.5 * max(size, min(ends[1] - ends[0], 4 * size))
        low, high = (min(max(x, self.estimate - far), self.estimate + far) for x in ends)
        left, right = min(low, self.start), max(high, self.start)
        pad = 0.06 * (right - left) or 1.0
        left, right = left - pad, right + pad

        def x(value: float) -> str:
            return f"{160 * (min(max(value, left), right) - left) / (right - left):.1f}"

        return (
            f'<svg class="interval" viewBox="0 0 160 16" role="img" aria-label="from {self.low:.3g} to {self.high:.3g}">'
            '<line class="axis" x1="0" y1="8" x2="160" y2="8"/>'
            f'<line class="bar" x1="{x(low)}" y1="8" x2="{x(high)}" y2="8"/>'
            f'<line class="start" x1="{x(self.start)}" y1="2" x2="{x(self.start)}" y2="14"/>'
            f'<circle cx="{x(self.estimate)}" cy="8" r="3.4"/></svg>'
        )


@dataclass(frozen=True)
class Code(AbstractBlock):
    """Commands or code, as they are typed."""

    text: str
    caption: str = ""

    def html(self) -> str:
        return _captioned(f"<pre>{escape(self.text.strip())}</pre>", self.caption)


@dataclass(frozen=True)
class Figure(AbstractBlock):
    """A matplotlib figure, drawn in the page's colours; as wide as the page allows, or `width` pixels at most."""

    figure: matplotlib.figure.Figure
    caption: str = ""
    width: int | None = None

    def html(self) -> str:
        drawing = inline_svg(self.figure)
        if self.width is not None:
            drawing = f'<div style="max-width: {self.width}px; margin: 0 auto">{drawing}</div>'
        return _captioned(drawing, self.caption)


@dataclass(frozen=True)
class Animation(AbstractBlock):
    """Moving robots."""

    actors: Sequence[Actor]
    caption: str = ""
    frames_per_second: float = 50.0

    def html(self) -> str:
        moving = animate(list(self.actors), frames_per_second=self.frames_per_second)
        return _captioned(moving, self.caption)


@dataclass(frozen=True)
class Section:
    """A heading, an introduction in plain words (blank lines separate paragraphs), and blocks."""

    title: str
    text: str = ""
    blocks: Sequence[AbstractBlock] = ()

    def html(self) -> str:
        blocks = "".join(block.html() for block in self.blocks)
        return f"<section><h2>{escape(self.title)}</h2>{_paragraphs(self.text)}{blocks}</section>"


@dataclass(frozen=True)
class Report:
    """A page. `facts` are label and value pairs shown under the title."""

    title: str
    lead: str = ""
    facts: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = field(default_factory=tuple)

    def html(self) -> str:
        parts = "\n".join(s.html() for s in self.sections)
        moving = 'class="flexor-animation"' in parts
        facts = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in self.facts)
        css = resources.files("flexor.viz").joinpath("pages", "report.css").read_text(encoding="utf-8")
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            # an empty icon, or the browser asks for one
            f'<title>{escape(self.title)}</title><link rel="icon" href="data:,">'
            f"<style>\n{css}</style>{style() if moving else ''}</head>\n<body><main>"
            f"<header><h1>{escape(self.title)}</h1>{_paragraphs(self.lead)}<dl>{facts}</dl></header>\n"
            f"{parts}\n</main>{script() if moving else ''}</body></html>\n"
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page; returns its path."""
        path = Path(path)
        write_text(path, self.html())
        return path


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{escape(p.strip())}</p>" for p in text.split("\n\n") if p.strip())


def _captioned(element: str, caption: str) -> str:
    note = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{element}{note}</figure>"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return f'<td class="{"yes" if value else "no"}">{"✓ holds" if value else "✗ off"}</td>'
    if isinstance(value, Interval):
        return f"<td>{value.svg()}</td>"
    if isinstance(value, int | float):
        return f'<td class="number">{number(value)}</td>'
    return f"<td>{escape(str(value))}</td>"


def number(value: float) -> str:
    """A number for a table: four significant digits, powers of ten only where they help."""
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ")
    if value == 0:
        return "0"
    return f"{value:.1e}" if abs(value) < 1e-3 or abs(value) >= 1e5 else f"{value:.4g}"
