"""URDFs: every robot of example-robot-data against Pinocchio, and every failure by its sentence."""

import re
import warnings
import xml.etree.ElementTree as ET

import mujoco
import numpy as np
import pytest

from flexor.model.description import DescriptionError, ModelWarning
from flexor.model.frames import six_matrix
from flexor.model.load import load
from flexor.robots.find import _example_root
from tests.model.forward import body_poses

pin = pytest.importorskip("pinocchio")
ROOT = _example_root()
FILES = sorted(ROOT.glob("*/**/*.urdf")) if ROOT is not None else []
BROKEN = "ur3.urdf"
SOME = [f for f in FILES if f.stem in ("anymal", "talos_reduced", "kinova", "panda", "centauro", "human", "hyq_no_sensors")]


def quiet_load(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        return load(path, **options)


def pinocchio_coordinates(model, oracle, q):
    """Our coordinates as Pinocchio's: joints by name, a continuous joint as cosine and sine."""
    out = np.zeros(oracle.nq)
    for j, joint in enumerate(model.topology.joints):
        k = oracle.getJointId(joint.name)
        value = q[model.topology.q_start[j]]
        start = oracle.idx_qs[k]
        out[start : start + oracle.nqs[k]] = [value] if oracle.nqs[k] == 1 else [np.cos(value), np.sin(value)]
    return out


def carried_inertia(model, pos, rot, joint):
    """Mass, centre of mass and inertia about it, in the world, of a joint's body and all bodies welded to it."""
    t = model.topology
    group, moving = {t.joints[joint].body}, {j.body for j in t.joints}
    for b in range(1, len(t.bodies)):
        if t.parents[b] in group and b not in moving:
            group.add(b)
    masses = {b: float(model.bodies.mass[b]) for b in group}
    centres = {b: pos[b] + rot[b] @ np.asarray(model.bodies.com[b]) for b in group}
    mass = sum(masses.values())
    com = sum(masses[b] * centres[b] for b in group) / mass if mass else np.zeros(3)
    inertia = np.zeros((3, 3))
    for b in group:
        r = centres[b] - com
        inertia += rot[b] @ six_matrix(model.bodies.inertia[b]) @ rot[b].T + masses[b] * (r @ r * np.eye(3) - np.outer(r, r))
    return mass, com, inertia


@pytest.mark.parametrize("path", [f for f in FILES if f.name != BROKEN], ids=lambda f: f.stem)
def test_joint_placements_and_inertias_are_pinocchios(path):
    oracle = pin.buildModelFromUrdf(str(path))
    model = quiet_load(path)
    assert {j.name for j in model.topology.joints} == set(oracle.names[1:])
    q = np.random.default_rng(0).uniform(-1, 1, model.nq)
    pos, rot = body_poses(model, q)
    data = oracle.createData()
    pin.forwardKinematics(oracle, data, pinocchio_coordinates(model, oracle, q))
    for j, joint in enumerate(model.topology.joints):
        k = oracle.getJointId(joint.name)
        np.testing.assert_allclose(pos[joint.body], data.oMi[k].translation, atol=1e-10)
        np.testing.assert_allclose(rot[joint.body], data.oMi[k].rotation, atol=1e-10)
        mass, com, inertia = carried_inertia(model, pos, rot, j)
        theirs = data.oMi[k].act(oracle.inertias[k])
        assert mass == pytest.approx(theirs.mass, abs=1e-12)
        if mass:
            # a sum over links leaves rounding of the size of the terms, m r^2 ~ 100 kg m^2
            np.testing.assert_allclose(com, theirs.lever, atol=1e-9)
            np.testing.assert_allclose(inertia, theirs.inertia, atol=1e-9)
    lower, upper = oracle.lowerPositionLimit, oracle.upperPositionLimit
    for j, joint in enumerate(model.topology.joints):
        if joint.limited:
            start = oracle.idx_qs[oracle.getJointId(joint.name)]
            np.testing.assert_allclose(model.joints.range[j], [lower[start], upper[start]])


@pytest.mark.parametrize("path", SOME, ids=lambda f: f.stem)
def test_bodies_and_joints_stand_in_mujocos_order(path):
    robot = ET.parse(path).getroot()
    for link in robot.findall("link"):
        for tag in ("visual", "collision"):
            for element in link.findall(tag):
                link.remove(element)
    options = ET.SubElement(robot, "mujoco")
    flags = {"fusestatic": "false", "balanceinertia": "true", "boundmass": "1e-3", "boundinertia": "1e-3"}
    ET.SubElement(options, "compiler", flags)
    m = mujoco.MjModel.from_xml_string(ET.tostring(robot, encoding="unicode"))
    model = quiet_load(path)
    ours = list(model.topology.bodies[1:])
    theirs = [m.body(i).name for i in range(1, m.nbody)]
    assert [b for b in ours if b in theirs] == theirs
    assert len(ours) - len(theirs) <= 1
    assert [j.name for j in model.topology.joints] == [m.joint(i).name for i in range(m.njnt)]


def test_the_broken_one_is_refused():
    path = next((f for f in FILES if f.name == BROKEN), None)
    if path is None:
        pytest.skip("example-robot-data is not installed")
    with pytest.raises(DescriptionError, match=r"ur3.urdf: there is no <link>"):
        load(path)


def test_a_robot_on_the_ground_reads_its_meshes():
    path = next((f for f in FILES if f.name == "go2.urdf"), None)
    if path is None:
        pytest.skip("example-robot-data is not installed")
    with pytest.warns(ModelWarning, match="reduced to 16 corners each"):
        model = load(path, floating=True, ground=True, mesh_vertices=16)
    assert len(model.topology.pairs) == 19
    assert all(g.stop - g.start <= 16 for g in model.topology.geoms if g.shape == "mesh")
    assert model.topology.joints[0].name == "root"
    assert quiet_load(path).geoms.vertices.shape == (0, 3)


UNIT = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
LINK = '<link name="{}">' + UNIT + "{}</link>"
JOINT = '<joint name="{}" type="{}"><parent link="{}"/><child link="{}"/>{}</joint>'


def robot(*parts: str, name: str = 'name="r"') -> str:
    return f"<robot {name}>{''.join(parts)}</robot>"


A, B, C = (LINK.format(n, "") for n in "abc")
LIMIT = '<limit lower="-1" upper="2" effort="5" velocity="1"/>'
HINGE = JOINT.format("ab", "revolute", "a", "b", '<axis xyz="0 0 2"/><dynamics damping="0.1" friction="0.2"/>' + LIMIT)

FAILURES = {
    "the XML is broken": "<robot name='r'><link></robot>",
    "there is no <link>": robot(),
    "a <link> has no name": robot("<link/>"),
    "two links are named 'a'": robot(A, A),
    "two joints are named 'ab'": robot(A, B, C, HINGE, HINGE.replace('child link="b"', 'child link="c"')),
    "several root links, 'a', 'b'": robot(A, B),
    "so that no link is the root": robot(A, B, HINGE, JOINT.format("ba", "fixed", "b", "a", "")),
    "link 'b' is not connected to the root 'a'": robot(
        A, B, C, JOINT.format("bc", "fixed", "b", "c", ""), JOINT.format("cb", "fixed", "c", "b", "")
    ),
    "the child of joint 'ab' is link 'b', which does not exist": robot(A, HINGE),
    "link 'b' is the child of two joints, 'ab' and 'x'": robot(A, B, HINGE, JOINT.format("x", "fixed", "a", "b", "")),
    "joint 'ab' is of type 'screw'; flexor supports fixed, revolute": robot(A, B, HINGE.replace("revolute", "screw")),
    "the axis of joint 'ab' is zero": robot(A, B, HINGE.replace("0 0 2", "0 0 0")),
    "joint 'ab': attribute xyz='0 0 x' should be 3 finite numbers": robot(A, B, HINGE.replace("0 0 2", "0 0 x")),
    "joint 'ab' has a negative damping, -0.1": robot(A, B, HINGE.replace('"0.1"', '"-0.1"')),
    "body 'b' has mass -1.0 kg": robot(A, B.replace('mass value="1"', 'mass value="-1"'), HINGE),
    "joint 'bc' mimics joint 'ab', but only revolute and prismatic joints": robot(
        A, B, C, HINGE.replace("revolute", "planar"), JOINT.format("bc", "continuous", "b", "c", '<mimic joint="ab"/>')
    ),
    "is none of sphere, box": robot(LINK.format("a", "<collision><geometry><cone/></geometry></collision>")),
    "has a size that is not positive": robot(LINK.format("a", "<collision><geometry><sphere/></geometry></collision>")),
    "this is a xacro file; expand it": robot("<xacro:a/>", name='name="r" xmlns:xacro="http://www.ros.org/wiki/xacro"'),
    "expand it to a URDF first (`xacro file": robot("<xacro:a/>"),
    "this is an SDF file of Gazebo, which flexor does not read; convert it": '<?xml version="1.0"?>\n<sdf version="1.6"/>',
}


@pytest.mark.parametrize("sentence", FAILURES)
@pytest.mark.filterwarnings("ignore::flexor.model.description.ModelWarning")
def test_failures_are_sentences(sentence):
    with pytest.raises(DescriptionError, match=re.escape(sentence)) as error:
        load(FAILURES[sentence])
    assert str(error.value).startswith("XML text: ")


def mesh_robot(uri: str) -> str:
    return robot(LINK.format("a", f'<collision><geometry><mesh filename="{uri}"/></geometry></collision>'))


def test_a_missing_mesh_names_link_mesh_and_places():
    with pytest.raises(
        DescriptionError, match=r"mesh 'package://p/m.stl' of link 'a' was not found; looked at .*nowhere/p/m.stl"
    ):
        load(mesh_robot("package://p/m.stl"), package_dirs=["nowhere"])


TETRAHEDRON = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"


@pytest.mark.parametrize("uri", ["package://p/meshes/m.obj", "../meshes/m.obj", "file://{}", "{}"])
def test_meshes_are_found(tmp_path, uri):
    mesh = tmp_path / "p" / "meshes" / "m.obj"
    mesh.parent.mkdir(parents=True)
    mesh.write_text(TETRAHEDRON)
    file = tmp_path / "p" / "urdf" / "r.urdf"
    file.parent.mkdir()
    file.write_text(mesh_robot(uri.format(mesh)).replace("<mesh ", '<mesh scale="2 2 2" '))
    model = load(file, floating=True, ground=True)
    assert sorted(map(tuple, np.asarray(model.geoms.vertices))) == [(0, 0, 0), (0, 0, 2), (0, 2, 0), (2, 0, 0)]


def test_meshes_of_texts_are_found_by_package_dirs_and_environment(tmp_path, monkeypatch):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "m.obj").write_text(TETRAHEDRON)
    text = mesh_robot("package://p/m.obj")
    assert load(text, package_dirs=[tmp_path], floating=True, ground=True).topology.pairs
    assert load(text, package_dirs=[tmp_path / "p"]).topology.bodies == ("world", "a")
    monkeypatch.setenv("ROS_PACKAGE_PATH", str(tmp_path))
    assert load(text).topology.bodies == ("world", "a")
    (tmp_path / "p" / "m.obj").write_text("nothing")
    with pytest.raises(DescriptionError, match="of link 'a' cannot be read"):
        load(text, floating=True, ground=True)


