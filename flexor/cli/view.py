"""`flexor view ROBOT|TRAJECTORY|POLICY|LOG`: robots in the browser."""

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from flexor.cli import console
from flexor.cli.loading import Robot, takes_robot
from flexor.cli.simulate import numbers, step_count
from flexor.model.model import Model
from flexor.model.parameters import replace
from flexor.robots import bundled, example_robots
from flexor.solvers import Simulator, Trajectory
from flexor.solvers.table import SOLVERS
from flexor.solvers.table import solver as solver_by_name

RECORDINGS = (".h5", ".hdf5", ".npz", ".csv", ".parquet", ".mcap", ".db3")


@takes_robot
def view(
    robot: Robot,
    of: Annotated[str, typer.Option(metavar="ROBOT|TASK", help="Robot of a trajectory or a log; task of a policy.")] = "",
    seconds: Annotated[float | None, typer.Option(help="Simulate at once, for so long; 2 s where a slider asks.")] = None,
    dt: Annotated[float | None, typer.Option(help="Time step in s: 0.002, or that of the recording.")] = None,
    solver: Annotated[str | None, typer.Option(help="Solver, rigid by default; of a policy, as in `flexor train`.")] = None,
    beside: Annotated[
        str | None, typer.Option(metavar="SOLVER|ROBOT", help="Another solver, robot or saved simulator beside.")
    ] = None,
    keyframe: Annotated[str, typer.Option(help="Start at this configuration of the description.")] = "",
    q: Annotated[
        str, typer.Option("--q", help="Start at these coordinates: numbers with commas, or a .npy or text file.")
    ] = "",
    record: Annotated[
        list[str] | None, typer.Option(help="Tap to plot, such as joint.passive_force; may be repeated.")
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option(help="Parameter or pattern to have a slider for; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the episode of a policy.")] = 0,
    host: Annotated[str, typer.Option(help="Address to serve on; 0.0.0.0 for the whole network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port, or the next free one.")] = 8080,
    launch: Annotated[bool, typer.Option("--open", help="Open the browser.")] = False,
) -> None:
    """Show a robot, a trajectory, a log or a policy (.safetensors, or policy:NAME) in the browser, until Ctrl-C."""
    from flexor.viz.viewer import Viewer  # first: a missing extra should be told before any work

    options = Options(of, seconds, dt, solver, beside, keyframe, q, tuple(record or ()), seed)
    with console.spinner(f"loading {robot.file}"):
        motions = motions_of(robot, options)
        started = seconds is None and beside is None
        viewer = Viewer(motions, parameters=parameter or (), simulated=started, host=host, port=port)
    try:
        console.out().print(f"{', '.join(m.label for m in viewer.motions)}: {viewer.url} (Ctrl-C ends it)", soft_wrap=True)
        if launch:
            typer.launch(viewer.url)
        while True:
            time.sleep(1.0)
    except KeyboardInterrupt:
        pass
    finally:
        viewer.close()


@dataclasses.dataclass(frozen=True)
class Options:
    """What `flexor view` was told beside the robot."""

    of: str = ""
    seconds: float | None = None
    dt: float | None = None
    solver: str | None = None
    beside: str | None = None
    keyframe: str = ""
    q: str = ""
    record: tuple[str, ...] = ()
    seed: int = 0


def motions_of(robot: Robot, options: Options) -> list[Any]:
    """The motions to show, by what the first argument is."""
    path = Path(robot.file)
    if robot.file in {**bundled(), **example_robots()}:
        return _robot_motions(robot, options)
    if robot.file.startswith("policy:") or path.suffix == ".safetensors":
        return [_policy_motion(robot.file.removeprefix("policy:"), options)]
    if path.suffix in RECORDINGS or (path / "metadata.yaml").is_file():
        return _recorded_motions(robot, options)
    return _robot_motions(robot, options)


def _robot_motions(robot: Robot, options: Options) -> list[Any]:
    from flexor.viz.motion import Motion, still

    if options.of:
        raise ValueError("--of names the robot of a trajectory or a log, and a robot was given.")
    if options.keyframe and options.q:
        raise ValueError("give either --keyframe or --q, not both.")
    first = _simulator(robot, options.solver, options.dt)
    state = first.reset(options.keyframe or (numbers(options.q, "--q") if options.q else None))
    start = np.asarray(state.q)
    steps = step_count(2.0 if options.seconds is None else options.seconds, float(first.dt))
    sims = {_label(robot, options.solver): first, **_beside(first, robot, options)}
    return [
        Motion(
            label,
            sim.model,
            still(sim.model, start if sim.model.nq == len(start) else None),
            _replay(sim, steps, start, options),
        )
        for label, sim in sims.items()
    ]


def _replay(sim: Simulator, steps: int, start: np.ndarray, options: Options) -> Any:
    from flexor.viz.motion import Replay

    model = sim.model
    q = start if model.nq == len(start) else np.asarray(model.reference)
    return Replay(sim, np.zeros((steps, model.nu)), q, np.zeros(model.nv), _taps(sim, options.record))


def _taps(sim: Simulator, record: tuple[str, ...]) -> tuple[str, ...]:
    """The taps to record: those that were asked for, and the contact forces where the robot has contacts and the solver tells
    them."""
    from flexor.solvers import taps
    from flexor.viz.motion import FORCES

    forces = FORCES if sim.model.topology.pairs and set(FORCES) <= set(taps(sim)) else ()
    return tuple(dict.fromkeys((*record, *forces)))


def _label(robot: Robot, solver: str | None) -> str:
    return Path(robot.file).stem + (f" {solver}" if solver else "")


