"""Which robot descriptions does flexor open, and does it move them as MuJoCo does?

Surveyed are all MJCF and URDF files of the packages that are installed (the table says which), and of every `--folder`. An MJCF
file counts where MuJoCo opens it, so that fragments meant for <include> do not; a URDF file where it has a link and its
collision meshes are on this machine. A file is opened where `fx.load(path)` gives a model with nothing ignored. What is
refused is counted by feature: a file with several is in several rows.

Of what opens, M, the bias forces and the acceleration without constraints (with springs, dampers, actuators at random inputs, and
whatever else acts) are compared with MuJoCo's at random states, in float64. M_ij is relative to sqrt(M_ii M_jj), the bias to its
largest entry, and so is the acceleration, in units of 1 / sqrt(M_ii). Of a sample of these files, `--contacts` of them, the
distances and normals of contacts are compared at instants of MuJoCo's own motion: of each pair of shapes that touch in MuJoCo
the deepest contact, where both have the same shapes (hulls of meshes are not reduced). With `--motion N`, N robots also take
their first step, with everything that comes before it and no kernel kept from an earlier run, and move for a second beside
MuJoCo, whose contacts are softer.

Every file is tried in a worker process with a limit of time: one that crashes or hangs is a row of the table, no more.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _form import Check, Result, at_least, at_most, equals, run, tell
from _guarded import guarded_map
from _robot_contacts import contact_trial
from _robot_files import RobotFile, in_folder, in_packages
from _robot_motion import motion_trial
from _robot_trial import QUANTITIES, trial

LIMIT = 120.0  # s for each file
QUICK_FILES = 2  # of each package and kind
TARGETS = {"MJCF": 0.90, "URDF": 0.95}
TOLERANCE = 1e-9
CONTACT_TOLERANCE = 1e-6  # m of a distance, and of the entries of a normal
CONTACT_SHARE = 0.95  # of contacts; the others are two answers to where two shapes touch that overlap deeply
CONTACT_FILES, QUICK_CONTACT_FILES = 150, 4
LINE_EVERY = 50  # files between two lines of progress

Row = dict[str, Any]


def chosen_files(quick: bool, folder: Sequence[Path]) -> list[RobotFile]:
    """The files of the survey; in a quick run the smallest few of each package."""
    files = in_packages() + [f for name in folder for f in in_folder(name)]
    if not files:
        raise FileNotFoundError("no robot description is installed; name a folder with --folder.")
    if not quick:
        return files
    smallest = sorted(files, key=lambda f: Path(f.path).stat().st_size)
    taken: Counter[tuple[str, str]] = Counter()
    found = []
    for f in smallest:
        taken[f.package, f.kind] += 1
        if taken[f.package, f.kind] <= QUICK_FILES:
            found.append(f)
    return found


def survey(function: Callable[[Any], dict], what: str, tasks: Sequence[Any], limit: float, workers: int) -> list[dict]:
    """What the function finds for every task, in their order; progress on the error stream."""
    results: list[dict[str, Any]] = [{} for _ in tasks]
    for done, (place, result) in enumerate(guarded_map(function, tasks, limit=limit, workers=workers), start=1):
        results[place] = result
        if done % LINE_EVERY == 0 or done == len(tasks):
            tell(f"{what}: {done} of {len(tasks)} files")
    return results


def some(files: Sequence[RobotFile], count: int) -> list[RobotFile]:
    """So many of the files, chosen at random, always the same."""
    return sorted(random.Random(0).sample(list(files), min(count, len(files))), key=lambda f: (f.package, f.name))


def package_rows(files: Sequence[RobotFile], results: Sequence[dict]) -> list[Row]:
    """How many files of each package count, and how many of them open."""
    rows = []
    for package in dict.fromkeys(f.package for f in files):
        row: Row = {"what": "opened", "which": package}
        for kind in TARGETS:
            own = [r for f, r in zip(files, results, strict=True) if (f.package, f.kind) == (package, kind)]
            counted = [r for r in own if "skipped" not in r]
            row[kind] = f"{sum(is_open(r) for r in counted)} of {len(counted)}" if counted else "-"
        rows.append(row | {"example": ""})
    return rows


def is_open(result: dict) -> bool:
    """Whether flexor opened a file, with nothing ignored."""
    return result.get("refusals") == {}


def refusal_rows(files: Sequence[RobotFile], results: Sequence[dict]) -> list[Row]:
    """Features that are refused, those of the most files first, each with the sentence of one file."""
    counts: Counter[tuple[str, str]] = Counter()
    example: dict[str, str] = {}
    for f, r in zip(files, results, strict=True):
        reasons = r.get("refusals") or {}
        if "fault" in r:
            reasons = {r["fault"][:60]: f"{f.package}/{f.name}"}
        for feature, sentence in reasons.items():
            counts[feature, f.kind] += 1
            example.setdefault(feature, sentence)
    order = sorted(example, key=lambda x: -sum(counts[x, kind] for kind in TARGETS))
    return [
        {"what": "refused", "which": x, **{kind: counts[x, kind] or "-" for kind in TARGETS}, "example": example[x]}
        for x in order
    ]


def quantity_rows(files: Sequence[RobotFile], results: Sequence[dict]) -> list[Row]:
    """The largest error of each quantity, and the file that has it."""
    rows = []
    for quantity in QUANTITIES:
        row: Row = {"what": "largest error", "which": quantity}
        worst = ""
        for kind in TARGETS:
            own = [(r["errors"][quantity], f.name) for f, r in compared(files, results) if f.kind == kind]
            row[kind] = max(own)[0] if own else "-"
            worst = max(own)[1] if own and not worst else worst
        rows.append(row | {"example": worst})
    return rows


def compared(files: Sequence[RobotFile], results: Sequence[dict]) -> list[tuple[RobotFile, dict]]:
    """Files whose dynamics were compared with MuJoCo's."""
    return [(f, r) for f, r in zip(files, results, strict=True) if "errors" in r]


