"""Logs from what people have: ROS 2 bags and MCAP files, Parquet, data frames, written by the formats' own writers."""

import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from mcap_ros2.writer import Writer

import flexor as fx

HEADER = """
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
================================================================================
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""
JOINT_STATE = "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort" + HEADER
COMMAND = "std_msgs/Header header\nfloat64[] data" + HEADER
ARM = """
<mujoco model="arm"><worldbody><body name="upper"><joint name="shoulder" axis="0 1 0"/><geom size="0.1" mass="1"/>
  <body name="lower" pos="0.3 0 0"><joint name="elbow" axis="0 1 0"/><geom size="0.1" mass="1"/></body></body></worldbody>
  <actuator><motor name="shoulder" joint="shoulder"/></actuator></mujoco>
"""
START = 1_700_000_000_000_000_000  # ns
ROWS = 20


@pytest.fixture(scope="module")
def arm():
    return fx.load(ARM)


def stamp(ns):
    return {"stamp": {"sec": ns // 10**9, "nanosec": ns % 10**9}, "frame_id": ""}


def write(path, *, late=5_000_000, joints=("elbow", "gripper", "shoulder"), states="/joint_states"):
    """States at 100 Hz, which arrive `late` ns after their stamps; a new command every 30 ms, from 15 ms on."""
    with path.open("wb") as file:
        writer = Writer(file)
        state = writer.register_msgdef("sensor_msgs/msg/JointState", JOINT_STATE)
        command = writer.register_msgdef("my_msgs/msg/Command", COMMAND)
        for k in range(ROWS):
            ns = START + k * 10_000_000
            positions = [0.1 * k, 7.0, -0.1 * k]
            message = {
                "header": stamp(ns),
                "name": list(joints),
                "position": positions,
                "velocity": [1.0, 0.0, -1.0],
                "effort": [],
            }
            writer.write_message(states, state, message, log_time=ns + late, publish_time=ns + late // 2)
            if k % 3 == 1:
                ns += 5_000_000
                writer.write_message("/effort", command, {"header": stamp(ns), "data": [0.5 * k]}, log_time=ns + late)
        writer.finish()


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("bag") / "run_0.mcap"
    write(path)
    return path


def test_joint_states_are_found_by_the_names_of_joints(recording, arm):
    log = fx.Log.read(recording, arm)
    assert log.columns == ("q.shoulder", "qd.shoulder", "q.elbow", "qd.elbow")
    np.testing.assert_allclose(log.time, 0.01 * np.arange(ROWS), atol=1e-9)
    np.testing.assert_allclose(log.values[:, 0], -0.1 * np.arange(ROWS))
    np.testing.assert_allclose(log.values[:, 2], 0.1 * np.arange(ROWS))
    assert "stamps in the headers of /joint_states, since 1700000000.0" in log.origin
    assert "SI" in log.origin


def test_a_folder_is_a_bag(recording, arm):
    assert np.array_equal(fx.Log.read(recording.parent, arm).values, fx.Log.read(recording, arm).values)


def test_commands_are_held_and_rows_begin_with_the_first(recording, arm):
    columns = {"q.elbow": "/joint_states:position[elbow]", "u.shoulder": "/effort:data[0]"}
    log = fx.Log.read(recording, arm, columns=columns)
    assert log.columns == ("q.elbow",)
    np.testing.assert_allclose(log.values[0], 0.2)  # the first row after the command at 15 ms
    acting = [0.5 * max(j for j in range(1, ROWS, 3) if j * 10 + 5 <= k * 10) for k in range(2, ROWS)]
    np.testing.assert_allclose(log.controls[:, 0], acting)


def test_another_clock_moves_nothing_but_the_start(recording, arm):
    late = fx.Log.read(recording, arm, clock="log")
    np.testing.assert_allclose(late.time, 0.01 * np.arange(ROWS), atol=1e-9)
    assert "times of recording of /joint_states, since 1700000000.005" in late.origin


def test_a_log_of_messages_identifies(recording, arm):
    """It goes where any log goes: split, cut, into identification."""
    part = fx.Log.read(recording, arm).between(2, 9)
    assert len(part.time) == 8
    assert part.missing


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"columns": {"q.elbow": "/joint_states.position"}}, "not of the form /topic:field"),
        ({"columns": {"q.elbow": "/nowhere:position[elbow]"}}, "no messages on /nowhere; it has .*/joint_states"),
        ({"columns": {"q.elbow": "/joint_states:place[elbow]"}}, "messages of /joint_states have no 'place'"),
        ({"columns": {"q.elbow": "/joint_states:position[knee]"}}, r"never says q.elbow \(/joint_states:position\[knee\]\)"),
        ({"clock": "sun"}, "there is no clock 'sun'; messages have header, publish, log"),
    ],
)
def test_wrong_requests_are_named(recording, arm, options, text):
    with pytest.raises(ValueError, match=text):
        fx.Log.read(recording, arm, **options)


def test_wrong_recordings_are_named(tmp_path, recording, arm):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.db3").write_bytes(b"SQLite format 3\0")
    with pytest.raises(ValueError, match=r"`ros2 bag convert` makes MCAP of it"):
        fx.Log.read(tmp_path / "old", arm)
    (tmp_path / "cut.mcap").write_bytes(recording.read_bytes()[:300])
    with pytest.raises(ValueError, match=r"'cut\.mcap' is no MCAP file of ROS 2 messages, or it is corrupt"):
        fx.Log.read(tmp_path / "cut.mcap", arm)
    write(tmp_path / "other.mcap", joints=("a", "b", "c"))
    with pytest.raises(ValueError, match=r"/joint_states tells of a, b, c, and the joints of 'arm' are shoulder, elbow"):
        fx.Log.read(tmp_path / "other.mcap", arm)


TABLE = {"t": np.arange(10) * 0.01, "arm_joint_1": np.linspace(0, 10, 10), "comment": np.zeros(10)}
NAMES = {"time": "t", "q.shoulder": "arm_joint_1"}


def test_parquet_and_frames_are_one(tmp_path, arm):
    pyarrow.parquet.write_table(pyarrow.table(TABLE), tmp_path / "run.parquet")
    logs = [fx.Log.read(x, arm, columns=NAMES, units={"q.*": "deg"}) for x in (tmp_path / "run.parquet", TABLE)]
    np.testing.assert_array_equal(logs[0].values, logs[1].values)
    np.testing.assert_allclose(logs[0].values[-1], np.deg2rad(10.0))
    assert logs[0].name == "run"
    assert "q.* in deg" in logs[0].origin


def test_frames_of_pandas_may_have_dates(arm):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"time": pandas.to_datetime(START + 10_000_000 * np.arange(5)), "q.elbow": np.arange(5.0)})
    np.testing.assert_allclose(fx.Log.read(frame, arm).time, 0.01 * np.arange(5))


def test_wrong_tables_are_named(tmp_path, arm):
    with pytest.raises(ValueError, match=r"the frame has no column 'knee'; it has t, arm_joint_1, comment"):
        fx.Log.read(TABLE, arm, columns={"q.elbow": "knee"})
    with pytest.raises(ValueError, match=r"the column 'q\.elbow' of the frame holds something that is not a number"):
        fx.Log.read({"time": [0, 1], "q.elbow": ["a", "b"]}, arm)
    with pytest.raises(ValueError, match=r"`clock` chooses one of the clocks of messages"):
        fx.Log.read(TABLE, arm, columns=NAMES, clock="header")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ValueError, match=r"'bad\.parquet' is no Parquet file, or it is corrupt"):
        fx.Log.read(tmp_path / "bad.parquet", arm)


@pytest.mark.parametrize(("package", "file"), [("mcap", "run.mcap"), ("pyarrow", "run.parquet")])
def test_a_missing_extra_is_a_sentence(tmp_path, package, file):
    (tmp_path / file).write_bytes(b"something")
    code = f"import sys; sys.modules[{package!r}] = None; import flexor as fx; fx.Log.read({file!r}, fx.load('pendulum'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert 'pip install "flexor[' in done.stderr.splitlines()[-1]
