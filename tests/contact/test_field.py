"""Height fields: MuJoCo's contacts, what a contact is by definition, planes made of triangles, derivatives, files."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import flexor as fx
from flexor.contact import detect
from flexor.dynamics import forward_kinematics

SHAPES = {
    "sphere": 'type="sphere" size="0.08"',
    "capsule": 'type="capsule" size="0.05 0.08"',
    "box": 'type="box" size="0.1 0.06 0.05"',
    "cylinder": 'type="cylinder" size="0.06 0.05"',
    "ellipsoid": 'type="ellipsoid" size="0.1 0.07 0.05"',
    "mesh": 'type="mesh" mesh="hull"',
}
ROWS, COLUMNS = 9, 11
HULL = np.array([[0.1, 0, 0], [-0.1, 0.02, 0], [0, 0.1, 0], [0, -0.1, 0.01], [0, 0, 0.07], [0.01, 0, -0.09]])


def numbers(x):
    return " ".join(map(repr, np.ravel(x).tolist()))


def scene(shape, rows=ROWS, columns=COLUMNS):
    heights = np.random.default_rng(0).uniform(size=(rows, columns))
    return f"""<mujoco model="hills"><asset><hfield name="hills" nrow="{rows}" ncol="{columns}" size="0.5 0.4 0.03 0.2"
      elevation="{numbers(heights)}"/><mesh name="hull" vertex="{numbers(HULL)}"/></asset><worldbody>
      <geom name="hills" type="hfield" hfield="hills" pos="0.1 0 0.05" quat="1 0.1 0 0.05"/>
      <body name="body" pos="0 0 0.5"><freejoint name="root"/><geom name="shape" {SHAPES[shape]} mass="1"/></body>
      </worldbody></mujoco>"""


def contacts_of(model):
    def found(q):
        c = detect(model, forward_kinematics(model, q))
        return c.distance, c.normal, c.point_a

    return jax.jit(fx.simd.vmap(found))


def random_poses(count, seed=1):
    rng = np.random.default_rng(seed)
    q = np.zeros((count, 7))
    q[:, 0], q[:, 1], q[:, 2] = (
        rng.uniform(-0.2, 0.35, count),
        rng.uniform(-0.25, 0.25, count),
        rng.uniform(0.05, 0.2, count),
    )
    q[:, 3:] = rng.normal(size=(count, 4))
    q[:, 3:] /= np.linalg.norm(q[:, 3:], axis=1, keepdims=True)
    return q


def resting_poses(found, count, depth=0.003):
    """Random poses, lowered or lifted until the shape is this deep in the field."""
    q = random_poses(count)
    for _ in range(25):
        q[:, 2] -= 0.7 * np.clip(np.asarray(found(jnp.asarray(q))[0]).min(1) + depth, -0.1, 0.1)
    return q


def height_of(model, place):
    """Height of the surface at a place in the frame of the field."""
    v = np.asarray(model.geoms.vertices)[: ROWS * COLUMNS].reshape(ROWS, COLUMNS, 3)
    spacing = v[1, 1, :2] - v[0, 0, :2]
    c, r = np.clip(((place - v[0, 0, :2]) / spacing).astype(int), 0, [COLUMNS - 2, ROWS - 2])
    right = (place[0] - v[r, c, 0]) / spacing[0] > (place[1] - v[r, c, 1]) / spacing[1]
    a, b, d = (v[r, c], v[r, c + 1], v[r + 1, c + 1]) if right else (v[r, c], v[r + 1, c + 1], v[r + 1, c])
    n = np.cross(b - a, d - a)
    return a[2] - n[:2] @ (place - a[:2]) / n[2]


@pytest.mark.parametrize("shape", SHAPES)
def test_contacts_are_mujocos_and_those_of_the_definition(shape):
    """3 mm deep. The deepest contact lies on the surface, and none of the surface around it rises along its normal. It is one of
    MuJoCo's: exactly so for spheres and capsules. MuJoCo's search of cylinders and ellipsoids stops at 1e-6 m, and a normal that
    is wrong by the angle (1e-6 / 0.1)^(1/2) costs that much. Corners of boxes and hulls get normals of edges between prisms in
    MuJoCo, which the surface does not have. A shape wedged deep in a notch, where several answers are right, is not counted."""
    m, model = mujoco.MjModel.from_xml_string(scene(shape)), fx.load(scene(shape))
    found, count, data = contacts_of(model), 100, mujoco.MjData(m)
    q = resting_poses(found, count)
    distance, normal, point = (np.asarray(x) for x in found(jnp.asarray(q)))
    assert np.isfinite(distance).all()
    near, turned = (1e-9, 1e-9) if shape in ("sphere", "capsule") else (2e-6, 4e-3)
    same, sound = 0, 0
    for i in range(count):
        data.qpos[:] = q[i]
        mujoco.mj_forward(m, data)
        rot, pos = data.geom_xmat[0].reshape(3, 3), data.geom_xpos[0]
        deepest = int(np.argmin(distance[i]))
        assert distance[i, deepest] < 0
        theirs = [(c.dist, c.frame[:3]) for c in data.contact[: data.ncon]]
        same += any(
            abs(d - distance[i, deepest]) < near and np.abs(n - normal[i, deepest]).max() < turned for d, n in theirs
        )
        place, n = rot.T @ (point[i, deepest] - pos), rot.T @ normal[i, deepest]
        rises = []
        for angle in np.arange(16) * np.pi / 8:
            there = place[:2] + 1e-3 * np.array([np.cos(angle), np.sin(angle)])
            rises.append(n @ (np.array([*there, height_of(model, there)]) - place))
        sound += abs(place[2] - height_of(model, place[:2])) < 1e-4 and max(rises) < 1e-4
    least = {"sphere": 1.0, "capsule": 1.0, "cylinder": 0.95, "ellipsoid": 0.95, "box": 0.3, "mesh": 0.3}
    assert sound >= 0.97 * count
    assert same >= least[shape] * count


@pytest.mark.parametrize("shape", SHAPES)
def test_ten_thousand_states_have_finite_values_and_gradients(shape):
    """From far above to deep below the surface, by position and rotation."""
    model = fx.load(scene(shape))

    def total(q):
        c = detect(model, forward_kinematics(model, q))
        near = c.distance < 1e3
        return jnp.sum(jnp.where(near, c.distance, 0.0)) + jnp.sum(jnp.where(near[:, None], c.normal + c.point, 0.0))

    value, slope = jax.jit(fx.simd.vmap(jax.value_and_grad(total)))(jnp.asarray(random_poses(10_000)))
    assert np.isfinite(np.asarray(value)).all()
    assert np.isfinite(np.asarray(slope)).all()
    assert np.abs(np.asarray(slope)).max() > 0.1


SLOPE = np.array([-0.2, 0.1])  # of a plane made of triangles, along x and y
UP = np.array([*-SLOPE, 1.0]) / np.sqrt(1 + SLOPE @ SLOPE)


def ramp(shape, size, above, friction, *, field):
    x, y = np.linspace(-1.5, 1.5, 31), np.linspace(-1, 1, 21)
    z = SLOPE[1] * y[:, None] + SLOPE[0] * x[None]
    z -= z.min()
    quat = numbers(Rotation.align_vectors(UP[None], [[0, 0, 1.0]])[0].as_quat(scalar_first=True))
    middle = z[10, 15]
    start = numbers(np.array([-0.6, 0.013, middle - 0.6 * SLOPE[0] + 0.013 * SLOPE[1]]) + above * UP)
    ground = 'type="hfield" hfield="ramp"' if field else f'type="plane" size="5 5 1" pos="0 0 {middle}" quat="{quat}"'
    return f"""<mujoco model="ramp"><asset><hfield name="ramp" nrow="21" ncol="31" size="1.5 1 {z.max()} 0.5"
      elevation="{numbers(z[::-1])}"/></asset><worldbody><geom name="ground" {ground} friction="{friction}"/>
      <body name="body" pos="{start}" quat="{quat}"><freejoint name="root"/><geom name="shape" type="{shape}" size="{size}"
      mass="1" friction="{friction}"/></body></worldbody></mujoco>"""


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize(
    ("shape", "size", "above", "friction"), [("sphere", "0.1", 0.1, 0.8), ("box", "0.1 0.08 0.05", 0.05, 0.1)]
)
def test_a_plane_of_triangles_is_a_plane(shape, size, above, friction, dtype):
    """A ball rolls and a box slides over some ten edges; heights of the field are single-precision numbers, here of 0.8 m."""
    ends = []
    for field in (True, False):
        model = fx.load(ramp(shape, size, above, friction, field=field), dtype=dtype)
        sim = fx.Simulator(model, fx.RigidSolver(contact=fx.NCP(most=4)), dt=0.002)
        ends.append(np.asarray(sim.rollout(sim.reset(), steps=300).q[-1]))
    assert np.abs(ends[0][:2] - np.asarray([-0.6, 0.0])).max() > 0.1
    np.testing.assert_allclose(ends[0], ends[1], atol=5e-5)


VALLEY = np.abs(np.linspace(-1, 1, 21))[None] * np.ones((5, 1)) * 0.5  # slopes of 0.5 on both sides of x = 0


@pytest.mark.parametrize(("dtype", "simd"), [(jnp.float64, True), (jnp.float64, False), (jnp.float32, True)])
def test_a_ball_and_a_foot_rest_on_slopes(dtype, simd):
    """A ball in a valley of slope s touches both sides: its centre is r (1 + s^2)^(1/2) above the bottom. A foot that does not
    turn stays on one side, since s < mu. Rigid contact: nothing sinks in but what Baumgarte's term allows."""
    text = f"""<mujoco model="valley"><asset><hfield name="v" nrow="5" ncol="21" size="1 1 0.5 0.5"
      elevation="{numbers(VALLEY)}"/></asset><worldbody><geom name="valley" type="hfield" hfield="v"/>
      <body name="ball" pos="0.02 0.13 0.12"><freejoint name="root"/><geom name="ball" size="0.1" mass="1"/></body>
      <body name="foot" pos="0.53 0.2 {0.265 + 0.05 * np.sqrt(1.25)}"><joint name="x" type="slide" axis="1 0 0"/>
      <joint name="y" type="slide" axis="0 1 0"/><joint name="z" type="slide" axis="0 0 1"/>
      <geom name="foot" size="0.05" mass="3" friction="0.7"/></body></worldbody></mujoco>"""
    sim = fx.Simulator(fx.load(text, dtype=dtype), fx.RigidSolver(contact=fx.NCP(most=4)), dt=0.002, simd=simd)
    end = sim.rollout(sim.reset(), steps=1000).final
    # heights of the field are single-precision numbers of 0.5 m, which the distances of float32 inherit
    q = np.asarray(end.q)
    np.testing.assert_allclose([q[0], q[2]], [0, 0.1 * np.sqrt(1.25)], atol=1e-4)
    np.testing.assert_allclose(q[7:], np.zeros(3), atol=1e-4)
    np.testing.assert_allclose(np.asarray(end.qd), np.zeros(9), atol=1e-3)


