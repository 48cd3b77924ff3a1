"""What `load` takes and how it refuses the rest."""

import jax.numpy as jnp
import pytest

from flexor.model.description import DescriptionError
from flexor.model.load import load
from flexor.robots import bundled


def test_broken_files_name_themselves(tmp_path):
    file = tmp_path / "robot.xml"
    file.write_text("<mujoco><worldbody>")
    with pytest.raises(DescriptionError, match=r"robot.xml: MuJoCo cannot read it"):
        load(file)
    file.write_text("<mujoco><wrong/></mujoco>")
    with pytest.raises(DescriptionError, match=r"robot.xml: MuJoCo cannot read it: .*wrong"):
        load(file)
    with pytest.raises(FileNotFoundError, match=r"no robot description .*nothing.urdf"):
        load(tmp_path / "nothing.urdf")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(TypeError, match="not int"):
        load(3)


def test_unknown_ignore_kinds_list_the_known():
    with pytest.raises(ValueError, match=r"cannot ignore 'tendons'; `ignore` may contain .*tendon"):
        load(bundled()["pendulum"], ignore=["tendons"])


def test_precision():
    assert load(bundled()["pendulum"]).dtype == jnp.float64
    model = load(bundled()["pendulum"], dtype=jnp.float32)
    assert model.dtype == model.bodies.pos.dtype == jnp.float32


def test_paths_and_texts_agree():
    path = bundled()["quadruped"]
    assert load(path).topology == load(str(path)).topology == load(path.read_text()).topology


def test_a_urdf_is_told_by_its_first_element():
    text = '<?xml version="1.0"?>\n<!-- <mujoco> -->\n<robot name="r"><link name="a"/></robot>'
    assert load(text).topology.bodies == ("world", "a")
