"""Runs every benchmark and experiment and collects one page: results/index.html, with the JSON files beside it."""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _form import number
from rich.console import Console

from flexor.viz import Report, Section, Table

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("benchmarks", "experiments")


def scripts() -> list[Path]:
    """Every file of the form, in a fixed order; names with an underscore are helpers."""
    return sorted(p for folder in FOLDERS for p in (ROOT / folder).glob("*.py") if not p.name.startswith("_"))


def collect(reports: Sequence[dict[str, Any]]) -> Report:
    """One page from the JSON of all runs."""
    checks = [[r["name"], c["what"], number(c["value"]), c["target"], c["holds"]] for r in reports for c in r["checks"]]
    first = Section("Checks", "", [Table(["file", "what", "value", "target", ""], checks)])
    facts = [(k, str(v)) for k, v in {**reports[0]["machine"], **reports[0]["versions"]}.items()]
    return Report("flexor: figures", "What `make bench` measured.", facts, [first, *(_section(r) for r in reports)])


def _section(report: dict[str, Any]) -> Section:
    blocks = []
    if report["rows"]:
        columns = list(dict.fromkeys(key for row in report["rows"] for key in row))
        blocks.append(Table(columns, [[_plain(row.get(c, "")) for c in columns] for row in report["rows"]]))
    command = f"python {report['folder']}/{report['name']}.py" + (" --quick" if report["quick"] else "")
    text = f"{report['question']}\n\n{command} took {report['seconds']} s."
    return Section(report["name"], "\n\n".join([text, *report["remarks"]]), blocks)


def _plain(x: Any) -> Any:
    return x if isinstance(x, bool | int | float) else str(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    options = parser.parse_args()
    options.results.mkdir(exist_ok=True)
    reports, failed = [], []
    for script in scripts():
        target = options.results / f"{script.stem}.json"
        target.unlink(missing_ok=True)
        command = [sys.executable, str(script), "--json", str(target), *(["--quick"] if options.quick else [])]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(script.stem)
        if target.is_file():
            reports.append({**json.loads(target.read_text()), "folder": script.parent.name})
    console = Console(highlight=False)
    if reports:
        console.print(f"collected in {collect(reports).save(options.results / 'index.html')}", soft_wrap=True)
    if failed:
        console.print(f"[red]off or broken: {', '.join(failed)}[/]")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
