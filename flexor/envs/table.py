"""The tasks by name: `make("ant-run")`."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from flexor.envs import gymnasium_table, joysticks
from flexor.envs.ant import AntRun, AntSpin, AntSpinTrack
from flexor.envs.cartpole import CartpoleSwingUp
from flexor.envs.episode import check
from flexor.envs.franka import Reach
from flexor.envs.task import AbstractTask
from flexor.envs.walk import anymal_forward, anymal_side, quadruped_forward, quadruped_side
from flexor.solvers import AbstractSolver

TASKS: Mapping[str, Callable[..., AbstractTask]] = {
    "cartpole": CartpoleSwingUp.build,
    "ant-run": AntRun.build,
    "ant-spin": AntSpin.build,
    "ant-spin-track": AntSpinTrack.build,
    "quadruped-forward": quadruped_forward,
    "quadruped-side": quadruped_side,
    "anymal-forward": anymal_forward,
    "anymal-side": anymal_side,
    "franka-reach": Reach.build,
    "franka-reach-torque": Reach.by_torque,
    **joysticks.BUILDERS,
    **gymnasium_table.BUILDERS,
}
"""Tasks that come with flexor: what makes each, and takes its options."""


def make(name: str, *, solver: AbstractSolver | str | Mapping[str, Any] | None = None, **options: Any) -> AbstractTask:
    """A task by name, under its own physics or another `solver`; the options are those of its `build`."""
    if name not in TASKS:
        close = get_close_matches(name, TASKS, n=1)
        guess = f" Did you mean '{close[0]}'?" if close else ""
        raise KeyError(f"there is no task '{name}'.{guess} There are {', '.join(TASKS)}.")
    task = TASKS[name](**options)
    task = task if solver is None else task.on(solver)
    check(task)
    return task
