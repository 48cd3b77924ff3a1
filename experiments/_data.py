"""Finds real recordings: in the folder FLEXOR_DATA, or in ../shared/data beside the checkout."""

import os
from pathlib import Path

from _experiment import NoRecording


def recording(name: str) -> Path:
    """Path of a recording; raises `NoRecording` with a sentence where it is not on this machine."""
    beside = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    folder = Path(os.environ["FLEXOR_DATA"]) if "FLEXOR_DATA" in os.environ else beside
    if not (folder / name).is_file():
        raise NoRecording(f"the recording '{name}' is not in '{folder}'; set FLEXOR_DATA to the folder that holds it.")
    return folder / name
