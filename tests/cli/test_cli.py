"""The command line: what it prints, what it writes, how it fails."""

import importlib
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import flexor as fx
from flexor.cli import certify as certify_command
from flexor.cli import loading
from flexor.cli.app import app
from flexor.cli.simulate import joined, numbers, step_count

RUNNER = CliRunner()


def flexor(*words, status=0):
    """Runs the program and returns its output; stderr with its line breaks taken out."""
    result = RUNNER.invoke(app, [str(w) for w in words])
    assert result.exit_code == status, result.output + repr(result.exception)
    return result


def sentence(*words):
    """The one line on stderr with which a command fails."""
    result = flexor(*words, status=2)
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def test_version():
    assert flexor("--version").stdout.strip() == f"flexor {fx.__version__}"


def test_help_names_all_commands():
    text = flexor("--help").stdout
    for command in ("info", "simulate", "certify", "identify", "demo"):
        assert command in text


def test_info_shows_the_robot():
    text = flexor("info", "quadruped").stdout
    assert "13 bodies" in text
    assert "18 degrees of freedom" in text
    for name in ("FR_calf", "root", "floor~FR_foot", "stand"):
        assert name in text


def test_info_lists_parameters():
    text = flexor("info", "cube", "--parameters", "*.mass").stdout
    assert re.search(r"body\.cube\.mass\s+0\.37", text)
    assert "damping" not in text


def test_info_shows_delays(tmp_path):
    model = fx.with_delay(fx.load("pendulum"), {"actuator.*.delay": 0.023}, dt=0.002)
    fx.save(model, tmp_path / "late.xml")
    text = flexor("info", str(tmp_path / "late.xml")).stdout
    assert "delay (s)" in text
    assert "0.023" in text
    assert "delay" not in flexor("info", "pendulum").stdout
    assert re.search(r"delay\s+0\.023", flexor("info", str(tmp_path / "late.xml"), "--parameters", "*.delay").stdout)


def test_info_refuses_a_pattern_without_match():
    assert "no parameter of 'cube' matches 'x'" in sentence("info", "cube", "--parameters", "x")


def test_unknown_robot_is_one_sentence():
    assert sentence("info", "no_such_robot").startswith("flexor: there is no robot description 'no_such_robot'")


def test_debug_shows_the_error_itself():
    result = RUNNER.invoke(app, ["info", "no_such_robot", "--debug"])
    assert isinstance(result.exception, FileNotFoundError)


def test_simulate_writes_what_is_asked(tmp_path):
    files = {o: tmp_path / f for o, f in (("--output", "run.h5"), ("--plot", "run.png"), ("--html", "run.html"))}
    options = [x for pair in files.items() for x in pair]
    text = flexor("simulate", "pendulum", "--q", "0.5", "--qd", "0.1", "--seconds", "0.1", "--dt", "0.005", *options).stdout
    assert "20 steps of 0.005 s by RigidSolver" in text
    assert "µs per step once compiled" in text
    model = fx.load("pendulum")
    trajectory = fx.Trajectory.load(files["--output"], model)
    np.testing.assert_allclose(trajectory.q[0], [0.5])
    sim = fx.Simulator(model, dt=0.005)
    expected = sim.rollout(sim.reset([0.5], [0.1]), steps=20)
    # float32 or float64, as the process has been set: the tolerance is that of float32 over 20 steps
    np.testing.assert_allclose(trajectory.q, expected.q, atol=1e-5)
    assert files["--plot"].read_bytes().startswith(b"\x89PNG")
    assert "flexor-animation" in files["--html"].read_text()


def test_simulate_with_mujoco_agrees(tmp_path):
    common = ("simulate", "pendulum", "--q", "0.5", "--seconds", "0.05", "--float64")
    flexor(*common, "--solver", "mujoco", "--output", tmp_path / "a.npz")
    flexor(*common, "--contact", "none", "--integrator", "implicit", "--output", tmp_path / "b.npz")
    model = fx.load("pendulum")
    a, b = (fx.Trajectory.load(tmp_path / f, model).q for f in ("a.npz", "b.npz"))
    np.testing.assert_allclose(a, b, atol=1e-12)


