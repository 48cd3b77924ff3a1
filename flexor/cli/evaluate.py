"""`flexor evaluate CONFIG`: many policies, seeds and solvers in one table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from flexor.cli import console
from flexor.cli.loading import Executor
from flexor.files import json_bytes, read_toml, write_whole

KEYS = ("policies", "task", "options", "solvers", "seeds", "episodes")


def evaluate(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file, see docs/learning.md.")],
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the figures of every seed.")] = None,
    executor: Executor = "local",
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep what is done there, from which the same command goes on.")
    ] = None,
) -> None:
    """Returns of many episodes for policies, solvers and seeds."""
    from flexor.cli.task_recipe import physics, recipe_of
    from flexor.cluster import executor as named
    from flexor.learn import evaluate as run
    from flexor.learn import load, summary

    if json is not None and not json.parent.is_dir():
        raise FileNotFoundError(f"cannot write '{json}': the folder '{json.parent}' does not exist.")
    who, settings = named(executor), read_config(config)
    policies = {name: load(given) for name, given in settings["policies"].items()}
    name, first = next(iter(policies.items()))
    task = recipe_of(first, name, settings["task"], None, settings["options"]).build()
    solvers = {name: physics(given) for name, given in settings["solvers"].items()} or None
    text = f"{task.name}, {settings['episodes']} episodes each"
    with console.progress(text, len(policies) * len(settings["seeds"]) * len(solvers or "1")) as advance:
        found = run(policies, task, solvers=solvers, seeds=settings["seeds"], episodes=settings["episodes"],
                    executor=who, keep=keep, progress=lambda done, total: advance(done))  # fmt: skip
    columns = ["policy", "physics", ">episodes", ">return", ">deviation", ">between seeds", ">length", ">ended", ">diverged"]
    rows = [[_shown(row[c.removeprefix(">")]) for c in columns] for row in summary(found)]
    console.out().print(console.table(text, columns, rows))
    if json is not None:
        report = {"task": task.name, "summary": summary(found), "rows": [e.row() for e in found]}
        write_whole({json: json_bytes(report)})
        console.out().print(str(json), markup=False, soft_wrap=True)


def _shown(x: Any) -> Any:
    return "-" if x is None else x


def read_config(path: Path) -> dict[str, Any]:
    """The checked file: policies and solvers by name, and the rest with its defaults."""
    data = read_toml(path)
    unknown = [key for key in data if key not in KEYS]
    if unknown:
        raise ValueError(f"'{path.name}' has the key '{unknown[0]}', which is not known; there are {', '.join(KEYS)}.")
    here, solvers = path.resolve().parent, data.get("solvers", {})
    if isinstance(solvers, list):
        solvers = {_name(given): given for given in solvers}
    elif not isinstance(solvers, dict):
        raise ValueError(f"'{path.name}': `solvers` must be a list of solvers, or a table of them by name.")
    seeds, episodes = data.get("seeds", [0]), data.get("episodes", 2048)
    if not isinstance(seeds, list) or not seeds or not all(isinstance(x, int) for x in seeds):
        raise ValueError(f"'{path.name}': `seeds` must be a list of whole numbers, got {seeds!r}.")
    if not isinstance(episodes, int) or episodes < 1:
        raise ValueError(f"'{path.name}': `episodes` must be a positive whole number, got {episodes!r}.")
    return {
        "policies": _policies(path.name, data.get("policies"), here), "task": data.get("task"),
        "options": data.get("options", {}), "solvers": {name: _near(given, here) for name, given in solvers.items()},
        "seeds": seeds, "episodes": episodes,
    }  # fmt: skip


def _name(given: Any) -> str:
    if isinstance(given, Mapping):
        return " ".join([str(given.get("name")), *(f"{k}={v}" for k, v in given.items() if k != "name")])
    return Path(given).stem if str(given).endswith(".safetensors") else str(given)


def _near(given: Any, here: Path) -> Any:
    """Files relative to the configuration."""
    return str(here / given) if isinstance(given, str) and given.endswith(".safetensors") else given


def _policies(config: str, given: Any, here: Path) -> dict[str, str | Path]:
    """Files, and policies of the package, by name. A pattern stands for all the files that it matches, named by their paths."""
    entries = given.items() if isinstance(given, dict) else [(None, x) for x in given] if isinstance(given, list) else ()
    found: dict[str, str | Path] = {}
    for name, pattern in entries:
        if not isinstance(pattern, str):
            raise ValueError(f"'{config}': `policies` must name files or policies of the package, got {pattern!r}.")
        if not pattern.endswith(".safetensors"):
            found[name or pattern] = pattern
            continue
        files = sorted(here.glob(pattern)) if any(c in pattern for c in "*?[") else [here / pattern]
        if not files:
            raise FileNotFoundError(f"'{config}': no policy matches '{pattern}'.")
        for file in files:
            own = str(file.relative_to(here).with_suffix("")) if file.is_relative_to(here) else str(file.with_suffix(""))
            own = own.removesuffix("/policy")
            found[own if name is None else name if len(files) == 1 else f"{name} {own}"] = file
    if not found:
        raise ValueError(f"'{config}' needs `policies`: a list of files, or a table of them by name.")
    return found
