"""The file that `flexor identify` reads: TOML; unknown keys are refused, and paths are relative to the file itself."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from flexor.augment import Blueprint
from flexor.augment.blueprint import MODES, SCOPES
from flexor.augment.networks import NETS, AbstractNet
from flexor.cli.identify_method import read_method
from flexor.files import read_toml
from flexor.identify import (
    LBFGS,
    AbstractSearch,
    Adam,
    BasinHopping,
    LevenbergMarquardt,
    Log,
    Pagmo,
    Shooting,
    SparseGroupLasso,
    Torque,
)
from flexor.model.model import Model
from flexor.solvers import AbstractSolver
from flexor.solvers.table import CONTACTS, INTEGRATORS, solver

REQUIRED = ("robot", "logs", "free")
OPTIONAL = (
    "dt", "contact", "integrator", "substeps", "floating", "ground", "ignore", "mesh_vertices", "package_dirs", "self_collision",
    "set", "bounds", "noise", "units", "check_units", "prior", "missing", "shooting", "search", "held_out", "augment", "seed",
    "out", "formats", "longest_delay", "method",
)  # fmt: skip
SEARCHES: dict[str, type[AbstractSearch]] = {c.__name__: c for c in (LevenbergMarquardt, BasinHopping, LBFGS, Adam, Pagmo)}
FORMATS = ("xml", "urdf")
WORDS = {
    str: "a string", float: "a number", bool: "true or false", dict: "a table", list: "a list of tables", int: "an integer",
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """A checked configuration. `logs` and `held_out_logs` are files; `held_out` is a share if there are no
    `held_out_logs`."""

    path: Path
    robot: str
    logs: tuple[Path, ...]
    held_out_logs: tuple[Path, ...]
    held_out: float
    free: tuple[str, ...]
    dt: float
    contact: str
    solver: AbstractSolver
    floating: bool
    ground: bool
    ignore: tuple[str, ...]
    mesh_vertices: int
    package_dirs: tuple[Path, ...]
    self_collision: bool | None
    values: dict[str, Any]
    bounds: dict[str, tuple[Any, Any]]
    noise: dict[str, float]
    units: dict[str, str]
    check_units: bool
    prior: dict[str, float]
    missing: bool
    shooting: Shooting
    search: AbstractSearch | None
    blueprint: Blueprint
    seed: int
    out: Path
    formats: tuple[str, ...]
    longest_delay: float
    method: Torque | None


def read_config(path: Path) -> Config:
    """Reads and checks a file; raises with the wrong key and the allowed ones."""
    data = read_toml(path)
    check_names(data, (*REQUIRED, *OPTIONAL), f"'{path.name}'", REQUIRED)
    here = path.resolve().parent
    share = data.get("held_out", 0.2)
    held_out_logs = () if isinstance(share, int | float) else files(share, here, "held_out")
    logs = tuple(p for p in files(data["logs"], here, "logs") if p not in held_out_logs)
    if not logs:
        raise ValueError(f"'{path.name}': all of its logs are held out; none is left for training.")
    return Config(
        path=path, robot=_robot(_typed(data, "robot", str), here), logs=logs, held_out_logs=held_out_logs,
        held_out=0.0 if held_out_logs else float(share), free=_strings(data["free"], "free"),
        dt=float(_typed(data, "dt", float, 0.002)),
        contact=_contact(data)["name"], solver=_solver(data),
        floating=_typed(data, "floating", bool, False), ground=_typed(data, "ground", bool, False),
        ignore=_strings(data.get("ignore", []), "ignore"), mesh_vertices=_typed(data, "mesh_vertices", int, 32),
        package_dirs=tuple(here / p for p in _strings(data.get("package_dirs", []), "package_dirs")),
        self_collision=None if "self_collision" not in data else _typed(data, "self_collision", bool),
        values=_typed(data, "set", dict, {}),
        bounds=_bounds(_typed(data, "bounds", dict, {})), noise=_typed(data, "noise", dict, {}),
        units=_typed(data, "units", dict, {}), check_units=_typed(data, "check_units", bool, True),
        prior=_typed(data, "prior", dict, {}), missing=_typed(data, "missing", bool, False),
        shooting=_made(Shooting, _typed(data, "shooting", dict, {}), "shooting"), search=_search(data.get("search")),
        blueprint=_blueprint(_typed(data, "augment", list, [])), seed=_typed(data, "seed", int, 0),
        out=here / _typed(data, "out", str, path.stem), formats=_formats(_strings(data.get("formats", ["xml"]), "formats")),
        longest_delay=float(_typed(data, "longest_delay", float, 0.0)),
        method=read_method(data.get("method", "shooting")),
    )  # fmt: skip


def check_names(table: Mapping[str, Any], names: Iterable[str], where: str, required: Sequence[str] = ()) -> None:
    """Raises for the first key of a table that is not among the names, and for the first one that it lacks."""
    unknown = [key for key in table if key not in tuple(names)]
    if unknown:
        raise ValueError(f"{where} has the unknown key '{unknown[0]}'; the keys are {', '.join(names)}.")
    lacking = [key for key in required if key not in table]
    if lacking:
        raise ValueError(f"{where} lacks the key '{lacking[0]}'; it needs {', '.join(required)}.")


def files(patterns: Any, here: Path, key: str) -> tuple[Path, ...]:
    """Files that paths and globs name, relative to a folder, each once."""
    found: dict[Path, None] = {}
    for pattern in _strings(patterns, key):
        base = Path(pattern)
        hits = sorted(here.glob(pattern)) if not base.is_absolute() else sorted(Path(base.anchor).glob(str(base)[1:]))
        if not hits:
            raise FileNotFoundError(f"'{key}' names '{pattern}', but there is no such file in '{here}'.")
        found |= dict.fromkeys(hits)
    return tuple(found)


def read_logs(paths: Iterable[Path], model: Model, config: Config) -> list[Log]:
    """Logs in SI units, with the noise that the configuration's patterns give their columns."""
    logs = [Log.read(p, model, noise=config.noise, units=config.units, missing=config.missing) for p in paths]
    columns = {c for log in logs for c in log.columns}
    for pattern in config.noise:
        if not any(fnmatchcase(c, pattern) for c in columns):
            raise ValueError(f"'noise' names '{pattern}', but the logs have {', '.join(sorted(columns))}.")
    return logs