def test_the_certificate_holds():
    certificate = fx.certify(fx.load(scene("sphere", 4, 4)))
    assert certificate.ok, str(certificate)


def test_bad_fields_are_refused():
    m = mujoco.MjModel.from_xml_string(scene("sphere"))
    m.hfield_data[3] = np.nan
    with pytest.raises(ValueError, match=r"heights of geom 'hills' must be finite, got nan in row 0, column 3"):
        fx.load(m)
    moving = scene("sphere").replace(
        'quat="1 0.1 0 0.05"/>', 'quat="1 0.1 0 0.05"/><geom name="flat" type="plane" size="1 1 1"/>'
    )
    names = {(p.a, p.b) for p in fx.load(moving).topology.pairs}
    assert len(names) == 2  # the ball with the hills and with the plane; the two do not meet


def with_vertices(model, vertices):
    return eqx.tree_at(lambda m: m.geoms.vertices, model, vertices)


def test_derivatives_are_those_of_finite_differences():
    """Of a rollout over the hills with all candidates and with a list of them: by the start and by the heights."""
    model = fx.load(scene("sphere"))
    q = np.array([0.02, 0.07, 0.1845, 1, 0, 0, 0])
    for most in (None, 4):
        sim = fx.Simulator(model, fx.RigidSolver(contact=fx.NCP(most=most, tolerance=1e-13)), dt=0.002)

        def end(z, sim=sim):
            vertices = sim.model.geoms.vertices
            robot = with_vertices(sim.model, vertices.at[:, 2].add(z[0] * vertices[:, 0] + z[1]))
            start = sim.reset(jnp.asarray(q).at[:3].add(z[2:5]), jnp.zeros(6).at[:3].set(z[5:8]))
            state = fx.Simulator(robot, sim.solver, dt=sim.dt).rollout(start, steps=20).final
            return jnp.concatenate([state.q, state.qd])

        z = jnp.asarray([0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.05, -0.2])
        exact = np.asarray(jax.jit(jax.jacfwd(end))(z))
        step = 1e-6
        both = jax.jit(fx.simd.vmap(end))(z[None] + step * jnp.concatenate([jnp.eye(8), -jnp.eye(8)]))
        central = np.asarray((both[:8] - both[8:]).T) / (2 * step)
        assert np.abs(exact[:, 1]).max() > 0.1
        np.testing.assert_allclose(exact, central, atol=1e-5 * np.abs(exact).max())


def test_fields_are_saved(tmp_path):
    """To flexor's own numbers, and MuJoCo opens the same hills from the file."""
    model = fx.load(scene("box"))
    lifted = with_vertices(model, model.geoms.vertices.at[:, 2].add(0.01))
    for one in (model, lifted):
        fx.save(one, tmp_path / "hills.xml")
        again = fx.load(tmp_path / "hills.xml")
        assert again.topology == one.topology
        for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(one), strict=True):
            np.testing.assert_array_equal(a, b)
        m = mujoco.MjModel.from_xml_path(str(tmp_path / "hills.xml"))
        lift = float(one.geoms.vertices[:, 2].min())
        np.testing.assert_allclose(m.hfield_data * m.hfield_size[0, 2] + lift, one.geoms.vertices[:, 2], atol=1e-8)
    flat = fx.load(scene("box"), ignore=["hfield"])
    assert flat.topology.pairs == ()
