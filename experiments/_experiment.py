"""The form of every experiment: that of the benchmarks, plus a folder for its figures and models.

    def measure(options) -> Result: ...        # options.quick, options.out

    if __name__ == "__main__":
        run("question it answers", measure)

Prints a table, writes `result.json` and the figures into `--out` (by default out/<name>), and leaves with status 1 when a check
does not hold, with 2 when a file cannot be used, with 77 when a recording is not on this machine.
"""

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_spec = importlib.util.spec_from_file_location("_benchmark_form", Path(__file__).parent.parent / "benchmarks" / "_form.py")
assert _spec is not None
assert _spec.loader is not None
_benchmarks = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _benchmarks
_spec.loader.exec_module(_benchmarks)

Check, Result, at_least, at_most, equals, number = (
    getattr(_benchmarks, name) for name in ("Check", "Result", "at_least", "at_most", "equals", "number")
)
SKIPPED = 77  # exit status that test runners read as "skipped"


class Missing(Exception):
    """A file that the experiment needs and cannot use."""


class NoRecording(Missing):
    """A recording that is not on this machine: the experiment is skipped."""


def run(question: str, measure: Callable[[Any], Any], add: Callable[[argparse.ArgumentParser], None] | None = None) -> None:
    """Parses the command line, measures, prints, writes, leaves. In quick runs checks are printed but do not decide."""
    name = Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--quick", action="store_true", help="a small version of the same, for a first look and for tests")
    parser.add_argument("--out", type=Path, default=Path("out") / name, metavar="FOLDER", help="where results are written")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")
    if add is not None:
        add(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    try:
        result = measure(options)
    except Missing as sentence:
        print(f"{name}: {sentence}", file=sys.stderr)
        sys.exit(SKIPPED if isinstance(sentence, NoRecording) else 2)
    report = {
        "name": name,
        "question": question,
        "quick": options.quick,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - start, 2),
        "machine": _benchmarks.machine(),
        "versions": _benchmarks.versions(),
        "rows": list(result.rows),
        "checks": [asdict(c) for c in result.checks],
        "remarks": list(result.remarks),
    }
    _benchmarks.show(report)
    for path in filter(None, (options.out / "result.json", options.json)):
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if options.quick or all(c.holds for c in result.checks) else 1)
