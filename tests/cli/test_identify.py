"""`flexor identify`: from a TOML file and logs to an identified robot and a page about it."""

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import flexor as fx
from flexor.cli.app import app
from flexor.cli.identify_config import read_config

RUNNER = CliRunner()
MODULE = importlib.import_module("flexor.identify.identify")  # the name in the package is the function's
CONFIG = """
robot = "robot/arm.xml"
logs = ["runs/*.csv"]
contact = "none"
dt = 0.02
free = ["body.link.mass", "joint.hinge.damping"]
held_out = ["runs/c.csv"]
formats = ["xml", "urdf"]
out = "result"
noise = { "q.*" = 1e-3, "qd.*" = 1e-2 }
shooting = { free_start = true }
set = { "body.link.mass" = 0.6 }
"""


def identify(folder, text=CONFIG, status=0, words=()):
    (folder / "arm.toml").write_text(text)
    result = RUNNER.invoke(app, ["identify", str(folder / "arm.toml"), *words])
    assert result.exit_code == status, result.output + repr(result.exception)
    return result


def sentence(folder, text, status=2):
    result = identify(folder, text, status)
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A robot, three logs of it, kernels instead of XLA, since they compile faster here."""
    folder = tmp_path_factory.mktemp("identify")
    (folder / "robot").mkdir()
    (folder / "runs").mkdir()
    model = fx.load("pendulum")
    fx.save(model, folder / "robot" / "arm.xml")
    sim = fx.Simulator(model, fx.RigidSolver(contact=None), dt=0.02)
    rng = np.random.default_rng(0)
    for name in "abc":
        run = sim.rollout(sim.reset(rng.normal(size=1)), np.repeat(rng.normal(size=(10, 1)), 4, axis=0))
        values = np.concatenate([np.asarray(run.q), np.asarray(run.qd)], axis=1)
        noisy = values + [1e-3, 1e-2] * rng.normal(size=values.shape)
        u = np.append(np.asarray(run.u)[:, 0], 0.0)
        rows = zip(np.asarray(run.time), noisy[:, 0], noisy[:, 1], u, strict=True)
        lines = [",".join(repr(float(x)) for x in row) for row in rows]
        (folder / "runs" / f"{name}.csv").write_text("\n".join(["time,q.hinge,qd.hinge,u.torque", *lines]) + "\n")
    return folder


@pytest.fixture(scope="module")
def done(folder):
    """A run that was interrupted after two steps, and the one that went on from there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLEXOR_SIMD", "on")
        keep, kept = MODULE.write_whole, []

        def interrupted(*args):
            keep(*args)
            kept.append(1)
            if len(kept) == 2:
                raise KeyboardInterrupt

        patch.setattr(MODULE, "write_whole", interrupted)
        first = identify(folder, status=130)
        kept.clear()
        elsewhere = identify(folder, status=130, words=["--out", str(folder / "some where"), "--fresh"])
        patch.setattr(MODULE, "write_whole", keep)
        return first, identify(folder), elsewhere


def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_go_on(done):
    words = " ".join(done[0].stderr.split())
    assert re.search(
        r"interrupted after 1 steps of the search, which are kept: `flexor identify .*arm\.toml` resumes", words
    )
    words = " ".join(done[2].stderr.split())
    assert re.search(r"`flexor identify \S*arm\.toml --out '\S*some where'` resumes from there", words)


def test_the_same_command_goes_on_and_finishes(done, folder):
    out = done[1].stdout
    assert "arm, identified" in out or "pendulum, identified" in out
    assert re.search(r"body\.link\.mass\s+0\.6\s+(0\.99|1\.00|1)", out)
    assert "held out: error" in out
    written = {p.name for p in (folder / "result").iterdir()}
    robot = json.loads((folder / "result" / "fit.json").read_text())["robot"]
    files = {"simulator", "fit.json", "fit.safetensors", f"{robot}.xml", f"{robot}.urdf", "report.html"}
    assert written == files  # and no checkpoint
    assert fx.Fit.load(folder / "result").sim.solver.contact is None


