"""Nothing of an `MjModel` is ignored in silence: every field is read, refused, or declared to change no motion.

A field that a later MuJoCo adds fails the first test until somebody decides. The other two try the declarations out: a field that
is read or refused makes a difference to `load`, and one that is called inert makes none to MuJoCo's own motion.
"""

import re
import warnings
from fnmatch import fnmatchcase
from inspect import getsource

import jax
import mujoco
import numpy as np
import pytest
from mujoco.introspect import structs

from flexor.model import mjcf, mjcf_actuators, mjcf_equalities, mjcf_fluid, mjcf_refusals, mjcf_tendons
from flexor.model.description import DescriptionError, ModelWarning
from flexor.model.load import load

READERS = (mjcf, mjcf_actuators, mjcf_equalities, mjcf_fluid, mjcf_refusals, mjcf_tendons)
SOURCE = "".join(getsource(x) for x in READERS)
PHYSICAL = ("body_", "jnt_", "dof_", "geom_", "pair_", "actuator_", "eq_", "tendon_", "opt.")

VISUAL = "site_* cam_* light_* skin_* tex_* mat_* vis stat *_rgba *_matid *_group geom_castshadow tendon_width"
BOOKKEEPING = (
    "n[a-zB-DMJ]* flg_* buffer signature names names_map name_* paths *_pathadr *_user text_* tuple_* bvh_* oct_* tree_* "
    "mesh_[!v]* B_* M_* D_* map* ten_J_* plugin* sensor_*"
)
WITHIN_REFUSED = {
    "flex*": "deformable bodies", "efm*": "deformable bodies",
    "actuator_actadr": "internal dynamics",
    "geom_plugin": "shapes 'sdf' in pairs", "opt.sleep_tolerance": "sleep",
    "opt.o_margin opt.o_solref opt.o_solimp opt.o_friction": "override",
    "jnt_actuatorid tendon_actuatorid": "damping or armature of actuators, found by the actuators themselves",
    "tendon_plasticadr": "tendons that yield",
    "key_plastic": "springs that yield",
}  # fmt: skip
"""Fields that matter only together with something that is refused."""
DERIVED = (
    "body_rootid body_weldid body_jntnum body_jntadr body_dofnum body_dofadr body_treeid body_geomnum body_geomadr body_simple "
    "body_sameframe body_subtreemass body_margin body_contype body_conaffinity body_bvhadr body_bvhnum "
    "tendon_type tendon_treenum tendon_treeid "
    "dof_bodyid dof_parentid dof_treeid dof_Madr dof_simplenum dof_M0 dof_length geom_sameframe geom_aabb "
    "geom_rbound pair_signature actuator_historyadr actuator_length0"
)
"""Fields that MuJoCo's compiler derives from others."""
SOLVER = (
    "dof_solref dof_solimp pair_solreffriction tendon_sol*_fri opt.impratio opt.tolerance opt.ls_tolerance opt.noslip_tolerance "
    "opt.ccd_tolerance opt.integrator opt.cone opt.jacobian opt.solver opt.iterations opt.ls_iterations opt.noslip_iterations "
    "opt.ccd_iterations opt.sdf_initpoints opt.sdf_iterations"
)
"""Settings of MuJoCo's constraints, solver and integrator, which flexor has of its own."""
INERT = "opt.magnetic key_time key_ctrl"
"""Fields that change no motion: a field for sensors, what a keyframe says beside its coordinates."""
FLAGS = (
    "DSBL_WARMSTART DSBL_REFSAFE DSBL_SENSOR DSBL_MIDPHASE DSBL_EULERDAMP DSBL_AUTORESET DSBL_NATIVECCD DSBL_ISLAND "
    "DSBL_MULTICCD ENBL_ENERGY ENBL_FWDINV ENBL_INVDISCRETE ENBL_DIAGEXACT ENBL_IPC ENBL_SPECULATIVE"
)
"""Flags of the solver, the detection and of what is recorded; IPC is about deformable bodies."""

HARMLESS = " ".join([VISUAL, BOOKKEEPING, *WITHIN_REFUSED, DERIVED, SOLVER, INERT]).split()


def fields():
    names = [f.name for f in structs.STRUCTS["mjModel"].fields if f.name != "opt"]
    return [*names, *(f"opt.{f.name}" for f in structs.STRUCTS["mjOption"].fields)]


def handled(name):
    return re.search(rf"\bm\.{re.escape(name)}\b", SOURCE) is not None


def declared(name, patterns=HARMLESS):
    return any(fnmatchcase(name, p) for p in patterns)


def test_every_field_is_read_refused_or_declared_harmless():
    assert [n for n in fields() if not handled(n) and not declared(n)] == []
    both = [n for n in fields() if n.startswith(PHYSICAL) and handled(n) and n in HARMLESS]
    assert both == [], "a field that is read is not harmless"
    gone = [p for p in HARMLESS if not any(fnmatchcase(n, p) for n in fields())]
    assert gone == [], "MuJoCo has no such field"


def test_every_flag_is_read_refused_or_declared_harmless():
    bits = [n for kind in (mujoco.mjtDisableBit, mujoco.mjtEnableBit) for n in kind.__members__ if not n.startswith("mjN")]
    names = [n.removeprefix("mj") for n in bits]
    assert set(FLAGS.split()) <= set(names)
    handled = {n for n in names if re.search(rf'"{n.removeprefix("DSBL_")}"|mj{n}\b', SOURCE)}
    assert [n for n in names if (n in handled) == (n in FLAGS.split())] == []