def _simulator(robot: Robot, solver: str | None, dt: float | None) -> Simulator:
    """The simulator of a robot, or the saved one, whose solver and time step are its own."""
    if robot.folder is not None:
        if solver is not None or dt is not None:
            raise ValueError(
                f"'{robot.file}' is a saved simulator with its own solver and time step: leave --solver and --dt out."
            )
        return robot.open()
    return Simulator(robot.load(), solver_by_name(solver or "rigid"), dt=0.002 if dt is None else dt)


def _beside(first: Simulator, robot: Robot, options: Options) -> dict[str, Simulator]:
    """The second simulator: another solver for the same robot, or another robot."""
    if options.beside is None:
        return {}
    if options.beside in SOLVERS:
        return {f"{Path(robot.file).stem}, {options.beside}": first.with_solver(solver_by_name(options.beside))}
    other = dataclasses.replace(robot, file=options.beside)
    sim = _simulator(other, None, None if other.folder is not None else float(first.dt))
    return {f"{Path(options.beside).stem} beside": sim}


def _recorded_motions(robot: Robot, options: Options) -> list[Any]:
    """A trajectory or a log as it was recorded; and beside it, where a solver is named, its simulation from the same start under
    the same inputs."""
    from flexor.viz.motion import Motion, Replay

    if not options.of:
        raise ValueError(f"'{robot.file}' holds a motion; name its robot with --of, such as `--of quadruped`.")
    owner = dataclasses.replace(robot, file=options.of)
    opened = owner.open() if owner.folder is not None else None
    model = owner.load() if opened is None else opened.model
    run = recorded(Path(robot.file), model)
    motions = [Motion(Path(robot.file).name, model, run)]
    if options.beside is None:
        return motions
    steps = np.diff(np.asarray(run.time, float))
    dt = float(np.median(steps)) if options.dt is None else options.dt
    if np.abs(steps - dt).max() > 0.01 * dt:
        raise ValueError(
            f"'{robot.file}' has steps of {steps.min():.3g} to {steps.max():.3g} s, so nothing can be simulated beside it."
        )
    if opened is not None and options.solver is not None:
        raise ValueError(f"'{options.of}' is a saved simulator with its own solver: leave --solver out.")
    sim = opened if opened is not None else Simulator(model, solver_by_name(options.solver or "rigid"), dt=dt)
    for label, other in _beside(sim, owner, options).items():
        if abs(float(other.dt) / dt - 1) > 0.01:
            raise ValueError(
                f"'{label}' steps by {float(other.dt):g} s, but '{robot.file}' was recorded every {dt:g} s; inputs do not fit."
            )
        start = np.asarray(run.q[0]), np.asarray(run.qd[0])
        motions.append(
            Motion(label, other.model, run, Replay(other, np.asarray(run.u), *start, _taps(other, options.record)))
        )
    return motions


def recorded(path: Path, model: Model) -> Trajectory:
    """A file as a trajectory of the model: what `Trajectory.save` wrote, or a log, in which coordinates that were not measured
    stay at the reference, and gaps are filled with the last number before."""
    import jax.numpy as jnp

    from flexor.identify import Log

    if path.suffix in (".h5", ".hdf5", ".npz", ".csv"):
        try:
            return Trajectory.load(path, model)
        except ValueError:
            pass  # it is a log then, or the log's reader says what is wrong
    log = Log.read(path, model, missing=True)
    t, rows = model.topology, len(log.time)
    column = dict(zip(log.columns, log.values.T, strict=True))
    q = np.repeat(np.asarray(model.reference, float)[None], rows, axis=0)
    qd = np.zeros((rows, model.nv))
    _fill(q, column, [f"q.{t.q_name(i)}" for i in range(t.nq)])
    _fill(qd, column, [f"qd.{t.dof_name(i)}" for i in range(t.nv)])
    if not any(f"q.{t.q_name(i)}" in column for i in range(t.nq)):
        raise ValueError(f"'{path}' measures no coordinate of '{t.name}', so there is nothing to look at.")
    u = np.zeros((rows - 1, model.nu)) if log.controls is None else np.asarray(log.controls)[: rows - 1]
    time_, q_, qd_, u_ = (jnp.asarray(x, model.dtype) for x in (log.time - log.time[0], q, qd, u))
    return Trajectory(time_, q_, qd_, u_, {}, None, t)


def _fill(table: np.ndarray, column: Mapping[str, np.ndarray], names: list[str]) -> None:
    """Writes the columns of these names into a table; what was not measured keeps the last number before."""
    for i, name in enumerate(names):
        if name in column:
            finite = np.isfinite(column[name])
            last = np.maximum.accumulate(np.where(finite, np.arange(len(finite)), -1))
            table[:, i] = np.where(last >= 0, column[name][np.maximum(last, 0)], table[:, i])


def _policy_motion(name: str, options: Options) -> Any:
    """An episode of a policy; parameters change its task, and it acts anew."""
    import equinox as eqx

    from flexor.cli.task_recipe import physics_from, recipe_of
    from flexor.learn import load
    from flexor.learn import play as played
    from flexor.viz.motion import Motion

    if options.beside is not None:
        raise ValueError("--beside takes robots, trajectories and logs; `flexor evaluate` compares the physics of policies.")
    policy = load(name)
    task = recipe_of(policy, name, options.of or None, physics_from(options.solver), {}).build()

    def simulate(_: np.ndarray | None, values: Mapping[str, np.ndarray]) -> Trajectory:
        model = replace(task.sim.model, values) if values else task.sim.model
        return played(policy, eqx.tree_at(lambda t: t.sim.model, task, model), seed=options.seed)[0]

    return Motion(f"{Path(name).stem} at {task.name}", task.sim.model, simulate(None, {}), simulate, steerable=False)
