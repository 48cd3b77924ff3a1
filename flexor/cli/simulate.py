"""`flexor simulate FILE`: a rollout, to files, plots and videos."""

import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer

from flexor.cli import console
from flexor.cli.loading import File, Floating, Ground, Ignore, load_robot, use_float64
from flexor.contact import NCP, Penalty
from flexor.model.model import Model, State
from flexor.solvers import RK4, ImplicitDamping, RigidSolver, SemiImplicitEuler, Simulator, Trajectory
from flexor.solvers.solver import AbstractSolver

_PARTS = 20  # of a rollout, between which the progress bar moves

SolverName = StrEnum("SolverName", ["rigid", "mujoco"])
ContactName = StrEnum("ContactName", ["ncp", "penalty", "none"])
IntegratorName = StrEnum("IntegratorName", ["euler", "implicit", "rk4"])


def simulate(
    file: File,
    seconds: Annotated[float, typer.Option(help="Duration.")] = 2.0,
    dt: Annotated[float, typer.Option(help="Time step in s.")] = 0.002,
    solver: Annotated[SolverName, typer.Option(help="Whose physics.")] = SolverName.rigid,
    contact: Annotated[ContactName, typer.Option(help="Contact model of the rigid solver.")] = ContactName.ncp,
    integrator: Annotated[IntegratorName, typer.Option(help="Integrator of the rigid solver.")] = IntegratorName.euler,
    keyframe: Annotated[str, typer.Option(help="Start at this configuration of the description.")] = "",
    q: Annotated[
        str, typer.Option("--q", help="Start at these coordinates: numbers with commas, or a .npy or text file.")
    ] = "",
    qd: Annotated[str, typer.Option("--qd", help="Start with these velocities, likewise.")] = "",
    floating: Floating = False,
    ground: Ground = False,
    ignore: Ignore = None,
    record: Annotated[
        list[str] | None, typer.Option(help="Tap to keep, such as contact.normal_force; may be repeated.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the trajectory: .h5, .csv or .npz.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it: .png, .svg or .pdf.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write an animation as one HTML page.")] = None,
    video: Annotated[Path | None, typer.Option(help="Render a video: .gif or .mp4.")] = None,
    float64: Annotated[bool, typer.Option("--float64", help="Compute in double precision.")] = False,
) -> None:
    """Simulate a robot without control and write what happened."""
    if float64:
        use_float64()
    _check_endings({output: (".h5", ".hdf5", ".csv", ".npz"), plot: (".png", ".svg", ".pdf"), video: (".gif", ".mp4")})
    if keyframe and q:
        raise ValueError("give either --keyframe or --q, not both.")
    model = load_robot(file, floating, ground, ignore)
    sim = Simulator(model, choose_solver(solver, contact, integrator), dt=dt)
    state = sim.reset(keyframe or (numbers(q, "--q") if q else None), numbers(qd, "--qd") if qd else None)
    trajectory, wall = run(sim, state, step_count(seconds, dt), record or ())
    _summarise(sim, trajectory, wall)
    write_results(model, trajectory, output, plot, html, video)


def step_count(seconds: float, dt: float) -> int:
    """Number of time steps in a duration."""
    if not (np.isfinite(seconds) and seconds > 0):
        raise ValueError(f"--seconds must be a positive number, got {seconds}.")
    return max(1, round(seconds / dt))


def choose_solver(solver: SolverName, contact: ContactName, integrator: IntegratorName) -> AbstractSolver:
    """The solver that the options name."""
    if solver is SolverName.mujoco:
        from flexor.solvers import MujocoSolver

        return MujocoSolver()
    contacts = {ContactName.ncp: NCP(), ContactName.penalty: Penalty(), ContactName.none: None}
    integrators = {
        IntegratorName.euler: SemiImplicitEuler(),
        IntegratorName.implicit: ImplicitDamping(),
        IntegratorName.rk4: RK4(),
    }
    return RigidSolver(contact=contacts[contact], integrator=integrators[integrator])


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


def run(sim: Simulator, state: State, steps: int, record: Sequence[str] = ()) -> tuple[Trajectory, float]:
    """The rollout in equal parts behind a progress bar, and the seconds that all but the compilation took.

    The last part may overshoot, so that only one length is compiled; what is too much is cut off. A part that leaves the
    finite numbers is the last.
    """
    size = -(-steps // _PARTS)
    parts: list[Trajectory] = []
    with console.spinner(f"compiling a step of {sim.model.topology.name}"):
        parts.append(jax.block_until_ready(sim.rollout(state, steps=size, record=record)))
    start = time.perf_counter()
    with console.progress("simulating", steps) as advance:
        advance(size)
        while len(parts) * size < steps and parts[-1].status.ok:
            last = parts[-1].final
            assert last is not None
            parts.append(jax.block_until_ready(sim.rollout(last, steps=size, record=record)))
            advance(min(steps, len(parts) * size))
    share = max(1, len(parts)) / max(1, len(parts) - 1)
    return joined(parts, steps), (time.perf_counter() - start) * share if len(parts) > 1 else float("nan")


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
    )


def _check_endings(wanted: dict[Path | None, tuple[str, ...]]) -> None:
    """Raises before the work, not after it, when a file's ending or folder will not do."""
    for path, endings in wanted.items():
        if path is None:
            continue
        if path.suffix not in endings:
            raise ValueError(f"'{path.name}' must end in {', '.join(endings)}.")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"cannot write '{path}': the folder '{path.parent}' does not exist.")


def _summarise(sim: Simulator, trajectory: Trajectory, wall: float) -> None:
    t = sim.model.topology
    steps, duration = len(trajectory), float(trajectory.time[-1])
    speed = f", {wall / steps * 1e6:.3g} µs per step, {duration / wall:.3g} times real time" if np.isfinite(wall) else ""
    out = console.out()
    out.print(f"[bold]{t.name}[/]: {steps} steps of {float(sim.dt):.4g} s by {type(sim.solver).__name__}{speed}")
    q0, q1 = (np.asarray(trajectory.q[i], float) for i in (0, -1))
    shown = range(min(t.nq, 12))
    rows = [[t.q_name(i), float(q0[i]), float(q1[i])] for i in shown]
    out.print(console.table("", ["coordinate", ">start", ">end"], rows))
    if t.nq > len(shown):
        out.print(f"and {t.nq - len(shown)} more coordinates")


def write_results(
    model: Model, trajectory: Trajectory, output: Path | None, plot: Path | None, html: Path | None, video: Path | None
) -> None:
    """Writes what was asked for and says so. A trajectory that is not finite is written, then refused with its status."""
    out = console.out()
    if output is not None:
        out.print(f"trajectory: {trajectory.save(output)}")
    trajectory.raise_if_bad()
    if plot is not None:
        from flexor.viz.plots import trajectory_figure

        trajectory_figure(trajectory).savefig(plot, dpi=150)
        out.print(f"plot: {plot}")
    if html is not None:
        from flexor.viz.animation import save_animation

        out.print(f"animation: {save_animation(html, model, trajectory)}")
    if video is not None:
        from flexor.viz.video import save_video

        with console.progress("rendering", None) as advance:
            save_video(video, model, trajectory, progress=advance)
        out.print(f"video: {video}")
