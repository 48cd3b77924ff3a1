"""What the commands of learning share: tasks and physics as the command line names them, and policies that know theirs."""

import importlib.util
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flexor.envs import AbstractTask, check, make
from flexor.learn import Policy


@dataclass(frozen=True)
class TaskRecipe:
    """A task by name, or by a Python file and what makes it there (`mine.py:Balance`), with options and physics: a card holds it,
    so that a policy can be played and judged."""

    task: str
    options: Mapping[str, Any] = field(default_factory=dict)
    solver: Any = None

    def build(self) -> AbstractTask:
        """The task, checked."""
        file, colon, name = self.task.rpartition(":")
        made = make(self.task, **self.options) if not colon else _made(Path(file), name, self.options)
        made = made if self.solver is None else made.on(physics(self.solver))
        check(made)
        return made

    def table(self) -> dict[str, Any]:
        """For a card."""
        return {"task": self.task, "options": dict(self.options), "solver": self.solver}


def recipe_of(policy: Policy, name: str, task: str | None, solver: Any, options: Mapping[str, Any]) -> TaskRecipe:
    """How to make the task of a policy: as its card says, where nothing else is said here."""
    card = policy.card.get("recipe")
    if task is not None:
        return TaskRecipe(task, options, solver)
    if card is None:
        raise ValueError(f"the card of '{name}' does not say how its task '{policy.task}' is made: name it (`task`).")
    if ":" in card["task"]:
        raise ValueError(
            f"the card of '{name}' names Python code, '{card['task']}', which would be executed: if you trust it, name it "
            "yourself as the task (--task; of `flexor view`, --of; in a configuration, task)."
        )
    return TaskRecipe(card["task"], {**card["options"], **options}, card["solver"] if solver is None else solver)


def physics(given: Any) -> Any:
    """What `task.on` takes: the name of a solver, a table of options, or a learned solver: a file, or `nerd:` and the name of a
    pretrained one."""
    if isinstance(given, str) and (given.endswith(".safetensors") or given.startswith("nerd:")):
        from flexor.nerd import load

        return load(given.removeprefix("nerd:")).solver()
    return given


def physics_from(text: str | None) -> Any:
    """A solver as an option says it: a name, a file, or a table in TOML, `{name = "penalty", substeps = 8}`."""
    if text is None or not text.lstrip().startswith("{"):
        return text
    return toml_value(text, "--solver")


def options_from(given: Sequence[str]) -> dict[str, Any]:
    """Options of a task from `NAME=VALUE`."""
    pairs = [text.partition("=") for text in given]
    wrong = [name + sign for name, sign, value in pairs if not (name and sign and value)]
    if wrong:
        raise ValueError(f"--set takes NAME=VALUE, such as `length=200`; got '{wrong[0]}'.")
    return {name.strip().replace("-", "_"): toml_value(value, f"--set {name}") for name, _, value in pairs}


def toml_value(text: str, where: str) -> Any:
    """A value in TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where}: '{text}' is no value of TOML ({error}).") from error


def _made(file: Path, name: str, options: Mapping[str, Any]) -> AbstractTask:
    """What a function or class method of a Python file makes, or a task that the file holds."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no file '{file}'; a task of your own is FILE.py:NAME.")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"'{file}' is no Python file; a task of your own is FILE.py:NAME.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ValueError(f"'{file}' has no '{name}', which is to be a task or a function that makes one.")
    found = getattr(module, name)
    made = found if isinstance(found, AbstractTask) else found(**options)
    if not isinstance(made, AbstractTask):
        raise TypeError(f"'{name}' of '{file}' makes {type(made).__name__}, not a task (`fx.envs.AbstractTask`).")
    return made
