"""The form of every benchmark and experiment: a table on stdout, JSON for machines, exit status 1 when a check fails.

A check of a time is marked `timed`. Quick runs print it and do not fail by it: they are short, and share the machine.

A file says what it measures and hands its rows and checks to `run`:

    def measure(quick: bool) -> Result: ...

    if __name__ == "__main__":
        run("question it answers", measure)
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

WIDEST = 220  # characters to which a table may outgrow the terminal before its cells are folded
PACKAGES = ("flexor", "jax", "jaxlib", "mujoco", "numpy", "equinox", "pin")


@dataclass(frozen=True)
class Check:
    """A promise of flexor's: `value` beside its `target`, whether it holds, and whether it is a matter of the clock."""

    what: str
    value: float | int | str
    target: str
    holds: bool
    timed: bool = False

    def fails(self, quick: bool) -> bool:
        """Whether it makes a run fail."""
        return not self.holds and not (quick and self.timed)


@dataclass(frozen=True)
class Result:
    """Rows of the table as dictionaries with the same keys, the checks, and remarks to print below."""

    rows: Sequence[dict[str, Any]]
    checks: Sequence[Check]
    remarks: Sequence[str] = field(default_factory=tuple)


def at_most(what: str, value: float, target: float, unit: str = "", *, timed: bool = False) -> Check:
    """A check that holds when the value is not above the target; NaN does not hold."""
    return Check(what, value, f"<= {target:g}{unit and ' ' + unit}", bool(value <= target), timed)


def at_least(what: str, value: float, target: float, unit: str = "", *, timed: bool = False) -> Check:
    """A check that holds when the value is not below the target; NaN does not hold."""
    return Check(what, value, f">= {target:g}{unit and ' ' + unit}", bool(value >= target), timed)


def equals(what: str, value: int | str, target: int | str) -> Check:
    """A check that holds when the value is the target."""
    return Check(what, value, f"== {target}", value == target)


def tell(text: str) -> None:
    """Says on the error stream how far a long run has come."""
    Console(stderr=True, highlight=False).print(f"[dim]{text}[/]")


def machine() -> dict[str, Any]:
    """The machine, without its name."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def versions() -> dict[str, str]:
    """Versions of the packages that matter, as far as installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def run(
    question: str, measure: Callable[..., Result], add_options: Callable[[argparse.ArgumentParser], None] | None = None
) -> None:
    """Parses the command line, measures, prints, writes, and leaves with status 1 when a check does not hold.

    A benchmark with options of its own adds them to the parser and gets them as keywords of `measure`.
    """
    parser = argparse.ArgumentParser(description=question)
    if add_options is not None:
        add_options(parser)
    parser.add_argument("--quick", action="store_true", help="fewer cases, for a first look and for tests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, versions, rows and checks")
    options = parser.parse_args()
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"the folder of '{options.json}' does not exist")
    name = Path(sys.argv[0]).stem
    start = time.perf_counter()
    own = {key: value for key, value in vars(options).items() if key not in ("quick", "json")}
    result = measure(options.quick, **own)
    report = {
        "name": name,
        "question": question,
        "quick": options.quick,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - start, 2),
        "machine": machine(),
        "versions": versions(),
        "rows": list(result.rows),
        "checks": [asdict(c) for c in result.checks],
        "remarks": list(result.remarks),
    }
    show(report)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if any(c.fails(options.quick) for c in result.checks) else 0)


def show(report: dict[str, Any]) -> None:
    """Prints a report as tables."""
    console = Console(highlight=False)
    console.print(f"[bold]{report['name']}[/]: {report['question']}" + (" (quick)" if report["quick"] else ""))
    if report["rows"]:
        columns = list(dict.fromkeys(key for row in report["rows"] for key in row))
        table = _table(columns, [[row.get(c, "") for c in columns] for row in report["rows"]])
        wanted = Console(width=WIDEST).measure(table).maximum
        Console(highlight=False, width=max(console.width, wanted)).print(table)
    for remark in report["remarks"]:
        console.print(remark, markup=False)
    if report["checks"]:
        verdicts = [[c["what"], c["value"], c["target"], _verdict(Check(**c), report["quick"])] for c in report["checks"]]
        console.print(_table(["check", "value", "target", ""], verdicts))


def _verdict(check: Check, quick: bool) -> str:
    if check.holds:
        return "holds"
    return "DOES NOT HOLD" if check.fails(quick) else "does not hold in this short run"


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        numeric = all(isinstance(row[list(columns).index(column)], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(number(x) for x in row))
    return table


def number(x: Any) -> str:
    """A cell: four significant digits for floats, the rest as it is."""
    if isinstance(x, float):
        return "0" if x == 0 else f"{x:.1e}" if abs(x) < 1e-3 or abs(x) >= 1e6 else f"{x:.4g}"
    return str(x).replace("[", "\\[")
