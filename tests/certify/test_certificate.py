"""The certificate: it holds for right derivatives, and it fails for wrong ones."""

import importlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.certify import Certificate, Row
from flexor.certify.differences import derivative, stencil
from flexor.certify.scenes import MODES, scenes

certificate_module = importlib.import_module("flexor.certify.certificate")

HOPPER = """<mujoco model="hopper"><worldbody>
  <geom name="floor" type="plane" size="1 1 1" friction="0.7"/>
  <body name="trunk" pos="0 0 0.6">
    <joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/>
    <geom name="trunk" size="0.1" mass="2" contype="0"/>
    <body name="leg"><joint name="hip" axis="0 1 0" damping="0.1" stiffness="0.2" armature="0.01"/>
      <geom name="leg" type="capsule" size="0.03" fromto="0 0 0 0.1 0 -0.4" mass="1"/></body>
    <body name="tail"><joint name="tail" axis="0 1 0"/>
      <geom name="tail" size="0.05" pos="-0.3 0 0.1" mass="0.3" contype="0" conaffinity="0"/></body>
  </body>
</worldbody><equality><joint name="swing" joint1="tail" joint2="hip" polycoef="0.1 -0.5 0.1 0.05 0.02"/></equality>
<actuator><position name="servo" joint="hip" kp="3"/></actuator></mujoco>"""
BELT = """<mujoco model="belt"><asset>
  <mesh name="stone" vertex="-0.1 -0.1 -0.1 0.12 0 -0.1 0 0.1 -0.08 0 0.02 0.15"/></asset>
  <worldbody>
  <geom name="belt" type="plane" size="1 1 1" condim="6" friction="0.7 0.02 0.01" margin="0.003" surfacevel="0.5 0.2 0 0 0 0.4"/>
  <body name="stone" pos="0 0 0.6"><freejoint/>
    <geom name="stone" type="mesh" mesh="stone" mass="2" friction="0.7 0.02 0.01"/></body>
  <body name="arm" pos="3 0 1"><joint name="arm" axis="0 1 0"/><geom size="0.1" pos="0.2 0 0" mass="1" contype="0"/></body>
</worldbody><equality><joint name="spring" joint1="arm" polycoef="0.1 0 0 0 0" solref="0.1 0.5" solimp="0.5 0.8 0.01"/>
</equality></mujoco>"""
AIRBORNE = HOPPER.replace('<geom name="floor" type="plane" size="1 1 1" friction="0.7"/>', "")


def test_finite_differences_know_a_derivative_and_their_doubt():
    values = np.sin(1.0 + stencil())
    value, doubt = derivative(values)
    assert value == pytest.approx(np.cos(1.0), abs=1e-8)
    assert doubt < 1e-8
    kinked = np.abs(stencil() - 5e-7)
    assert derivative(kinked)[1] > 0.1


def test_scenes_cover_all_modes_of_a_robot_with_a_floor():
    model = fx.load("cube")
    made = scenes(model, 0, 2e-3)
    assert tuple(s.mode for s in made) == MODES
    gaps = [float(fx.contact.detect(model, fx.dynamics.forward_kinematics(model, s.q)).distance.min()) for s in made]
    assert gaps[0] > 0.02
    assert gaps[1] == pytest.approx(6e-3, rel=1e-3)
    assert gaps[2:] == pytest.approx([-2e-5] * 3, rel=1e-3)


