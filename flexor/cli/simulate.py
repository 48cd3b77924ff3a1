"""`flexor simulate FILE`: a rollout, to files, plots and videos."""

import time
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.markup import escape

from flexor.cli import console
from flexor.cli.controls import Between, read_controls
from flexor.cli.loading import Robot, size, takes_robot, use_float64
from flexor.files import write_with
from flexor.model.model import Model, State
from flexor.solvers import Simulator, Trajectory
from flexor.solvers.table import solver as solver_by_name

PARTS = 20  # of a rollout, between which the progress bar moves
LEAST = 2000  # steps of a part: fewer would measure the call, not the steps

SolverName = StrEnum("SolverName", ["rigid", "mujoco"])
ContactName = StrEnum("ContactName", ["ncp", "penalty", "mixed", "none"])
IntegratorName = StrEnum(
    "IntegratorName", {"euler": "euler", "implicit": "implicit", "rk4": "rk4", "split_rk4": "split-rk4"}
)


@takes_robot
def simulate(
    robot: Robot,
    seconds: Annotated[float | None, typer.Option(help="Duration: 2 s, or as long as the controls.")] = None,
    dt: Annotated[float | None, typer.Option(help="Time step in s, 0.002 by default.")] = None,
    solver: Annotated[SolverName | None, typer.Option(help="Solver, rigid by default.")] = None,
    contact: Annotated[ContactName | None, typer.Option(help="Contact model of the rigid solver, ncp by default.")] = None,
    integrator: Annotated[IntegratorName | None, typer.Option(help="Integrator, euler by default.")] = None,
    keyframe: Annotated[str, typer.Option(help="Start at this configuration of the description.")] = "",
    q: Annotated[
        str, typer.Option("--q", help="Start at these coordinates: numbers with commas, or a .npy or text file.")
    ] = "",
    qd: Annotated[str, typer.Option("--qd", help="Start with these velocities, likewise.")] = "",
    controls: Annotated[
        Path | None, typer.Option(help="Controls: .csv with the actuators' names and perhaps time, or .npy, a row per step.")
    ] = None,
    between: Annotated[Between, typer.Option(help="What acts between the rows of --controls.")] = Between.hold,
    record: Annotated[
        list[str] | None, typer.Option(help="Tap to keep, such as contact.normal_force; may be repeated.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the trajectory: .h5, .csv or .npz.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it: .png, .svg or .pdf.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write an animation as one HTML page.")] = None,
    video: Annotated[Path | None, typer.Option(help="Render a video: .gif or .mp4.")] = None,
    float64: Annotated[bool, typer.Option("--float64", help="Compute in double precision.")] = False,
) -> None:
    """Simulate a robot, passively or under given controls, and write what happened."""
    if float64:
        use_float64()
    check_endings({output: (".h5", ".hdf5", ".csv", ".npz"), plot: (".png", ".svg", ".pdf"), video: (".gif", ".mp4"),
                    html: (".html",)})  # fmt: skip
    if keyframe and q:
        raise ValueError("give either --keyframe or --q, not both.")
    sim = build(robot, dt, solver, contact, integrator)
    state = sim.reset(keyframe or (numbers(q, "--q") if q else None), numbers(qd, "--qd") if qd else None)
    if controls is None:
        u = np.zeros((step_count(2.0 if seconds is None else seconds, float(sim.dt)), sim.model.nu))
    else:
        u = read_controls(controls, sim.model, float(sim.dt), seconds, between)
    trajectory, per_step = run(sim, state, u, record or ())
    _summarise(sim, trajectory, per_step)
    write_results(sim.model, trajectory, output, plot, html, video)


def build(
    robot: Robot,
    dt: float | None,
    solver: SolverName | None,
    contact: ContactName | None,
    integrator: IntegratorName | None,
) -> Simulator:
    """The simulator that the options describe, or the saved one, which has solver and time step of its own."""
    if robot.folder is not None:
        for option, given in {"--dt": dt, "--solver": solver, "--contact": contact, "--integrator": integrator}.items():
            if given is not None:
                raise ValueError(
                    f"'{robot.file}' is a saved simulator with its own solver and time step: leave {option} out."
                )
        return robot.open()
    if solver is SolverName.mujoco and contact is not None:
        raise ValueError("--contact is an option of the rigid solver; MuJoCo has its own contact model.")
    name = "mujoco" if solver is SolverName.mujoco else str(contact or "ncp")
    made = solver_by_name(name, integrator=str(integrator or "euler"))
    return Simulator(robot.load(), made, dt=0.002 if dt is None else dt)


def step_count(seconds: float, dt: float) -> int:
    """Number of time steps in a duration."""
    if not (np.isfinite(seconds) and seconds > 0):
        raise ValueError(f"--seconds must be a positive number, got {seconds}.")
    return max(1, round(seconds / dt))


