"""How the command line talks: results on stdout, everything else (progress, warnings, errors) on stderr.

Where stderr is no terminal, spinners and bars become plain lines: one at the start, one every few seconds, one at the end.
"""

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

INTERRUPTED = 130  # exit status of a program that Ctrl-C ended
LINE_EVERY = 5.0  # s between progress lines where stderr is no terminal
SHORT = 1.0  # s: anything shorter gets no line at its end
_WORKER = "flexor-worker"
_ENDLESS = 10_000  # columns
_GUTTER = 2  # spaces between the columns of a table
T = TypeVar("T")


def out() -> Console:
    """Where results go. Made on every call, so that redirection of stdout is respected; a file or a pipe has no width."""
    console = Console(highlight=False)
    endless = not console.is_terminal and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_ENDLESS) if endless else console


def err() -> Console:
    """Where everything else goes."""
    return Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class UnbrokenTable:
    """A table for `print`, in which no cell is broken.

    Columns whose name starts with ">" are aligned to the right, True and False become marks. Where the terminal is too narrow,
    the columns that do not fit follow in a further table, each row again under its name. Only a name and a column that do not
    fit together are folded.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        cells = [[c.removeprefix(">") for c in self.columns], *([_cell(x) for x in row] for row in self.rows)]
        widths = [max(_width(cell) for cell in column) for column in zip(*cells, strict=True)]
        for i, shown in enumerate(_parts(widths, options.max_width)):
            if i > 0:
                yield ""
            elif self.title:
                yield Text(self.title, style="bold")
            fits = sum(widths[c] for c in shown) + _GUTTER * (len(shown) - 1) <= options.max_width
            yield self._part(cells, shown, fits)

    def _part(self, cells: Sequence[Sequence[str]], shown: Sequence[int], fits: bool) -> Table:
        part = Table(header_style="bold", box=None, pad_edge=False)
        for c in shown:
            side: Any = "right" if self.columns[c].startswith(">") else "left"
            part.add_column(cells[0][c], justify=side, no_wrap=fits, overflow="fold")
        for row in cells[1:]:
            part.add_row(*(row[c] for c in shown))
        return part


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> UnbrokenTable:
    """A table to print."""
    return UnbrokenTable(title, columns, rows)


def _parts(widths: Sequence[int], limit: int) -> list[list[int]]:
    """Columns of each part of a table of limited width, the first column in all of them."""
    parts, shown = [], [0]
    for c in range(1, len(widths)):
        if len(shown) > 1 and sum(widths[i] + _GUTTER for i in shown) + widths[c] > limit:
            parts.append(shown)
            shown = [0]
        shown = [*shown, c]
    return [*parts, shown]


def _width(cell: str) -> int:
    return Text.from_markup(cell).cell_len


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "[green]holds[/]" if value else "[red]off[/]"
    if isinstance(value, float):
        return number(value)
    return escape(str(value))


def number(value: float) -> str:
    """Four significant digits, powers of ten only where they help."""
    if value == 0:
        return "0"
    return f"{value:.1e}" if abs(value) < 1e-3 or abs(value) >= 1e6 else f"{value:.4g}"


@contextmanager
def spinner(text: str) -> Iterator[Callable[[str], None]]:
    """Shows on stderr what is running and for how many seconds; yields a function that changes the text."""
    with _Ticker(text) as ticker:
        yield ticker.say


@contextmanager
def progress(text: str, total: int | None) -> Iterator[Any]:
    """A progress bar on stderr, or lines; yields `advance(done, total=None, text=None)` that sets how much is done, and what is
    said beside it."""
    console = err()
    if not console.is_terminal:
        with _Ticker(text, total) as ticker:
            yield ticker.advance
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(text, total=total)

        def advance(done: int, total: int | None = None, text: str | None = None) -> None:
            bar.update(task, completed=done, total=total, description=None if text is None else escape(text))

        yield advance


class _Ticker:
    """A thread that shows how long something has taken: in the spinner of a terminal, or in lines."""

    def __init__(self, text: str, total: int | None = None):
        self._text, self._done, self._total = text, 0, total
        self._lately = ""  # what the last `advance` had to say
        self._console = err()
        self._status = self._console.status(f"{escape(text)} …") if self._console.is_terminal else None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> "_Ticker":
        self._start = time.monotonic()
        if self._status is not None:
            self._status.start()
        else:
            self._line(f"{self._text} …")
        self._thread.start()
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._end.set()
        self._thread.join()
        if self._status is not None:
            self._status.stop()
        elif kind is None and self._seconds() > SHORT:
            self._line(f"{self._what}: done in {self._seconds():.0f} s")

    def say(self, text: str) -> None:
        """Changes the text."""
        self._text = text
        if self._status is None:
            self._line(f"{text} …")

    def advance(self, done: int, total: int | None = None, text: str | None = None) -> None:
        """Sets how much is done, and what later lines say."""
        self._done, self._total = done, self._total if total is None else total
        if text is not None:
            self._text, self._lately = text, text.partition(",")[2]

    @property
    def _what(self) -> str:
        """The text up to its first comma, for lines that repeat it."""
        return self._text.partition(",")[0]

    def _seconds(self) -> float:
        return time.monotonic() - self._start

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _tick(self) -> None:
        while not self._end.wait(1.0 if self._status is not None else LINE_EVERY):
            share = "" if not self._total else f" {self._done} of {self._total},"
            if self._status is not None:
                self._status.update(f"{escape(self._text)} …{share} {self._seconds():.0f} s")
            else:
                lately = f",{self._lately}" if self._lately else ""
                self._line(f"{self._what} …{share} {self._seconds():.0f} s{lately}")


def interruptible(work: Callable[[], T]) -> T:
    """The result of `work`, which runs in another thread, so that Ctrl-C ends the wait for it.

    Python handles signals between two of its own instructions in the main thread; a compilation by XLA is one of them for
    minutes. An interrupted thread is abandoned, and `is_abandoned` says so: the program must end without waiting for it.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, name=_WORKER, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if errors:
        raise errors[0]
    return results[0]


def is_abandoned() -> bool:
    """Whether a thread of `interruptible` still works, although nobody waits for it."""
    return any(thread.name == _WORKER for thread in threading.enumerate())


def fail(message: str) -> None:
    """One sentence on stderr."""
    err().print(f"[bold red]flexor:[/] {escape(message)}", soft_wrap=True)


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Within this context a warning is one line on stderr, without the line of code that raised it."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)

        def show(message: Warning | str, category: type[Warning], *_: Any) -> None:
            err().print(f"[yellow]warning:[/] {escape(str(message))}", soft_wrap=True)

        warnings.showwarning = show  # type: ignore[assignment]
        yield
