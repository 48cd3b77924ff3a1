"""Runs every benchmark and experiment and collects one page: results/index.html, with the JSON files beside it.

A run passes when its script ends without an error, its report has the form of `_form.py`, and its checks hold. Quick runs share
the machine, so there checks of times do not count, nor do those of experiments, which a small version cannot keep. Ends with
status 1 when a run fails.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _form import Check, number
from rich.console import Console

from flexor.viz import Report, Section, Table

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("benchmarks", "experiments")
SKIPPED = 77  # exit status of an experiment whose recording is not on this machine
PATIENCE = 900.0  # seconds that a quick run may take
REPORT_KEYS = {"name", "question", "quick", "date", "seconds", "machine", "versions", "rows", "checks", "remarks"}
CHECK_KEYS = {"what", "value", "target", "holds", "timed"}


@dataclass(frozen=True)
class Run:
    """A script that ran: its exit status, what it printed, its report if that can be shown, and what is wrong with the run."""

    script: Path
    status: int
    output: str
    report: dict[str, Any] | None
    faults: tuple[str, ...]

    @property
    def skipped(self) -> bool:
        return self.status == SKIPPED


def scripts() -> list[Path]:
    """Every file of the form, in a fixed order; names with an underscore are helpers."""
    return sorted(p for folder in FOLDERS for p in (ROOT / folder).glob("*.py") if not p.name.startswith("_"))


def run_script(script: Path, results: Path, *, quick: bool, capture: bool) -> Run:
    """Runs a script in a process of its own, as a user does, and judges it."""
    target = results / f"{script.stem}.json"
    target.unlink(missing_ok=True)
    figures = ["--out", str(results / script.stem)] if script.parent.name == "experiments" else []
    command = [sys.executable, str(script), "--json", str(target), *figures, *(["--quick"] if quick else [])]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} if capture else {}
    try:
        done = subprocess.run(command, cwd=ROOT, check=False, timeout=PATIENCE if quick else None, **pipes)
    except subprocess.TimeoutExpired as late:
        output = late.output.decode(errors="replace") if isinstance(late.output, bytes) else late.output or ""
        return Run(script, 1, output, None, (f"did not end within {PATIENCE:.0f} s",))
    report, found = None, list[str]()
    if target.is_file():
        try:
            report = json.loads(target.read_text(encoding="utf-8"))
        except ValueError as error:
            found = [f"its JSON cannot be read: {error}"]
    if done.returncode != SKIPPED and not found:
        found = list(faults(script, report, done.returncode, quick=quick))
    if figures and report is not None and not list((results / script.stem).glob("*.png")):
        found.append("drew no figure")
    return Run(script, done.returncode, done.stdout or "", report if has_form(report) else None, tuple(found))


def has_form(report: Any) -> bool:
    """Whether a report is one of `_form.py`, with rows and checks that can be shown."""
    whole = isinstance(report, dict) and set(report) == REPORT_KEYS
    return whole and all(set(check) == CHECK_KEYS for check in report["checks"])


def faults(script: Path, report: Any, status: int, *, quick: bool) -> Iterator[str]:
    """Sentences that say what is wrong with the report of a script and its exit status; none where all is well."""
    if report is None:
        yield f"wrote no JSON (exit status {status})"
        return
    if not has_form(report):
        yield f"the report must have the keys {sorted(REPORT_KEYS)}, and each of its checks {sorted(CHECK_KEYS)}"
        return
    if report["name"] != script.stem or report["quick"] is not quick:
        yield f"the report is of '{report['name']}', quick={report['quick']}"
    if not {"cores", "processor", "python"} <= set(report["machine"]) or not {"jax", "mujoco"} <= set(report["versions"]):
        yield "the report does not name the machine, the processor and the versions"
    one_table = script.parent.name == "benchmarks"  # experiments may join the tables of several scenes
    if not report["rows"] or (one_table and any(set(row) != set(report["rows"][0]) for row in report["rows"])):
        yield "the report must have rows, all with the same keys"
    if not report["checks"]:
        yield "the report must have checks"
    informative = quick and script.parent.name == "experiments"
    broken = [c["what"] for c in report["checks"] if Check(**c).fails(quick) and not informative]
    yield from (f"does not hold: {what}" for what in broken)
    if status != bool(broken):
        yield f"ended with status {status}"


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


def run_all(chosen: Sequence[Path], results: Path, *, quick: bool, workers: int) -> list[Run]:
    """Runs the scripts: one after the other where times are measured, side by side in quick runs."""
    console = Console(highlight=False)
    if not quick:
        return [run_script(s, results, quick=False, capture=False) for s in chosen]
    runs = []
    with ThreadPoolExecutor(workers) as pool:
        for run in pool.map(lambda s: run_script(s, results, quick=True, capture=True), chosen):
            console.print(run.output.rstrip(), markup=False, soft_wrap=True)
            runs.append(run)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every script with --quick, several at a time")
    parser.add_argument("--results", type=Path, default=ROOT / "results", metavar="FOLDER")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="scripts at a time in quick runs")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="run these scripts alone")
    options = parser.parse_args()
    unknown = set(options.only) - {s.stem for s in scripts()}
    if unknown:
        parser.error(f"there is no script {', '.join(sorted(unknown))}; there are {', '.join(s.stem for s in scripts())}")
    options.results.mkdir(parents=True, exist_ok=True)
    results = options.results.resolve()
    chosen = [s for s in scripts() if not options.only or s.stem in options.only]
    runs = run_all(chosen, results, quick=options.quick, workers=options.workers)
    sys.exit(summarise(runs, results))


def summarise(runs: Sequence[Run], results: Path) -> int:
    """Writes the page, says what failed and counts as a test runner does; the exit status."""
    console = Console(highlight=False, soft_wrap=True)
    reports = [{**r.report, "folder": r.script.parent.name} for r in runs if r.report is not None]
    if reports:
        console.print(f"collected in {collect(reports).save(results / 'index.html')}")
    for run in runs:
        name = f"{run.script.parent.name}/{run.script.name}"
        if run.skipped:
            console.print(f"SKIPPED {name}: a recording is not on this machine")
        for fault in run.faults:
            console.print(f"FAILED {name}: {fault}", markup=False)
    failed, skipped = sum(bool(r.faults) for r in runs), sum(r.skipped for r in runs)
    console.print(f"{len(runs) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    main()
