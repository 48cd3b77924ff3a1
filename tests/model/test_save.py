"""Saving: what is loaded again is the same model, number for number."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from flexor.model.description import DescriptionError, ModelWarning
from flexor.model.load import load as load_file
from flexor.model.parameters import replace
from flexor.model.save import save
from flexor.robots import bundled, example_robots, load


def assert_same(model, again):
    assert again.topology == model.topology
    jax.tree.map(np.testing.assert_array_equal, model, again)


def perturbed(model, seed=0):
    """The model with every number changed a little, so that no default can stand in for it; masses stay physical."""
    rng = np.random.default_rng(seed)

    def shake(x):
        return jnp.asarray(np.where(np.isfinite(x), np.asarray(x) * (1 + 0.01 * rng.random(x.shape)), x), x.dtype)

    shaken = jax.tree.map(shake, model)
    return eqx.tree_at(lambda m: m.bodies.inertia, shaken, model.bodies.inertia)


SEVERAL_JOINTS = {"pusher", "swimmer2", "swimmer5"}


@pytest.mark.parametrize("suffix", [".xml", ".urdf"])
@pytest.mark.parametrize("name", bundled())
@pytest.mark.parametrize("change", [lambda m: m, perturbed], ids=["plain", "perturbed"])
def test_bundled_robots_return_exactly(tmp_path, name, suffix, change):
    model, path = change(load(name)), tmp_path / f"robot{suffix}"
    if suffix == ".urdf" and name in SEVERAL_JOINTS:
        with pytest.raises(DescriptionError, match=r"body '\w+' has . joints, and a URDF link has one"):
            save(model, path)
        assert not list(tmp_path.iterdir())
        return
    save(model, path)
    assert_same(model, load_file(path))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", [".xml", ".urdf"])
@pytest.mark.parametrize("name", ["laikago", "a1", "panda", "g1", "double_pendulum_continuous"])
@pytest.mark.filterwarnings("ignore::flexor.model.description.ModelWarning")
def test_urdfs_on_the_ground_return_exactly(tmp_path, name, suffix):
    if name not in example_robots():
        pytest.skip("example-robot-data is not installed")
    model, path = load(name, floating=True, ground=True), tmp_path / f"robot{suffix}"
    save(model, path)
    assert_same(model, load_file(path))


def test_single_precision_returns_exactly(tmp_path):
    model = load("pusher", dtype=jnp.float32)
    save(model, tmp_path / "robot.xml")
    assert_same(model, load_file(tmp_path / "robot.xml", dtype=jnp.float32))


def test_flags_return(tmp_path):
    model = load("double_pendulum")
    model = replace(model, {"joint.elbow.frictionloss": 0.1})
    model = replace(model, {"joint.elbow.frictionloss": 0.0})
    assert model.topology.joints[1].dry_friction
    for suffix in (".xml", ".urdf"):
        save(model, tmp_path / f"robot{suffix}")
        assert_same(model, load_file(tmp_path / f"robot{suffix}"))


def test_one_sided_ranges_return(tmp_path):
    model = load("cartpole")
    model = eqx.tree_at(lambda m: m.joints.range, model, model.joints.range.at[0, 0].set(-jnp.inf))
    model = eqx.tree_at(lambda m: m.actuators.force_range, model, model.actuators.force_range.at[0, 1].set(3.0))
    for suffix in (".xml", ".urdf"):
        save(model, tmp_path / f"robot{suffix}")
        assert_same(model, load_file(tmp_path / f"robot{suffix}"))


def test_mujoco_moves_the_saved_robot_alike(tmp_path):
    save(load("pusher"), tmp_path / "robot.xml")
    finals = []
    for path in (bundled()["pusher"], tmp_path / "robot.xml"):
        m = mujoco.MjModel.from_xml_path(str(path))
        data = mujoco.MjData(m)
        mujoco.mj_resetDataKeyframe(m, data, 0)
        data.ctrl[1] = 0.1
        mujoco.mj_step(m, data, 200)
        finals.append(data.qpos.copy())
    # MuJoCo keeps vertices in single precision, so the two hexagons differ by 1e-8 m
    np.testing.assert_allclose(*finals, atol=1e-5)
    assert finals[0][3] > 0.01


def test_pinocchio_reads_the_saved_urdf(tmp_path):
    pin = pytest.importorskip("pinocchio")
    model = load("quadruped")
    save(model, tmp_path / "robot.urdf")
    oracle = pin.buildModelFromUrdf(str(tmp_path / "robot.urdf"))
    assert oracle.nv == model.nv
    assert sum(i.mass for i in oracle.inertias) == pytest.approx(float(jnp.sum(model.bodies.mass)))


INERTIAL = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
CARRIED = "".join(f'<link name="{n}">{INERTIAL}</link>' for n in ("a", "b", "c", "d")) + "".join(
    f'<joint name="{kind}" type="{kind}"><parent link="{p}"/><child link="{c}"/><origin xyz="1 2 3" rpy="1 2 3"/>'
    '<axis xyz="1 2 3"/><dynamics damping="0.1" friction="0.2"/></joint>'
    for kind, p, c in (("planar", "a", "b"), ("floating", "b", "c"), ("spherical", "c", "d"))
)


@pytest.mark.parametrize("suffix", [".xml", ".urdf"])
@pytest.mark.parametrize("change", [lambda m: m, perturbed], ids=["plain", "perturbed"])
def test_joints_of_several_coordinates_return_exactly(tmp_path, suffix, change):
    model, path = change(load(f'<robot name="r">{CARRIED}</robot>')), tmp_path / f"robot{suffix}"
    if suffix == ".urdf" and change is perturbed:  # its slides are no longer at right angles
        with pytest.raises(DescriptionError, match="body 'b' has 3 joints, and a URDF link has one"):
            save(model, path)
        return
    save(model, path)
    if suffix == ".urdf":
        assert path.read_text().count('type="planar"') == path.read_text().count('type="spherical"') == 1
    assert_same(model, load_file(path))


def test_what_a_format_cannot_hold_is_named(tmp_path):
    body = '<body name="x"><joint name="s" type="ball"/><geom size="0.1"/></body>'
    ball = f'<mujoco model="b"><worldbody>{body}</worldbody></mujoco>'
    anchored = ball.replace('type="ball"', 'pos="0 0 1"')
    with pytest.raises(DescriptionError, match="the anchor of joint 's' is not at the origin of its body"):
        save(load(anchored), tmp_path / "x.urdf")
    with pytest.raises(ValueError, match=r"save writes .xml \(MJCF\) or .urdf files, not 'x.txt'"):
        save(load(ball), tmp_path / "x.txt")
    flat = replace(load("pendulum"), {"body.link.inertia": jnp.array([1.0, 1.0, 3.0, 0, 0, 0])})
    with pytest.raises(DescriptionError, match=r"'pendulum' cannot be saved as MJCF: .*'link'"):
        save(flat, tmp_path / "x.xml")
    assert not list(tmp_path.iterdir())


def test_saving_is_silent(tmp_path):
    joint = '<joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint>'
    text = f'<robot name="r"><link name="a"/><link name="b"/>{joint}</robot>'
    with pytest.warns(ModelWarning):
        model = load_file(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(model, tmp_path / "r.urdf")


def test_a_point_mass_that_stands_still_returns(tmp_path):
    """MuJoCo takes it from `diaginertia` alone."""
    text = """<mujoco><worldbody><body name="base"><inertial pos="0.1 0 0" mass="10" diaginertia="0 0 0"/>
      <body name="arm"><joint name="arm"/><geom size="0.1" mass="1"/></body></body></worldbody></mujoco>"""
    model = load(text)
    assert float(model.bodies.mass[model.body("base")]) == 10
    save(model, tmp_path / "base.xml")
    assert_same(model, load_file(tmp_path / "base.xml"))
