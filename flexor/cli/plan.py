"""`flexor plan EXERCISE` and `flexor plan ROBOT --goal POSE`: controls that bring a robot somewhere."""

import time
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from flexor.cli import console
from flexor.cli.loading import Robot, takes_robot, use_float64
from flexor.cli.simulate import check_endings, step_count, write_results

PlannerName = StrEnum("PlannerName", ["ilqr", "mppi", "predictive-sampling", "cross-entropy"])


@takes_robot
def plan(
    robot: Robot,
    goal: Annotated[
        str | None,
        typer.Option(help="Where the robot is to be at the end, at rest: a keyframe, or its coordinates `0,1.5`."),
    ] = None,
    start: Annotated[str | None, typer.Option(help="Where it begins, likewise.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Duration of the motion, 2 s by default.")] = None,
    dt: Annotated[float | None, typer.Option(help="Time between two controls in s, 0.02 by default.")] = None,
    substeps: Annotated[int | None, typer.Option(min=1, help="Steps of the physics in that time, 4 by default.")] = None,
    effort: Annotated[
        float | None, typer.Option(help="Weight of the controls, as shares of their range, 0.1 by default.")
    ] = None,
    planner: Annotated[PlannerName, typer.Option(help="What finds the plan.")] = PlannerName.ilqr,
    iterations: Annotated[int | None, typer.Option(min=1, help="At most so many.", show_default=False)] = None,
    samples: Annotated[int, typer.Option(min=2, help="Size of the population, where motions are sampled.")] = 512,
    output: Annotated[Path | None, typer.Option(help="Write the trajectory: .h5, .csv or .npz.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it: .png, .svg or .pdf.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write an animation as one HTML page.")] = None,
    video: Annotated[Path | None, typer.Option(help="Render a video: .gif or .mp4.")] = None,
) -> None:
    """Plan a motion through the simulator: an exercise (cartpole, acrobot, panda-reach, quadruped-jump), or a robot to a pose."""
    use_float64()
    check_endings({output: (".h5", ".hdf5", ".csv", ".npz"), plot: (".png", ".svg", ".pdf"), video: (".gif", ".mp4"),
                   html: (".html",)})  # fmt: skip
    with console.spinner(f"loading {robot.file}"):
        what = _exercise(robot, goal, start, {"seconds": seconds, "dt": dt, "substeps": substeps, "effort": effort})
    chosen = _planner(planner, iterations, samples)
    name = what.sim.model.topology.name
    begun = time.perf_counter()
    with console.progress(f"planning for {name}, compiling", None) as advance:
        found = console.interruptible(
            lambda: chosen.plan(
                what.sim, what.objective, what.start,
                progress=lambda done, most, cost: advance(done, most, f"planning for {name}, cost {cost:.4g}"),
            )
        )  # fmt: skip
    out = console.out()
    out.print(
        f"[bold]{escape(name)}[/]: {len(found.controls)} steps, cost {found.history[0]:.4g} to {found.cost:.4g} in "
        f"{len(found.history) - 1} iterations, {time.perf_counter() - begun:.1f} s with compiling: {escape(found.status.message)}"
    )
    rows = [[f.what, f.value, f.limit, bool(f.value <= f.limit)] for f in what.judge(found.trajectory)]
    if rows:
        out.print(console.table("", ["figure", ">value", ">at most", ""], rows))
    if found.status.ok:
        write_results(what.sim.model, found.trajectory, output, plot, html, video)
    elif output is not None:
        out.print(f"trajectory: {found.trajectory.save(output)}")
    found.raise_if_bad()


def _exercise(robot: Robot, goal: str | None, start: str | None, options: dict[str, Any]) -> Any:
    """The exercise of this name, or that of bringing a robot to a pose."""
    from flexor.envs.exercises import EXERCISES, exercise, pose
    from flexor.solvers import Simulator
    from flexor.solvers.table import solver

    if goal is None:
        if robot.file not in EXERCISES:
            raise ValueError(
                f"'{robot.file}' is no exercise ({', '.join(EXERCISES)}); for a robot, say where it is to be: --goal."
            )
        if start is not None:
            raise ValueError("an exercise has a start of its own: --start goes with --goal.")
        plain = Robot(robot.file)
        own = [f.name for f in fields(robot) if getattr(robot, f.name) not in (getattr(plain, f.name), [])]
        given = [*(name for name, x in options.items() if x is not None), *own]
        if given:
            option = "--" + {"values": "set"}.get(given[0], given[0]).replace("_", "-")
            raise ValueError(f"an exercise is complete: {option} goes with --goal.")
        return exercise(robot.file)
    chosen = {
        "seconds": 2.0,
        "dt": 0.02,
        "substeps": 4,
        "effort": 0.1,
        **{k: x for k, x in options.items() if x is not None},
    }
    model, steps = robot.load(), step_count(chosen["seconds"], chosen["dt"])
    sim = Simulator(model, solver("ncp", substeps=chosen["substeps"]), dt=chosen["dt"])
    begin = None if start is None else _coordinates(model, start)
    return pose(sim, _coordinates(model, goal), begin, steps, chosen["effort"])


def _coordinates(model: Any, text: str) -> np.ndarray:
    """Coordinates of a keyframe, or numbers with commas between them."""
    if text in model.topology.keyframes:
        return np.asarray(model.keyframe(text))
    try:
        numbers = np.array([float(x) for x in text.split(",")])
    except ValueError:
        names = ", ".join(model.topology.keyframes) or "none"
        raise ValueError(
            f"'{text}' is neither a keyframe of '{model.topology.name}' (it has {names}) nor coordinates such as `0,1.5`."
        ) from None
    if numbers.shape != (model.nq,):
        raise ValueError(f"'{model.topology.name}' has {model.nq} coordinates, got {len(numbers)} in '{text}'.")
    return numbers


def _planner(name: PlannerName, iterations: int | None, samples: int) -> Any:
    from flexor.control import ILQR, MPPI, CrossEntropy, PredictiveSampling

    given = {} if iterations is None else {"iterations": iterations}
    if name is PlannerName.ilqr:
        return ILQR(**given)
    kinds = {"mppi": MPPI, "predictive-sampling": PredictiveSampling, "cross-entropy": CrossEntropy}
    return kinds[str(name)](samples=samples, **{"iterations": 50, **given})
