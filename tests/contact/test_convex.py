"""Any two convex shapes: distances and normals against coal and by definition, points, derivatives, what rests on what."""

import coal
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import ConvexHull

import flexor as fx
from flexor.contact.manifold import FAR
from flexor.contact.placed import Placed
from flexor.contact.shapes import NARROW_PHASE
from flexor.contact.support import SHAPES_BY_NAME
from flexor.simd import vmap
from flexor.spatial import quat_exp, quat_to_matrix

_rng = np.random.default_rng(5)
_BALL = _rng.normal(size=(16, 3))
HULL = _BALL / np.linalg.norm(_BALL, axis=1)[:, None] * [0.3, 0.2, 0.15]
SIZES = {
    "sphere": [0.2, 0, 0],
    "capsule": [0.1, 0.3, 0],
    "box": [0.3, 0.2, 0.1],
    "cylinder": [0.2, 0.25, 0],
    "ellipsoid": [0.3, 0.2, 0.1],
    "mesh": [0, 0, 0],
}
PAIRS = [key for key, f in NARROW_PHASE.items() if getattr(f, "func", None) is not None]
POLYTOPES = {"sphere", "capsule", "box", "mesh"}


def _hull() -> coal.Convex:
    points, triangles = coal.StdVec_Vec3s(), coal.StdVec_Triangle()
    for v in HULL:
        points.append(v)
    hull = ConvexHull(HULL)
    for (a, b, c), plane in zip(hull.simplices.tolist(), hull.equations, strict=True):
        outward = np.cross(HULL[b] - HULL[a], HULL[c] - HULL[a]) @ plane[:3] > 0
        triangles.append(coal.Triangle(a, b, c) if outward else coal.Triangle(a, c, b))
    return coal.Convex(points, triangles)


ORACLE = {
    "sphere": coal.Sphere(0.2),
    "capsule": coal.Capsule(0.1, 0.6),
    "box": coal.Box(0.6, 0.4, 0.2),
    "cylinder": coal.Cylinder(0.2, 0.5),
    "ellipsoid": coal.Ellipsoid(0.3, 0.2, 0.1),
    "mesh": _hull(),
}


