"""MJCF into models: numbers against MuJoCo, everything unknown refused by name."""

import mujoco
import numpy as np
import pytest

from flexor.model.description import DescriptionError, ModelWarning
from flexor.model.frames import six_matrix
from flexor.model.load import load
from flexor.robots import bundled
from tests.model.forward import body_poses, random_q

ONE = """<mujoco model="one">{top}<worldbody><geom name="floor" type="plane" size="1 1 1"/>
<body name="arm" pos="0 0 1"><joint name="j" type="{kind}" axis="0 1 0" {joint}/>
<geom name="g" size="0.1" mass="1" {geom}/>{inside}</body>{outside}</worldbody>{rest}</mujoco>"""


def one(**parts: str) -> str:
    return ONE.format(
        **{"top": "", "kind": "hinge", "joint": "", "geom": "", "inside": "", "outside": "", "rest": "", **parts}
    )


TREE = """<mujoco model="tree"><compiler angle="radian"/><worldbody>
<body name="a" pos="0.1 0.2 0.3" euler="0.1 0.2 0.3"><joint name="a" type="ball" damping="0.1" armature="0.02"/>
  <inertial pos="0.1 0 0.05" quat="0.9 0.1 0.3 0" mass="2" diaginertia="0.1 0.2 0.25"/>
  <body pos="0 0 1" euler="0.5 0 0"><joint axis="1 1 0" pos="0.1 0 0.2"
    ref="0.3" springref="0.4" stiffness="3" range="-1 2"/>
    <joint type="slide" axis="0 0 2" actuatorfrcrange="-3 4" frictionloss="0.5"/><geom type="capsule" size="0.1 0.3"/>
    <geom type="box" size="0.1 0.2 0.3" pos="0.3 0 0"/></body></body>
<body name="c" pos="0 3 0"><freejoint/><geom type="ellipsoid" size="0.1 0.2 0.3" contype="0" conaffinity="0"/>
  <body name="d" pos="0 0 1"><geom name="d" size="0.1"/></body></body></worldbody>
<actuator><position joint="body2_joint0" kp="7" kv="2" gear="3" ctrlrange="-1 1"/>
<motor name="m" joint="body2_joint1" forcerange="-5 5"/></actuator>
<keyframe><key name="home" qpos="1 0 0 0 0.5 0.1 0 3 0 1 0 0 0"/></keyframe></mujoco>"""


def named_tree() -> str:
    """The tree with names that its actuators can refer to; flexor would choose these very names."""
    named = TREE.replace(
        '<body pos="0 0 1" euler="0.5 0 0"><joint axis', '<body pos="0 0 1" euler="0.5 0 0"><joint name="h" axis'
    )
    named = named.replace('<joint type="slide" axis="0 0 2"', '<joint name="s" type="slide" axis="0 0 2"')
    return named.replace("body2_joint0", "h").replace("body2_joint1", "s")


@pytest.mark.parametrize("robot", [*bundled(), "tree"])
def test_kinematics_and_inertias_are_mujocos(robot):
    x = named_tree() if robot == "tree" else str(bundled()[robot])
    m = mujoco.MjModel.from_xml_string(x) if robot == "tree" else mujoco.MjModel.from_xml_path(x)
    model, data = load(x), mujoco.MjData(m)
    rng = np.random.default_rng(0)
    data.qpos[:] = random_q(model, rng)
    mujoco.mj_kinematics(m, data)
    pos, rot = body_poses(model, data.qpos)
    np.testing.assert_allclose(pos, data.xpos, atol=1e-12)
    np.testing.assert_allclose(rot.reshape(-1, 9), data.xmat, atol=1e-12)
    for b in range(1, m.nbody):
        ximat = data.ximat[b].reshape(3, 3)
        expected = ximat @ np.diag(m.body_inertia[b]) @ ximat.T
        world = rot[b] @ six_matrix(model.bodies.inertia[b]) @ rot[b].T
        np.testing.assert_allclose(world, expected, atol=1e-12 * max(1, m.body_inertia[b].max()))
        np.testing.assert_allclose(pos[b] + rot[b] @ np.asarray(model.bodies.com[b]), data.xipos[b], atol=1e-12)
    np.testing.assert_array_equal(model.bodies.mass, m.body_mass)
    np.testing.assert_array_equal(model.reference, m.qpos0)
    np.testing.assert_array_equal(model.rest, m.qpos_spring)
    np.testing.assert_array_equal(model.keyframes, m.key_qpos.reshape(m.nkey, m.nq))