def test_simulate_refuses_before_it_works(tmp_path):
    assert "must end in .h5" in sentence("simulate", "pendulum", "--output", "run.txt")
    assert "must end in .gif, .mp4" in sentence("simulate", "pendulum", "--video", "run.avi")
    assert "does not exist" in sentence("simulate", "pendulum", "--plot", tmp_path / "none" / "run.png")
    assert "either --keyframe or --q" in sentence("simulate", "cube", "--keyframe", "rest", "--q", "1")
    assert "has no keyframe named 'x'; it has 'rest', 'tossed'" in sentence("simulate", "cube", "--keyframe", "x")
    assert "must have shape (1,), got (2,)" in sentence("simulate", "pendulum", "--q", "1,2")
    assert "--q takes numbers" in sentence("simulate", "pendulum", "--q", "one")
    assert "--seconds must be a positive number" in sentence("simulate", "pendulum", "--seconds", "-1")
    assert "`dt` must be a positive number" in sentence("simulate", "pendulum", "--dt", "0")
    assert "use contact=Penalty()" in sentence("simulate", "cube", "--integrator", "rk4")
    assert "is not a tap" in sentence("simulate", "pendulum", "--record", "joint.colour")
    assert "cannot ignore 'x'" in sentence("simulate", "pendulum", "--ignore", "x")
    assert "MuJoCo has its own contact model" in sentence("simulate", "cube", "--solver", "mujoco", "--contact", "ncp")


@pytest.mark.parametrize("words", ["mass", "=1", "body.cube.mass=", "body.cube.mass=heavy", "body.cube.mass=1;2"])
def test_set_wants_a_name_and_numbers(words):
    assert "--set takes NAME=VALUE" in sentence("info", "cube", "--set", words)


def test_set_changes_parameters_in_order():
    words = ("--set", "*.mass=2", "--set", "body.cube.mass=3", "--set", "gravity=0,0,-1.62")
    text = flexor("info", "cube", *words, "--parameters", "*a*").stdout
    assert re.search(r"body\.cube\.mass\s+3\s", text)
    assert re.search(r"gravity\s+0 0 -1\.62\s", text)
    assert "no parameter of 'cube' matches 'x'" in sentence("info", "cube", "--set", "x=1")
    assert "'body.cube.com' must have shape (3,), got (2,)" in sentence("info", "cube", "--set", "body.cube.com=1,2")


def test_options_of_loading_reach_the_loader(tmp_path, monkeypatch):
    given = {}
    monkeypatch.setattr(loading, "load", lambda file, **options: given.update(options) or fx.load("pendulum"))
    words = ("--mesh-vertices", "8", "--package-dirs", tmp_path, "--self-collision", "--ignore", "a,b", "--missing", "skip")
    flexor("info", "x.urdf", *words)
    assert given == {
        "floating": False, "ground": False, "ignore": ["a", "b"], "mesh_vertices": 8, "package_dirs": [tmp_path],
        "self_collision": True, "missing": "skip",
    }  # fmt: skip
    assert "is not a folder" in sentence("info", "x.urdf", "--package-dirs", tmp_path / "none")


def test_meshes_that_are_missing_may_be_skipped(tmp_path):
    shape = '<collision><geometry><mesh filename="x.stl"/></geometry></collision>'
    (tmp_path / "r.urdf").write_text(f'<robot name="r"><link name="a">{shape}</link></robot>')
    assert "x.stl" in sentence("info", tmp_path / "r.urdf")
    told = flexor("info", tmp_path / "r.urdf", "--missing", "skip")
    assert "1 shape is left out, since its mesh was not found: 'x.stl' of link 'a'" in " ".join(told.stderr.split())


def test_controls_move_the_robot(tmp_path):
    """A rollout's own file gives the same rollout again; columns may stand in any order."""
    sim = fx.Simulator(fx.load("double_pendulum"), dt=0.005)
    u = np.random.default_rng(0).normal(size=(20, 2))
    truth = sim.rollout(sim.reset(), u).save(tmp_path / "truth.csv")
    flexor("simulate", "double_pendulum", "--dt", "0.005", "--controls", truth, "--output", tmp_path / "again.csv")
    again, wanted = (fx.Trajectory.load(tmp_path / f, sim.model) for f in ("again.csv", "truth.csv"))
    np.testing.assert_allclose(again.q, wanted.q, atol=1e-5)
    np.testing.assert_allclose(again.u, u, atol=1e-6)


