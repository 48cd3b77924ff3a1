"""Logs: what is refused and in which words; files."""

import h5py
import numpy as np
import pytest

import flexor as fx
from flexor.identify.log import check_against, check_excitation

RAIL = """
<mujoco model="rail"><worldbody><body name="cart"><joint name="x" type="slide" axis="1 0 0"/>
  <geom size="0.1" mass="1"/></body></worldbody></mujoco>
"""
TIME = np.linspace(0.0, 2.0, 101)
SWING = np.stack([np.sin(3 * TIME), 3 * np.cos(3 * TIME)], axis=1)
COLUMNS = ("q.hinge", "qd.hinge")


@pytest.fixture(scope="module")
def pendulum():
    return fx.load("pendulum")


@pytest.fixture(scope="module")
def rail():
    return fx.load(RAIL)


def swing(values=SWING, time=TIME, columns=COLUMNS, **others):
    return fx.Log(time, values, columns, **others)


def spoilt(row, column, value):
    values = SWING.copy()
    values[row, column] = value
    return values


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: swing(time=np.where(TIME > 1, TIME + 0.5, TIME)), "has a gap of 0.52 s after 1 s, where rows are 0.02 s apart"),
        (lambda: swing(spoilt(7, 1, np.nan)), "is nan in row 7 (and 0 more numbers); repair the log, or pass missing=True"),
        (lambda: swing(spoilt(7, 1, np.inf), missing=True), "'qd.hinge' is inf in row 7"),
        (lambda: swing(SWING[:, :1]), "101 times and 2 columns need values of that shape, got (101, 1)"),
        (lambda: swing(SWING[:50]), "101 times and 2 columns need values of that shape, got (50, 2)"),
        (lambda: swing(SWING[:1], TIME[:1]), "`time` must be a list of at least two numbers"),
        (lambda: swing(SWING, 3.0), "`time` must be a list of at least two numbers"),
        (lambda: swing(time=TIME[::-1]), "times must increase from row to row; row 1 does not"),
        (lambda: swing(time=np.where(np.arange(101) == 9, np.nan, TIME)), "times must increase from row to row; row 9 does not"),
        (lambda: swing(columns=("q.hinge", "q.hinge")), "has a column twice: q.hinge"),
        (lambda: swing(noise={"q.elbow": 1.0}), "noise is given for 'q.elbow', but the columns are q.hinge, qd.hinge"),
        (lambda: swing(noise={"q.hinge": 0.0}), "the noise of 'q.hinge' must be positive, got 0.0"),
        (lambda: swing(controls=np.zeros((50, 1))), "controls need a row for each of the 101 times (or 100), got (50, 1)"),
        (lambda: swing(controls=np.full((100, 1), np.nan)), "the controls of row 0 are not finite"),
        (lambda: swing(start=([np.nan], [0.0])), "its start is not finite"),
    ],
)  # fmt: skip
def test_bad_logs_are_refused_in_a_sentence(call, text):
    with pytest.raises(ValueError, match="'log'") as error:
        call()
    assert text in str(error.value)


def test_missing_numbers_are_allowed_where_announced():
    assert np.isnan(swing(spoilt(7, 1, np.nan), missing=True).values[7, 1])


@pytest.mark.parametrize(
    ("factors", "text"),
    [
        ((180 / np.pi, 1.0, 1.0), "Is 'q.hinge' in degrees?"),
        ((1.0, 180 / np.pi, 1.0), "Is 'qd.hinge' in degrees per second?"),
        ((1.0, 30 / np.pi, 1.0), "Is 'qd.hinge' in revolutions per minute?"),
        ((1.0, 1.0, 1000.0), "Is 'time' in milliseconds?"),
    ],
)
def test_units_of_a_hinge_by_slope(pendulum, factors, text):
    log = swing(SWING * factors[:2], TIME * factors[2])
    with pytest.raises(ValueError, match="radians, metres and seconds") as error:
        check_against(log, pendulum)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("factors", "text"),
    [
        ((1000.0, 1.0), "Is 'q.x' in millimetres?"),
        ((1.0, 1000.0), "Is 'qd.x' in millimetres per second?"),
        ((100.0, 1.0), "Is 'q.x' in centimetres?"),
    ],
)
def test_units_of_a_slide_by_slope(rail, factors, text):
    with pytest.raises(ValueError) as error:
        check_against(swing(SWING * factors, columns=("q.x", "qd.x")), rail)
    assert text in str(error.value)


def test_right_units_pass_with_noise_and_holes(pendulum):
    values = SWING + 0.02 * np.random.default_rng(0).normal(size=SWING.shape)
    values[::7, 0] = np.nan
    check_against(swing(values, missing=True), pendulum)
    check_against(swing(SWING * [57.3, 1.0], columns=("q.hinge", "qd.hinge"), time=TIME * 57.3), pendulum)