def turns(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.asarray(quat_to_matrix(jnp.asarray(rng.normal(size=(count, 4)))))


def placed(shape: str, pos: np.ndarray, rot: np.ndarray, dtype: str) -> Placed:
    return Placed(*(jnp.asarray(x, dtype) for x in (pos, rot, np.broadcast_to(SIZES[shape], (len(pos), 3)))))


def poses(shapes: tuple[str, str], rng: np.random.Generator, count: int, dtype: str = "float64") -> tuple[Placed, Placed]:
    a, b = (placed(s, rng.uniform(-0.35, 0.35, (count, 3)), turns(rng, count), dtype) for s in shapes)
    return a, b


def narrow_phase(shapes: tuple[str, str], dtype: str = "float64"):
    """The narrow phase of two shapes without vertices."""
    hulls = [jnp.asarray(HULL, dtype) if s == "mesh" else None for s in shapes]

    def touch(a: Placed, b: Placed):
        return NARROW_PHASE[shapes](a._replace(vertices=hulls[0]), b._replace(vertices=hulls[1]))

    return touch


def separation(shapes: tuple[str, str], a: Placed, b: Placed, normals: np.ndarray) -> np.ndarray:
    """S(N) = min N.(b - a) by the support functions, of every pose with every normal: (pose, normal)."""

    def one(a: Placed, b: Placed, n: jax.Array) -> jax.Array:
        sides = []
        for shape, s, d in zip(shapes, (a, b), (n, -n), strict=True):
            s = s._replace(vertices=jnp.asarray(HULL)) if shape == "mesh" else s
            kind = SHAPES_BY_NAME[shape]
            sides.append(d @ (s.pos + s.rot @ kind.support(s, s.rot.T @ d)) + kind.radius(s))
        return -sum(sides)

    return np.asarray(jax.jit(jax.vmap(jax.vmap(one, (None, None, 0))))(a, b, jnp.asarray(normals)))


def reference(shapes: tuple[str, str], a: Placed, b: Placed) -> np.ndarray:
    """Distance and normal by coal; rows where its penetration depth failed are not finite."""
    request, rows = coal.DistanceRequest(), []
    request.gjk_max_iterations = request.epa_max_iterations = 1000
    request.gjk_tolerance, request.epa_tolerance = 1e-12, 1e-10
    for k in range(len(a.pos)):
        frames = [coal.Transform3s(np.asarray(s.rot[k]), np.asarray(s.pos[k])) for s in (a, b)]
        result = coal.DistanceResult()
        distance = coal.distance(ORACLE[shapes[0]], frames[0], ORACLE[shapes[1]], frames[1], request, result)
        rows.append([distance if abs(distance) < 1e3 else np.nan, *result.normal])
    return np.array(rows)


@pytest.mark.parametrize("shapes", PAIRS, ids="-".join)
def test_distances_and_normals_by_definition_and_against_coal(shapes):
    """The signed distance is the largest separation S(N), and the normal attains it. Inside a hull with many faces, a local
    maximum may be found, which is a little deeper."""
    rng = np.random.default_rng(1)
    a, b = poses(shapes, rng, 300)
    touch = jax.tree.map(np.asarray, vmap(narrow_phase(shapes))(a, b))
    rows = np.arange(300)
    deepest = touch.distance.argmin(1)
    distance, normal = touch.distance[rows, deepest], touch.normal[rows, deepest]
    gap = np.sum((touch.point_b - touch.point_a) * touch.normal, axis=-1)
    np.testing.assert_allclose(gap, touch.distance, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(normal, axis=-1), 1, atol=1e-12)
    np.testing.assert_allclose(separation(shapes, a, b, normal[:, None])[:, 0], distance, atol=1e-9)
    directions = rng.normal(size=(500, 3))
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    best = separation(shapes, a, b, np.broadcast_to(directions, (300, 500, 3))).max(1)
    shallow = distance > -0.03
    assert shallow.sum() > 100
    slack = 0.1 * np.maximum(-distance, 0) if "mesh" in shapes else 0.0
    assert (best <= distance + 1e-9 + slack)[shallow].all()
    assert np.mean(best > distance + 1e-6) < 0.05
    expected = reference(shapes, a, b)
    has_reference = np.isfinite(expected[:, 0]) & shallow
    if set(shapes) <= POLYTOPES:
        assert (np.abs(distance - expected[:, 0]) <= 1e-6 + slack)[has_reference].all()
        apart = has_reference & (expected[:, 0] > 1e-3)
        np.testing.assert_allclose(normal[apart], expected[apart, 1:], atol=1e-6)
    else:  # coal's own iterations stop at about 1e-6 where shapes are round, and the normal's error is the square root
        apart = has_reference & (expected[:, 0] > 1e-3)
        np.testing.assert_allclose(distance[apart], expected[apart, 0], atol=1e-5)
        np.testing.assert_allclose(normal[apart], expected[apart, 1:], atol=3e-3)


@pytest.mark.parametrize("shapes", PAIRS, ids="-".join)
def test_ten_thousand_states_have_finite_values_and_gradients(shapes):
    """Single precision in a kernel, with states that are aligned, in touch, one in the other, and at the same place."""
    rng = np.random.default_rng(2)
    a, b = poses(shapes, rng, 10000, "float32")
    still = np.zeros((10000, 3))
    still[:2000] = rng.choice([0, 0.1, 0.2, 0.3, 0.45], (2000, 3))
    aligned = np.arange(10000) < 2000
    b = b._replace(
        pos=jnp.where(aligned[:, None], jnp.asarray(still, "float32"), b.pos),
        rot=jnp.where(aligned[:, None, None], jnp.eye(3, dtype="float32"), b.rot),
    )
    a = a._replace(
        pos=jnp.where(aligned[:, None], jnp.zeros_like(a.pos), a.pos),
        rot=jnp.where(aligned[:, None, None], jnp.eye(3, dtype="float32"), a.rot),
    )
    touch = narrow_phase(shapes, "float32")

    def total(a: Placed, b: Placed):
        found = touch(a, b)
        return sum(jnp.sum(x) for x in found), found

    gradient, found = vmap(jax.grad(total, argnums=(0, 1), has_aux=True))(a, b)
    for x in jax.tree.leaves((gradient, found)):
        assert np.isfinite(x).all()
        assert x.dtype == jnp.float32
    double = vmap(narrow_phase(shapes))(*poses(shapes, rng, 10000))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(double))


ROUND = [("sphere", "cylinder"), ("box", "cylinder"), ("cylinder", "mesh"), ("ellipsoid", "mesh")]


