"""Where a model came from. Physics does not use it; whoever wants more of a description than the model holds reads it again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Origin:
    """A description: its file, or its text, or MuJoCo's compiled model; and where meshes of the form package:// are."""

    path: Path | None = None
    text: str | None = None
    package_dirs: tuple[Path, ...] = ()
    compiled: Any = None
