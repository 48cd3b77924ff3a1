"""`flexor tasks`: the tasks that come with flexor."""

import inspect

from flexor.cli import console


def tasks() -> None:
    """List the tasks that `flexor train` takes, with their robots and sizes."""
    from flexor.envs import TASKS, make

    rows = []
    with console.spinner("loading robots"):
        for name in TASKS:
            task = make(name)
            about = (inspect.getdoc(type(task)) or "").partition("\n")[0].partition(":")[0].rstrip(".")
            rows.append([name, task.sim.model.topology.name, task.observations, task.actions, task.length,
                         float(task.sim.dt), about])  # fmt: skip
    columns = ["task", "robot", ">observations", ">actions", ">steps", ">step (s)", "about"]
    console.out().print(console.table("", columns, rows))
