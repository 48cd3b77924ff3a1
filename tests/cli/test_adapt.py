"""`flexor adapt`: a stream from a file, standard input and a file that grows; what it says, and its page."""

import io
import re
import threading
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import flexor as fx
from flexor.cli.adapt import Rows, _lines
from flexor.cli.app import app

RUNNER = CliRunner()
ARM = """<mujoco model="arm"><worldbody><body name="hand"><joint name="a" axis="0 1 0" damping="0.3"/>
<inertial pos="0.3 0 0" mass="2" diaginertia="0.02 0.05 0.05"/></body></worldbody>
<actuator><motor name="m" joint="a"/></actuator></mujoco>"""
CONFIG = """
robot = "arm.xml"
free = ["body.hand.mass"]
noise = { "q.*" = 1e-4, "qd.*" = 1e-3 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """4 s of an arm that takes 1.9 kg at 2 s; one row is damaged, one comes twice."""
    folder = tmp_path_factory.mktemp("adapt")
    (folder / "arm.xml").write_text(ARM)
    (folder / "arm.toml").write_text(CONFIG)
    stepper = fx.Simulator(fx.load(ARM), fx.RigidSolver(contact=None), dt=0.002).compile(parameters=["body.hand.mass"])
    rng, lines = np.random.default_rng(0), ["time,q.a,qd.a,u.m"]
    for k in range(2000):
        t = 0.002 * k
        if k == 1000:
            stepper.parameters["body.hand.mass"][...] = 3.9
        u = 100 * (0.7 * np.sin(2.3 * t) - stepper.q) + 10 * (1.6 * np.cos(2.3 * t) - stepper.qd)
        row = (t, stepper.q[0] + 1e-4 * rng.normal(), stepper.qd[0] + 1e-3 * rng.normal(), u[0])
        lines.append(",".join(map(repr, map(float, row))))
        stepper.step(u)
    lines.insert(500, lines[499])
    lines.insert(300, "rubbish")
    (folder / "run.csv").write_text("\n".join(lines) + "\n")
    return folder


def adapt(folder, *words, status=0, **options):
    result = RUNNER.invoke(app, ["adapt", str(folder / "arm.toml"), *words], **options)
    assert result.exit_code == status, result.output + repr(result.exception)
    return result


def test_a_log_is_replayed_told_and_drawn(folder):
    page = folder / "page.html"
    out = adapt(folder, str(folder / "run.csv"), "--html", str(page)).stdout
    change = re.search(r"payload on 'hand' changed at 2.0 s: \+([\d.]+) ± ([\d.]+) kg", out)
    assert abs(float(change[1]) - 1.9) < 3 * float(change[2]) < 0.1
    assert "2000 used; 1 duplicate, 1 unreadable" in out
    assert out.count("body.hand.mass") >= 4
    text = page.read_text()
    assert "Adaptation of arm" in text
    assert text.count('class="plot"') == 2
    assert "http" not in text


def test_standard_input_is_a_stream(folder):
    lines = (folder / "run.csv").read_text().splitlines()[:200]
    out = adapt(folder, "-", input="\n".join(lines)).stdout
    assert "199 used" in out
    assert "arm at 0.40 s" in out


def test_lines_are_read_one_by_one_whatever_is_in_them():
    text = b'\xef\xbb\xbftime,q.a,tap.x,u.m\n0,1,5,0\n1,"2,5,0\n2,\xff,5,0\n3,4,5,0\n'
    with io.TextIOWrapper(io.BytesIO(text), encoding="utf-8", errors="replace") as source:
        rows = Rows(_lines(source, False), "x")
        assert rows.columns == ["q.a"]
        assert [row[0] for row in rows] == [0.0, 3.0]
    assert rows.unreadable == 2


def test_files_with_a_byte_order_mark_and_other_bytes_are_read(folder, tmp_path):
    lines = (folder / "run.csv").read_bytes().splitlines()[:100]
    (tmp_path / "run.csv").write_bytes(b"\xef\xbb\xbf" + b"\n".join([*lines, b"1,\xe9,0,0", b'1,"3,0,0', lines[-1]]))
    assert "99 used; 1 duplicate, 2 unreadable" in adapt(folder, str(tmp_path / "run.csv")).stdout


def test_a_file_that_grows_is_followed(tmp_path):
    path, got = tmp_path / "grows.csv", []
    path.write_text("time,q.a\n0,1\n0.1,")
    with path.open() as source:
        lines = _lines(source, True)
        reader = threading.Thread(target=lambda: got.extend(next(lines) for _ in range(3)), daemon=True)
        reader.start()
        time.sleep(0.05)
        with path.open("a") as more:
            more.write("2\n")
        reader.join(10)
    assert got == ["time,q.a\n", "0,1\n", "0.1,2\n"]  # the half line waits for its end


@pytest.mark.parametrize(
    ("config", "rows", "said"),
    [
        (CONFIG + "speed = 3\n", "time,q.a,qd.a,u.m\n", "unknown key 'speed'"),
        ("free = ['x']\n", "time\n", "lacks the key 'robot'"),
        (
            CONFIG + "estimator = 'Magic'\n",
            "time,q.a,qd.a,u.m\n",
            "'estimator' must be one of MomentumRLS, Kalman, MovingHorizon",
        ),
        (CONFIG, "q.a,qd.a\n", "has no column 'time'"),
        (CONFIG, "time,q.a,qd.a\n0,0,0\n", "has no column 'u.m'"),
    ],
)
def test_sentences(folder, tmp_path, config, rows, said):
    (tmp_path / "arm.xml").write_text(ARM)
    (tmp_path / "arm.toml").write_text(config)
    (tmp_path / "run.csv").write_text(rows)
    error = " ".join(adapt(tmp_path, str(tmp_path / "run.csv"), status=2).stderr.split())
    assert said in error
    assert "Traceback" not in error
