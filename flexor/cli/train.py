"""`flexor train TASK`: a policy, its card and the history of its training."""

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from flexor.cli import console
from flexor.cli.loading import Executor, numbers, use_float64

AlgorithmName = StrEnum("AlgorithmName", ["ppo", "shac"])


def train(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Name of a task, or FILE.py:NAME; see docs/learning.md.")],
    solver: Annotated[
        str | None, typer.Option(help='Whose physics: a name, {name="penalty", substeps=8}, or a learned solver\'s file.')
    ] = None,
    algorithm: Annotated[AlgorithmName, typer.Option(help="By rewards, or by derivatives.")] = AlgorithmName.ppo,
    seed: Annotated[int, typer.Option(help="All that is random follows from it.")] = 0,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,...", help="Learn from each of these seeds, in folders seed0, seed1, ...")
    ] = None,
    executor: Executor = "local",
    until: Annotated[float | None, typer.Option(metavar="RETURN", help="Stop at this mean return.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes of training.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Stop after so many stretches.")] = None,
    robots: Annotated[int | None, typer.Option(help="How many learn together.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of a stretch.")] = None,
    sizes: Annotated[str | None, typer.Option(help="Hidden layers of the networks, such as 128,64,32.")] = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Option of the task; may be repeated.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "--out", help="Folder of the policy and checkpoints, TASK by default.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start again, not from a checkpoint.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write event files beside the history.")] = False,
    float64: Annotated[bool, typer.Option("--float64", help="Compute in double precision.")] = False,
) -> None:
    """Learn a policy for a task. Ctrl-C writes a checkpoint, from which the same command resumes."""
    if float64:
        use_float64()
    from flexor.cli.task_recipe import TaskRecipe, options_from, physics_from
    from flexor.learn.train import CHECKPOINT

    recipe = TaskRecipe(task, options_from(values or ()), physics_from(solver))
    made = recipe.build()
    folder = Path(task.rpartition(":")[2]) if output is None else output
    if fresh:
        (folder / CHECKPOINT).unlink(missing_ok=True)
    found = _recipe(made, algorithm)
    how = _algorithm(found, sizes)
    given = {"seed": seed, "wanted": until, "minutes": minutes, "iterations": iterations, "robots": robots, "steps": steps}
    options = _training(found, {name: x for name, x in given.items() if x is not None})
    if seeds is not None or executor != "local":
        _run_seeds(made, how, options, folder, numbers(seeds or ""), executor, recipe, fresh=fresh, tensorboard=tensorboard)
        return
    policy = _run(made, how, options, folder, tensorboard)
    policy = dataclasses.replace(policy, card={**policy.card, "recipe": recipe.table()})
    file = policy.save(folder / "policy.safetensors")
    _print(policy, options, [file, file.with_suffix(".json"), folder / "history.csv"])


def _recipe(task: Any, algorithm: AlgorithmName) -> Any:
    from flexor.learn import PPO, SHAC, recipe

    return recipe(task, PPO if algorithm is AlgorithmName.ppo else SHAC)


def _algorithm(recipe: Any, sizes: str | None) -> Any:
    """What a recipe says, with other layers if asked for."""
    if sizes is None:
        return recipe.algorithm
    try:
        hidden = tuple(int(n) for n in sizes.split(","))
    except ValueError:
        hidden = ()
    if not hidden or min(hidden) < 1:
        raise ValueError(f"--sizes takes positive whole numbers with commas between them, such as 128,64,32; got '{sizes}'.")
    return dataclasses.replace(recipe.algorithm, sizes=hidden)


def _training(recipe: Any, given: dict[str, Any]) -> Any:
    """Options of a run, those of the recipe where nothing is given; with a bound of time there is none of iterations."""
    endless = {"iterations": 10**6} if "minutes" in given else {}
    return dataclasses.replace(recipe.options, **{**endless, **given})


def _run(task: Any, algorithm: Any, options: Any, folder: Path, tensorboard: bool) -> Any:
    from flexor.learn import train as run

    bound = options.iterations if options.minutes is None else round(60 * options.minutes)
    text = f"learning {task.name}"
    try:
        with console.progress(f"{text}, compiling", bound) as advance:

            def tell(done: int, total: int, row: dict[str, Any]) -> None:
                reached = "-" if row["return"] is None else f"{row['return']:.4g}"
                at = done if options.minutes is None else round(row["seconds"])
                advance(at, text=f"{text}, return {reached}, {row['steps_per_second'] / 1e3:.3g} thousand steps/s")

            return run(task, algorithm=algorithm, options=options, out=folder, tensorboard=tensorboard, progress=tell)
    except KeyboardInterrupt:
        console.fail(_interrupted(folder))
        raise typer.Exit(console.INTERRUPTED) from None


def _run_seeds(
    task: Any, algorithm: Any, options: Any, folder: Path, seeds: list[int], executor: str, recipe: Any, *, fresh: bool,
    tensorboard: bool,
) -> None:  # fmt: skip
    """Learns from several seeds and prints a table of them."""
    from flexor.cluster import executor as named
    from flexor.learn import train_seeds
    from flexor.learn.train import CHECKPOINT

    if tensorboard:
        raise ValueError("--tensorboard belongs to one seed; leave out --seeds and --executor.")
    for seed in seeds if fresh else ():
        (folder / f"seed{seed}" / CHECKPOINT).unlink(missing_ok=True)
    try:
        with console.progress(f"learning {task.name} from {len(seeds)} seeds", len(seeds)) as advance:
            policies = train_seeds(task, seeds, folder, algorithm=algorithm, options=options, executor=named(executor),
                                   progress=lambda done, total: advance(done))  # fmt: skip
    except KeyboardInterrupt:
        console.fail(f"interrupted; the same command goes on from the checkpoints in '{folder}'.")
        raise typer.Exit(console.INTERRUPTED) from None
    rows = []
    for seed, policy in zip(seeds, policies, strict=True):
        card = {**policy.card, "recipe": recipe.table()}
        file = dataclasses.replace(policy, card=card).save(folder / f"seed{seed}" / "policy.safetensors")
        last = policy.card["metrics"]
        rows.append([seed, "-" if last.get("return") is None else last["return"], last.get("steps", 0), str(file)])
    console.out().print(console.table(task.name, [">seed", ">return", ">steps", "policy"], rows))


def _interrupted(folder: Path) -> str:
    from flexor.learn.train import kept_iterations

    done = kept_iterations(folder)
    if not done:
        return "interrupted before the first iteration; the same command starts again."
    return f"interrupted; the checkpoint in '{folder}' has {done} iterations, and the same command resumes there."


def _print(policy: Any, options: Any, written: list[Path]) -> None:
    out, last = console.out(), policy.card["metrics"]
    if last:
        reached = "no episode came to an end" if last["return"] is None else f"return {last['return']:.5g}"
        out.print(f"{policy.task}: {reached} after {last['steps']} steps and {last['seconds']:.0f} s")
        if options.wanted is not None and (last["return"] is None or last["return"] < options.wanted):
            out.print(f"which is below the {options.wanted:g} that were wanted: the same command with more of "
                      "--minutes or --iterations goes on", soft_wrap=True)  # fmt: skip
        shares = [[name.removeprefix("reward/"), x] for name, x in last.items() if name.startswith("reward/")]
        out.print(console.table("", ["term of the reward", ">mean per step"], shares))
    for path in written:
        out.print(str(path), markup=False, soft_wrap=True)
