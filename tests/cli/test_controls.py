"""Controls from files: times, columns, and what is refused."""

import numpy as np
import pytest

import flexor as fx
from flexor.cli.controls import Between, read_controls


@pytest.fixture(scope="module")
def model():
    return fx.load("double_pendulum")


def table(folder, text):
    path = folder / "u.csv"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def names(model):
    return [a.name for a in model.topology.actuators]


def test_rows_are_steps_where_there_is_no_time(model, names, tmp_path):
    first, second = names
    path = table(tmp_path, f"u.{second}, {first}\n1,2\n3,4\n")
    np.testing.assert_array_equal(read_controls(path, model, 0.01, None), [[2, 1], [4, 3]])
    np.save(tmp_path / "u.npy", np.arange(6.0).reshape(3, 2))
    np.testing.assert_array_equal(read_controls(tmp_path / "u.npy", model, 0.01, 0.02), [[0, 1], [2, 3]])


def test_own_times_are_held_or_joined_by_lines(model, names, tmp_path):
    path = table(tmp_path, f"time,{names[0]},{names[1]}\n0,0,1\n0.2,2,1\n0.4,4,1\n")
    held = read_controls(path, model, 0.1, None)
    np.testing.assert_allclose(held[:, 0], [0, 0, 2, 2, 4, 4])  # the last row acts as long as the one before
    lines = read_controls(path, model, 0.1, 0.4, Between.linear)
    np.testing.assert_allclose(lines, [[0, 1], [1, 1], [2, 1], [3, 1]])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("time,{0}\n0,1\n", "lacks the actuator '{1}'; 'double_pendulum' has {0}, {1}"),
        ("{0},{1},thrust\n0,1,2\n", "has the column 'thrust', which is not an actuator"),
        ("{0},u.{0},{1}\n0,1,2\n", "has the column '{0}' twice"),
        ("{0},{1}\n0,x\n", "not a number"),
        ("{0},{1}\n0,nan\n", "row 0 of 'u.csv' holds something that is not a finite number"),
        ("{0},{1}\n0\n", "names 2 columns, but row 0 has 1 cells"),
        ("{0},{1}\n", "has no rows"),
        ("time,{0},{1}\n0,1,1\n0,1,1\n", "must increase from row to row"),
        ("time,{0},{1}\n1,1,1\n2,1,1\n", "starts at 1 s; its first row must be at 0 s"),
        ("time,{0},{1}\n0,1,1\n0.1,1,1\n", "ends after 0.2 s, but --seconds asks for 1 s"),
    ],
)
def test_sentences(model, names, tmp_path, text, words):
    with pytest.raises(ValueError, match=words.format(*names).replace(".", r"\.")):
        read_controls(table(tmp_path, text.format(*names)), model, 0.01, 1.0 if "asks" in words else None)


def test_wrong_files_are_refused(model, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_controls(tmp_path / "none.csv", model, 0.01, None)
    (tmp_path / "u.txt").touch()
    with pytest.raises(ValueError, match=r"must end in \.csv or \.npy"):
        read_controls(tmp_path / "u.txt", model, 0.01, None)
    np.save(tmp_path / "u.npy", np.zeros((3, 5)))
    with pytest.raises(ValueError, match=r"has shape \(3, 5\).*2 columns"):
        read_controls(tmp_path / "u.npy", model, 0.01, None)
    with pytest.raises(ValueError, match="has no actuators"):
        read_controls(tmp_path / "u.npy", fx.load("cube"), 0.01, None)