def numbers(text: str, option: str) -> np.ndarray:
    """Numbers from "0.1,0.2" or from a file: .npy, or text with commas, spaces or lines between them."""
    path = Path(text)
    try:
        if path.suffix == ".npy":
            return np.load(path).astype(float).ravel()
        if path.is_file():
            text = " ".join(path.read_text().split())
        return np.array([float(x) for x in text.replace(",", " ").split()])
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{option} takes numbers with commas between them, or a .npy or text file; got '{path}'."
        ) from error


def run(sim: Simulator, state: State, u: np.ndarray, record: Sequence[str] = ()) -> tuple[Trajectory, float]:
    """The rollout in equal parts behind a progress bar, and the seconds that a step takes once everything is compiled.

    The last part may overshoot, so that only one length is compiled; the excess is cut off. A part that diverges is the
    last. The first part runs again, since its first time was mostly compilation.
    """
    steps = len(u)
    length = min(steps, max(LEAST, -(-steps // PARTS)))
    count = -(-steps // length)
    controls = np.concatenate([u, np.repeat(u[-1:], -steps % length, axis=0)]).reshape(count, length, u.shape[1])

    def part(state: State, i: int) -> tuple[Trajectory, float]:
        begun = time.perf_counter()
        made = jax.block_until_ready(sim.rollout(state, controls[i], record=record))
        return made, time.perf_counter() - begun

    with console.spinner(announcement(sim)):
        parts = [console.interruptible(lambda: part(state, 0))[0]]
    with console.progress(f"simulating {steps} steps", steps) as advance:
        lasted = [console.interruptible(lambda: part(state, 0))[1]]
        advance(length)
        while len(parts) < count and (parts[-1].status.ok or parts[-1].status.doubtful) and parts[-1].final is not None:
            made, seconds = console.interruptible(partial(part, parts[-1].final, len(parts)))
            parts.append(made)
            lasted.append(seconds)
            advance(min(steps, len(parts) * length))
    return joined(parts, steps), sum(lasted) / (len(lasted) * length)


def announcement(sim: Simulator) -> str:
    """What is about to be compiled."""
    return f"compiling a rollout of {sim.model.topology.name}, {size(sim.model)}"


def joined(parts: Sequence[Trajectory], steps: int) -> Trajectory:
    """Trajectories that continue one another as one, cut to a number of steps."""
    first = parts[0]

    def states(name: str) -> jax.Array:
        return jnp.concatenate([getattr(first, name)[:1], *(getattr(p, name)[1:] for p in parts)])[: steps + 1]

    def inputs(pick: list[jax.Array]) -> jax.Array:
        return jnp.concatenate(pick)[:steps]

    taps = {name: inputs([p.taps[name] for p in parts]) for name in first.taps}
    whole = sum(len(p) for p in parts) == steps
    return Trajectory(
        time=states("time"),
        q=states("q"),
        qd=states("qd"),
        u=inputs([p.u for p in parts]),
        taps=taps,
        final=parts[-1].final if whole else None,
        topology=first.topology,
        budget=first.budget,
    )


def check_endings(wanted: dict[Path | None, tuple[str, ...]]) -> None:
    """Raises before the work if a file has the wrong extension or its folder does not exist."""
    for path, endings in wanted.items():
        if path is None:
            continue
        if path.suffix not in endings:
            raise ValueError(f"'{path.name}' must end in {', '.join(endings)}.")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"cannot write '{path}': the folder '{path.parent}' does not exist.")


def _summarise(sim: Simulator, trajectory: Trajectory, per_step: float) -> None:
    t, dt = sim.model.topology, float(sim.dt)
    out = console.out()
    out.print(f"[bold]{escape(t.name)}[/]: {len(trajectory)} steps of {dt:.4g} s by {type(sim.solver).__name__}")
    out.print(f"{per_step * 1e6:.3g} µs per step once compiled, {dt / per_step:.3g} times real time\n")
    q0, q1 = (np.asarray(trajectory.q[i], float) for i in (0, -1))
    shown = range(min(t.nq, 12))
    rows = [[t.q_name(i), float(q0[i]), float(q1[i])] for i in shown]
    out.print(console.table("", ["coordinate", ">start", ">end"], rows))
    if t.nq > len(shown):
        out.print(f"and {t.nq - len(shown)} more coordinates")


def write_results(
    model: Model, trajectory: Trajectory, output: Path | None, plot: Path | None, html: Path | None, video: Path | None
) -> None:
    """Writes the requested files and lists them. A trajectory that diverged is written too, and then raises with its
    status."""
    out = console.out()
    if output is not None:
        out.print(f"trajectory: {trajectory.save(output)}")
    trajectory.raise_if_bad()
    if plot is not None:
        from flexor.viz.plots import trajectory_figure

        figure = trajectory_figure(trajectory)
        write_with({plot: lambda part: figure.savefig(part, dpi=150)})
        out.print(f"plot: {plot}")
    if html is not None:
        from flexor.viz.animation import save_animation

        out.print(f"animation: {save_animation(html, model, trajectory)}")
    if video is not None:
        from flexor.viz.video import save_video

        with console.progress("rendering", None) as advance:
            save_video(video, model, trajectory, progress=advance)
        out.print(f"video: {video}")
