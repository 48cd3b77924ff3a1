"""The survey of robot files (`benchmarks/robots.py`): what it finds and counts, and calls that crash or hang."""

import os
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
BALL = '<mujoco model="ball"><worldbody><body name="b"><freejoint/><geom size="0.1"/></body></worldbody></mujoco>'
LINK = (
    '<link name="a"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>'
)
MESH = '<robot name="r"><link name="a"><collision><geometry><mesh filename="x.stl"/></geometry></collision></link></robot>'


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def folder(tmp_path):
    """Files that count, and files that do not."""
    files = {
        "ball.xml": BALL,
        "flexible.xml": BALL.replace("</mujoco>", '<option density="1"/></mujoco>'),
        "part.xml": "<!-- <robot> --><mujoco><worldbody><body><geom/></mujoco>",
        "page.xml": "<html/>",
        "arm.urdf": f'<?xml version="1.0"?><robot name="arm">{LINK}</robot>',
        "lost.urdf": MESH,
        "macro.urdf": '<robot name="r"><xacro:a xmlns:xacro="http://www.ros.org/wiki/xacro"/></robot>',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_files_are_told_by_their_first_element(folder):
    from _robot_files import in_folder

    kinds = {f.name: f.kind for f in in_folder(folder)}
    mjcf = dict.fromkeys(["ball.xml", "flexible.xml", "part.xml"], "MJCF")
    assert kinds == mjcf | dict.fromkeys(["arm.urdf", "lost.urdf", "macro.urdf"], "URDF")


def test_packages_are_searched():
    from _robot_files import in_packages

    found = {(f.package, f.kind) for f in in_packages()}
    assert {("gymnasium", "MJCF"), ("dm_control", "MJCF")} <= found


def test_trials_open_refuse_or_skip(folder):
    from _robot_files import in_folder
    from _robot_trial import trial

    results = {f.name: trial((f, f.name == "ball.xml")) for f in in_folder(folder)}
    assert results["ball.xml"]["refusals"] == results["arm.urdf"]["refusals"] == {}
    assert max(results["ball.xml"]["errors"].values()) < 1e-12
    assert "MuJoCo does not open it" in results["part.xml"]["skipped"]
    assert results["lost.urdf"]["skipped"] == "its meshes are not there, such as x.stl"
    assert results["macro.urdf"]["skipped"] == "it is a xacro file"


def test_all_refusals_of_a_file_are_collected(monkeypatch):
    import _robot_trial

    import flexor as fx

    def load(path, ignore, **options):
        for kind in ("flex", "sdf"):
            if kind not in ignore:
                raise fx.DescriptionError(f'x.xml: there is a {kind}; pass ignore=["{kind}"] to leave it out.')
        raise fx.DescriptionError("x.xml: body 'b' has mass -1.5 kg.")

    monkeypatch.setattr(_robot_trial.fx, "load", load)
    model, refusals = _robot_trial.opened("x.xml")
    assert model is None
    assert list(refusals) == ["flex", "sdf", "body '…' has mass … kg."]


RESTING = """<mujoco><worldbody><geom type="plane" size="1 1 1"/>
<body pos="0 0 0.099"><freejoint/><geom size="0.1"/></body>
<body pos="1 0 0.099"><freejoint/><geom type="capsule" size="0.1 0.2" euler="0 90 0"/></body></worldbody></mujoco>"""


def test_contacts_are_compared(tmp_path, monkeypatch):
    import _robot_contacts
    import robots
    from _robot_files import RobotFile

    file = tmp_path / "resting.xml"
    file.write_text(RESTING)
    found = _robot_contacts.contact_trial(RobotFile(str(file), "", "", "MJCF"))
    assert {kind: len(errors) for kind, errors in found["contacts"].items()} == {"plane-sphere": 4, "plane-capsule": 4}
    assert all(robots.agrees(e) for errors in found["contacts"].values() for e in errors)
    rows = robots.contact_rows([found, {"note": "no contact"}, {"contacts": {"plane-sphere": [(1e-3, 0.0)]}}])
    assert [(r["which"], r["MJCF"]) for r in rows] == [("plane-capsule", "4 of 4"), ("plane-sphere", "4 of 5")]
    assert {tuple(r) for r in rows} == {("what", "which", "MJCF", "URDF", "example")}


def test_motion_is_told(tmp_path):
    import robots
    from _robot_files import RobotFile

    files = [RobotFile("", "p", "a/b.xml", "MJCF"), RobotFile("", "p", "c.urdf", "URDF")]
    found = [
        {"nv": 6, "pairs": 2, "first": 1.5, "rollout": 0.25, "finite": True, "apart": 1e-3},
        {"fault": "took more than 1 s"},
    ]
    rows = robots.motion_rows(files, found)
    assert rows[0]["example"] == "6 dofs, 2 pairs; one second took 0.25 s, 0.001 m from MuJoCo"
    assert (rows[0]["MJCF"], rows[0]["URDF"]) == (1.5, "-")
    assert rows[1]["example"] == "took more than 1 s"


def double(x):
    """A case of a survey that may crash or hang."""
    if x == 1:
        os._exit(3)
    if x == 2:
        time.sleep(60)
    if x == 3:
        raise ValueError("three")
    return {"twice": 2 * x}


def test_a_crash_and_a_hang_do_not_end_a_survey(monkeypatch):
    import _guarded

    monkeypatch.setattr(_guarded, "PATIENCE", 30.0)
    cases = [0, 3, 1, 4, 2, 5]
    worker = _guarded.Worker(double, limit=0.5)
    monkeypatch.setattr(_guarded, "Worker", lambda function, limit: worker)
    found = dict(_guarded.guarded_map(double, cases, limit=0.5, workers=1))
    assert [found[i].get("twice") for i in range(6)] == [0, None, None, 8, None, 10]
    assert [found[i].get("fault") for i in (1, 2, 4)] == [
        "ValueError: three",
        "crashed, exit status 3",
        "took more than 0.5 s",
    ]


def test_tables_count_what_opens(folder):
    import robots
    from _robot_files import in_folder

    files = in_folder(folder)
    results = [{"skipped": "x"} if f.kind == "MJCF" else {"refusals": {}} for f in files]
    results[0] = {"refusals": {"flex": "a sentence"}}
    rows = robots.package_rows(files, results) + robots.refusal_rows(files, results)
    first = files[0].kind
    assert rows[0]["URDF"] == ("2 of 3" if first == "URDF" else "3 of 3")
    assert rows[1]["which"] == "flex"
    assert rows[1][first] == 1
    assert {tuple(r) for r in rows} == {("what", "which", "MJCF", "URDF", "example")}
