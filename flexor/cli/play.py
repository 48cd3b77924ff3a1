"""`flexor play POLICY`: one episode of a policy, to watch."""

from pathlib import Path
from typing import Annotated

import typer

from flexor.cli import console
from flexor.cli.simulate import check_endings, write_results


def play(
    policy: Annotated[
        str,
        typer.Argument(metavar="POLICY", help="A .safetensors file that `flexor train` wrote, or a policy of the package."),
    ],
    task: Annotated[str | None, typer.Option(help="Task, where the policy's card does not say how it is made.")] = None,
    solver: Annotated[str | None, typer.Option(help="Other physics, as in `flexor train`.")] = None,
    seed: Annotated[int, typer.Option(help="Of the episode's start.")] = 0,
    values: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Option of the task; may be repeated.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the trajectory: .h5, .csv or .npz.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it: .png, .svg or .pdf.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write an animation as one HTML page.")] = None,
    video: Annotated[Path | None, typer.Option(help="Render a video: .gif or .mp4.")] = None,
) -> None:
    """Play one episode of a policy and write what happened."""
    from flexor.cli.task_recipe import options_from, physics_from, recipe_of
    from flexor.learn import load
    from flexor.learn import play as played

    check_endings({output: (".h5", ".hdf5", ".csv", ".npz"), plot: (".png", ".svg", ".pdf"), video: (".gif", ".mp4"),
                   html: (".html",)})  # fmt: skip
    loaded = load(policy)
    made = recipe_of(loaded, policy, task, physics_from(solver), options_from(values or ())).build()
    with console.spinner(f"compiling and playing an episode of {made.name}"):
        motion, terms = played(loaded, made, seed=seed)
    total = sum(float(x.sum()) for x in terms.values())
    why = "its time was up" if len(motion) == made.length else f"it ended; its time is {made.length} steps"
    out = console.out()
    out.print(
        f"{made.name}: return {total:.5g} in {len(motion)} steps of {float(made.sim.dt):.4g} s ({why})", soft_wrap=True
    )
    out.print(console.table("", ["term of the reward", ">sum"], [[name, float(x.sum())] for name, x in terms.items()]))
    write_results(made.sim.model, motion, output, plot, html, video)
