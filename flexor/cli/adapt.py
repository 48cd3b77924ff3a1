"""`flexor adapt CONFIG LOG`: a stream in; parameters with intervals, alarms and changes out, as they happen."""

import csv
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, TextIO

import numpy as np
import typer

from flexor.cli import console
from flexor.cli.loading import use_float64

NINETY = 1.645
WAIT = 0.02  # s between two looks at a file that may grow


def adapt(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file, see docs/adapt.md.")],
    log: Annotated[str, typer.Argument(metavar="LOG", help="CSV file, or - for standard input.")],
    follow: Annotated[bool, typer.Option("--follow", help="Wait for rows that are written to the file later.")] = False,
    every: Annotated[float, typer.Option(help="Seconds of the stream between two lines.")] = 1.0,
    html: Annotated[Path | None, typer.Option(help="Write a page with estimates and bands at the end.")] = None,
) -> None:
    """Adapt a robot's parameters to a stream of samples, row by row; Ctrl-C ends it like its last row."""
    use_float64()
    from flexor.adapt.history import History
    from flexor.cli.adapt_config import adapter_of, read_table

    data = read_table(config)
    if html is not None and not html.resolve().parent.is_dir():
        raise FileNotFoundError(f"cannot write '{html}': the folder '{html.parent}' does not exist.")
    if not every > 0:
        raise ValueError(f"--every must be a positive number of seconds, got {every}.")
    with ExitStack() as stack:
        source = _open(log, stack)
        rows = Rows(_lines(source, follow and log != "-"), log)
        with console.spinner("compiling the adapter"):
            adapter = adapter_of(config, data, rows.columns)
            rows.of(adapter)
        history = History()
        try:
            _replay(adapter, rows, history, every)
        except KeyboardInterrupt:
            if not history.labels:
                raise
    if not history.labels:
        raise ValueError(f"'{log}' has no rows.")
    _conclude(adapter, rows, history)
    if html is not None:
        from flexor.viz.adaptation import adaptation_report

        console.out().print(str(adaptation_report(adapter, history).save(html)), markup=False, soft_wrap=True)


def _open(log: str, stack: ExitStack) -> TextIO:
    if log == "-":
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        return sys.stdin
    if not Path(log).is_file():
        raise FileNotFoundError(f"there is no log file '{log}'.")
    return stack.enter_context(Path(log).open(encoding="utf-8-sig", errors="replace", newline=""))


def _lines(source: TextIO, follow: bool) -> Iterator[str]:
    """Whole lines; of a file that is followed, those to come too."""
    part = ""
    while True:
        line = source.readline()
        part += line
        if part.endswith("\n") or (part and not line and not follow):
            yield part
            part = ""
        elif not line:
            if not follow:
                return
            time.sleep(WAIT)


def _cells(line: str) -> list[str]:
    """Of one line, whatever quotes it opens; none where it is no line of a table."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


class Rows:
    """Samples of a CSV as `Log` has it: `time`, readings, `u.<actuator>`. Where the first row has no inputs, those of a row
    led to it, as in a saved trajectory, so each row waits for the next one. Rows that cannot be read are counted."""

    def __init__(self, lines: Iterator[str], name: str):
        self._rows, self.name, self.unreadable = map(_cells, lines), name, 0
        self.head = [c.strip().removeprefix("\ufeff") for c in next(self._rows, [])]
        if "time" not in self.head:
            raise ValueError(f"'{name}' has no column 'time'; its first line must name the columns.")
        self.columns = [c for c in self.head if c != "time" and not c.startswith(("u.", "tap."))]
        self._time, self._values = self.head.index("time"), [self.head.index(c) for c in self.columns]
        self._inputs: list[int] = []

    def of(self, adapter: Any) -> None:
        """Finds the inputs of the robot's actuators."""
        wanted = [f"u.{a.name}" for a in adapter.sim.model.topology.actuators]
        for c in wanted:
            if c not in self.head:
                raise ValueError(f"'{self.name}' has no column '{c}': the motors' inputs are needed.")
        self._inputs = [self.head.index(c) for c in wanted]

    def __iter__(self) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
        held, lags = None, False
        for k, row in enumerate(self._rows):
            try:
                x = np.array([float(cell) if cell.strip() else np.nan for cell in row])
                t, y, u = x[self._time], x[self._values], x[self._inputs]
            except (ValueError, IndexError):
                self.unreadable += 1
                continue
            if k == 0 and u.size and np.isnan(u).all():
                lags = True
            if not lags:
                yield float(t), y, u
            elif held is not None:
                yield (*held, u)
            held = (float(t), y)
        if lags and held is not None:
            yield (*held, np.full(len(self._inputs), np.nan))


def _replay(adapter: Any, rows: Rows, history: Any, every: float) -> None:
    out, due = console.out(), 0.0
    for t, y, u in rows:
        estimate = adapter.update(t, y, u)
        history.add(estimate)
        if estimate.alarm is not None:
            out.print(f"[yellow]alarm[/] {estimate.alarm}")
        if estimate.event is not None:
            out.print(f"[bold]{estimate.event}[/]")
        if estimate.time >= due:
            due = estimate.time + every
            out.print(_line(estimate), markup=False, soft_wrap=True)


def _line(estimate: Any) -> str:
    """Time, and the numbers by name, vectors in full."""
    values, deviations = estimate.named(estimate.z, estimate.covariance)
    parts = [
        f"{name} {' '.join(f'{a:.4g} ± {NINETY * s:.2g}' for a, s in zip(np.ravel(x), np.ravel(deviations[name]), strict=True))}"
        for name, x in values.items()
    ]
    return f"{estimate.time:8.2f} s  {'; '.join(parts)}"


def _conclude(adapter: Any, rows: Rows, history: Any) -> None:
    out = console.out()
    table = []
    for label in history.labels:
        value, deviation = (float(x[-1]) for x in history.series(label))
        table.append(
            [label, float(history.series(label)[0][0]), value, value - NINETY * deviation, value + NINETY * deviation]
        )
    heads = ["parameter", ">start", ">estimate", ">90 % from", ">to"]
    out.print("", console.table(f"{adapter.sim.model.topology.name} at {adapter.time:.2f} s", heads, table), "")
    left_out = ", ".join(x for x in (adapter.stream.told(), f"{rows.unreadable} unreadable" if rows.unreadable else "") if x)
    out.print(f"samples: {adapter.stream.counts['accepted']} used" + (f"; {left_out}" if left_out else ""), soft_wrap=True)
