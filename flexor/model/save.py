"""`save`: a model as an MJCF or URDF file that loads as the same model, number for number."""

import os
import warnings
from pathlib import Path

from flexor.files import write_text
from flexor.model.description import DescriptionError, ModelWarning
from flexor.model.extension import default_keys, lost_keys, structure_keys
from flexor.model.load import load
from flexor.model.model import Model
from flexor.model.save_mjcf import mjcf_text
from flexor.model.save_urdf import urdf_text

WRITERS = {".xml": mjcf_text, ".urdf": urdf_text}
FORMATS = {".xml": "MJCF", ".urdf": "URDF"}


def save(model: Model, path: str | os.PathLike) -> None:
    """Writes the model as MJCF (.xml) or URDF (.urdf), by the ending of the path.

    The text is read back before it is written to disk; what the format lost goes into the extension (see
    `flexor.model.extension`), so that `load(path)` gives the same topology and exactly the same numbers. What the format
    cannot hold raises by name. The file is written atomically.
    """
    path = Path(path)
    if path.suffix not in WRITERS:
        raise ValueError(f"save writes .xml (MJCF) or .urdf files, not '{path.name}'.")
    write_text(path, description(model, path.suffix))


def description(model: Model, ending: str) -> str:
    """The text of a file with this ending, .xml or .urdf."""
    write = WRITERS[ending]
    keys = {**structure_keys(model), **default_keys(model)}
    again = _read_back(write(model, keys), model, ending)
    return write(model, {**keys, **lost_keys(model, again)})


def _read_back(text: str, model: Model, ending: str) -> Model:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModelWarning)  # they were given when the model was loaded
            again = load(text, dtype=model.dtype)
    except DescriptionError as error:
        raise DescriptionError(f"'{model.topology.name}' cannot be saved as {FORMATS[ending]}: {error}") from error
    if again.topology != model.topology:
        fields = ("name", "bodies", "parents", "joints", "geoms", "pairs", "actuators", "keyframes", "sites", "equalities",
                  "tendons", "loops", "mocap", "compensated", "media", "fluid_shapes", "sensors", "compliances")  # fmt: skip
        field = next(f for f in fields if getattr(again.topology, f) != getattr(model.topology, f))
        raise DescriptionError(f"'{model.topology.name}' cannot be saved as {FORMATS[ending]}: it would change its {field}.")
    return again