@pytest.mark.parametrize("shapes", [("box", "box"), *ROUND], ids="-".join)
def test_derivatives_of_distance_normal_and_points(shapes):
    """Along random motions, against central differences of step 1e-6, whose error is 1e-9 or so; where the step changes the
    feature in touch, which few of these states are near, the two disagree."""
    rng = np.random.default_rng(3)
    a, b = poses(shapes, rng, 300)
    motion = jnp.asarray(rng.normal(size=(300, 12)))
    touch = narrow_phase(shapes)

    def numbers(t: jax.Array, x: jax.Array, a: Placed, b: Placed) -> jax.Array:
        a, b = (
            s._replace(pos=s.pos + t * y[:3], rot=quat_to_matrix(quat_exp(t * y[3:])) @ s.rot)
            for s, y in ((a, x[:6]), (b, x[6:]))
        )
        found = touch(a, b)
        empty = found.distance > jnp.min(found.distance) + 0.9 * FAR
        return jnp.concatenate([jnp.where(empty[:, None], 0.0, z).ravel() for z in (found.distance[:, None], *found[:3])])

    value = vmap(numbers, in_axes=(None, 0, 0, 0))
    derivative = vmap(lambda x, a, b: jax.jvp(lambda t: numbers(t, x, a, b), (0.0,), (1.0,))[1])(motion, a, b)
    difference = np.asarray(value(1e-6, motion, a, b) - value(-1e-6, motion, a, b)) / 2e-6
    error = np.abs(difference - np.asarray(derivative)).max(1) / (1 + np.abs(difference).max(1))
    assert np.median(error) < 1e-7
    assert np.mean(error > 1e-3) < 0.05


def test_a_box_rests_on_a_box_by_the_corners_of_the_overlap():
    """Shifted against each other, turned, tilted by a hundredth, and in exact touch; in both precisions."""
    for dtype, atol in (("float64", 1e-9), ("float32", 2e-6)):
        touch = jax.jit(narrow_phase(("box", "box"), dtype))

        def at(pos, turn=(0.0, 0.0, 0.0), dtype=dtype):
            rot = quat_to_matrix(quat_exp(jnp.asarray(turn, dtype)))
            return Placed(jnp.asarray(pos, dtype), rot, jnp.asarray(SIZES["box"], dtype))

        for overlap in (1e-4, 0.0, -1e-4):
            found = touch(at([0, 0, 0]), at([0.05, 0.02, 0.2 - overlap]))
            np.testing.assert_allclose(found.distance, -overlap, atol=atol)
            np.testing.assert_allclose(found.normal, np.tile([0, 0, 1], (4, 1)), atol=atol)
            corners = {(round(float(x), 4), round(float(y), 4)) for x, y, _ in found.point_a}
            assert corners == {(0.3, 0.2), (0.3, -0.18), (-0.25, 0.2), (-0.25, -0.18)}
        found = touch(at([0, 0, 0]), at([0, 0, 0.2], [0.01, 0, 0]))
        np.testing.assert_allclose(np.sort(found.distance), 0.2 * np.sin(0.01) * np.array([-1, -1, 1, 1]), atol=1e-5)


TIPPING = """<mujoco><option gravity="{x} 0 {z}"/><worldbody>
  <geom name="table" type="box" size="1 1 0.1" friction="2"/>
  <body name="block" pos="0 0 0.3"><freejoint/><geom name="block" type="{shape}" size="{size}" mass="1" friction="2"/></body>
</worldbody></mujoco>"""


@pytest.mark.parametrize(("angle", "tips"), [(0.95, False), (1.05, True)])
def test_a_block_tips_over_its_edge_where_its_weight_passes_it(angle, tips):
    """A block 0.1 m wide and 0.2 m high to either side of its centre tips where gravity leans by more than atan(0.1 / 0.2)."""
    lean = angle * np.arctan(0.5)
    text = TIPPING.format(x=9.81 * np.sin(lean), z=-9.81 * np.cos(lean), shape="box", size="0.1 0.15 0.2")
    sim = fx.Simulator(fx.load(text), fx.RigidSolver(fx.NCP()), dt=2e-3)
    end = sim.rollout(sim.reset(), steps=250)
    turned = 2 * np.arccos(np.clip(np.abs(np.asarray(end.q)[-1, 3]), 0, 1))
    assert (turned > 0.1) if tips else (turned < 2e-3)


def test_several_pairs_of_a_kind_in_a_kernel():
    """Three boxes on each other: as many pairs of boxes, all with places of their own."""
    boxes = "".join(
        f'<body pos="0 0 {0.1 + 0.2 * i}"><freejoint/><geom name="b{i}" type="box" size="0.1 0.1 0.1"/></body>'
        for i in range(3)
    )
    model = fx.load(f"<mujoco><worldbody>{boxes}</worldbody></mujoco>")

    def distances(q: jax.Array) -> jax.Array:
        return fx.contact.detect(model, fx.dynamics.forward_kinematics(model, q)).distance

    q = model.reference
    np.testing.assert_allclose(fx.simd.jit(distances)(q), [0] * 4 + [0.2] * 4 + [0] * 4, atol=1e-12)
    assert np.isfinite(fx.simd.jit(jax.grad(lambda q: jnp.sum(distances(q))))(q)).all()
