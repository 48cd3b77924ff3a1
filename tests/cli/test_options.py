"""docs/command-line.md lists every option of every command, and none that is not there."""

import re
from pathlib import Path

import pytest
import typer

from flexor.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


def commands():
    """Options of every command by its name, without --help."""
    group = typer.main.get_command(app)
    found = {}
    for name, command in group.commands.items():
        for words, one in {f"{name} {n}": c for n, c in getattr(command, "commands", {name: command}).items()}.items():
            label = name if one is command else words
            options = {o for p in one.params if p.param_type_name == "option" for o in (*p.opts, *p.secondary_opts)}
            found[label] = options - {"--help"}
    return found


def documented():
    """Options by section: `## flexor simulate` and the like; tables name them in backquotes in their first column."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for section in sections:
        title = section.splitlines()[0]
        if title.startswith("`flexor"):
            rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `--")]
            found[title.strip("`").removeprefix("flexor ")] = {o for row in rows for o in re.findall(r"--[\w-]+", row)}
    return found


def robot_options():
    from flexor.cli.loading import takes_robot

    probe = typer.Typer(add_completion=False)
    probe.command()(takes_robot(lambda robot: None))
    command = typer.main.get_command(probe)
    return {o for p in command.params if p.param_type_name == "option" for o in (*p.opts, *p.secondary_opts)} - {"--help"}


@pytest.mark.parametrize("command", commands())
def test_every_option_is_listed_under_its_command(command):
    listed = documented()
    options = commands()[command]
    if robot_options() <= options:
        options = options - robot_options()
    assert listed.get(command, set()) == options


def test_the_robot_options_are_listed_once():
    assert documented()["… FILE"] == robot_options()


def test_examples_use_options_that_exist():
    for line in re.findall(r"^flexor .*$", PAGE.read_text(), flags=re.MULTILINE):
        words = line.split("#")[0].split()[1:]
        name = " ".join(words[:2]) if words[0] in ("nerd", "ode") else words[0]
        used = {w for w in words if w.startswith("--")}
        assert used <= commands()[name], line