def test_meshes_that_are_missing_may_be_skipped():
    ball = '<collision><geometry><sphere radius="0.1"/></geometry></collision>'
    lost = '<collision><geometry><mesh filename="{}"/></geometry></collision>'
    text = robot(LINK.format("a", ball + lost.format("x.stl") + lost.format("package://p/y.dae")))
    with pytest.raises(DescriptionError, match=r'mesh \'x.stl\' of link \'a\' was not found.*missing="skip"'):
        load(text)
    listed = (
        r"2 shapes are left out, since their meshes were not found: 'x.stl' of link 'a', 'package://p/y.dae' of link 'a'\."
    )
    with pytest.warns(ModelWarning, match=listed):
        model = load(text, missing="skip")
    assert [g.shape for g in model.topology.geoms] == ["sphere"]
    with pytest.raises(ValueError, match="`missing` says what happens to meshes that are not found"):
        load(text, missing="ignore")


def test_a_robot_without_a_name_is_called_after_its_file(tmp_path):
    (tmp_path / "arm.urdf").write_text(robot(A, name=""))
    assert load(tmp_path / "arm.urdf").topology.name == "arm"


def test_transmissions_and_foreign_elements_are_left_aside():
    motor = '<actuator name="m"><mechanicalReduction>50</mechanicalReduction></actuator>'
    gear = f'<transmission name="t"><joint name="ab"/>{motor}</transmission>'
    foreign = '<gazebo reference="b"><mu1>0.2</mu1></gazebo><drake:x xmlns:drake="d"/><ros2_control name="c"/>'
    with pytest.warns(ModelWarning, match="transmission 't' is not read; each motor acts on its joint directly"):
        model = load(robot(A, B, HINGE, gear, foreign))
    assert float(model.actuators.gear[0]) == 1
    with pytest.warns(ModelWarning, match="2 transmissions are not read"):
        load(robot(A, B, HINGE, gear, gear))