def test_a_saved_simulator_is_simulated(tmp_path):
    model = fx.replace(fx.load("pendulum"), {"*.mass": 3.0})
    sim = fx.Simulator(model, fx.RigidSolver(contact=None), dt=0.01)
    sim.save(tmp_path / "kept")
    text = flexor("simulate", tmp_path / "kept", "--q", "1", "--seconds", "0.1", "--output", tmp_path / "run.npz").stdout
    assert "10 steps of 0.01 s" in text
    np.testing.assert_allclose(fx.Trajectory.load(tmp_path / "run.npz", model).q, sim.rollout(sim.reset([1.0]), steps=10).q)
    assert re.search(r"mass\s+3\b", flexor("info", tmp_path / "kept", "--parameters", "body.*.mass").stdout)
    assert "leave --dt out" in sentence("simulate", tmp_path / "kept", "--dt", "0.1")
    assert "--floating cannot be given with it" in sentence("info", tmp_path / "kept", "--floating")


def test_trajectory_that_leaves_the_finite_numbers_is_written_and_refused(tmp_path):
    words = ("simulate", "double_pendulum", "--qd", "1e300,1e300", "--seconds", "0.1", "--dt", "0.01", "--float64")
    text = sentence(*words, "--output", tmp_path / "run.csv")
    assert "diverged: step 1 is not finite, first at body" in text
    assert (tmp_path / "run.csv").is_file()


def test_warnings_are_lines_on_stderr():
    urdf = (
        '<robot name="r"><link name="a"><inertial><mass value="1"/>'
        '<inertia ixx="1" iyy="1" izz="9" ixy="0" ixz="0" iyz="0"/></inertial></link></robot>'
    )
    result = flexor("info", urdf, "--floating")
    assert "warning:" in result.stderr
    assert ".py" not in result.stderr


def test_numbers_come_from_words_and_files(tmp_path):
    np.save(tmp_path / "q.npy", np.arange(3.0))
    (tmp_path / "q.txt").write_text("0.0 1.0\n2.0\n")
    for source in ("0,1,2", "0 1 2", str(tmp_path / "q.npy"), str(tmp_path / "q.txt")):
        np.testing.assert_array_equal(numbers(source, "--q"), [0, 1, 2])


def test_parts_join_to_the_whole():
    sim = fx.Simulator(fx.load("pendulum"))
    whole = sim.rollout(sim.reset([0.3]), steps=5, record=("joint.acceleration",))
    first = sim.rollout(sim.reset([0.3]), steps=3, record=("joint.acceleration",))
    second = sim.rollout(first.final, steps=3, record=("joint.acceleration",))
    cut = joined([first, second], 5)
    assert cut.final is None
    for name in ("time", "q", "qd", "u"):
        np.testing.assert_allclose(getattr(cut, name), getattr(whole, name), atol=1e-14)
    np.testing.assert_allclose(cut.taps["joint.acceleration"], whole.taps["joint.acceleration"], atol=1e-12)


@pytest.mark.parametrize(("seconds", "dt", "steps"), [(1.0, 0.002, 500), (0.001, 0.002, 1), (0.3, 0.1, 3)])
def test_step_count(seconds, dt, steps):
    assert step_count(seconds, dt) == steps


def certificate(*errors):
    """A certificate with the given relative errors, against a tolerance of 1e-6."""
    from flexor.certify import Certificate, Row

    rows = [Row("NCP", "sliding", f"mass {i}", 1.0, 1.0, e, 1e-6, e <= 1e-6) for i, e in enumerate(errors)]
    return Certificate("pendulum", rows, ["a remark"])


@pytest.mark.parametrize(
    ("errors", "status", "words"), [((1e-9, 0.0), 0, "all 2 derivatives hold"), ((1e-9, 0.1), 1, "1 of 2")]
)
def test_certify_ends_with_its_verdict(errors, status, words, monkeypatch):
    made = certificate(*errors)
    # the package's name stands for its function in flexor's namespace
    monkeypatch.setattr(importlib.import_module("flexor.certify"), "certify", lambda model: made)
    text = flexor("certify", "pendulum", status=status).stdout
    assert words in text
    assert "a remark" in text


def test_certificate_table_hides_what_has_no_influence():
    from flexor.certify import Certificate, Row

    silent = Row("NCP", "airborne", "friction", 0.0, 0.0, 0.0, 1e-6, True, influence=False)
    made = Certificate("r", [*certificate(1e-9).rows, silent])
    assert set(certify_command.tables(made)) == {("NCP", "sliding")}
    assert set(certify_command.tables(made, everything=True)) == {("NCP", "sliding"), ("NCP", "airborne")}
    assert "1 more" in certify_command.verdict(made)
