"""Object code on disk: `FLEXOR_CACHE`, or the user's cache directory. Safe to share between processes, and to lose.

A file is written under another name and then moved into place, so a reader sees all of it or nothing; its digest is checked,
so a corrupt one is compiled again; one that belongs to another user is never loaded, since it is code.
"""

import hashlib
import json
import os
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

MAGIC = b"flexor.simd 1\n"


@cache
def compiler() -> str:
    """Digest of the compiler's own source: code made by another version is not used."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def directory() -> Path | None:
    """Where object code is kept; None where `FLEXOR_CACHE` is set to nothing."""
    chosen = os.environ.get("FLEXOR_CACHE")
    if chosen is not None:
        return Path(chosen) / "simd" if chosen else None
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "flexor" / "simd"


def read(key: str) -> tuple[bytes, dict[str, Any]] | None:
    """Code and its description, if the file exists, is intact, and belongs to this user."""
    folder = directory()
    if folder is None:
        return None
    try:
        path = folder / f"{key}.o"
        with path.open("rb") as file:
            if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            data = file.read()
    except OSError:
        return None
    head = len(MAGIC) + 32
    if not data.startswith(MAGIC) or hashlib.sha256(data[head:]).digest() != data[len(MAGIC) : head]:
        return None
    size = int.from_bytes(data[head : head + 8], "little")
    about = json.loads(data[head + 8 : head + 8 + size])
    return data[head + 8 + size :], about


def write(key: str, code: bytes, about: dict[str, Any]) -> None:
    """Stores code; if that is not possible (no space, no permission), warns and continues."""
    folder = directory()
    if folder is None:
        return
    note = json.dumps(about).encode()
    body = len(note).to_bytes(8, "little") + note + code
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            temporary = Path(file.name)
            file.write(MAGIC + hashlib.sha256(body).digest() + body)
        os.replace(temporary, folder / f"{key}.o")
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        warnings.warn(f"flexor.simd could not keep compiled code in {folder}: {error}.", stacklevel=2)