NORMALS = ["0 0 1", "0 0 -3", "1 2 0.5", "-1 0 0"]


@pytest.mark.parametrize("normal", NORMALS)
def test_a_planar_joint_is_mujocos_two_slides_and_hinge(normal):
    planar = JOINT.format("p", "planar", "a", "b", f'<origin xyz="1 2 3" rpy="0.1 0.2 0.3"/><axis xyz="{normal}"/>')
    text = robot(A, B, planar)
    oracle, model = mujoco.MjModel.from_xml_string(text), quiet_load(text)
    assert [j.name for j in model.topology.joints] == ["p_TX", "p_TY", "p_RZ"]
    assert [oracle.joint(i).name for i in range(oracle.njnt)] == [j.name for j in model.topology.joints]
    np.testing.assert_allclose(model.joints.axis, oracle.jnt_axis, atol=1e-12)
    q = np.array([0.3, -0.2, 0.7])
    data = mujoco.MjData(oracle)
    data.qpos[:] = q
    mujoco.mj_kinematics(oracle, data)
    pos, rot = body_poses(model, q)
    np.testing.assert_allclose(pos[2], data.body("b").xpos, atol=1e-12)
    np.testing.assert_allclose(rot[2], data.body("b").xmat.reshape(3, 3), atol=1e-12)
    assert [a.name for a in model.topology.actuators] == ["p_TX", "p_TY", "p_RZ"]


