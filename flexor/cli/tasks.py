"""`flexor tasks`: the tasks that come with flexor."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from flexor.cli import console


def tasks(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK]...", help="Tasks to load, and to tell the sizes of.")
    ] = None,
) -> None:
    """List the tasks that `flexor train` takes; with names, the robots and sizes of these."""
    from flexor.envs import TASKS, make

    if not names:
        console.out().print(console.table("", ["task", "about"], [[name, _about(TASKS[name])] for name in TASKS]))
        return
    rows = []
    with console.spinner("loading robots"):
        for name in names:
            task = make(name)
            sizes = (task.observations, task.actions, task.length, float(task.sim.dt))
            rows.append([name, task.sim.model.topology.name, *sizes])
    columns = ["task", "robot", ">observations", ">actions", ">steps", ">step (s)"]
    console.out().print(console.table("", columns, rows))


def _about(build: Callable[..., Any]) -> str:
    """The first words about what makes a task: those of its class, or of a function of its own."""
    build = build.func if isinstance(build, functools.partial) else build
    words = inspect.getdoc(getattr(build, "__self__", build)) or ""
    for end in (". ", ".\n", ": ", " ("):
        words = words.partition(end)[0]
    return " ".join(words.rstrip(".").split())