@pytest.fixture(scope="module")
def certificate():
    """Through kernels, as users run it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLEXOR_SIMD", "on")
        return fx.certify(fx.load(HOPPER), steps=8)


def test_every_derivative_of_a_hopper_holds(certificate):
    assert certificate.ok, str(certificate)
    kinds = {row.what for row in certificate.rows if row.influence}
    wanted = {
        "position", "velocity", "control", "mass", "centre of mass", "joint frame, position", "joint axis", "damping",
        "stiffness", "armature", "friction", "contact stiffness", "CFM", "Baumgarte", "gravity", "actuator gain",
        "equality coefficients", "equality CFM", "equality Baumgarte", "equality stiffness", "equality damping",
    }  # fmt: skip
    assert wanted <= kinds
    assert {row.mode for row in certificate.rows} >= {
        *MODES,
        "bouncing ball",
        "colliding balls",
        "sliding block",
        "geared wheels",
    }
    assert {row.contact for row in certificate.rows} == {"NCP", "Penalty"}
    assert "all hold" in str(certificate)


def test_every_derivative_of_belts_spins_margins_adhesion_and_softness_holds(monkeypatch):
    monkeypatch.setattr(certificate_module, "closed_forms", lambda: ())
    result = fx.certify(fx.replace(fx.load(BELT), {"pair.*.adhesion": 3.0, "pair.*.gap": 0.01}), steps=8)
    assert result.ok, str(result)
    assert {row.what for row in result.rows if row.influence} >= {
        "torsional friction", "rolling friction", "contact margin", "surface velocity", "softness, stiffness",
        "softness, damping", "softness, impedance", "softness, response", "friction", "adhesion", "vertices",
    }  # fmt: skip
    assert {row.contact for row in result.rows} == {"NCP"}
    assert "Penalty is not covered" in result.remarks[0]


def test_a_wrong_derivative_is_found(monkeypatch):
    """The same robot with one derivative cut off: the certificate must fail, and name it."""
    monkeypatch.setattr(certificate_module, "closed_forms", lambda: ())
    monkeypatch.setattr("flexor.solvers.rigid.passive_force", _without_damping_gradient)
    result = fx.certify(fx.load(AIRBORNE), steps=8)
    assert not result.ok
    assert {row.what for row in result.failures} == {"damping"}
    assert "FAILED" in str(result)
    assert "nothing to touch" in result.remarks[0]


def _without_damping_gradient(model, q, qd, kin=None):
    from flexor.dynamics import passive_force

    cut = eqx.tree_at(lambda m: m.joints.damping, model, jax.lax.stop_gradient(model.joints.damping))
    return passive_force(cut, q, qd, kin)


def test_a_certificate_without_any_influence_is_not_ok():
    row = Row("NCP", "airborne", "mass", 0.0, 0.0, 0.0, 1e-6, True, influence=False)
    assert not Certificate("robot", [row]).ok


def test_nan_does_not_hold():
    row = certificate_module._judge("NCP", "airborne", "mass", float(jnp.nan), 1.0, 0.0)
    assert not row.holds


def test_model_in_single_precision_is_certified_in_double():
    model = fx.load(HOPPER, dtype=jnp.float32)
    made = scenes(jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), model), 0, 2e-3)
    assert made[0].q.dtype == jnp.float64


@pytest.mark.parametrize(
    ("mode", "touches", "slip", "instead"),
    [
        ("airborne", [0, 0, 0], 0.0, ""),
        ("airborne", [0, 1, 0], 0.0, "touched something"),
        ("touching", [0, 1, 1], 0.0, ""),
        ("touching", [1, 1, 1], 0.0, "was in contact from the start"),
        ("sliding", [1, 1, 1], 0.5, ""),
        ("sliding", [1, 1, 1], 0.0, "did not slide"),
        ("sliding", [0, 0, 0], 0.5, "touched nothing"),
        ("sticking", [1, 1, 1], 0.0, ""),
        ("sticking", [1, 1, 1], 0.5, "slid"),
        ("lifting off", [1, 1, 0], 0.5, ""),
        ("lifting off", [1, 1, 1], 0.5, "stayed in contact"),
    ],
)
def test_what_a_rollout_did_instead_of_its_mode(mode, touches, slip, instead):
    touches = np.array(touches, bool)[:, None]
    assert certificate_module._instead(mode, touches, np.full(touches.shape, slip)) == instead


DRIVEN = """<mujoco model="driven"><option density="300" viscosity="0.5" wind="0.3 0.1 0"/><worldbody>
<site name="rail" pos="0 0 0.6"/><body name="a" gravcomp="0.6"><joint name="a" axis="0 1 0"/>
<geom type="capsule" size="0.05" fromto="0 0 0 0.1 0.05 -0.4" mass="1" contype="0" conaffinity="0"/>
<body name="b" pos="0.1 0 -0.4"><joint name="b" axis="1 0 0"/><geom type="box" size="0.05 0.1 0.15" pos="0 0.05 -0.1" mass="0.5"
 contype="0" conaffinity="0" fluidshape="ellipsoid"/><site name="pin" pos="0 0.1 -0.1" euler="10 20 30"/></body></body>