def test_a_floating_joint_on_a_link_that_stands_still_is_free():
    """The link leaves its parent for the world, at the pose that it had; the other bodies stay depth first."""
    fixed = JOINT.format("ac", "fixed", "a", "c", '<origin xyz="1 0 0" rpy="0 0 1.5707963267948966"/>')
    floating = JOINT.format("f", "floating", "c", "b", '<origin xyz="0 2 0"/>')
    after = LINK.format("d", "") + JOINT.format("ad", "continuous", "a", "d", "")
    model = load(robot(A, B, C, fixed, floating, after))
    t = model.topology
    assert t.bodies == ("world", "a", "c", "d", "b")
    assert [t.bodies[p] for p in t.parents[1:]] == ["world", "a", "a", "world"]
    assert [(j.name, j.kind) for j in t.joints] == [("ad", "hinge"), ("f", "free")]
    half = np.sqrt(0.5)
    np.testing.assert_allclose(model.reference[1:], [-1, 0, 0, half, 0, 0, half], atol=1e-12)


def test_a_floating_joint_on_a_link_that_moves_is_three_slides_and_a_ball():
    model = load(robot(A, B, C, HINGE, JOINT.format("f", "floating", "b", "c", '<origin xyz="0 0 1"/>')))
    joints = [(j.name, j.kind) for j in model.topology.joints]
    assert joints == [("ab", "hinge"), ("f_TX", "slide"), ("f_TY", "slide"), ("f_TZ", "slide"), ("f_R", "ball")]
    angle, shift, turn = 0.4, np.array([0.1, 0.2, 0.3]), np.array([0.5, 0.5, 0.5, 0.5])
    pos, rot = body_poses(model, np.concatenate([[angle], shift, turn]))
    base = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    np.testing.assert_allclose(pos[3], base @ (shift + [0, 0, 1]), atol=1e-12)
    np.testing.assert_allclose(rot[3], base @ np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]]), atol=1e-12)