def test_results_hold_the_truth(done, folder):
    summary = json.loads((folder / "result" / "fit.json").read_text())
    rows = {r["parameter"]: r for r in summary["parameters"]}
    assert rows["body.link.mass"]["start"] == pytest.approx(0.6)
    assert rows["body.link.mass"]["estimate"] == pytest.approx(1.0, rel=0.01)
    assert rows["joint.hinge.damping"]["estimate"] == pytest.approx(0.02, rel=0.1)
    assert summary["errors"]["held_out"]["segments"] == 1
    assert summary["errors"]["held_out"]["weighted"] == pytest.approx(1.0, abs=0.3)
    model = fx.load(folder / "result" / f"{summary['robot']}.xml")
    assert float(fx.parameters(model)["body.link.mass"]) == pytest.approx(rows["body.link.mass"]["estimate"], rel=1e-9)


def test_the_page_shows_it_all_and_needs_nothing_from_outside(done, folder):
    text = (folder / "result" / "report.html").read_text()
    for words in ("Identification of", "How well it predicts", "Prediction and measurement", "Parameters", "90 % interval",
                  "What the data do not determine", "The search", "Use it", "c</text>"):  # fmt: skip
        assert words in text, words
    assert text.count('class="interval"') == 2
    assert text.count('class="plot"') == 3
    assert "http" not in text


def test_networks_from_the_configuration(folder):
    held_out, shooting = "held_out = 0.4", "shooting = { horizon = 0.2 }"
    text = (
        CONFIG.replace('held_out = ["runs/c.csv"]', held_out).replace("shooting = { free_start = true }", shooting)
        + """
    [search]
    name = "Adam"
    steps = 40
    penalty = { kappa = 0.1 }
    [[augment]]
    output = "joint.passive_force"
    inputs = ["joint.qd"]
    net = { name = "Dissipative", width = 4, depth = 1 }
    over = "Each"
    scales = { "joint.qd" = 3.0 }
    """
    )
    path = folder / "nets.toml"
    path.write_text(text)
    config = read_config(Path(path))
    (entry,) = config.blueprint.entries
    assert entry.net == fx.nets.Dissipative(width=4, depth=1)
    assert (entry.over, entry.mode) == (fx.Each(), fx.Add())
    assert dict(entry.scales) == {"joint.qd": 3.0}
    assert config.shooting == fx.Shooting(horizon=0.2)
    assert isinstance(config.search, fx.Adam)
    assert (config.search.steps, config.search.penalty.kappa) == (40, 0.1)
    assert (config.held_out, config.held_out_logs, len(config.logs)) == (0.4, (), 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CONFIG + "colour = 3\n", "'arm.toml' has the unknown key 'colour'; the keys are robot, logs, free, dt"),
        ("robot = [", "'arm.toml' is not TOML"),
        ('robot = "pendulum"\n', "'arm.toml' lacks the key 'logs'; it needs robot, logs, free"),
        (CONFIG.replace("runs/*.csv", "walks/*.csv"), "'logs' names 'walks/*.csv', but there is no such file in"),
        (CONFIG.replace('["runs/c.csv"]', '["runs/*.csv"]'), "all of its logs are held out; none is left for training"),
        (CONFIG.replace('"none"', '"glue"'), "'contact' must be one of ncp, penalty, mixed, none, got 'glue'"),
        (CONFIG.replace('"none"', '{ name = "ncp", depth = 3 }'), "the solver 'ncp' has no option 'depth'; it has iterations"),
        (CONFIG + "units = { 'q.*' = 'gon' }\n", "the unit 'gon' of 'q.*' is unknown; there are rad, deg"),
        (CONFIG.replace("dt = 0.02", 'dt = "fast"'), "'dt' must be a number, got 'fast'"),
        (CONFIG.replace("robot/arm.xml", "robot/leg.xml"), "robot/leg.xml"),
        (CONFIG.replace('"q.*" = 1e-3', '"p.*" = 1e-3'), "noise is given for 'p.*', but the columns are q.hinge, qd.hinge"),
        (CONFIG.replace('"body.link.mass",', '"body.link.weight",'), "no parameter of 'pendulum' matches 'body.link.weight'"),
        (CONFIG + "bounds = { '*.mass' = 3 }\n", "'bounds' of '*.mass' must be [low, high], got 3"),
        (CONFIG + "search = 'Magic'\n", "'search' needs a name among LevenbergMarquardt, BasinHopping, LBFGS, Adam, Pagmo"),
        (CONFIG + "search = { name = 'Adam', starts = 3 }\n", "'search, Adam,' has the unknown key 'starts'"),
        (CONFIG.replace("free_start = true", "length = 3"), "'shooting' has the unknown key 'length'; the keys"),
        (CONFIG + "[[augment]]\noutput = 'joint.passive_force'\n", "a table of 'augment' lacks the key 'inputs'"),
        (CONFIG + "[[augment]]\noutput = 'joint.passive_force'\ninputs = ['joint.q']\nnet = 'Big'\n", "there are MLP"),
        (CONFIG.replace('formats = ["xml", "urdf"]', 'formats = ["doc"]'), "'formats' must be one of xml, urdf, got 'doc'"),
    ],
)  # fmt: skip
def test_sentences(folder, text, words):
    assert words in sentence(folder, text)