def test_every_joint_and_actuator_number_arrives():
    model = load(named_tree())
    t = model.topology
    assert t.bodies == ("world", "a", "body2", "c", "d")
    assert [(j.name, j.kind, j.limited, j.dry_friction) for j in t.joints] == [
        ("a", "ball", False, False),
        ("h", "hinge", True, False),
        ("s", "slide", False, True),
        ("c_joint0", "free", False, False),
    ]
    assert [g.name for g in t.geoms] == ["body2_geom0", "body2_geom1", "c_geom0", "d"]
    assert [a.name for a in t.actuators] == ["h", "m"]
    assert t.keyframes == ("home",)
    j = model.joints
    np.testing.assert_allclose(j.axis[1], np.array([1, 1, 0]) / np.sqrt(2))
    np.testing.assert_allclose(j.axis[2], [0, 0, 1])
    np.testing.assert_allclose(j.pos[1], [0.1, 0, 0.2])
    assert float(j.damping[0]) == 0.1
    assert float(j.armature[0]) == 0.02
    assert float(j.stiffness[1]) == 3
    assert float(j.frictionloss[2]) == 0.5
    np.testing.assert_array_equal(j.range, [[-np.inf, np.inf], [-1, 2], [-np.inf, np.inf], [-np.inf, np.inf]])
    np.testing.assert_array_equal(j.force_range[2], [-3, 4])
    np.testing.assert_array_equal(model.actuators.gear, [3, 1])
    np.testing.assert_array_equal(model.actuators.gain, [7, 1])
    np.testing.assert_array_equal(model.actuators.bias, [[0, -7, -2], [0, 0, 0]])
    np.testing.assert_array_equal(model.actuators.ctrl_range, [[-1, 1], [-np.inf, np.inf]])
    np.testing.assert_array_equal(model.actuators.force_range, [[-np.inf, np.inf], [-5, 5]])


def test_limit_defaults_follow_the_joint_space_inertia():
    m = mujoco.MjModel.from_xml_path(str(bundled()["quadruped"]))
    model = load(m)
    data = mujoco.MjData(m)
    mujoco.mj_forward(m, data)
    M = np.zeros((m.nv, m.nv))
    mujoco.mj_fullM(m, M, data.qM) if hasattr(data, "qM") else mujoco.mj_fullM(m, data, M)
    hinges = slice(6, None)
    np.testing.assert_allclose(model.joints.limit_stiffness[1:], np.diag(M)[hinges] / 0.02**2, rtol=1e-12)
    np.testing.assert_allclose(model.joints.limit_damping[1:], 2 * np.diag(M)[hinges] / 0.02, rtol=1e-12)
    np.testing.assert_allclose(model.joints.limit_cfm[1:], 1e-6 / np.diag(M)[hinges], rtol=1e-12)


def test_contact_stiffness_carries_the_lighter_tree():
    model = load(one(outside='<body name="b" pos="0.5 0 1"><freejoint/><geom name="h" size="0.1" mass="0.5"/></body>'))
    stiffness = dict(zip([p.name for p in model.topology.pairs], np.asarray(model.pairs.stiffness), strict=True))
    assert stiffness == pytest.approx({"floor~g": 9.81 / 5e-3**1.5, "floor~h": 4.905 / 5e-3**1.5, "g~h": 4.905 / 5e-3**1.5})
    cfm = dict(zip(stiffness, np.asarray(model.pairs.cfm), strict=True))
    assert cfm == pytest.approx({"floor~g": 1e-4, "floor~h": 2e-4, "g~h": 2e-4})
    assert float(model.pairs.baumgarte[0]) == 0.2


