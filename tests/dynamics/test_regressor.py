"""Regressors against inverse dynamics, momentum and its rate, Pinocchio, and in kernels."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from benchmarks._quantities import random_instants
from flexor import dynamics as dyn
from flexor.robots import load

EPS = np.finfo(float).eps
TOLERANCE = 1e4 * EPS  # relative: sums of some hundred products along chains of ten joints


def close(a, b, factor=1.0):
    np.testing.assert_allclose(a, b, rtol=0, atol=factor * TOLERANCE * max(1.0, float(np.abs(b).max())))


def armature(model):
    return model.joints.armature[model.topology.dof_joint]


@jax.jit
def regressors(model, at):
    """All regressors, and the other side of the equations they stand in."""
    kin = dyn.forward_kinematics(model, at.q)
    pi = dyn.inertial_parameters(model)

    def momentum(t):
        q = dyn.integrate(model, at.q, t * at.qd)
        return dyn.momentum_regressor(model, dyn.forward_kinematics(model, q), at.qd + t * at.qdd) @ pi

    return {
        "torque": dyn.torque_regressor(model, kin, at.qd, at.qdd) @ pi,
        "rnea": dyn.rnea(model, kin, at.qd, at.qdd) - armature(model) * at.qdd,
        "momentum": dyn.momentum_regressor(model, kin, at.qd) @ pi,
        "M qd": dyn.crba(model, kin) @ at.qd - armature(model) * at.qd,
        "rate": jax.jvp(momentum, (0.0,), (1.0,))[1],
        "forces": (dyn.torque_regressor(model, kin, at.qd, at.qdd) + dyn.momentum_rate_regressor(model, kin, at.qd)) @ pi,
    }


@pytest.fixture(scope="module")
def results(model, at):
    return regressors(model, at)


def test_the_torque_regressor_is_inverse_dynamics(results):
    close(results["torque"], results["rnea"])


def test_the_momentum_regressor_is_the_inertia_times_the_velocity(results):
    close(results["momentum"], results["M qd"])


def test_momentum_changes_by_torque_and_the_rate_regressor(results):
    """d/dt (Y_p pi) along the motion, by JAX, for hinges, slides, a ball and a free base."""
    close(results["rate"], results["forces"], 10)


def test_each_column_is_the_torque_of_one_parameter(model, at):
    """Inverse dynamics of bodies with other masses, centres and inertias, drawn at random, with the regressor of the first."""
    rng = np.random.default_rng(1)
    other = eqx.tree_at(
        lambda m: (m.bodies.mass, m.bodies.com, m.bodies.inertia),
        model,
        [x * jnp.asarray(rng.uniform(0.5, 2, x.shape)) for x in (model.bodies.mass, model.bodies.com, model.bodies.inertia)],
    )

    @jax.jit
    def both(model, other, at):
        kin = dyn.forward_kinematics(model, at.q)
        Y = dyn.torque_regressor(model, kin, at.qd, at.qdd)
        return Y @ dyn.inertial_parameters(other), dyn.rnea(other, kin, at.qd, at.qdd) - armature(model) * at.qdd

    close(*both(model, other, at))


def test_parameters_go_there_and_back(model):
    pi = dyn.inertial_parameters(model)
    assert len(dyn.inertial_names(model)) == len(pi) == 10 * (len(model.topology.bodies) - 1)
    assert dyn.inertial_names(model)[:2] == ("post.m", "post.mx")
    again = dyn.with_inertial_parameters(model, pi)
    for field in ("mass", "com", "inertia"):
        close(getattr(again.bodies, field), getattr(model.bodies, field))


SMALL = """<mujoco><worldbody><body name="base"><freejoint/><inertial pos="0.1 0 0.02" mass="2" diaginertia="0.1 0.2 0.25"/>
<body name="leg" pos="0.2 0 0"><joint name="hip" axis="0 1 0"/><inertial pos="0 0.1 -0.2" mass="0.5"
fullinertia="0.02 0.03 0.04 0.002 0.001 -0.003"/></body></body></worldbody></mujoco>"""


def test_kernels_compute_the_same():
    """One kernel with an instant of a floating base in every lane, in both precisions, against XLA."""
    model = load(SMALL)
    instants = random_instants(model, np.random.default_rng(2), 9)

    def all_of(model, q, qd, qdd):
        kin = dyn.forward_kinematics(model, q)
        return (dyn.torque_regressor(model, kin, qd, qdd), dyn.momentum_regressor(model, kin, qd),
                dyn.momentum_rate_regressor(model, kin, qd))  # fmt: skip

    wanted = jax.jit(jax.vmap(all_of, (None, 0, 0, 0)))(model, *map(jnp.asarray, instants[:3]))
    for dtype in ("float64", "float32"):
        arrays = [jnp.asarray(x, dtype) for x in instants[:3]]
        got = fx.simd.vmap(all_of, (None, 0, 0, 0))(model.astype(dtype), *arrays)
        for a, b in zip(got, wanted, strict=True):
            scale = float(jnp.abs(b).max())
            np.testing.assert_allclose(a, b, atol=1e3 * np.finfo(dtype).eps * scale)


ARM = """<robot name="arm"><link name="base"/>
<link name="one"><inertial><origin xyz="0.1 0.02 -0.1" rpy="0.3 0.1 0"/><mass value="2"/>
  <inertia ixx="0.1" ixy="0.01" ixz="0.02" iyy="0.2" iyz="0.005" izz="0.25"/></inertial></link>