def test_longest_delay_makes_room_for_delays(folder):
    from flexor.cli.identify import _prepare

    path = folder / "late.toml"
    path.write_text('longest_delay = 0.06\nset = { "actuator.*.delay" = 0.05 }\n' + CONFIG.replace("set =", "prior ="))
    model = _prepare(read_config(path))[0].model
    assert [a.samples for a in model.topology.actuators] == [3]
    np.testing.assert_allclose(model.actuators.delay, 0.05)


def test_no_such_configuration(tmp_path):
    result = RUNNER.invoke(app, ["identify", str(tmp_path / "none.toml")])
    assert result.exit_code == 2
    assert "there is no configuration" in " ".join(result.stderr.split())


def test_torques_are_fitted_without_simulating(folder):
    """The runs' controls are the motor's torques; friction laws and filters come as tables."""
    text = CONFIG.replace(
        "shooting = { free_start = true }", 'method = { name = "torque", filter = { name = "Butterworth", cutoff = 8 } }'
    )
    text = text.replace('out = "result"', 'out = "torque"').replace('noise = { "q.*" = 1e-3, "qd.*" = 1e-2 }', "")
    identify(folder, text)
    found = json.loads((folder / "torque" / "fit.json").read_text())
    mass = next(row for row in found["parameters"] if row["parameter"] == "body.link.mass")
    assert mass["estimate"] == pytest.approx(1.0, abs=0.1)
    assert "nothing is simulated" in (folder / "torque" / "report.html").read_text()


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ('"guess"', "'method' must be one of shooting, torque, got 'guess'"),
        ("3", "'method' must be a name or a table, got 3"),
        ('{ name = "torque", cutoff = 3 }', "'method' has the unknown key 'cutoff'"),
        ('{ name = "torque", friction = "M7" }', "'method.friction' needs a name among viscous, M1"),
        (
            '{ name = "torque", filter = { name = "Butterworth", window = 3 } }',
            "'method.filter' has the unknown key 'window'",
        ),
        ('{ name = "torque", loads = { "*" = { name = "box" } } }', "'method.loads.*' lacks the key 'body'"),
    ],
)
def test_wrong_methods_are_explained(folder, method, words):
    assert words in sentence(folder, CONFIG + f"method = {method}\n")
