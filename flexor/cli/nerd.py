"""`flexor nerd`: sample transitions of a robot, train a learned solver on them, judge it beside the true one."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from flexor.cli import console
from flexor.cli.loading import Executor, numbers
from flexor.files import write_with

app = typer.Typer(no_args_is_help=True, help="Learned solvers: sample, train, evaluate. See docs/nerd.md.")
INTERRUPTED = 130  # exit status of a program that Ctrl-C ended

Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="TOML recipe, see docs/nerd.md, or the name of a bundled one (`cartpole`).")
]
Folder = Annotated[Path, typer.Option(help="Folder of the data set, the checkpoints and the model.")]


@app.command()
def sample(config: Config, out: Folder = Path("nerd"), executor: Executor = "local") -> None:
    """Write the data set of a recipe. After Ctrl-C the same command resumes."""
    from flexor.cluster import executor as named
    from flexor.nerd import Recipe
    from flexor.nerd.data import facts

    recipe, path, who = Recipe.read(config), _data(config, out), named(executor)
    out.mkdir(parents=True, exist_ok=True)
    try:
        with console.progress("sampling", recipe.transitions) as advance:
            recipe.sample(path, progress=advance, executor=who)
    except KeyboardInterrupt:
        console.fail(_interrupted_sampling(path.with_name(path.name + ".part")))
        raise typer.Exit(INTERRUPTED) from None
    about = facts(path)
    console.out().print(
        f"{about['total_transitions']} transitions of {about['robot']}, {about['dropped']} trajectories dropped"
    )
    console.out().print(str(path), markup=False, soft_wrap=True)


@app.command()
def train(
    config: Config,
    out: Folder = Path("nerd"),
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write event files beside the history.")] = False,
    processes: Annotated[
        int, typer.Option(help="Train in so many processes of this machine, started again where one dies.")
    ] = 1,
    join: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,PROCESSES,PROCESS", help="Be one of several processes that train together."),
    ] = None,
) -> None:
    """Train a recipe's network on its data set, or on fresh data. After Ctrl-C the same command resumes."""
    from flexor.cluster import join_as

    if processes < 1 or (processes > 1 and join is not None):
        raise ValueError("--processes must be positive, and --join names one of several processes: give one of the two.")
    if processes > 1:
        raise typer.Exit(_train_together(config, out, tensorboard, processes))
    if join is not None:
        join_as(join)
    from flexor.nerd import Recipe

    recipe, folder = Recipe.read(config), out / Path(config).stem
    path = None if recipe.fresh else _data(config, out)
    if path is not None and not path.is_file():
        raise FileNotFoundError(f"there is no data set '{path}'; `flexor nerd sample {config} --out {out}` makes it.")
    first = join is None or join.endswith(",0")  # of the processes: it talks, and writes
    bar = console.progress("training", recipe.training.steps) if first else nullcontext(lambda done: None)
    try:
        with bar as advance:
            nerd = recipe.train(
                path, folder, passive=True, tensorboard=tensorboard, progress=lambda done, total, loss: advance(done)
            )
    except KeyboardInterrupt:
        console.fail(_interrupted_training(folder))
        raise typer.Exit(INTERRUPTED) from None
    if not first:
        return
    file = nerd.save(out / f"{Path(config).stem}.safetensors")
    for name, value in nerd.card["metrics"].items():
        console.out().print(f"{name}: {'not finite' if value is None else console.number(float(value))}")
    for written in (file, file.with_suffix(".json"), folder / "history.csv"):
        console.out().print(str(written), markup=False, soft_wrap=True)


def _train_together(config: str, out: Path, tensorboard: bool, processes: int) -> int:
    from flexor.cluster import supervise

    words = ["nerd", "train", config, "--out", str(out), *(["--tensorboard"] if tensorboard else [])]
    program = [sys.executable, "-c", "from flexor.cli.app import main; main()", *words]
    status = supervise(lambda joined: [*program, "--join", joined], processes)
    if status < 0:
        raise OSError(
            f"a process of the training was ended by signal {-status} again and again; the same command goes on from the "
            "last checkpoint."
        )
    return status


