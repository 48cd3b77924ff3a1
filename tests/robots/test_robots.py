"""Bundled robots, and robots by name."""

import sys

import mujoco
import numpy as np
import pytest

from flexor import robots
from flexor.robots import bundled, find, load


@pytest.mark.parametrize("name", bundled())
def test_bundled_robots_load_and_run_in_mujoco(name):
    model = load(name)
    assert model.topology.name == name
    assert model.nv > 0
    m = mujoco.MjModel.from_xml_path(str(find(name)))
    data = mujoco.MjData(m)
    for key in range(m.nkey):
        mujoco.mj_resetDataKeyframe(m, data, key)
        mujoco.mj_forward(m, data)
        assert min((c.dist for c in data.contact), default=0) > -1e-9, "keyframes start free of penetration"
        mujoco.mj_step(m, data, 100)
        assert np.isfinite(data.qpos).all()
        assert not data.warning.number.any()


@pytest.mark.parametrize(("name", "nv", "nu", "pairs"), [
    ("cartpole", 2, 1, 0), ("pendulum", 1, 1, 0), ("double_pendulum", 2, 2, 0), ("pendulum5", 5, 5, 5),
    ("swimmer2", 4, 1, 0), ("double_pendulum_contact", 2, 2, 2),
    ("swimmer5", 7, 4, 0), ("ant", 14, 8, 13), ("cube", 6, 0, 1), ("pusher", 5, 2, 1), ("quadruped", 18, 12, 5),
    ("acrobot", 2, 1, 0),
])  # fmt: skip
def test_bundled_robots_are_what_they_say(name, nv, nu, pairs):
    model = load(name)
    assert (model.nv, model.nu, len(model.topology.pairs)) == (nv, nu, pairs)


def test_the_quadruped_stands_on_its_feet():
    m = mujoco.MjModel.from_xml_path(str(find("quadruped")))
    data = mujoco.MjData(m)
    mujoco.mj_resetDataKeyframe(m, data, 0)
    mujoco.mj_forward(m, data)
    feet = [i for i in range(m.ngeom) if m.geom(i).name.endswith("_foot")]
    np.testing.assert_allclose(data.geom_xpos[feet, 2], m.geom_size[feet, 0], atol=1e-12)


def test_the_pusher_has_a_hexagonal_prism():
    model = load("pusher")
    slider = model.topology.geoms[model.geom("slider")]
    assert slider.outline == 6
    assert [p.name for p in model.topology.pairs] == ["tip~slider"]
    v = np.asarray(model.geoms.vertices)
    np.testing.assert_allclose(np.linalg.norm(v[:, :2], axis=1), 0.045, rtol=1e-6)
    np.testing.assert_allclose(np.abs(v[:, 2]), 0.008, rtol=1e-6)


def test_unknown_names_list_the_known_and_guess():
    with pytest.raises(FileNotFoundError, match=r"no robot description 'quadrupd'. Did you mean 'quadruped'\?.*cartpole"):
        load("quadrupd")
    with pytest.raises(FileNotFoundError, match=r"no robot description 'nowhere/robot.urdf'"):
        load("nowhere/robot.urdf")
    with pytest.raises(FileNotFoundError, match=r"no robot description 'robot.xml'"):
        load("robot.xml")


def test_without_example_robot_data_the_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(sys.modules["flexor.robots.find"], "example_robots", dict)
    with pytest.raises(FileNotFoundError, match="pip install example-robot-data"):
        load("laikago")


@pytest.mark.parametrize("name", ["anymal_c", "laikago", "a1", "panda", "g1", "talos", "ur3"])
@pytest.mark.filterwarnings("ignore::flexor.model.description.ModelWarning")
def test_example_robots_by_short_name(name):
    if not robots.example_robots():
        pytest.skip("example-robot-data is not installed")
    assert load(name, floating=True).topology.joints[0].kind == "free"
