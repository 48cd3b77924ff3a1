"""The file that `flexor adapt` reads: TOML; unknown keys are refused, and the robot's file is relative to it."""

import dataclasses
from pathlib import Path
from typing import Any

from flexor.adapt import ESTIMATORS, Adapter
from flexor.cli.identify_config import check_names
from flexor.cli.loading import Robot
from flexor.files import read_toml
from flexor.model.parameters import replace
from flexor.solvers import Simulator
from flexor.solvers.table import solver

REQUIRED = ("robot", "free")
OPTIONAL = ("dt", "contact", "floating", "ground", "set", "estimator", "noise", "prior", "limits", "gap", "drift", "limit",
            "settle")  # fmt: skip
PASSED_ON = ("noise", "prior", "limits", "gap", "drift", "limit", "settle")


def read_table(path: Path) -> dict[str, Any]:
    """The checked table of a configuration."""
    data = read_toml(path)
    check_names(data, (*REQUIRED, *OPTIONAL), f"'{path.name}'", REQUIRED)
    return data


def adapter_of(path: Path, data: dict[str, Any], columns: list[str]) -> Adapter:
    """The adapter that a configuration describes, for a stream with these columns."""
    name = str(data["robot"])
    beside = path.resolve().parent / name
    robot = Robot(str(beside) if beside.is_file() else name, data.get("floating", False), data.get("ground", False))
    model = replace(robot.load(), data.get("set", {}))
    sim = Simulator(model, solver(data.get("contact", "none")), dt=data.get("dt", 0.002))
    options = {key: data[key] for key in PASSED_ON if key in data}
    options["limits"] = {k: tuple(pair) for k, pair in options.get("limits", {}).items()}
    return Adapter(sim, data["free"], estimator=_estimator(data.get("estimator", "MomentumRLS")), columns=columns, **options)


def _estimator(given: Any) -> Any:
    """A name, or a table with a `name` and options."""
    table = dict(given) if isinstance(given, dict) else {"name": given}
    name = table.pop("name", None)
    if name not in ESTIMATORS:
        raise ValueError(f"'estimator' must be one of {', '.join(ESTIMATORS)}, got {name!r}.")
    kind = ESTIMATORS[name]
    check_names(table, [f.name for f in dataclasses.fields(kind)], "'estimator'")
    return kind(**table)