def test_a_spherical_joint_is_a_ball():
    model = load(robot(A, B, JOINT.format("s", "spherical", "a", "b", '<dynamics damping="0.1" friction="0.2"/>')))
    assert [(j.name, j.kind) for j in model.topology.joints] == [("s", "ball")]
    assert (float(model.joints.damping[0]), float(model.joints.frictionloss[0])) == (0.1, 0.2)
    assert model.nu == 0


def test_numbers_of_a_small_urdf():
    inertial = '<inertial><origin xyz="1 2 3" rpy="0 0 1.5707963267948966"/>'
    model = load(robot(A, B.replace("<inertial>", inertial).replace('ixx="1"', 'ixx="1.5"'), HINGE))
    np.testing.assert_allclose(model.bodies.inertia[2], [1, 1.5, 1, 0, 0, 0], atol=1e-15)
    np.testing.assert_array_equal(model.bodies.com[2], [1, 2, 3])
    np.testing.assert_array_equal(model.joints.axis[0], [0, 0, 1])
    np.testing.assert_array_equal(model.joints.range[0], [-1, 2])
    assert float(model.joints.damping[0]) == 0.1
    assert float(model.joints.frictionloss[0]) == 0.2
    assert model.topology.joints[0].dry_friction
    assert model.topology.actuators[0].name == "ab"
    np.testing.assert_array_equal(model.actuators.ctrl_range[0], [-5, 5])


def test_self_collision_spares_neighbours():
    ball = '<collision><geometry><sphere radius="0.1"/></geometry></collision>'
    links = [LINK.format(n, ball) for n in "abcd"]
    joints = [JOINT.format(p + c, "continuous", p, c, "") for p, c in ("ab", "bc", "cd")]
    text = robot(*links, *joints)
    assert load(text).topology.pairs == ()
    assert [p.name for p in load(text, ground=True).topology.pairs] == [f"ground~{n}_geom0" for n in "bcd"]
    names = [p.name for p in load(text, self_collision=True).topology.pairs]
    assert names == ["a_geom0~c_geom0", "a_geom0~d_geom0", "b_geom0~d_geom0"]


WARNINGS = {
    "link 'b' has an <inertial> without a <mass>; it is opened without": B.replace('<mass value="1"/>', ""),
    "link 'b' has mass 1 kg but an inertia that is not positive definite": B.replace('izz="1"', 'izz="-1"'),
    "link 'b' has principal moments of inertia that miss the triangle inequality": B.replace('izz="1"', 'izz="3"'),
    "link 'b' has an inertia but no mass": B.replace('value="1"', 'value="0"'),
    "link 'b' moves but has no mass": '<link name="b"/>',
    "body 'b' and all it carries have no positive inertia for joint 'ab'": '<link name="b"/>',
}


@pytest.mark.parametrize("sentence", WARNINGS)
@pytest.mark.filterwarnings("ignore::flexor.model.description.ModelWarning")
def test_doubtful_inertias_are_warned_about_by_name(sentence):
    with pytest.warns(ModelWarning, match=re.escape(f"XML text: {sentence}")):
        load(robot(A, WARNINGS[sentence], HINGE))


def test_doubtful_joints_are_warned_about_by_name():
    for limits, sentence in (
        ('lower="2" upper="1"', "joint 'ab' has a lower limit 2.0 above its upper limit 1.0"),
        ('lower="1" upper="1"', "joint 'ab' has lower limit = upper limit = 1.0"),
    ):
        with pytest.warns(ModelWarning, match=sentence):
            model = load(robot(A, B, HINGE.replace('lower="-1" upper="2"', limits)))
        assert not model.topology.joints[0].limited
    with pytest.warns(ModelWarning, match="joint 'ab' has no <limit>"):
        load(robot(A, B, HINGE.replace(LIMIT, "")))
