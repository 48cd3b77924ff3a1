"""Files of columns: CSV, HDF5, NPZ, Parquet, and data frames, as arrays by name."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def read_csv(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        head, *rows = [row for row in csv.reader(file, skipinitialspace=True) if row] or [[]]
    if not rows:
        raise ValueError(f"'{path.name}' holds no rows below a line of column names.")
    for i, row in enumerate(rows):
        if len(row) != len(head):
            raise ValueError(f"'{path.name}' names {len(head)} columns, but row {i} has {len(row)} numbers.")
    try:
        table = np.array([[float(x) if x.strip() else np.nan for x in row] for row in rows])
    except ValueError as error:
        raise ValueError(f"'{path.name}' holds something that is not a number: {error}.") from error
    columns = {c.strip(): table[:, i] for i, c in enumerate(head)}
    return {c: x for c, x in columns.items() if not c.startswith("tap.")}


def read_columns(path: Path) -> dict[str, np.ndarray]:
    try:
        if path.suffix == ".npz":
            with np.load(path) as file:
                table = {name: np.asarray(file[name], float) for name in file.files}
        else:
            import h5py

            with h5py.File(path, "r") as file:
                table = {name: np.asarray(value, float) for name, value in file.items()}
    except Exception as error:  # zip, HDF5 and NumPy have many ways to say that a file is broken
        raise ValueError(
            f"'{path.name}' is neither a trajectory of the robot nor a file of columns, or it is corrupt: {error}."
        ) from error
    for name, column in table.items():
        if column.shape != (len(table.get("time", column)),):
            raise ValueError(
                f"'{path.name}': the column '{name}' has shape {column.shape}; it needs a number for each time."
            )
    return table


def read_parquet(path: Path) -> dict[str, np.ndarray]:
    """The columns of a Parquet file (extra `parquet`)."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError('Parquet files need the extra parquet: `pip install "flexor[parquet]"`.') from error
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"'{path.name}' is no Parquet file, or it is corrupt: {error}.") from error
    return {name: numbers(table[name].to_numpy(), name, path.name) for name in table.column_names}


def frame_columns(frame: Any) -> dict[str, np.ndarray]:
    """The columns of a data frame: of pandas, polars, or a mapping of names to arrays."""
    names = list(frame.keys()) if isinstance(frame, Mapping) else [str(c) for c in frame.columns]
    return {name: numbers(np.asarray(frame[name]), name, "the frame") for name in names}


def numbers(x: np.ndarray, column: str, name: str) -> np.ndarray:
    """A column as float64; points in time become seconds since the first."""
    if np.issubdtype(x.dtype, np.datetime64):
        return (x - x[0]) / np.timedelta64(1, "s") if len(x) else np.zeros(0)
    if np.issubdtype(x.dtype, np.timedelta64):
        return x / np.timedelta64(1, "s")
    try:
        return np.asarray(x, float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the column '{column}' of {name} holds something that is not a number: {error}.") from error


def chosen(table: dict[str, np.ndarray], columns: Mapping[str, str] | None, name: str) -> dict[str, np.ndarray]:
    """The columns under the names that flexor gives them: {"q.elbow": "joint_2_pos"}; all as they are without a choice. `time` is
    found by its own name where the choice does not name it."""
    if columns is None:
        return table
    wanted = {**({"time": "time"} if "time" in table else {}), **columns}
    absent = [theirs for theirs in wanted.values() if theirs not in table]
    if absent:
        raise ValueError(f"{name} has no column '{absent[0]}'; it has {', '.join(table)}.")
    return {ours: table[theirs] for ours, theirs in wanted.items()}