def _robot(name: str, here: Path) -> str:
    """A file beside the configuration if there is one, else the name of a robot."""
    return str(here / name) if (here / name).is_file() else name


def _typed(data: Mapping[str, Any], key: str, kind: type, default: Any = None) -> Any:
    value = data.get(key, default)
    right = isinstance(value, int | float) and not isinstance(value, bool) if kind is float else isinstance(value, kind)
    if not right or (kind is int and isinstance(value, bool)):
        raise ValueError(f"'{key}' must be {WORDS[kind]}, got {value!r}.")
    return value


def _strings(value: Any, key: str) -> tuple[str, ...]:
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ValueError(f"'{key}' must be a list of strings, got {value!r}.")
    return tuple(value)


def _choice(data: Mapping[str, Any], key: str, names: tuple[str, ...], default: str) -> str:
    value = data.get(key, default)
    if value not in names:
        raise ValueError(f"'{key}' must be one of {', '.join(names)}, got {value!r}.")
    return str(value)


def _contact(data: Mapping[str, Any]) -> dict[str, Any]:
    """The contact model: a name, or a table with a `name` and its options."""
    given = data.get("contact", "ncp")
    table = dict(given) if isinstance(given, dict) else {"name": given}
    return {**table, "name": _choice({"contact": table.get("name", "ncp")}, "contact", tuple(CONTACTS), "ncp")}


def _solver(data: Mapping[str, Any]) -> AbstractSolver:
    integrator = _choice(data, "integrator", tuple(INTEGRATORS), "euler")
    return solver(_contact(data), integrator=integrator, substeps=data.get("substeps", 1))


def _formats(given: tuple[str, ...]) -> tuple[str, ...]:
    for name in given:
        _choice({"formats": name}, "formats", FORMATS, "xml")
    return given


def _bounds(table: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    for pattern, pair in table.items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"'bounds' of '{pattern}' must be [low, high], got {pair!r}.")
    return {pattern: (pair[0], pair[1]) for pattern, pair in table.items()}


def _made(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    """An object of a frozen class from a table of its fields."""
    check_names(table, [f.name for f in dataclasses.fields(kind)], f"'{where}'")
    return kind(**table)


def _search(table: Any) -> AbstractSearch | None:
    if table is None:
        return None
    fields: dict[str, Any] = {"name": table} if isinstance(table, str) else dict(table)
    name = fields.pop("name", None)
    if name not in SEARCHES:
        raise ValueError(f"'search' needs a name among {', '.join(SEARCHES)}, got {name!r}.")
    if "penalty" in fields:
        fields["penalty"] = _made(SparseGroupLasso, fields["penalty"], "search.penalty")
    return _made(SEARCHES[name], fields, f"search, {name},")


def _net(table: Any) -> AbstractNet:
    fields: dict[str, Any] = {"name": table} if isinstance(table, str) else dict(table)
    name = fields.pop("name", "MLP")
    if name not in NETS:
        raise ValueError(f"'augment' has the net {name!r}; there are {', '.join(NETS)}.")
    if "of" in fields:
        fields["of"] = _net(fields["of"])
    return _made(NETS[name], fields, f"augment.net, {name},")


def _blueprint(tables: list[Any]) -> Blueprint:
    blueprint = Blueprint()
    for table in tables:
        check_names(table, ("output", "inputs", "net", "mode", "over", "scales"), "'augment'")
        lacking = [key for key in ("output", "inputs") if key not in table]
        if lacking:
            raise ValueError(f"a table of 'augment' lacks the key '{lacking[0]}'.")
        mode, over = _choice(table, "mode", tuple(MODES), "Add"), _choice(table, "over", tuple(SCOPES), "Whole")
        blueprint.add(
            table["output"], inputs=_strings(table["inputs"], "augment.inputs"), net=_net(table.get("net", {})),
            mode=MODES[mode](), over=SCOPES[over](), scales=table.get("scales"),
        )  # fmt: skip
    return blueprint
