"""`flexor identify CONFIG`: logs in; an identified robot, its networks and a report out."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from flexor.cli import console
from flexor.cli.loading import Executor, Robot, use_float64


def identify(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file, see docs/identify.md.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write into, instead of the configuration's.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start again, not from the checkpoint of an interrupted run.")
    ] = False,
    executor: Executor = "local",
) -> None:
    """Fit parameters and networks to logs; Ctrl-C keeps what was found, and the same command resumes from there."""
    use_float64()
    from flexor.cli.identify_config import read_config
    from flexor.cluster import executor as named

    settings, who = read_config(config), None if executor == "local" else named(executor)
    folder = settings.out if out is None else out
    with console.spinner("reading the robot and its logs"):
        sim, logs, held_out_logs = _prepare(settings)
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "checkpoint.npz"
    if fresh:
        checkpoint.unlink(missing_ok=True)
    fit = _fit(settings, sim, logs, held_out_logs, checkpoint, who, _command(config, out, executor))
    written = fit.save(folder, formats=settings.formats)
    written.append(_report(settings, fit, folder, [p.name for p in written]))
    checkpoint.unlink(missing_ok=True)
    _print(fit, written)
    if not fit.ok:
        raise typer.Exit(1)


def _prepare(settings: Any) -> tuple[Any, list[Any], list[Any]]:
    """The simulator and the logs that a configuration describes."""
    from flexor.cli.identify_config import read_logs
    from flexor.model.delay import with_delay
    from flexor.model.parameters import parameters, replace
    from flexor.solvers import Simulator

    robot = Robot(
        settings.robot, settings.floating, settings.ground, list(settings.ignore), mesh_vertices=settings.mesh_vertices,
        package_dirs=list(settings.package_dirs), self_collision=settings.self_collision,
    )  # fmt: skip
    model = robot.load()
    if settings.longest_delay:
        delays = {name: float(x) for name, x in parameters(model, "actuator.*.delay").items()}
        model = with_delay(model, delays, dt=settings.solver.shortest_step(settings.dt), longest=settings.longest_delay)
    model = replace(model, settings.values)
    sim = Simulator(model, settings.solver, dt=settings.dt)
    if settings.blueprint.entries:
        sim = sim.augment(settings.blueprint, key=jax.random.key(settings.seed))
    together = read_logs((*settings.logs, *settings.held_out_logs), model, settings)
    return sim, together[: len(settings.logs)], together[len(settings.logs) :]


def _command(config: Path, out: Path | None, executor: str) -> str:
    """The command line that resumes from a checkpoint; without `--fresh`, which would discard the checkpoint."""
    words = ["flexor", "identify", str(config), *(() if out is None else ("--out", str(out)))]
    words += [] if executor == "local" else ["--executor", executor]
    return " ".join(shlex.quote(word) for word in words)


def _fit(
    settings: Any, sim: Any, logs: list[Any], held_out_logs: list[Any], checkpoint: Path, who: Any, command: str
) -> Any:
    from flexor.identify import identify as run

    done = 0
    resumed = checkpoint.is_file()
    try:
        with console.progress("going on" if resumed else "identifying", None) as advance:

            def tell(step: int, total: int, cost: float) -> None:
                nonlocal done
                done = step
                advance(step, total)

            return run(
                sim, logs, settings.free, bounds=settings.bounds, prior=settings.prior, shooting=settings.shooting,
                method=settings.method,
                search=settings.search, held_out=held_out_logs or settings.held_out, seed=settings.seed,
                check_units=settings.check_units, checkpoint=checkpoint, executor=who, progress=tell,
            )  # fmt: skip
    except KeyboardInterrupt:
        kept = f"after {done} steps of the search" if done or not resumed else "at the step it had reached before"
        if checkpoint.is_file():
            console.fail(f"interrupted {kept}, which are kept: `{command}` resumes from there.")
        else:
            console.fail("interrupted before the first step of the search was done; nothing was kept.")
        raise typer.Exit(console.INTERRUPTED) from None


def _report(settings: Any, fit: Any, folder: Path, names: list[str]) -> Path:
    from flexor.viz.identification import identification_report

    count = len(settings.logs) + len(settings.held_out_logs)
    facts = [("logs", f"{count} {'file' if count == 1 else 'files'}"), ("time step", f"{settings.dt:g} s")]
    facts.append(("contact", settings.contact))
    return identification_report(fit, facts, names).save(folder / "report.html")


def _print(fit: Any, written: list[Path]) -> None:
    out = console.out()
    columns = ("parameter", "start", "estimate", "low", "high")
    rows = [["-" if r[c] is None else r[c] for c in columns] for r in fit.rows()]
    if rows:
        heads = ["parameter", ">start", ">estimate", ">90 % from", ">to"]
        out.print(console.table(f"{fit.model.topology.name}, identified", heads, rows), "")
    out.print(f"search: {fit.message}, {fit.seconds:.0f} s", markup=False)
    for name, before, after in (("training", fit.before, fit.training), ("held out", fit.held_out_before, fit.held_out)):
        if after is not None:
            change = f"{console.number(before.weighted)} -> {console.number(after.weighted)}"
            out.print(f"{name}: error {change} (units of the {fit.unit})", soft_wrap=True)
    for sentence in (*(fit.posterior.sentences() if fit.posterior is not None else ()), *fit.remarks):
        out.print(f"note: {sentence}", markup=False, soft_wrap=True)
    out.print("")
    for path in written:
        out.print(str(path), markup=False, soft_wrap=True)
