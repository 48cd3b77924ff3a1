"""A fit in a folder: `Fit.save` and `Fit.load`.

simulator/             the identified simulator, which `fx.open` opens
fit.json               what was found, to read; and everything else of the fit, for `Fit.load`
fit.safetensors        the arrays of the fit: values, posterior, curves
<robot>.xml            the identified description, in the requested formats
"""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flexor.files import array_bytes, digest, read_arrays, read_sealed, sealed, write_whole
from flexor.identify.fit import Curves, Errors, Fit
from flexor.identify.posterior import Combination, Posterior
from flexor.model.charts import LAWS, Chart, Coordinates
from flexor.model.save import save as save_model
from flexor.solvers import artefact
from flexor.solvers.encoding import Table, decode, encode

KIND, VERSION = "fit", 1
HEAD, ARRAYS, SIMULATOR = "fit.json", "fit.safetensors", "simulator"
CLASSES: Table = {
    **{c.__name__: c for c in (Chart, Combination, Coordinates, Curves, Errors, Posterior)}, **LAWS
}  # fmt: skip


def save(
    fit: Fit, folder: str | os.PathLike[str], *, formats: Sequence[str] = ("xml",), classes: Iterable[type] = ()
) -> list[Path]:
    """Writes the folder; see `Fit.save`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    artefact.save(fit.sim, folder / SIMULATOR, classes=classes)
    kept = {f.name: getattr(fit, f.name) for f in dataclasses.fields(fit) if f.name != "sim"}
    record, arrays = encode(kept, CLASSES, "fit")
    beside = {ARRAYS: array_bytes(arrays)}
    which = {"folder": SIMULATOR, "digest": digest((folder / SIMULATOR / artefact.HEAD).read_bytes())}
    head = sealed(KIND, VERSION, {**fit.summary(), "simulator": which, "record": record}, beside)
    write_whole({folder / HEAD: head, **{folder / name: content for name, content in beside.items()}})
    descriptions = [folder / f"{fit.model.topology.name}.{ending}" for ending in formats]
    for path in descriptions:
        save_model(fit.model, path)
    return [folder / SIMULATOR, folder / HEAD, folder / ARRAYS, *descriptions]


def load(folder: str | os.PathLike[str], *, classes: Iterable[type] = ()) -> Fit:
    """Reads what `save` wrote; says what is missing, altered or too new."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder '{folder}' to load a fit from.")
    data, beside = read_sealed(folder / HEAD, KIND, VERSION)
    sim = artefact.open(folder / SIMULATOR, classes=classes)
    if digest((folder / SIMULATOR / artefact.HEAD).read_bytes()) != data["simulator"]["digest"]:
        raise ValueError(
            f"the simulator in '{folder / SIMULATOR}' does not belong to '{HEAD}' beside it: it comes from another fit."
        )
    try:
        record: dict[str, Any] = decode(data["record"], CLASSES, read_arrays(beside[ARRAYS]))
        return Fit(sim=sim, **record)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"the fit in '{folder}' cannot be loaded: {str(error).rstrip('.')}.") from error