REFUSED = {
    "override": (one(top='<option><flag override="enable"/></option>'), "override"),
    "polynomial": (one(joint='damping="1 0.1 0"'), "joint 'j'"),
    "springyield": (
        one(rest='<tendon><fixed name="t" stiffness="1" springyield="1"><joint joint="j" coef="1"/></fixed></tendon>'),
        "tendon 't'",
    ),
    "actuator": (one(rest='<actuator><general name="u" joint="j" gaintype="user"/></actuator>'), "actuator 'u'"),
    "anisotropic": (
        one(rest='<contact><pair geom1="floor" geom2="g" condim="3" friction="0.5 0.6 0 0 0"/></contact>'),
        "pair 'floor' and 'g'",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_flexor_does_not_have_is_refused_by_name_or_ignored(kind):
    text, named = REFUSED[kind]
    with pytest.raises(DescriptionError, match="XML text: ") as error:
        load(text)
    assert named in str(error.value)
    assert f'ignore=["{kind}"]' in str(error.value)
    load(text, ignore=[kind])


@pytest.mark.parametrize(("shape", "size"), [("cylinder", "0.1 0.1"), ("ellipsoid", "0.1 0.1 0.1")])
def test_pairs_of_two_shapes_can_be_left_out(shape, size):
    """What opens nevertheless: `ignore` drops the contacts of two kinds of shapes, or of one."""
    geom = f'type="{shape}" size="{size}"'
    text = one(geom=geom, outside=f"<body><freejoint/><geom {geom}/></body>").replace('size="0.1" mass', "mass")
    pairs = [p.name for p in load(text).topology.pairs]
    assert len(pairs) == 3
    assert len(load(text, ignore=[f"{shape}-{shape}"]).topology.pairs) == 2
    assert len(load(text, ignore=["ellipsoid"]).topology.pairs) == (0 if shape == "ellipsoid" else 3)


ACTUATORS = {
    '<general name="u" body="arm" biastype="affine" biasprm="0 1 0"/>': "more than its input",
    '<general name="u" joint="j" dyntype="user" actdim="2"/>': r"internal dynamics \(user\)",
    '<general name="u" joint="j" gaintype="user"/>': "gain of the kind user",
    '<general name="u" joint="j" biastype="user"/>': "bias of the kind user",
    '<general name="u" joint="j" gaintype="muscle" gainprm="0.75 1.05 1 200 0.5 1.6 1.5 1.3 1.2" lengthrange="0 1"/>': "not both",
    '<motor name="u" joint="j" damping="1 2"/>': "non-linear damping",
    '<dcmotor name="u" joint="j" resistance="2" motorconst="0.5" inductance="0.1"/>': "DC motor with inductance",
    '<dcmotor name="u" joint="j" resistance="2" motorconst="0.5" cogging="1 6 0"/>': "DC motor with cogging",
    '<dcmotor name="u" joint="j" resistance="2" motorconst="0.5" lugre="9 1 0.3 0.5 0.01"/>': "DC motor with LuGre",
    '<dcmotor name="u" joint="j" resistance="2" motorconst="0.5" input="pos" controller="3"/>': "DC motor with inputs other",
    '<dcmotor name="u" joint="j" resistance="2" motorconst="0.5" input="pos vel" controller="3"/>': "several inputs",
}


@pytest.mark.parametrize("actuator", ACTUATORS)
def test_foreign_actuators_are_refused_and_dropped_when_ignored(actuator):
    tendon = '<tendon><fixed name="t"><joint joint="j" coef="1"/></fixed></tendon>'
    rest = f'{tendon}<actuator>{actuator}<motor name="v" joint="j"/></actuator>'
    text = one(joint='range="-1 1" limited="true"', inside='<site name="s"/>', rest=rest)
    with pytest.raises(DescriptionError, match=ACTUATORS[actuator]) as error:
        load(text)
    assert "actuator 'u'" in str(error.value)
    assert [a.name for a in load(text, ignore="actuator").topology.actuators] == ["v"]


def flag(name: str) -> str:
    return f'<option><flag {name}="disable"/></option>'


def test_disabled_physics_is_left_out():
    joint = 'damping="1" stiffness="2" frictionloss="3" range="-1 1" limited="true"'
    rest = '<actuator><motor joint="j" ctrlrange="-1 1" ctrllimited="true"/></actuator>'
    full = load(one(joint=joint, rest=rest))
    assert full.topology.joints[0].limited
    assert full.topology.joints[0].dry_friction
    assert len(full.topology.pairs) == 1
    assert not load(one(top=flag("contact"))).topology.pairs
    assert not load(one(top=flag("limit"), joint=joint)).topology.joints[0].limited
    assert not load(one(top=flag("frictionloss"), joint=joint)).topology.joints[0].dry_friction
    constrained = load(one(top=flag("constraint"), joint=joint)).topology
    assert not (constrained.pairs)
    assert not (constrained.joints[0].limited)
    assert not (constrained.joints[0].dry_friction)
    assert float(load(one(top=flag("spring"), joint=joint)).joints.stiffness[0]) == 0
    assert float(load(one(top=flag("damper"), joint=joint)).joints.damping[0]) == 0
    assert not np.any(load(one(top=flag("gravity"))).gravity)
    assert float(load(one(top=flag("actuation"), rest=rest)).actuators.gain[0]) == 0
    np.testing.assert_array_equal(load(one(top=flag("clampctrl"), rest=rest)).actuators.ctrl_range, [[-np.inf, np.inf]])
    rest = '<equality><joint name="e" joint1="j"/></equality>'
    assert [e.name for e in load(one(rest=rest)).topology.equalities] == ["e"]
    assert not load(one(top=flag("equality"), rest=rest)).topology.equalities
    assert not load(one(rest=rest), ignore=["equality"]).topology.equalities


def test_what_does_not_act_is_no_obstacle():
    tendon = '<tendon><fixed name="t"><joint joint="j" coef="1"/></fixed></tendon>'
    load(one(rest=tendon + '<sensor><tendonpos tendon="t"/></sensor>', geom='gap="0.01"'))
    inactive = load(one(rest='<equality><joint name="e" joint1="j" active="false"/></equality>'))
    assert not inactive.topology.equalities
    load(one(geom='contype="0" conaffinity="0" margin="1"'))
    with pytest.warns(ModelWarning, match="'sleep' puts resting trees to sleep"):
        load(one(top='<option><flag sleep="enable"/></option>'))


def test_massless_bodies_are_refused_where_something_moves_nothing():
    m = mujoco.MjModel.from_xml_string(one())
    m.body_mass[1], m.body_inertia[1] = 0, 0
    with pytest.raises(DescriptionError, match="body 'arm' and all it carries have no positive inertia for joint 'j'"):
        load(m)
    m.dof_armature[0] = 0.1
    load(m)
    m.body_mass[1] = -1
    with pytest.raises(DescriptionError, match=r"body 'arm' has mass -1.0 kg"):
        load(m)


def test_the_extension_sets_parameters_by_pattern():
    def custom(name: str, data: str) -> str:
        return one(rest=f'<custom><numeric name="flexor.{name}" data="{data}"/></custom>')

    assert float(load(custom("pair.*.stiffness", "5e4")).pairs.stiffness[0]) == 5e4
    assert float(load(custom("joint.j.limit_cfm", "7")).joints.limit_cfm[0]) == 7
    with pytest.raises(DescriptionError, match="no such parameter"):
        load(custom("pair.nothing.cfm", "1"))
    with pytest.raises(DescriptionError, match="2 numbers instead of 1"):
        load(custom("pair.*.cfm", "1 2"))


def test_specs_and_models_are_taken_too():
    spec = mujoco.MjSpec.from_string(one())
    assert load(spec).topology == load(one()).topology == load(spec.compile()).topology


def test_floating_and_ground():
    legs = '<body name="b"><geom name="b" size="0.1"/>{}</body>'
    free = f"<mujoco><worldbody>{legs.format('')}</worldbody></mujoco>"
    model = load(free, floating=True, ground=True)
    assert [(j.name, j.kind) for j in model.topology.joints] == [("root", "free")]
    assert [p.name for p in model.topology.pairs] == ["ground~b"]
    again = f"<mujoco><worldbody>{legs.format('<freejoint/>')}</worldbody></mujoco>"
    assert load(again, floating=True).nv == 6
    with pytest.raises(DescriptionError, match="already moves by joint 'j'"):
        load(one(), floating=True)
    with pytest.raises(DescriptionError, match="exactly one body on the world, found 'arm', 'x'"):
        load(one(outside='<body name="x"><geom size="1"/></body>'), floating=True)
    with pytest.raises(DescriptionError, match="already has a geom named 'ground'"):
        load(one().replace('"floor"', '"ground"'), ground=True)
    with pytest.raises(DescriptionError, match="no shape that may collide"):
        load(free.replace('size="0.1"', 'size="0.1" contype="0" conaffinity="0"'), ground=True)


def test_velocities_of_keyframes_are_not_lost_in_silence():
    text = one(rest='<keyframe><key name="still" qpos="0.1"/><key name="thrown" qpos="0.1" qvel="2"/></keyframe>')
    with pytest.warns(ModelWarning, match=r"keyframe 'thrown' has velocities.*`sim.reset\(name, qd\)`"):
        assert load(text).topology.keyframes == ("still", "thrown")


def test_dampers_of_every_degree_of_freedom_are_looked_at():
    m = mujoco.MjModel.from_xml_string(one(kind="ball"))
    m.dof_dampingpoly[2, 0] = 0.1
    with pytest.raises(DescriptionError, match=r"joint 'j' has a non-linear damper, polynomial \[0.1"):
        load(m)
