"""Frames by name: MuJoCo's Jacobians and velocities of bodies and sites, J qd = velocity, differences of poses, files."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from tests.dynamics.robots import NASTY

SITES = {
    "arm": '<site name="tool" pos="0.1 -0.2 0.3" quat="0.5 0.1 -0.7 0.2"/>',
    "wrist": '<site name="wrist" pos="0 0 0.2"/>',
    "tail": '<site name="tip" pos="0 0.3 0.05" quat="0.9 0.3 0 0.1"/><site/>',
}
NAMES = ("world", "arm", "plate", "wrist", "tail", "tool", "site.wrist", "tip", "tail_site1")


def with_sites():
    text = NASTY.replace("<worldbody>", '<worldbody><site name="goal" pos="1 2 3"/>', 1)
    for body, site in SITES.items():
        at = text.index(">", text.index(f'<body name="{body}"')) + 1
        text = text[:at] + site + text[at:]
    return text


@pytest.fixture(scope="module")
def oracle():
    """MuJoCo's model and data at a random state."""
    m = mujoco.MjModel.from_xml_string(with_sites())
    d, rng = mujoco.MjData(m), np.random.default_rng(0)
    mujoco.mj_integratePos(m, d.qpos, rng.normal(size=m.nv), 1.0)
    d.qvel[:] = rng.normal(size=m.nv)
    mujoco.mj_forward(m, d)
    return m, d


@pytest.fixture(scope="module")
def model(oracle):
    return fx.load(oracle[0])


def of_mujoco(m, d, name):
    """Pose, Jacobian and velocity of a frame: a site's if there is one of that name, with "site." for a body's namesake."""
    site = mujoco.mj_name2id(m, mujoco.mjtObj.mjOBJ_SITE, name.removeprefix("site."))
    if name == "tail_site1":
        site = m.nsite - 1
    jacobian, velocity = np.zeros((2, 3, m.nv)), np.zeros(6)
    if site >= 0 and name != "wrist":
        kind, at = mujoco.mjtObj.mjOBJ_SITE, site
        pose = d.site_xpos[at], d.site_xmat[at].reshape(3, 3)
        mujoco.mj_jacSite(m, d, jacobian[1], jacobian[0], at)
    else:
        kind, at = mujoco.mjtObj.mjOBJ_XBODY, m.body(name).id
        pose = d.xpos[at], d.xmat[at].reshape(3, 3)
        mujoco.mj_jacBody(m, d, jacobian[1], jacobian[0], at)
    mujoco.mj_objectVelocity(m, d, kind, at, velocity, 0)
    return pose, jacobian.reshape(6, -1), velocity


def quantities(model, q, qd, name):
    return fx.frame_pose(model, q, name), fx.frame_jacobian(model, q, name), fx.frame_velocity(model, q, qd, name)


def test_names(model):
    assert fx.frames(model) == (*model.topology.bodies, "goal", "tool", "site.wrist", "tip", "tail_site1")
    with pytest.raises(KeyError, match=r"'nasty' has no frame named 'hand'; `fx.frames\(model\)` lists them: world, post"):
        fx.frame_pose(model, model.reference, "hand")


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize("name", NAMES)
def test_frames_are_mujocos(oracle, model, name, dtype):
    """Chains of at most eight joints of lengths and speeds of order one: some hundred roundings."""
    tolerance = 100 * float(jnp.finfo(dtype).eps)
    q, qd = jnp.asarray(oracle[1].qpos, dtype), jnp.asarray(oracle[1].qvel, dtype)
    found = jax.jit(quantities, static_argnums=3)(model.astype(dtype), q, qd, name)
    for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(of_mujoco(*oracle, name)), strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, wanted, atol=tolerance * (1 + np.abs(wanted).max()))


@pytest.mark.parametrize("name", ["tool", "tip", "plate"])
def test_velocities_are_differences_of_poses(oracle, model, name):
    """(w, v) = J qd to rounding; and central differences along the motion, with an error of h^2 + eps / h = 1e-9 at h = 1e-5."""
    q, qd, h = jnp.asarray(oracle[1].qpos), jnp.asarray(oracle[1].qvel), 1e-5
    (_, rot), J, velocity = quantities(model, q, qd, name)
    np.testing.assert_allclose(J @ qd, velocity, atol=1e-13)
    ends = [fx.frame_pose(model, fx.integrate(model, q, sign * h * qd), name) for sign in (1, -1)]
    np.testing.assert_allclose((ends[0][0] - ends[1][0]) / (2 * h), velocity[3:], atol=1e-8)
    spin = np.asarray((ends[0][1] - ends[1][1]) / (2 * h) @ rot.T)
    np.testing.assert_allclose([spin[2, 1], spin[0, 2], spin[1, 0]], velocity[:3], atol=1e-8)


