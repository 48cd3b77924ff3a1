"""How the command line talks: results on stdout, everything else (spinners, progress, warnings, errors) on stderr."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table


def out() -> Console:
    """Where results go. Made on every call, so that redirection of stdout is respected."""
    return Console(highlight=False)


def err() -> Console:
    """Where everything else goes."""
    return Console(stderr=True, highlight=False)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A table; columns whose name starts with ">" stand right, True and False become marks."""
    made = Table(
        title=title or None, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False
    )
    for column in columns:
        made.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_cell(x) for x in row))
    return made


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
def spinner(text: str) -> Iterator[None]:
    """A spinner on stderr for something that takes a while; nothing where stderr is no terminal."""
    with err().status(f"{text} …"):
        yield


@contextmanager
def progress(text: str, total: int | None) -> Iterator[Any]:
    """A progress bar on stderr; yields `advance(done)` that sets how much is done."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err(), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda done, total=None: bar.update(task, completed=done, **({} if total is None else {"total": total}))


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
