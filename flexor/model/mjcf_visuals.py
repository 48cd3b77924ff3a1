"""Reads the looks of a compiled MuJoCo model: the geoms of groups 0 to 2, which MuJoCo's viewer shows, and their materials.

A geom's own colour comes before its material's, and MuJoCo's default grey stands for no colour. Textures are read at the
vertices of meshes. Planes and height fields are drawn as the collision shapes that they are.
"""

from typing import Any

import mujoco
import numpy as np

from flexor.model.mjcf import SHAPE_KINDS, element_names
from flexor.model.origin import Origin
from flexor.model.visuals import Appearance, Colour, Surface, Visual, placed

SHOWN = 3  # groups that MuJoCo's viewer shows at first
DRAWN = ("sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh")
GREY = (0.5, 0.5, 0.5, 1.0)  # MuJoCo's default


def mjcf_appearance(origin: Origin) -> Appearance:
    """The visible geoms of an MJCF file or text, or of a compiled model, in the frames of their bodies."""
    try:
        m = origin.compiled or _compiled(origin)
    except ValueError as error:
        return Appearance(missing=(f"the description can no longer be read: {' '.join(str(error).split())}",))
    names = element_names(m)
    meshes: dict[tuple[int, int], Surface] = {}
    found = []
    for g in range(m.ngeom):
        shape, rgba = SHAPE_KINDS[int(m.geom_type[g])], _colour(m, g)
        if m.geom_group[g] >= SHOWN or shape not in DRAWN or (rgba is not None and rgba[3] == 0):
            continue
        surfaces: tuple[Surface, ...] = ()
        if shape == "mesh":
            key = int(m.geom_dataid[g]), int(m.geom_matid[g])
            meshes.setdefault(key, _surface(m, *key))
            surfaces = (meshes[key],)
        name, body = names["geom"][g], names["body"][m.geom_bodyid[g]]
        pose = placed(m.geom_pos[g], m.geom_quat[g], m.geom_size[g])
        found.append(Visual(name, body, shape, *pose, rgba=rgba, surfaces=surfaces, geom=None if surfaces else name))
    return Appearance(tuple(found))


def _compiled(origin: Origin) -> Any:
    if origin.path is not None:
        return mujoco.MjModel.from_xml_path(str(origin.path))
    return mujoco.MjModel.from_xml_string(origin.text)


def _colour(m: Any, g: int) -> Colour | None:
    own, material = tuple(m.geom_rgba[g].tolist()), int(m.geom_matid[g])
    if not np.allclose(own, GREY):
        return own
    return None if material < 0 else tuple(m.mat_rgba[material].tolist())


def _surface(m: Any, mesh: int, material: int) -> Surface:
    vertices = _rows(m.mesh_vert, m.mesh_vertadr[mesh], m.mesh_vertnum[mesh])
    faces = _rows(m.mesh_face, m.mesh_faceadr[mesh], m.mesh_facenum[mesh])
    return Surface(vertices, faces, None, _painted(m, mesh, material, faces, len(vertices)))


def _painted(m: Any, mesh: int, material: int, faces: np.ndarray, count: int) -> np.ndarray | None:
    """Colours of the vertices by the material's texture; None without one."""
    texture = -1 if material < 0 else int(m.mat_texid[material, int(mujoco.mjtTextureRole.mjTEXROLE_RGB)])
    if texture < 0 or m.mesh_texcoordadr[mesh] < 0 or m.tex_type[texture] != int(mujoco.mjtTexture.mjTEXTURE_2D):
        return None
    height, width, channels = int(m.tex_height[texture]), int(m.tex_width[texture]), int(m.tex_nchannel[texture])
    image = _rows(m.tex_data, m.tex_adr[texture], height * width * channels).reshape(height, width, channels)[..., :3]
    uv = _rows(m.mesh_texcoord, m.mesh_texcoordadr[mesh], m.mesh_texcoordnum[mesh])
    corners = uv[_rows(m.mesh_facetexcoord, m.mesh_faceadr[mesh], m.mesh_facenum[mesh]).ravel()]
    row = np.clip(((1 - corners[:, 1] % 1.0) * height).astype(int), 0, height - 1)
    column = np.clip((corners[:, 0] % 1.0 * width).astype(int), 0, width - 1)
    colours = np.full((count, 3), 255, np.uint8)
    colours[faces.ravel()] = image[row, column] if channels >= 3 else image[row, column].repeat(3, axis=-1)
    return colours


def _rows(table: np.ndarray, start: Any, count: Any) -> np.ndarray:
    return np.array(table[int(start) : int(start) + int(count)])