</worldbody><actuator><motor site="pin" gear="1 2 3 0.1 0.2 0.3"/>
<position cranksite="pin" slidersite="rail" cranklength="2" kp="3"/>
<general joint="a" dyntype="filterexact" dynprm="0.02" gaintype="affine" gainprm="5 1 2"/>
<muscle joint="b" lengthrange="-0.4 0.3" force="20" range="0.8 1.4"/></actuator></mujoco>"""
KINDS_OF_FORCES = {
    *("actuator gain slope", "actuator direction", "crank length", "activation time", "muscle force", "muscle speed"),
    *("muscle length range", "muscle passive force", "gravity compensation", "fluid density", "fluid viscosity", "wind"),
    *("shape in the fluid, position", "shape in the fluid, size", "drag", "lift"),
}


def test_every_derivative_of_actuators_and_fluids_holds():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLEXOR_SIMD", "on")
        found = fx.certify(fx.load(DRIVEN), steps=6)
    assert found.ok, str(found)
    assert {row.what for row in found.rows if row.influence} >= KINDS_OF_FORCES


# Joint and tendon beyond their limits, loops with and without softness, and inputs, forces and an activation at their bounds.
BOUND = """<mujoco model="bound"><compiler angle="radian"/><default><geom contype="0" conaffinity="0"/></default><worldbody>
  <body name="held"><joint name="held" type="ball"/><geom type="box" size="0.1 0.05 0.07" pos="0.2 0 0.1" mass="1"/></body>
  <body name="soft" pos="1 0 0"><joint name="soft" axis="0 1 0.3"/>
    <geom type="box" size="0.1 0.05 0.07" pos="0.2 0 0" mass="1"/></body>
  <body name="arm"><joint name="a" axis="0 1 0" range="-0.014 0.01" actuatorfrcrange="-1 0.02"/>
    <geom type="capsule" size="0.03" fromto="0 0 0 0.3 0 0" mass="0.5"/>
    <body name="fore" pos="0.3 0 0"><joint name="b" axis="0 1 0"/>
      <geom type="capsule" size="0.03" fromto="0 0 0 0.3 0 0" mass="0.3"/></body></body></worldbody>
  <tendon><fixed name="t" range="0.0168 0.1" actuatorfrcrange="-0.05 0.03"><joint joint="b" coef="1.5"/></fixed>
    <fixed name="u"><joint joint="soft" coef="0.8"/></fixed></tendon>
  <equality><weld name="hard" body1="held" anchor="0.2 0 0.1" torquescale="0.7"/>
    <weld name="soft" body1="soft" anchor="0.2 0 0.1" solref="0.1 0.5" solimp="0.5 0.8 0.01"/>
    <tendon name="tie" tendon1="u" polycoef="0.01 0 0 0 0"/></equality>
  <actuator><motor joint="a" ctrlrange="-0.02 0.02" gear="30"/><general joint="b" gainprm="10" forcerange="-0.1 0.2"/>
    <motor tendon="t" gear="20"/><general joint="soft" dyntype="integrator" actrange="-5e-5 5e-5" gainprm="30"/>
    <muscle joint="b" lengthrange="-0.4 0.5" force="0.3" range="0.6 1.1" tausmooth="0.3"/></actuator></mujoco>"""
KINDS_OF_BOUNDS = {
    *("joint limits", "limit CFM", "limit Baumgarte", "limit stiffness", "limit damping", "tendon limits"),
    *("tendon limit CFM", "tendon limit Baumgarte", "tendon limit stiffness", "tendon limit damping", "tendon reference"),
    *(
        "loop rotation",
        "loop torquescale",
        "loop CFM of rotations",
        "loop stiffness of rotations",
        "loop damping of rotations",
    ),
    *("softness, response of rotations", "input range", "force range of an actuator", "force range of a joint"),
    *("tendon force range", "activation range", "activation smoothing", "release time", "muscle shortest length"),
    *("muscle operating range", "muscle lengthening force"),
}


def test_every_derivative_of_limits_welds_and_bounds_holds(monkeypatch):
    """A step of 1 ms: with longer ones the limit springs of the penalty model ring."""
    monkeypatch.setattr(certificate_module, "closed_forms", lambda: ())
    monkeypatch.setenv("FLEXOR_SIMD", "on")
    found = fx.certify(fx.load(BOUND), steps=6, dt=1e-3)
    assert found.ok, str(found)
    assert {row.what for row in found.rows if row.influence} >= KINDS_OF_BOUNDS


def test_every_number_of_a_model_that_moves_it_is_certified():
    """All leaves but delays, whose slopes have kinks at whole steps (`tests/model/test_delay.py`), the distance up to which
    adhesion acts, at which it jumps, and what sensors and keyframes read."""
    numbers = fx.load("cartpole")
    paths, tree = jax.tree_util.tree_flatten_with_path(numbers)
    named = tree.unflatten([jax.tree_util.keystr(path) for path, _ in paths])
    certified = {leaf(named) for leaf in certificate_module.KINDS.values()}
    others = {".actuators.delay", ".pairs.gap", ".sites.size", ".sensor_frames.pos", ".sensor_frames.quat", ".keyframes"}
    assert {jax.tree_util.keystr(path) for path, _ in paths} - certified == others
