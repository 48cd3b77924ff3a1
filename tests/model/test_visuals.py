"""Visual shapes are read as the files mean them: meshes, poses, scales, colours; what is missing is listed."""

import dataclasses

import numpy as np
import pytest
import trimesh
from PIL import Image

import flexor as fx
from flexor.model.mjcf_visuals import mjcf_appearance
from flexor.model.origin import Origin
from flexor.model.visuals import appearance

URDF = """<robot name="arm">
  <material name="rust"><color rgba="0.7 0.3 0.1 1"/></material>
  <link name="base">
    <visual name="plain"><origin xyz="1 2 3" rpy="0 0 1.5707963267948966"/>
      <geometry><mesh filename="{plain}" scale="2 -1 1"/></geometry>
      <material name="rust"/></visual>
    <visual name="own"><geometry><mesh filename="{own}"/></geometry><material name="rust"/></visual>
    <visual name="gone"><geometry><mesh filename="gone.stl"/></geometry></visual>
    <visual name="odd"><geometry><mesh filename="{plain}" scale="1 x"/></geometry></visual>
  </link>
  <link name="arm"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>
    <visual name="rod"><geometry><cylinder radius="0.1" length="0.6"/></geometry>
      <material name="own"><color rgba="0 0 1 0.5"/></material></visual></link>
  <joint name="j" type="continuous"><parent link="base"/><child link="arm"/></joint>
</robot>"""


@pytest.fixture
def box():
    return trimesh.creation.box((1, 2, 3))


def arm(folder, plain, own):
    (folder / "arm.urdf").write_text(URDF.format(plain=plain, own=own))
    return fx.load(folder / "arm.urdf")


def painted_obj(folder, box, **material):
    box.visual = trimesh.visual.TextureVisuals(
        uv=np.zeros((8, 2)), material=trimesh.visual.material.SimpleMaterial(**material)
    )
    box.export(folder / "own.obj")
    return "own.obj"


def test_urdf_visuals_have_poses_scales_and_materials(tmp_path, box):
    box.export(tmp_path / "plain.stl")
    seen = appearance(arm(tmp_path, "plain.stl", painted_obj(tmp_path, box, diffuse=[51, 102, 153, 255])))
    plain, own, rod = seen.visuals
    np.testing.assert_allclose(plain.pos, [1, 2, 3])
    np.testing.assert_allclose(plain.quat, [0.5**0.5, 0, 0, 0.5**0.5], atol=1e-12)
    (surface,) = plain.surfaces
    np.testing.assert_allclose(np.ptp(surface.vertices, axis=0), [2, 2, 3], rtol=1e-6)
    a, b, c = surface.vertices[surface.faces.T]  # outward, although the scale is that of a mirror
    assert (np.sum(np.cross(b - a, c - a) * (a + b + c), axis=1) > 0).all()
    assert plain.rgba == (0.7, 0.3, 0.1, 1.0)
    assert surface.rgba is None
    assert own.surfaces[0].rgba == pytest.approx((0.2, 0.4, 0.6, 1.0))  # before that of the element
    assert (rod.body, rod.shape, rod.rgba) == ("arm", "cylinder", (0.0, 0.0, 1.0, 0.5))
    np.testing.assert_allclose(rod.size, [0.1, 0.3, 0])


def test_what_is_missing_is_listed_and_not_fatal(tmp_path, box):
    box.export(tmp_path / "plain.stl")
    (tmp_path / "own.stl").write_text("no mesh")
    broken, gone, odd = appearance(arm(tmp_path, "plain.stl", "own.stl")).missing
    assert "visual 'own' of link 'base' (mesh 'own.stl')" in broken
    assert "visual 'gone' of link 'base' (mesh 'gone.stl'): it was not found; looked at" in gone
    assert 'scale="1 x"' in odd or "could not convert" in odd


def test_a_colour_that_is_none_is_listed():
    seen = appearance(
        fx.load(URDF.format(plain="p.stl", own="o.stl").replace("0.7 0.3 0.1 1", "0.7 0.3 0.1"), missing="skip")
    )
    assert any("the colour of material 'rust'" in line for line in seen.missing)
    assert [v.shape for v in seen.visuals] == ["cylinder"]