<link name="two"><inertial><origin xyz="0 0.2 0.1"/><mass value="1"/>
  <inertia ixx="0.05" ixy="0" ixz="0" iyy="0.04" iyz="0" izz="0.03"/></inertial></link>
<link name="three"><inertial><origin xyz="0 0.1 0.1"/><mass value="0.5"/>
  <inertia ixx="0.01" ixy="0" ixz="0" iyy="0.012" iyz="0" izz="0.015"/></inertial></link>
<joint name="a" type="continuous"><parent link="base"/><child link="one"/><origin xyz="0 0 0.3" rpy="0.2 0 0"/>
  <axis xyz="0 0.6 0.8"/></joint>
<joint name="b" type="prismatic"><parent link="one"/><child link="two"/><origin xyz="0.4 0 0" rpy="0 0.5 0"/><axis xyz="0 0 1"/>
  <limit lower="-1" upper="1" effort="9" velocity="9"/></joint>
<joint name="c" type="revolute"><parent link="two"/><child link="three"/><origin xyz="0 0 0.2" rpy="0 0 0.7"/><axis xyz="1 0 0"/>
  <limit lower="-3" upper="3" effort="9" velocity="9"/></joint></robot>"""


def test_pinocchio_has_the_same_regressor():
    """Its columns are m, h, and (xx xy yy xz yz zz) of each joint's body, in the joint's frame."""
    pin = pytest.importorskip("pinocchio")
    model, rng = load(ARM), np.random.default_rng(5)
    q, qd, qdd = rng.normal(size=(3, 3))
    Y = jax.jit(lambda q, qd, qdd: dyn.torque_regressor(model, dyn.forward_kinematics(model, q), qd, qdd))(q, qd, qdd)
    other = pin.buildModelFromXML(ARM.replace("continuous", "revolute").replace(
        "0.8\"/></joint>", "0.8\"/><limit lower=\"-9\" upper=\"9\" effort=\"9\" velocity=\"9\"/></joint>"))  # fmt: skip
    wanted = pin.computeJointTorqueRegressor(other, other.createData(), q, qd, qdd).reshape(3, 3, 10)
    names = list(model.topology.bodies[1:])
    own = np.asarray(Y).reshape(3, len(names), 10)[:, [names.index(n) for n in ("one", "two", "three")]]
    close(own, wanted[..., [0, 1, 2, 3, 4, 6, 9, 5, 7, 8]])


def test_tendons_with_inertia_are_refused():
    model = load("""<mujoco><worldbody><body name="b"><joint name="a" type="slide" axis="1 0 0"/><geom size="0.1"/></body>
      </worldbody><tendon><fixed name="rope" armature="0.3"><joint joint="a" coef="1"/></fixed></tendon></mujoco>""")
    kin = dyn.forward_kinematics(model, jnp.zeros(1))
    with pytest.raises(ValueError, match="tendons with armature \\('rope'\\)"):
        dyn.momentum_regressor(model, kin, jnp.zeros(1))