def checks(files: Sequence[RobotFile], results: Sequence[dict], *, shares: bool, compare: bool) -> list[Check]:
    """Shares that open, which a handful of files says nothing about, crashes, and agreement."""
    found = []
    for kind, target in TARGETS.items() if shares else ():
        counted = [r for f, r in zip(files, results, strict=True) if f.kind == kind and "skipped" not in r]
        share = sum(map(is_open, counted)) / len(counted) if counted else float("nan")
        found.append(at_least(f"share of {len(counted)} {kind} files that open", share, target))
    grounded = [r for r in results if "ground" in r]
    fallen = sum(r["ground"] != {} for r in grounded)
    found.append(equals(f"URDF files of {len(grounded)} with shapes that open, but not on the ground", fallen, 0))
    found.append(equals("files at which flexor crashes or hangs", sum("fault" in r for r in results), 0))
    for quantity in QUANTITIES if compare else ():
        errors = [r["errors"][quantity] for _, r in compared(files, results)]
        what = f"files of {len(errors)} in which {quantity} differs from MuJoCo by more than {TOLERANCE:g}"
        found.append(at_most(what, sum(not e <= TOLERANCE for e in errors), 0))
    return found


def contact_rows(found: Sequence[dict]) -> list[Row]:
    """Of every kind of pair, how many contacts agree with MuJoCo's in distance and normal, and the largest errors."""
    errors: dict[str, list[tuple[float, float]]] = {}
    for result in found:
        for kind, own in result.get("contacts", {}).items():
            errors.setdefault(kind, []).extend(own)
    rows = []
    for kind, own in sorted(errors.items()):
        agree = sum(agrees(e) for e in own)
        worst = f"largest errors {max(e[0] for e in own):.1e} m and {max(e[1] for e in own):.1e}"
        rows.append(
            {"what": "contacts that agree", "which": kind, "MJCF": f"{agree} of {len(own)}", "URDF": "-", "example": worst}
        )
    return rows


