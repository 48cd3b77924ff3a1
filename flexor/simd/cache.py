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
from typing import Any, Protocol

MAGIC = b"flexor.simd 1\n"


class Exchange(Protocol):
    """Files of other processes, beyond this machine's disk."""

    def fetch(self, key: str) -> bytes | None:
        """The file of a kernel; None where this process is to make it."""

    def offer(self, key: str, file: bytes) -> None:
        """Gives others what was made here."""


_exchanges: list[Exchange] = []


def share(exchange: Exchange) -> None:
    """Makes this process look for object code in an exchange too, after its own disk."""
    _exchanges[:] = [exchange]


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
    """Code and its description, from this user's intact file on disk, or else from the exchange."""
    found = _from_disk(key)
    if found is not None:
        return _unpacked(found)
    for exchange in _exchanges:
        file = exchange.fetch(key)
        made = None if file is None else _unpacked(file)
        if made is not None and file is not None:
            _to_disk(key, file)
            return made
    return None


def _from_disk(key: str) -> bytes | None:
    folder = directory()
    if folder is None:
        return None
    try:
        with (folder / f"{key}.o").open("rb") as file:
            if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            data = file.read()
    except OSError:
        return None
    return data if _unpacked(data) is not None else None


def _unpacked(data: bytes) -> tuple[bytes, dict[str, Any]] | None:
    """Code and its description, if the file is intact."""
    head = len(MAGIC) + 32
    if not data.startswith(MAGIC) or hashlib.sha256(data[head:]).digest() != data[len(MAGIC) : head]:
        return None
    size = int.from_bytes(data[head : head + 8], "little")
    about = json.loads(data[head + 8 : head + 8 + size])
    return data[head + 8 + size :], about


def write(key: str, code: bytes, about: dict[str, Any]) -> None:
    """Stores code; if that is not possible (no space, no permission), warns and continues."""
    note = json.dumps(about).encode()
    body = len(note).to_bytes(8, "little") + note + code
    file = MAGIC + hashlib.sha256(body).digest() + body
    _to_disk(key, file)
    for exchange in _exchanges:
        exchange.offer(key, file)


def _to_disk(key: str, content: bytes) -> None:
    folder = directory()
    if folder is None:
        return
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            temporary = Path(file.name)
            file.write(content)
        os.replace(temporary, folder / f"{key}.o")
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        warnings.warn(f"flexor.simd could not keep compiled code in {folder}: {error}.", stacklevel=2)
