"""`flexor nerd`: sample transitions of a robot, train a learned solver on them, judge it beside the true one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flexor.cli import console

app = typer.Typer(no_args_is_help=True, help="Learned solvers: sample, train, evaluate. See docs/nerd.md.")
INTERRUPTED = 130  # exit status of a program that Ctrl-C ended

Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="TOML recipe, see docs/nerd.md, or the name of a bundled one (`cartpole`).")
]
Folder = Annotated[Path, typer.Option(help="Folder of the data set, the checkpoints and the model.")]


@app.command()
def sample(config: Config, out: Folder = Path("nerd")) -> None:
    """Write the data set of a recipe; Ctrl-C keeps what there is, and the same command goes on from there."""
    from flexor.nerd import Recipe
    from flexor.nerd.data import facts

    recipe, path = Recipe.read(config), _data(config, out)
    out.mkdir(parents=True, exist_ok=True)
    try:
        with console.progress("sampling", recipe.transitions) as advance:
            recipe.sample(path, progress=advance)
    except KeyboardInterrupt:
        console.fail(f"interrupted; what there is stays in '{path}.part', and the same command goes on from there.")
        raise typer.Exit(INTERRUPTED) from None
    told = facts(path)
    console.out().print(
        f"{told['total_transitions']} transitions of {told['robot']}, {told['dropped']} trajectories dropped"
    )
    console.out().print(str(path), markup=False, soft_wrap=True)


@app.command()
def train(
    config: Config,
    out: Folder = Path("nerd"),
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write event files beside the history.")] = False,
) -> None:
    """Train a recipe's network on its data set; Ctrl-C keeps the last checkpoint, and the same command goes on from there."""
    from flexor.nerd import Recipe

    recipe, path, folder = Recipe.read(config), _data(config, out), out / Path(config).stem
    if not path.is_file():
        raise FileNotFoundError(f"there is no data set '{path}'; `flexor nerd sample {config} --out {out}` makes it.")
    try:
        with console.progress("training", recipe.training.steps) as advance:
            nerd = recipe.train(
                path, folder, passive=True, tensorboard=tensorboard, progress=lambda done, total, loss: advance(done)
            )
    except KeyboardInterrupt:
        console.fail(f"interrupted; the last checkpoint is in '{folder}', and the same command goes on from there.")
        raise typer.Exit(INTERRUPTED) from None
    file = nerd.save(out / f"{Path(config).stem}.safetensors")
    for name, value in nerd.card["metrics"].items():
        console.out().print(f"{name}: {console.number(float(value))}")
    for written in (file, file.with_suffix(".json"), folder / "history.csv"):
        console.out().print(str(written), markup=False, soft_wrap=True)


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A .safetensors file, or the name of a pretrained solver.")],
    steps: Annotated[int, typer.Option(help="Longest horizon.")] = 1000,
    rollouts: Annotated[int, typer.Option(help="Random starts.")] = 2048,
    seed: Annotated[int, typer.Option(help="Of the starts.")] = 500,
    plot: Annotated[Path | None, typer.Option(help="Draw the growth of the errors: .png, .svg or .pdf.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write an animation beside the truth as one HTML page.")] = None,
    video: Annotated[Path | None, typer.Option(help="Render a video beside the truth: .gif or .mp4.")] = None,
) -> None:
    """Passive motion of a learned solver beside the physics it was trained on."""
    from flexor.nerd import Recipe, load

    nerd = load(model)
    if "recipe" not in nerd.card:
        raise ValueError(f"the card of '{model}' holds no recipe, so that its true physics is not known.")
    recipe = Recipe.of(nerd.card["recipe"])
    with console.spinner(f"{rollouts} rollouts of {steps} steps"):
        result = recipe.evaluate(nerd, steps=steps, rollouts=rollouts, seed=seed)
    horizons = sorted({h for h in (100, 500, 1000, steps) if h <= steps})
    columns = [">steps", "error of", ">mean", ">median", ">deviation", ">diverged"]
    rows = [line for row in result.rows(horizons) for line in _lines(row)]
    console.out().print(console.table(f"{Path(model).name}, passive motion, {rollouts} rollouts", columns, rows))
    _write(nerd, recipe, result, steps, plot, html, video)


def _lines(row: dict[str, Any]) -> list[list[Any]]:
    """A row of `Passive.rows`, a line for each kind of error: narrow enough for any terminal."""
    kinds = [tuple(key.split(" mean, ")) for key in row if " mean, " in key]
    shares = (
        [f"{kind}, {unit}", *(row[f"{kind} {what}, {unit}"] for what in ("mean", "median", "deviation"))]
        for kind, unit in kinds
    )
    return [[row["steps"], *line, row["diverged"]] for line in shares]


def _write(
    nerd: Any, recipe: Any, result: Any, steps: int, plot: Path | None, html: Path | None, video: Path | None
) -> None:
    from flexor.viz.learned import growth, pair, save_pair

    if plot is not None:
        growth(result, nerd.dt).savefig(plot)
    if html is not None or video is not None:
        runs = pair(nerd, recipe, min(steps, round(5 / nerd.dt)))
        if html is not None:
            save_pair(html, nerd, runs)
        if video is not None:
            from flexor.viz.video import save_video

            save_video(video, nerd.model, runs[0], beside=runs[1])
    for path in filter(None, (plot, html, video)):
        console.out().print(str(path), markup=False, soft_wrap=True)


def _data(config: str, out: Path) -> Path:
    return out / f"{Path(config).stem}.h5"