def agrees(error: tuple[float, float]) -> bool:
    """Whether distance and normal of a contact are MuJoCo's."""
    return max(error) <= CONTACT_TOLERANCE


def motion_rows(files: Sequence[RobotFile], found: Sequence[dict]) -> list[Row]:
    """Each robot's seconds to the first step, and how its second of motion ended."""
    rows = []
    for f, r in zip(files, found, strict=True):
        seconds = {kind: r.get("first", "-") if kind == f.kind else "-" for kind in TARGETS}
        if "fault" in r:
            told = r["fault"]
        else:
            told = f"{r['nv']} dofs, {r['pairs']} pairs; one second took {r['rollout']:.2g} s"
            told += f", {r['apart']:.2g} m from MuJoCo" if "apart" in r else "" if r["finite"] else ", not finite"
        rows.append({"what": "first step (s)", "which": f"{f.package}/{Path(f.name).name}", **seconds, "example": told})
    return rows


def measure(
    quick: bool,
    *,
    folder: list[Path],
    open_only: bool,
    contacts: int,
    motion: int,
    limit: float,
    workers: int,
    sample: int | None,
    files: Path | None,
) -> Result:
    """The survey; `files` is where the result of every single file is written."""
    robots = chosen_files(quick, folder)
    robots = robots if sample is None else some(robots, sample)
    results = survey(trial, "opened", [(f, not open_only) for f in robots], limit, workers)
    rows = package_rows(robots, results) + refusal_rows(robots, results)
    found = checks(robots, results, shares=not quick, compare=not open_only)
    opened = [f for f, r in zip(robots, results, strict=True) if is_open(r)]
    if not open_only:
        touching = some([f for f in opened if f.kind == "MJCF"], QUICK_CONTACT_FILES if quick else contacts)
        seen = survey(contact_trial, "contacts", touching, limit, workers)
        rows += quantity_rows(robots, results) + contact_rows(seen)
        errors = [e for r in seen for own in r.get("contacts", {}).values() for e in own]
        what = f"share of {len(errors)} contacts that agree with MuJoCo's within {CONTACT_TOLERANCE:g}"
        found += [at_least(what, sum(map(agrees, errors)) / len(errors), CONTACT_SHARE)] if errors else []
    moving = some(opened, motion)
    rows += motion_rows(moving, survey(motion_trial, "moved", moving, limit, 1)) if moving else []
    if files is not None:
        listed = [{"package": f.package, "file": f.name, "kind": f.kind, **r} for f, r in zip(robots, results, strict=True)]
        files.write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    skipped = Counter(f.kind for f, r in zip(robots, results, strict=True) if "skipped" in r)
    remarks = [f"{skipped[kind]} {kind} files do not count: {why}." for kind, why in WHY_SKIPPED.items() if skipped[kind]]
    return Result(rows, found, remarks)


WHY_SKIPPED = {
    "MJCF": "MuJoCo does not open them (fragments for <include>, other versions, files that are missing)",
    "URDF": "they are no robots, or their meshes are not there",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, action="append", default=[], help="a folder to survey; may be repeated")
    parser.add_argument("--open-only", action="store_true", help="open the files, compare nothing")
    parser.add_argument("--contacts", type=int, default=CONTACT_FILES, metavar="N", help="files whose contacts are compared")
    parser.add_argument("--motion", type=int, default=0, metavar="N", help="robots to move for a second; each takes a while")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="S", help="seconds for each file")
    parser.add_argument("--workers", type=int, default=1, help="files at a time")
    parser.add_argument("--sample", type=int, metavar="N", help="only this many files, chosen at random")
    parser.add_argument("--files", type=Path, metavar="FILE", help="write the result of every file, as JSON")


if __name__ == "__main__":
    run("which robot descriptions does flexor open, and does it move them as MuJoCo does?", measure, add_options)
