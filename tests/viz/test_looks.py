"""What viewers draw: visual shapes, else collision shapes; meshes light enough, and the same in the page."""

import base64

import numpy as np
import pytest
import trimesh

import flexor as fx
from flexor.model.description import ModelWarning
from flexor.model.parameters import replace
from flexor.model.visuals import Surface
from flexor.viz.animation import packed_mesh
from flexor.viz.looks import PLAIN, allotted, looks, simplified

LINK = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
ROBOT = f"""<robot name="r">
  <link name="base">{LINK}<visual><geometry><box size="1 1 1"/></geometry>
    <material name="m"><color rgba="1 0 0 1"/></material></visual>
    <visual name="bare"><geometry><sphere radius="1"/></geometry></visual>
    <collision name="hidden"><geometry><box size="2 2 2"/></geometry></collision></link>
  <link name="welded"><collision name="hidden too"><geometry><sphere radius="3"/></geometry></collision></link>
  <link name="hand">{LINK}<collision name="shown"><geometry><sphere radius="0.5"/></geometry></collision>{{gone}}</link>
  <joint name="w" type="fixed"><parent link="base"/><child link="welded"/></joint>
  <joint name="j" type="continuous"><parent link="base"/><child link="hand"/></joint>
</robot>"""


def test_collision_shapes_are_drawn_only_where_nothing_else_is():
    model = fx.load(ROBOT.format(gone=""), floating=True, ground=True)
    drawn = {s["name"]: s for s in looks(model)}
    assert set(drawn) == {"base_visual0", "bare", "ground", "shown"}
    assert drawn["base_visual0"]["rgba"] == (1, 0, 0, 1)
    assert drawn["bare"]["rgba"] == PLAIN  # others have a colour
    assert drawn["shown"]["rgba"] is None


def test_missing_visuals_are_listed_in_a_warning():
    gone = '<visual><geometry><mesh filename="gone.stl"/></geometry></visual>'
    model = fx.load(ROBOT.format(gone=gone), floating=True)
    with pytest.warns(ModelWarning, match=r"r: a visual shape is missing: .*mesh 'gone.stl'.*not found"):
        drawn = {s["name"] for s in looks(model)}
    assert "shown" in drawn


def test_visuals_that_are_shapes_of_the_model_have_its_numbers():
    model = fx.load("cube")
    geom = model.topology.geoms[model.geom("cube")]
    bigger = replace(model, {"geom.cube.size": np.array([0.5, 0.6, 0.7])})
    (drawn,) = (s for s in looks(bigger) if s["name"] == geom.name)
    np.testing.assert_allclose(drawn["size"], [0.5, 0.6, 0.7])


def test_triangles_are_shared_out():
    assert allotted([10, 20], 100) == [10, 20]
    shares = allotted([10, 10_000, 40_000], 1000)
    assert shares[0] == 10
    assert shares[2] == pytest.approx(2 * shares[1], rel=0.01)
    assert sum(shares) <= 1000


def test_a_lighter_surface_keeps_shape_and_colours():
    ball = trimesh.creation.icosphere(4, 1.0)
    soup = ball.vertices[ball.faces].reshape(-1, 3)  # corners of their own, as in STL
    colours = np.where(soup[:, 2:] > 0, [255, 0, 0], [0, 0, 255]).astype(np.uint8)
    made = simplified(Surface(soup, np.arange(len(soup)).reshape(-1, 3), None, colours), 500)
    assert 300 < len(made.faces) <= 600
    np.testing.assert_allclose(np.linalg.norm(made.vertices, axis=1), 1, atol=0.03)
    high = made.vertices[:, 2] > 0.1
    assert (made.colours[high] == [255, 0, 0]).all()


@pytest.mark.parametrize("count", [50, 70_000])
def test_packed_meshes_are_exact_to_their_step(count):
    rng = np.random.default_rng(0)
    vertices = rng.normal(size=(count, 3)) * [1, 10, 0.1]
    faces = rng.integers(0, count, (20, 3))
    made = packed_mesh(Surface(vertices, faces))
    steps = np.frombuffer(base64.b64decode(made["vertices"]), "<u2").reshape(-1, 3)
    assert (np.abs(steps * made["step"] + made["low"] - vertices) < 0.51 * np.array(made["step"])).all()
    kind = "<u4" if made["wide"] else "<u2"
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(made["faces"]), kind).reshape(-1, 3), faces)
    assert made["wide"] == (count > 65535)
