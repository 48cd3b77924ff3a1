"""The `flexor` program: its commands, and how errors of the library reach the user."""

import os
import sys
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flexor.cli import (
    adapt,
    certify,
    console,
    demo,
    evaluate,
    identify,
    info,
    nerd,
    ode,
    plan,
    play,
    simulate,
    tasks,
    train,
    view,
    walk,
)

USER_ERRORS = (ValueError, KeyError, TypeError, OSError, FloatingPointError, NotImplementedError, ImportError)
"""Errors whose message is meant for the user. `GraphicsError` is one too; other RuntimeErrors are bugs and show a
traceback."""


class Program(TyperGroup):
    """Runs a command; an error of the library becomes one sentence and exit status 2, unless --debug is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["flexor.debug"] = "--debug" in args
        return super().parse_args(ctx, [a for a in args if a != "--debug"])

    def invoke(self, ctx: Any) -> Any:
        with console.warnings_as_lines():
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                console.fail("interrupted; no unfinished file was left behind.")
                raise typer.Exit(console.INTERRUPTED) from None
            except Exception as error:
                if ctx.meta["flexor.debug"] or not _is_user_error(error):
                    raise
                message = error.args[0] if isinstance(error, KeyError) and error.args else error
                console.fail(" ".join(str(message).split()))
                raise typer.Exit(2) from None


def _is_user_error(error: Exception) -> bool:
    from flexor.viz.video import GraphicsError

    return isinstance(error, (*USER_ERRORS, GraphicsError))


app = typer.Typer(
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    help="Robot dynamics with gradients. FILE is a URDF or MJCF file, or the name of a robot such as `quadruped`.",
)
app.command()(info.info)
app.command()(simulate.simulate)
app.command()(certify.certify)
app.command()(identify.identify)
app.command()(adapt.adapt)
app.command()(tasks.tasks)
app.command()(train.train)
app.command()(play.play)
app.command()(walk.walk)
app.command()(plan.plan)
app.command()(evaluate.evaluate)
app.command()(view.view)
app.command()(demo.demo)
app.add_typer(nerd.app, name="nerd")
app.add_typer(ode.app, name="ode")


def _show_version(wanted: bool) -> None:
    if wanted:
        console.out().print(f"flexor {metadata.version('flexor')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error (anywhere on the line).")] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the console script."""
    try:
        app(prog_name="flexor")
    except SystemExit as end:
        if console.is_abandoned():  # an interrupted compilation: Python would wait for it, or end it in the middle
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else 1)
        raise
