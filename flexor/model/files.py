"""Files that appear whole or not at all."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_whole(contents: Mapping[Path, bytes]) -> None:
    """Writes all files, or none: each to a temporary name beside its own, and all are renamed once the last is written."""
    made: list[tuple[str, Path]] = []
    mask = os.umask(0)
    os.umask(mask)
    try:
        for path, content in contents.items():
            if not path.parent.is_dir():
                raise FileNotFoundError(f"cannot write '{path}': the folder '{path.parent}' does not exist.")
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
            made.append((name, path))
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(name, 0o666 & ~mask)
        for name, path in made:
            os.replace(name, path)
    except BaseException:
        for name, _ in made:
            Path(name).unlink(missing_ok=True)
        raise
