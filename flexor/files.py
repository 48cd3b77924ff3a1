"""Every file that flexor writes appears whole or not at all, with the user's ordinary file mode.

A file is written under another name beside its own and renamed once it is complete, so that an interruption, a full disk or an
error leaves what was there before. An artefact is a *sealed* JSON file with other files beside it: it names its format and its
version, and holds a digest of every file and of itself, so that what is missing, altered or too new is refused by name.
"""

import csv
import hashlib
import io
import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def write_whole(contents: Mapping[Path, bytes]) -> None:
    """Writes all files, or none."""

    def writer(content: bytes) -> Callable[[Path], Any]:
        return lambda part: part.write_bytes(content)

    write_with({path: writer(content) for path, content in contents.items()})


def write_with(writers: Mapping[Path, Callable[[Path], Any]]) -> None:
    """Writes all files, or none; each by a function that gets the path of the temporary file, whose ending is the file's own."""
    made: list[tuple[Path, Path]] = []
    try:
        for path, write in writers.items():
            if not path.parent.is_dir():
                raise FileNotFoundError(f"cannot write '{path}': the folder '{path.parent}' does not exist.")
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.part.", suffix=path.suffix)
            os.close(handle)
            part = Path(name)
            made.append((part, path))
            write(part)
            os.chmod(part, ordinary_mode(0o666))
        for part, path in made:
            os.replace(part, path)
    except BaseException:
        for part, _ in made:
            part.unlink(missing_ok=True)
        raise


def write_folder(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Writes a folder of files, or nothing. A folder that is there is replaced as a whole, with all that it holds: the new one is
    complete beside it before the two change places."""
    folder = folder.resolve()
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"cannot write '{folder}': the folder '{folder.parent}' does not exist.")
    stage = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.part."))
    old = stage.with_name(f"{stage.name}.old")
    try:
        write_whole({stage / name: content for name, content in contents.items()})
        os.chmod(stage, ordinary_mode(0o777))
        if folder.exists():
            os.rename(folder, old)
        os.rename(stage, folder)
    except BaseException:
        if old.exists() and not folder.exists():
            os.rename(old, folder)
        shutil.rmtree(stage, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def ordinary_mode(mode: int) -> int:
    """The mode with which the user's own programs would make a file (0o666) or a folder (0o777)."""
    mask = os.umask(0)
    os.umask(mask)
    return mode & ~mask


def write_text(path: Path, text: str) -> None:
    """Writes one text file in UTF-8."""
    write_whole({path: text.encode("utf-8")})


def json_bytes(data: Any) -> bytes:
    """JSON of plain values, a line each for people and for diffs; numbers that are not finite are refused."""
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode("utf-8")


def array_bytes(arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """Named arrays as the contents of a safetensors file."""
    from safetensors.numpy import save

    plain = {name: np.asarray(x, order="C") for name, x in arrays.items()}
    return bytes(save(plain, metadata=dict(metadata) if metadata else None))


def read_arrays(source: Path | bytes) -> dict[str, np.ndarray]:
    """Named arrays of a safetensors file, by its path or its contents."""
    from safetensors.numpy import load

    return dict(load(source if isinstance(source, bytes) else source.read_bytes()))


def read_toml(path: Path, what: str = "configuration") -> dict[str, Any]:
    """The tables of a TOML file."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no {what} '{path}'.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"'{path.name}' is not TOML: {error}.") from error


def csv_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows of the same columns as the contents of a CSV file."""
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return table.getvalue().encode()


def checkpoint_bytes(signature: str, state: Any, history: Sequence[Any]) -> bytes:
    """A run at a step, as the contents of an .npz file: the arrays of its state (random keys as integers), its history, and what
    it is a run of."""
    import jax

    leaves: Any = {f"leaf{i}": np.asarray(_plain(x)) for i, x in enumerate(jax.tree.leaves(state))}
    packed = io.BytesIO()
    np.savez(packed, signature=signature, history=json.dumps(list(history)), **leaves)
    return packed.getvalue()


def read_checkpoint(path: Path, signature: str, like: Any) -> tuple[Any, list[Any]]:
    """The state and the history of a run, in the form of the state `like`. Raises for what is corrupt, or of another run."""
    import jax
    import jax.numpy as jnp

    try:
        with np.load(path) as file:
            stored = {name: file[name] for name in file.files}
        history = json.loads(str(stored["history"]))
        same = str(stored["signature"]) == signature
    except Exception as error:
        raise ValueError(f"the checkpoint '{path}' cannot be read ({error}); remove it to start again.") from error
    if not same:
        raise ValueError(f"the checkpoint '{path}' belongs to another run; remove it, or choose another place.")
    leaves, form = jax.tree.flatten(like)
    new = [jnp.asarray(stored[f"leaf{i}"]) for i in range(len(leaves))]
    new = [jax.random.wrap_key_data(y) if _is_key(x) else y for x, y in zip(leaves, new, strict=True)]
    return jax.tree.unflatten(form, new), history


def _is_key(x: Any) -> bool:
    import jax

    return hasattr(x, "dtype") and bool(jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key))


def _plain(x: Any) -> Any:
    import jax

    return jax.random.key_data(x) if _is_key(x) else x


def digest(content: bytes) -> str:
    """What a file is recognised by: SHA-256 of its bytes."""
    return hashlib.sha256(content).hexdigest()


def sealed(kind: str, version: int, data: Mapping[str, Any], beside: Mapping[str, bytes]) -> bytes:
    """The contents of the JSON file of an artefact: format, version, the data, and digests of itself and the files beside it."""
    body = {"format": f"flexor {kind}", "version": version, **data}
    body["files"] = {name: digest(content) for name, content in beside.items()}
    return json_bytes({**body, "digest": _digest_of(body)})


def read_sealed(path: Path, kind: str, version: int) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The data of an artefact's JSON file, and the contents of the files beside it.

    Raises, with a sentence that names the file: what is no artefact of this kind, of a newer version, missing, corrupt, altered.
    """
    if not path.is_file():
        raise FileNotFoundError(f"'{path.parent}' is not a {kind}: there is no '{path.name}' in it.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        found, number = data["format"], data["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"'{path}' is corrupt, or no file of flexor: {_reason(error)}.") from error
    if found != f"flexor {kind}" or not isinstance(number, int):
        raise ValueError(f"'{path}' describes a '{found}', not a 'flexor {kind}'.")
    if number > version:
        raise ValueError(
            f"'{path}' was written by a newer flexor: its format has version {number}, and this flexor reads up to {version}. "
            "Update flexor to open it."
        )
    if data.pop("digest", None) != _digest_of(data):
        raise ValueError(f"'{path}' was altered after it was written: its digest does not match its contents.")
    return data, {name: _beside(path, kind, name, wanted) for name, wanted in data["files"].items()}


def _beside(path: Path, kind: str, name: str, wanted: str) -> bytes:
    file = path.parent / Path(name).name
    if not file.is_file():
        raise FileNotFoundError(f"the {kind} '{path.parent}' is incomplete: its file '{file.name}' is missing.")
    content = file.read_bytes()
    if digest(content) != wanted:
        raise ValueError(
            f"'{file}' was altered after it was written, or belongs to another {kind}: '{path.name}' has another digest of it."
        )
    return content


def _digest_of(data: Mapping[str, Any]) -> str:
    return digest(json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("utf-8"))


def _reason(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split()).rstrip(".")