@app.command()
def sweep(
    configs: Annotated[list[str], typer.Argument(metavar="CONFIG...", help="Recipes, each as for `sample` and `train`.")],
    seeds: Annotated[str | None, typer.Option(metavar="0,1,...", help="Train each recipe from each of these seeds.")] = None,
    out: Folder = Path("nerd"),
    executor: Executor = "local",
) -> None:
    """Sample and train many recipes. After Ctrl-C the same command goes on."""
    from flexor.cluster import executor as named
    from flexor.nerd import Recipe, with_seeds
    from flexor.nerd import sweep as run

    recipes, who = {Path(config).stem: Recipe.read(config) for config in configs}, named(executor)
    if len(recipes) < len(configs):
        raise ValueError(f"two of the recipes have the same name: {', '.join(configs)}.")
    recipes = recipes if seeds is None else with_seeds(recipes, numbers(seeds))
    try:
        with console.progress(f"{len(recipes)} recipes", None) as advance:
            found = run(recipes, out, executor=who, progress=lambda text, done, total: advance(done, total, text))
    except KeyboardInterrupt:
        console.fail(f"interrupted; the same command goes on from what is in '{out}'.")
        raise typer.Exit(INTERRUPTED) from None
    rows = [[name, nerd.card["metrics"]["held_out"], nerd.card["minutes of training"]] for name, nerd in found.items()]
    console.out().print(console.table("", ["recipe", ">loss, held out", ">minutes of training"], rows))


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A .safetensors file, or the name of a pretrained solver.")],
    robot: Annotated[
        str | None,
        typer.Option(help="Robot to use instead of the one in the file: a description or a name. Old files may need it."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Longest horizon.")] = 1000,
    rollouts: Annotated[int, typer.Option(help="Random starts.")] = 2048,
    seed: Annotated[int, typer.Option(help="Seed of the random starts.")] = 500,
    calibrate: Annotated[Path | None, typer.Option(help="Data set by which a solver without a warning gets one.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the growth of the errors: .png, .svg or .pdf.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write an animation beside the truth as one HTML page.")] = None,
    video: Annotated[Path | None, typer.Option(help="Render a video beside the truth: .gif or .mp4.")] = None,
) -> None:
    """Passive motion of a learned solver, and of its base step alone, beside the physics it was trained on."""
    from flexor.nerd import calibrate as calibrated
    from flexor.nerd import evaluate_contribution, load
    from flexor.robots import load as load_robot

    nerd = load(model, None if robot is None else load_robot(robot))
    nerd = nerd if calibrate is None else calibrated(nerd, calibrate)
    with console.spinner(f"{rollouts} rollouts of {steps} steps"):
        both = evaluate_contribution(nerd, steps=steps, rollouts=rollouts, seed=seed)
    horizons = sorted({h for h in (100, 500, 1000, steps) if h <= steps})
    columns = [">steps", "error of", ">mean", ">median", ">deviation", ">diverged"]
    for who, result in (("", both.with_network), (", base step alone", both.base)):
        rows = [line for row in result.rows(horizons) for line in _lines(row)]
        console.out().print(console.table(f"{Path(model).name}, passive motion, {rollouts} rollouts{who}", columns, rows))
    console.out().print(f"base step: {nerd.frames.base.name}; {both.verdict(horizons[0])}")
    _warn(nerd, rollouts)
    _write(nerd, both.with_network, steps, plot, html, video)


def _warn(nerd: Any, rollouts: int) -> None:
    """What the solver's warning is worth, or that it has none."""
    from flexor.nerd import evaluate_warning

    if nerd.doubt is None:
        console.out().print("warning: none in this file; --calibrate DATA gives it one")
        return
    with console.spinner("judging its warning"):
        found = evaluate_warning(nerd, rollouts=rollouts)
    console.out().print(console.table("does it say when it is wrong? (100 steps)", ["warning", ">"], found.rows()))


def _lines(row: dict[str, Any]) -> list[list[Any]]:
    """A row of `Passive.rows`, a line for each kind of error: narrow enough for any terminal."""
    kinds = [tuple(key.split(" mean, ")) for key in row if " mean, " in key]
    shares = (
        [f"{kind}, {unit}", *(row[f"{kind} {what}, {unit}"] for what in ("mean", "median", "deviation"))]
        for kind, unit in kinds
    )
    return [[row["steps"], *line, row["diverged"]] for line in shares]


def _write(nerd: Any, result: Any, steps: int, plot: Path | None, html: Path | None, video: Path | None) -> None:
    from flexor.viz.learned import growth, pair, save_pair

    if plot is not None:
        figure = growth(result, nerd.dt)
        write_with({plot: lambda part: figure.savefig(part)})
    if html is not None or video is not None:
        runs = pair(nerd, min(steps, round(5 / nerd.dt)))
        if html is not None:
            save_pair(html, nerd, runs)
        if video is not None:
            from flexor.viz.video import save_video

            save_video(video, nerd.model, runs[0], beside=runs[1])
    for path in filter(None, (plot, html, video)):
        console.out().print(str(path), markup=False, soft_wrap=True)


def _interrupted_sampling(part: Path) -> str:
    if not part.is_file():
        return "interrupted before anything was written; the same command starts again."
    return f"interrupted; the trajectories so far are in '{part}', and the same command resumes."


def _interrupted_training(folder: Path) -> str:
    from flexor.nerd.training import kept_steps

    steps = kept_steps(folder)
    if steps is None:
        return f"interrupted before the first step; there is no checkpoint in '{folder}', and the same command starts again."
    return f"interrupted; the checkpoint in '{folder}' has {steps} steps, and the same command resumes there."


def _data(config: str, out: Path) -> Path:
    return out / f"{Path(config).stem}.h5"