def test_unknown_columns(pendulum):
    with pytest.raises(
        ValueError, match=r"has the column 'q\.knee', which 'pendulum' does not; give `observe`, or use q\.hinge"
    ):
        check_against(swing(columns=("q.hinge", "q.knee")), pendulum)


@pytest.mark.parametrize("noise", [None, {"q.hinge": 0.01, "qd.hinge": 0.02}], ids=["still", "noise alone"])
def test_no_excitation(pendulum, noise):
    jitter = 0.0 if noise is None else np.random.default_rng(0).normal(size=SWING.shape) * [0.01, 0.02]
    with pytest.raises(ValueError, match="nothing moves, so nothing can be learnt about 'pendulum'"):
        check_excitation([swing(np.full_like(SWING, 0.3) + jitter, noise=noise)], pendulum)


def test_one_log_that_moves_is_enough(pendulum):
    check_excitation([swing(np.zeros_like(SWING)), swing()], pendulum)


def test_split_cuts_at_gaps():
    time = np.concatenate([TIME[:40], TIME[40:42] + 1, TIME[42:] + 2])
    logs = fx.Log.split(time, SWING, COLUMNS, controls=np.arange(101.0)[:, None], noise={"q.hinge": 1e-3, "qd.hinge": 1e-2})
    assert [len(log.time) for log in logs] == [40, 59]  # two rows alone are dropped
    assert [log.name for log in logs] == ["log[0]", "log[1]"]
    np.testing.assert_array_equal(logs[1].controls[0], [42.0])
    assert logs[0].noise["q.hinge"] == 1e-3


@pytest.fixture(scope="module")
def trajectory(pendulum):
    sim = fx.Simulator(pendulum, fx.RigidSolver(contact=None), dt=0.02)
    return sim.rollout(sim.reset([0.3]), np.sin(np.arange(20.0))[:, None])


@pytest.mark.parametrize("ending", [".csv", ".h5", ".npz"])
def test_trajectory_files_are_logs(pendulum, trajectory, tmp_path, ending):
    path = trajectory.save(tmp_path / f"run{ending}")
    log, own = fx.Log.read(path, pendulum, noise={"q.hinge": 1e-3, "qd.hinge": 1e-2}), fx.Log.of(trajectory)
    assert log.columns == own.columns == COLUMNS
    assert log.name == "run"
    for a, b in ((log.time, own.time), (log.values, own.values), (log.controls, own.controls)):
        np.testing.assert_array_equal(a, b)


def _write(path, table):
    if path.suffix == ".csv":
        rows = [",".join(table), *(",".join(repr(float(x)) for x in row) for row in zip(*table.values(), strict=True))]
        path.write_text("\n".join(rows) + "\n")
    elif path.suffix == ".npz":
        np.savez(path, **table)
    else:
        with h5py.File(path, "w") as file:
            for name, column in table.items():
                file[name] = column
    return path


@pytest.mark.parametrize("ending", [".csv", ".h5", ".npz"])
def test_files_of_columns(pendulum, tmp_path, ending):
    table = {"time": TIME, "qd.hinge": SWING[:, 1], "u.torque": np.cos(TIME)}
    log = fx.Log.read(_write(tmp_path / f"run{ending}", table), pendulum, noise={"q.hinge": 1.0, "qd.hinge": 2.0})
    assert log.columns == ("qd.hinge",)
    assert log.noise == {"qd.hinge": 2.0}  # figures for columns that this file lacks are left alone
    np.testing.assert_array_equal(log.values[:, 0], SWING[:, 1])
    np.testing.assert_array_equal(log.controls[:, 0], np.cos(TIME))


def test_empty_cells_are_missing_numbers(pendulum, tmp_path):
    path = tmp_path / "run.csv"
    path.write_text('\ufeff"time", "q.hinge"\n0,0.1\n0.1,\n0.2,0.3\n', encoding="utf-8")
    log = fx.Log.read(path, pendulum, missing=True)
    np.testing.assert_array_equal(log.values[:, 0], [0.1, np.nan, 0.3])


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.csv", "", "'a.csv' holds no rows below a line of column names"),
        ("a.csv", "time,q.hinge\n", "'a.csv' holds no rows below a line of column names"),
        ("a.csv", "time,q.hinge\n0,1\n1\n", "'a.csv' names 2 columns, but row 1 has 1 numbers"),
        ("a.csv", "time,q.hinge\n0,1\n1,left\n", "'a.csv' holds something that is not a number"),
        (
            "a.csv",
            "time,elbow\n0,1\n1,2\n",
            "'a.csv' has the column 'elbow', which 'pendulum' does not; it has time, q.hinge",
        ),
        ("a.csv", "q.hinge\n0\n1\n", "'a.csv' has no column 'time'"),
        ("a.txt", "", "'a.txt' must end in .csv, .h5, .hdf5, .npz"),
        ("a.h5", "rubbish", "'a.h5' is neither a trajectory of the robot nor a file of columns, or it is corrupt"),
        ("a.npz", "rubbish", "'a.npz' is neither a trajectory of the robot nor a file of columns, or it is corrupt"),
    ],
)
def test_bad_files(pendulum, tmp_path, name, content, text):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError) as error:
        fx.Log.read(tmp_path / name, pendulum)
    assert text in str(error.value)


