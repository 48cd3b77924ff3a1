"""Distances and normals of every pair of shapes against MuJoCo, and finite derivatives where geometry degenerates."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.contact.shapes import Placed, sphere_prism

SHAPES = {
    "plane": 'type="plane" size="5 5 1"',
    "sphere": 'type="sphere" size="0.2"',
    "capsule": 'type="capsule" size="0.1 0.3"',
    "box": 'type="box" size="0.3 0.2 0.1"',
    "cylinder": 'type="cylinder" size="0.2 0.25"',
    "mesh": 'type="mesh" mesh="wedge"',
}
_CORNERS = "-0.3 -0.2 -0.1  0.3 -0.2 -0.1  0 0.3 -0.1  -0.3 -0.2 0.1  0.3 -0.2 0.1  0 0.3 0.1"
WEDGE = f'<asset><mesh name="wedge" vertex="{_CORNERS}"/></asset>'
PAIRS = [
    ("plane", "sphere"),
    ("plane", "capsule"),
    ("plane", "box"),
    ("plane", "cylinder"),
    ("plane", "mesh"),
    ("sphere", "sphere"),
    ("sphere", "capsule"),
    ("capsule", "capsule"),
    ("sphere", "box"),
    ("capsule", "box"),
    ("sphere", "mesh"),
]


def _text(a, b):
    """The second shape is free; the first is free too, unless it is a plane."""
    joint = "" if a == "plane" else '<freejoint name="a"/>'
    return f"""<mujoco>{WEDGE}<worldbody>
      <body name="a">{joint}<geom name="a" {SHAPES[a]}/></body>
      <body name="b" pos="0 0 1"><freejoint name="b"/><geom name="b" {SHAPES[b]}/></body></worldbody></mujoco>"""


def _poses(a, rng, count):
    free = 1 if a == "plane" else 2
    q = np.zeros((count, 7 * free))
    for k in range(free):
        q[:, 7 * k : 7 * k + 3] = rng.uniform(-0.45, 0.45, size=(count, 3)) if free == 2 else [0, 0, 0]
        quat = rng.normal(size=(count, 4))
        q[:, 7 * k + 3 : 7 * k + 7] = quat / np.linalg.norm(quat, axis=1, keepdims=True)
    if free == 1:
        q[:, 2] = rng.uniform(0.0, 0.5, count)
    return q


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_distance_and_normal_against_mujoco(a, b):
    model = fx.load(_text(a, b))
    m = mujoco.MjModel.from_xml_string(_text(a, b))
    d = mujoco.MjData(m)
    rng = np.random.default_rng(1)
    poses = _poses(a, rng, 80)
    contacts = jax.jit(jax.vmap(lambda q: fx.contact.detect(model, fx.dynamics.forward_kinematics(model, q))))(poses)
    compared = 0
    for k, q in enumerate(poses):
        d.qpos[:] = q
        mujoco.mj_forward(m, d)
        best = int(np.argmin(contacts.distance[k]))
        distance, normal = float(contacts.distance[k, best]), np.asarray(contacts.normal[k, best])
        gap = np.asarray(contacts.point_b[k, best] - contacts.point_a[k, best]) @ normal
        assert gap == pytest.approx(distance, abs=1e-12)
        assert np.linalg.norm(normal) == pytest.approx(1, abs=1e-12)
        if a == "plane":
            found = [c.dist for c in d.contact]
            if not found:
                assert distance > -1e-9
                continue
            assert distance == pytest.approx(min(found), abs=1e-8)
        else:
            reference = mujoco.mj_geomDistance(m, d, 0, 1, 10.0, None)
            if reference < 1e-6 or distance < 1e-6:
                # overlapping: MuJoCo's distance of deep overlap is that of an iterative method, so only the sign is compared
                assert (distance < 1e-5) == (reference < 1e-5)
                continue
            assert distance == pytest.approx(reference, abs=1e-5)
        compared += 1
    assert compared >= 10


@pytest.mark.parametrize(
    ("a", "b", "q"),
    [
        ("sphere", "sphere", [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        ("capsule", "capsule", [0, 0, 0, 1, 0, 0, 0, 0.15, 0, 0, 1, 0, 0, 0]),
        ("sphere", "capsule", [0, 0, 0.1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        ("sphere", "box", [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        ("sphere", "box", [0.3, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        ("capsule", "box", [0, 0, 0.2, 0.5**0.5, 0, 0.5**0.5, 0, 0, 0, 0, 1, 0, 0, 0]),
        ("capsule", "box", [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        ("sphere", "mesh", [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        ("plane", "cylinder", [0, 0, 0.25, 1, 0, 0, 0]),
        ("plane", "cylinder", [0, 0, 0.2, 0.5**0.5, 0.5**0.5, 0, 0]),
    ],
)
def test_degenerate_geometry_has_finite_values_and_derivatives(a, b, q):
    model = fx.load(_text(a, b))

    def numbers(q):
        contacts = fx.contact.detect(model, fx.dynamics.forward_kinematics(model, q))
        return jnp.concatenate(
            [contacts.distance, contacts.normal.ravel(), contacts.point_a.ravel(), contacts.point_b.ravel()]
        )

    both = jax.jit(lambda q: (numbers(q), jax.jacobian(numbers)(q)))(jnp.asarray(q, float))
    assert all(np.isfinite(x).all() for x in both)


def test_a_standing_cylinder_and_a_lying_capsule_have_enough_support():
    """A flat rim touches in three points around the axis, a capsule on a box at both ends of the overlap."""
    model = fx.load(_text("plane", "cylinder"))
    contacts = fx.contact.detect(model, fx.dynamics.forward_kinematics(model, jnp.array([0, 0, 0.25, 1, 0, 0, 0.0])))
    low = np.asarray(contacts.point_b)[np.abs(contacts.distance) < 1e-9][:, :2]
    assert len(low) == 3
    assert np.abs(low.mean(0)).max() < 1e-9
    model = fx.load(_text("capsule", "box"))
    turned = jnp.array([0.05, 0, 0.2, 0.5**0.5, 0, 0.5**0.5, 0, 0, 0, 0, 1, 0, 0, 0])
    contacts = fx.contact.detect(model, fx.dynamics.forward_kinematics(model, turned))
    assert np.asarray(contacts.distance) == pytest.approx([0, 0], abs=1e-9)
    assert sorted(np.asarray(contacts.point_b)[:, 0]) == pytest.approx([-0.25, 0.3], abs=1e-9)


def test_ball_in_the_notch_of_a_prism_that_is_not_convex():
    """An arrow head: in the notch the nearest edge is one of the two inner ones, at its perpendicular distance."""
    arrow = np.array([[0.0, 0.1], [-0.3, -0.3], [0.0, -0.1], [0.3, -0.3]])
    vertices = jnp.asarray(np.concatenate([np.column_stack([arrow, np.full(4, z)]) for z in (-0.1, 0.1)]))
    prism = Placed(jnp.zeros(3), jnp.eye(3), jnp.zeros(3), vertices)
    edge = arrow[3] - arrow[2]
    normal = np.array([edge[1], -edge[0]]) / np.linalg.norm(edge) * -1  # into the notch: away from the solid
    normal = normal if normal[1] < 0 else -normal
    for height, inside in ((0.05, False), (-0.02, True)):
        at = arrow[2] + 0.5 * edge + height * normal
        touch = sphere_prism(Placed(jnp.array([*at, 0.0]), jnp.eye(3), jnp.array([0.01, 0.0, 0.0])), prism)
        assert touch.distance[0] == pytest.approx(height - 0.01, abs=1e-12), inside
        assert np.asarray(touch.normal[0]) == pytest.approx([*-normal, 0.0], abs=1e-12)