SCENE = """<mujoco><option timestep="0.002" density="0.3" viscosity="0.02"/><worldbody>
<site name="rail"/><geom name="floor" type="plane" size="1 1 1"/>
<body name="a" pos="0 0 1"><joint name="hinge" axis="0 1 0" limited="true" range="-20 20" stiffness="1" springref="10"
 damping="0.1" armature="0.01" frictionloss="0.05" actuatorfrcrange="-50 50" actuatorfrclimited="true"/>
 <geom name="arm" type="box" size="0.1 0.05 0.2" pos="0.1 0 -0.2" mass="1"/>
 <body name="b" pos="0 0 -0.4"><joint name="slide" type="slide" axis="1 0 0.2" ref="0.05"/>
  <geom name="tip" size="0.05" mass="0.5" fluidshape="ellipsoid"/><site name="pin" pos="0 0 0.1"/></body></body>
<body name="ball" pos="0.5 0 0.099"><freejoint name="root"/><geom name="ball" size="0.1" mass="0.4" friction="0.3"/></body>
<body name="die" pos="-0.5 0 0.099"><freejoint name="root2"/><geom name="die" type="box" size="0.1 0.1 0.1" mass="0.4" contype="0"
 conaffinity="0"/></body></worldbody>
<contact><pair geom1="floor" geom2="die" friction="0.4 0.4 0.005 0.0001 0.0001" condim="3"/></contact>
<equality><joint joint1="slide" joint2="hinge" polycoef="0.05 0.2 0 0 0"/></equality>
<actuator><position name="servo" joint="hinge" kp="5" kv="0.2" ctrlrange="-2 2" forcerange="-9 9" delay="0.004" nsample="4"
 interp="linear"/><general name="motor" joint="slide" gear="2" dyntype="filter"
 dynprm="0.01" actlimited="true" actrange="-5 5"/>
 <muscle name="muscle" cranksite="pin" slidersite="rail" cranklength="2" lengthrange="-2 1"/></actuator>
<keyframe><key name="home" qpos="0.1 0 0.5 0 0.099 1 0 0 0 -0.5 0 0.099 1 0 0 0" ctrl="0.3 0.1 0"/></keyframe></mujoco>"""


def model():
    return mujoco.MjModel.from_xml_string(SCENE)


def numbers(m, name):
    """The array of a field; None for whatever cannot be changed by a number."""
    owner, key = (m.opt, name[4:]) if name.startswith("opt.") else (m, name)
    value = getattr(owner, key, None)
    if isinstance(value, float):
        return owner, key
    is_real = isinstance(value, np.ndarray) and value.size and value.dtype.kind in "fbu"
    return (owner, key) if is_real and name.startswith((*PHYSICAL, "key_", "qpos")) else None


def changed(name, at=slice(None)):
    """The scene with other numbers in a field, or one other number; switches turned."""
    m = model()
    owner, key = numbers(m, name)
    value = getattr(owner, key)
    if isinstance(value, float):
        setattr(owner, key, value + 0.1)
    else:
        value.flat[at] = value.flat[at] + 0.1 if value.dtype.kind == "f" else 1 - value.flat[at]
    return m


NUMBERS = [n for n in fields() if numbers(model(), n) is not None]
SOFTNESS = ["geom", "pair", "jnt", "eq"]
ASIDE = (
    *("opt.timestep", "body_invweight0", "dof_invweight0"),  # for a warning; derived from masses, for compliances
    *(f"{kind}_{what}" for kind in SOFTNESS for what in ("solref", "solimp", "solmix")),  # numbers harder than the defaults
    *("tendon_solref_lim", "tendon_solimp_lim"),  # change nothing: see `tests/contact/test_soft.py`
)
READ = [n for n in NUMBERS if handled(n) and n not in ASIDE]


def leaves(m):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", ".* has (velocities|activations)", ModelWarning)
        return jax.tree.flatten(load(m))


def same(one, other):
    return one[1] == other[1] and all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one[0], other[0], strict=True))


def noticed(m, reference):
    """Whether `load` refuses a model, warns of what it leaves out, or gives another one than the reference."""
    try:
        return not same(leaves(m), reference)
    except (DescriptionError, ModelWarning):
        return True


def test_a_field_that_is_read_or_refused_makes_a_difference():
    reference = leaves(model())
    assert len(READ) > 40
    assert [name for name in READ if not noticed(changed(name), reference)] == []


def test_numbers_that_are_not_noticed_change_no_motion_of_mujocos():
    """One number after the other of all fields that are read: what `load` does not see, MuJoCo does not feel either."""
    reference, before, silent = leaves(model()), motion(model()), []
    for name in READ:
        size = getattr(*numbers(model(), name))
        for i in range(np.size(size)):
            m = changed(name, i)
            if not noticed(m, reference) and not np.array_equal(motion(m), before):
                silent.append((name, i))
    assert silent == []


def motion(m):
    d = mujoco.MjData(m)
    d.qvel[:2], d.ctrl[:] = (3.0, 1.0), (0.5, 0.2, 0.5)  # against the limit, and on
    for _ in range(100):
        mujoco.mj_step(m, d)
    return np.concatenate([d.qpos, d.qvel])


CALLED_INERT = " ".join([VISUAL, INERT, *WITHIN_REFUSED]).split()


@pytest.mark.parametrize("name", [n for n in NUMBERS if n.startswith(PHYSICAL) and declared(n, CALLED_INERT)])
def test_a_field_that_is_called_inert_changes_no_motion_of_mujocos(name):
    np.testing.assert_array_equal(motion(changed(name)), motion(model()))


def test_the_test_of_inert_fields_can_fail():
    for name in ("dof_damping", "actuator_gear", "geom_friction", "pair_friction", "opt.density", "jnt_range"):
        assert np.abs(motion(changed(name)) - motion(model())).max() > 1e-6, name