def test_columns_of_unlike_length(pendulum, tmp_path):
    path = _write(tmp_path / "a.npz", {"time": TIME, "q.hinge": SWING})
    with pytest.raises(ValueError, match=r"the column 'q\.hinge' has shape \(101, 2\)"):
        fx.Log.read(path, pendulum)


def test_no_such_file(pendulum, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no log file"):
        fx.Log.read(tmp_path / "none.csv", pendulum)


LIMITED = """
<mujoco model="limited"><worldbody><body name="arm"><joint name="hinge" axis="0 1 0" range="-90 90" limited="true"/>
  <geom size="0.1" mass="1"/><body name="tool"><joint name="x" type="slide" axis="1 0 0" range="0 0.2" limited="true"/>
  <geom size="0.1" mass="1"/></body></body></worldbody></mujoco>
"""


@pytest.fixture(scope="module")
def limited():
    return fx.load(LIMITED)


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        ("q.hinge", 60 * np.sin(3 * TIME), 'Is \'q.hinge\' in degrees? .*units={"q.hinge": "deg"}'),
        ("q.x", 90 * np.sin(3 * TIME) ** 2, 'Is \'q.x\' in millimetres? .*units={"q.x": "mm"}'),
        ("q.x", 1e4 * np.sin(3 * TIME) ** 2, "Is it in another unit, or of another joint?"),
    ],
)
def test_coordinates_far_beyond_limits_are_refused(limited, column, values, text):
    log = fx.Log(TIME, values[:, None], (column,))
    with pytest.raises(ValueError, match=r"far beyond the joint's limits, .* pass check_units=False") as error:
        check_against(log, limited)
    for words in text.split(".*"):
        assert words in str(error.value)
    check_against(log, limited, units=False)


def test_coordinates_a_little_beyond_limits_pass(limited):
    """Stops are soft and encoders have offsets: by half a radian, or by as much as the whole range."""
    check_against(fx.Log(TIME, np.stack([4.7 * np.sin(3 * TIME), 0.3 + 0 * TIME], axis=1), ("q.hinge", "q.x")), limited)


def test_patterns_of_noise(pendulum, tmp_path):
    path = _write(tmp_path / "run.csv", {"time": TIME, "q.hinge": SWING[:, 0], "qd.hinge": SWING[:, 1]})
    assert fx.Log.read(path, pendulum, noise={"q*": 0.1, "qd.*": 0.2}).noise == {"q.hinge": 0.1, "qd.hinge": 0.2}
    assert swing(noise={"q.*": 0.1, "qd.hinge": 0.2}).noise == {"q.hinge": 0.1, "qd.hinge": 0.2}
    with pytest.raises(ValueError, match=r"noise is given for 'q.hindge', but the columns are q.hinge, qd.hinge"):
        fx.Log.read(path, pendulum, noise={"q.hindge": 0.1})


def test_units_are_converted(pendulum, tmp_path):
    path = _write(tmp_path / "run.csv", {"time": 1e3 * TIME, "q.hinge": np.rad2deg(SWING[:, 0]), "qd.hinge": SWING[:, 1]})
    log = fx.Log.read(path, pendulum, units={"q.*": "deg", "time": "ms"}, noise={"q.*": 1e-3})
    np.testing.assert_allclose(log.values, SWING, rtol=0, atol=1e-15)
    np.testing.assert_allclose(log.time, TIME, rtol=1e-15)
    assert log.noise == {"q.hinge": 1e-3}
    with pytest.raises(ValueError, match=r"the unit 'gon' of 'q.\*' is unknown; there are rad, deg"):
        fx.Log.read(path, pendulum, units={"q.*": "gon"})
    with pytest.raises(ValueError, match=r"`units` names 'p.\*', but the columns are time, q.hinge, qd.hinge"):
        fx.Log.read(path, pendulum, units={"p.*": "deg"})