def test_a_texture_paints_the_vertices(tmp_path, box):
    box.export(tmp_path / "plain.stl")
    image = Image.fromarray(np.full((4, 4, 3), (10, 200, 30), np.uint8))
    own = appearance(arm(tmp_path, "plain.stl", painted_obj(tmp_path, box, image=image))).visuals[1]
    (surface,) = own.surfaces
    np.testing.assert_allclose(surface.colours, np.tile([10, 200, 30], (len(surface.vertices), 1)), atol=2)  # it is a JPEG


def test_collada_scene_and_material(tmp_path, box):
    box.visual = trimesh.visual.TextureVisuals(
        material=trimesh.visual.material.PBRMaterial(baseColorFactor=[255, 0, 0, 255])
    )
    box.export(tmp_path / "own.dae")
    trimesh.creation.box((1, 1, 1)).export(tmp_path / "plain.stl")
    (surface,) = appearance(arm(tmp_path, "plain.stl", "own.dae")).visuals[1].surfaces
    np.testing.assert_allclose(np.ptp(surface.vertices, axis=0), [1, 2, 3], rtol=1e-6)
    assert surface.rgba == pytest.approx((1, 0, 0, 1))


MJCF = """<mujoco model="m">
  <asset>
    <mesh name="wedge" vertex="0 0 0  1 0 0  0 1 0  0 0 1" texcoord="0.1 0.9  0.9 0.9  0.1 0.1  0.9 0.1"/>
    <texture name="t" type="2d" builtin="flat" rgb1="0 1 0" width="8" height="8"/>
    <material name="green" rgba="0 1 0 1"/><material name="texture" texture="t"/>
  </asset>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1"/>
    <body name="a" pos="0 0 2"><freejoint/>
      <geom name="ball" type="sphere" size="0.1" material="green"/>
      <geom name="red" type="box" size="0.1 0.2 0.3" material="green" rgba="1 0 0 1"/>
      <geom name="grey" type="box" size="0.1 0.2 0.3"/>
      <geom name="wedge" type="mesh" mesh="wedge" pos="0 0 0.5" material="texture" contype="0" conaffinity="0"/>
      <geom name="hidden" type="box" size="1 1 1" group="3"/>
      <geom name="clear" type="box" size="1 1 1" rgba="1 1 1 0"/>
    </body>
  </worldbody>
</mujoco>"""


def test_mjcf_visuals_are_what_mujocos_viewer_shows():
    seen = {v.name: v for v in appearance(fx.load(MJCF)).visuals}
    assert set(seen) == {"ball", "red", "grey", "wedge"}
    assert {n: v.rgba for n, v in seen.items() if n != "wedge"} == {"ball": (0, 1, 0, 1), "red": (1, 0, 0, 1), "grey": None}
    (surface,) = seen["wedge"].surfaces
    np.testing.assert_array_equal(surface.colours, np.tile([0, 255, 0], (4, 1)))
    import mujoco
    from scipy.spatial.transform import Rotation

    # MuJoCo moves a mesh into its inertial frame; where its corners are in the body must not have changed
    corners = Rotation.from_quat(seen["wedge"].quat, scalar_first=True).apply(surface.vertices) + seen["wedge"].pos
    found = {tuple(x) for x in np.round(corners, 5).tolist()}
    assert found == {(0, 0, 0.5), (1, 0, 0.5), (0, 1, 0.5), (0, 0, 1.5)}
    again = mjcf_appearance(Origin(compiled=mujoco.MjModel.from_xml_string(MJCF)))
    assert {v.name for v in again.visuals} == set(seen)
    assert {v.name for v in appearance(fx.load(mujoco.MjModel.from_xml_string(MJCF))).visuals} == set(seen)


def test_origin_is_no_part_of_the_model(tmp_path):
    (tmp_path / "m.xml").write_text(MJCF)
    model, text = fx.load(tmp_path / "m.xml"), fx.load(MJCF)
    assert model.topology.origin.path == tmp_path / "m.xml"
    assert model.topology == text.topology
    assert hash(model.topology) == hash(text.topology)
    sim = fx.Simulator(model)
    sim.save(tmp_path / "kept")
    assert str(tmp_path) not in (tmp_path / "kept" / "simulator.json").read_text()
    assert appearance(fx.open(tmp_path / "kept").model).visuals == ()
    (tmp_path / "m.xml").unlink()
    moved = dataclasses.replace(model.topology, origin=Origin(tmp_path / "m.xml", package_dirs=(tmp_path,)))
    (sentence,) = appearance(dataclasses.replace(model, topology=moved)).missing
    assert "can no longer be read" in sentence
