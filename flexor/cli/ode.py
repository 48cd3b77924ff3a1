"""`flexor ode`: train a neural ordinary differential equation on recordings, and judge it on others."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flexor.cli import console
from flexor.cli.loading import use_float64
from flexor.files import write_text

app = typer.Typer(no_args_is_help=True, help="Neural ODEs of systems in state space: train, evaluate. See docs/ode.md.")
Logs = Annotated[
    list[Path], typer.Argument(metavar="LOG...", help="Recordings: .csv, .parquet, .h5, .npz with a column `time`.")
]


@app.command()
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML recipe, see docs/ode.md.")],
    logs: Logs,
    out: Annotated[Path, typer.Option(help="Folder of the checkpoints and of the trained ode.")] = Path("ode"),
) -> None:
    """Train a recipe's system on recordings. Ctrl-C writes a checkpoint, from which the same command resumes."""
    from flexor.ode import Recipe
    from flexor.ode import train as fit

    use_float64()
    recipe = Recipe.read(config)
    series = [recipe.series(path) for path in logs]
    out.mkdir(parents=True, exist_ok=True)
    steps = sum(stage.steps for stage in recipe.stages)
    try:
        with console.progress("training", steps) as advance:
            made = fit(series, recipe, out=out / "checkpoints", progress=lambda done, total, error: advance(done))
    except KeyboardInterrupt:
        console.fail(f"interrupted; the checkpoints are in '{out / 'checkpoints'}', and the same command resumes there.")
        raise typer.Exit(console.INTERRUPTED) from None
    folder = made.save(out / config.stem)
    best = made.card["stages"][-1]["error"]
    console.out().print(f"error of free runs on what was held out: {console.number(best)} of the outputs' deviation")
    console.out().print(str(folder), markup=False, soft_wrap=True)


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(metavar="FOLDER", help="A trained ode.")],
    logs: Logs,
    csv: Annotated[Path | None, typer.Option(help="Write the free run on the last recording: time and outputs.")] = None,
) -> None:
    """Free runs of a trained ode on recordings: it sees their inputs and, for the start, the first rows."""
    import numpy as np

    from flexor.ode import Recipe
    from flexor.ode.artefact import open_ode

    use_float64()
    made = open_ode(model)
    if "recipe" not in made.card:
        raise ValueError(f"'{model}' has no recipe that names its columns: judge it in Python, by `fx.open` and `simulate`.")
    recipe = Recipe.of(made.card["recipe"])
    rows: list[list[Any]] = []
    for path in logs:
        series = recipe.series(path)
        found = made.simulate(series)
        wrong = np.sqrt(np.nanmean((found - series.values) ** 2, axis=0))
        share = wrong / np.nanstd(series.values, axis=0)
        rows += [[path.name, name, float(e), float(s)] for name, e, s in zip(recipe.outputs, wrong, share, strict=True)]
        if csv is not None and path == logs[-1]:
            table = np.concatenate([series.time[:, None], found], axis=1)
            lines = [",".join(("time", *recipe.outputs)), *(",".join(map(repr, row)) for row in table.tolist())]
            write_text(csv, "\n".join(lines) + "\n")
    columns = ["recording", "output", ">error (RMS)", ">of its deviation"]
    console.out().print(console.table(f"{model.name}, free runs", columns, rows))