def test_kernels_and_derivatives(oracle, model):
    """In SIMD lanes as in XLA; and the derivative of a site's position by the displacement is its Jacobian."""
    q, qd = jnp.asarray(oracle[1].qpos), jnp.asarray(oracle[1].qvel)

    def of_tool(x):
        return quantities(model, fx.integrate(model, q, x * qd), qd, "tool")

    x = jnp.linspace(-0.3, 0.3, 5)
    for got, wanted in zip(
        *(jax.tree.leaves(f(of_tool)(x)) for f in (fx.simd.vmap, lambda f: jax.jit(jax.vmap(f)))), strict=True
    ):
        np.testing.assert_allclose(got, wanted, atol=1e-13 * (1 + np.abs(wanted).max()))
    moved = jax.jit(jax.jacfwd(lambda x: fx.frame_pose(model, fx.integrate(model, q, x), "tool")[0]))(jnp.zeros(model.nv))
    np.testing.assert_allclose(moved, fx.frame_jacobian(model, q, "tool")[3:], atol=1e-13)


def test_sites_are_parameters(model):
    assert {"site.tool.pos", "site.tool.quat"} <= set(fx.parameters(model, "site.*"))
    longer = fx.replace(model, {"site.tool.pos": [0.0, 0.0, 1.0]})
    a, b = (fx.frame_pose(m, model.reference, "tool")[0] for m in (model, longer))
    body = fx.frame_pose(model, model.reference, "arm")[1]
    np.testing.assert_allclose(b - a, body @ jnp.array([-0.1, 0.2, 0.7]), atol=1e-14)


TWO_LINKS = """<mujoco model="two"><worldbody><body name="base" pos="0 0 1"><freejoint name="root"/><site name="imu"
pos="0.1 0 0"/><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/><body name="arm" pos="0.2 0 0"><joint name="j" axis="0 1 0"/>
<site name="tool" pos="0.3 0.1 0" quat="0.6 0.8 0 0"/><inertial pos="0 0 0.1" mass="1" diaginertia="1 1 1"/></body></body>
</worldbody></mujoco>"""


@pytest.mark.parametrize("ending", [".xml", ".urdf"])
def test_sites_are_saved(tmp_path, ending):
    model = fx.replace(fx.load(TWO_LINKS), {"site.tool.pos": [1 / 3, 0.2, -0.1]})
    fx.save(model, tmp_path / f"robot{ending}")
    again = fx.load(tmp_path / f"robot{ending}")
    assert again.topology == model.topology
    assert fx.frames(again) == ("world", "base", "arm", "imu", "tool")
    for got, wanted in zip(jax.tree.leaves(again.sites), jax.tree.leaves(model.sites), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_fixed_links_of_a_urdf_are_frames():
    """What URDF users call a frame: a link without mass on a fixed joint."""
    text = """<robot name="arm"><link name="base"/><link name="upper"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1"
    ixy="0" ixz="0" iyz="0"/></inertial></link><link name="tool0"/>
    <joint name="j" type="continuous"><parent link="base"/><child link="upper"/><axis xyz="0 0 1"/></joint>
    <joint name="flange" type="fixed"><parent link="upper"/><child link="tool0"/>
    <origin xyz="0.5 0 0.1" rpy="0 1.5707963267948966 0"/></joint></robot>"""
    model = fx.load(text)
    assert "tool0" in fx.frames(model)
    pos, rot = fx.frame_pose(model, jnp.array([np.pi / 2]), "tool0")
    np.testing.assert_allclose(pos, [0, 0.5, 0.1], atol=1e-15)
    np.testing.assert_allclose(rot[:, 2], [0, 1, 0], atol=1e-15)
    np.testing.assert_allclose(fx.frame_jacobian(model, jnp.zeros(1), "tool0")[:, 0], [0, 0, 1, 0, 0.5, 0], atol=1e-15)
