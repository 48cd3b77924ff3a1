"""A robot in viser's scene: a frame for each body, its visual shapes below it, and contact forces as arrows."""

from typing import Any

import numpy as np
import trimesh

from flexor.model.model import Model
from flexor.viz.looks import looks

TRIANGLES = 120_000
"""Of all meshes of a robot: they cross the local network once."""
CREASE = 0.6  # rad between faces: a sharper edge is drawn as one
FORCE = (194, 24, 91)
HEAD = 0.025  # length of an arrow's head, in sizes of the robot


class RobotNodes:
    """A robot in the scene of a viser server, below the node `/name`, moved by `offset` in m. `colour` (0 to 255) is that of
    parts without one, or of all parts where `alone` is false. `floor` draws the planes."""

    def __init__(
        self,
        server: Any,
        name: str,
        model: Model,
        offset: np.ndarray,
        colour: tuple[int, int, int],
        *,
        alone: bool = True,
        floor: bool = True,
    ):
        self._server, self._offset, self._floor = server, np.asarray(offset, float), floor
        t = model.topology
        parts = looks(model, triangles=TRIANGLES)
        self._size = reach(parts, model)
        axes = {"axes_length": 0.12 * self._size, "axes_radius": 0.005 * self._size}
        with server.atomic():
            server.scene.add_frame(f"/{name}", show_axes=False)
            self._bodies = [
                server.scene.add_frame(f"/{name}/{i:02d} {body.replace('/', '_')}", show_axes=False, **axes)
                for i, body in enumerate(t.bodies)
            ]
            for i, part in enumerate(parts):
                self._add(f"{self._bodies[part['body']].name}/shape{i}", part, colour, alone)
        self._forces: Any = None
        self._force_name = f"/{name}/forces"
        self._weight = float(np.asarray(model.bodies.mass).sum() * np.linalg.norm(np.asarray(model.gravity))) or 1.0

    def _add(self, name: str, part: dict[str, Any], colour: tuple[int, int, int], alone: bool) -> None:
        pose = {"position": np.asarray(part["pos"], float), "wxyz": np.asarray(part["quat"], float)}
        if part["shape"] == "plane":
            if self._floor:
                add_floor(self._server, name, self._size, **pose)
            return
        surface = part.get("surface")
        shape = solid(part)
        if surface is not None and surface.colours is not None and alone:
            painted = trimesh.Trimesh(shape.vertices, shape.faces, vertex_colors=surface.colours, process=False)
            self._server.scene.add_mesh_trimesh(name, painted, **pose)
            return
        rgba = part["rgba"] or (*(c / 255 for c in colour), 1.0)
        tint = tuple(round(255 * min(max(c, 0.0), 1.0)) for c in rgba[:3]) if alone else colour
        if part["shape"] in ("mesh", "box", "cylinder") and len(shape.faces):
            shape = trimesh.graph.smooth_shade(shape, angle=CREASE)
        seen = {"color": tint, "opacity": None if rgba[3] >= 1 else float(rgba[3]), "side": "double"}
        self._server.scene.add_mesh_simple(name, np.asarray(shape.vertices), np.asarray(shape.faces), **seen, **pose)

    def pose(self, pos: np.ndarray, quat: np.ndarray) -> None:
        """Moves the bodies to positions (nbody, 3) and quaternions w x y z (nbody, 4)."""
        for body, p, q in zip(self._bodies, pos + self._offset, quat, strict=True):
            body.position, body.wxyz = p, q

    def show_forces(self, forces: np.ndarray | None) -> None:
        """Draws points and forces (ncon, 6) as arrows; None takes them away. The robot's weight is 0.6 times as long as the
        robot, and no arrow is longer than 0.45 or shorter than 0.025 of it."""
        given = np.zeros((0, 6)) if forces is None else forces
        given = given[np.linalg.norm(given[:, 3:], axis=1) * 0.6 > HEAD * self._weight]
        start = given[:, :3] + self._offset
        strength = np.linalg.norm(given[:, 3:], axis=1, keepdims=True)
        along = given[:, 3:] * np.minimum(0.6 / self._weight, 0.45 / np.maximum(strength, 1e-12)) * self._size
        points = np.stack([start, start + along], axis=1).astype(np.float32)
        if self._forces is None and len(points):
            thick = {"shaft_radius": 0.006 * self._size, "head_radius": 0.014 * self._size, "head_length": HEAD * self._size}
            self._forces = self._server.scene.add_arrows(self._force_name, points, FORCE, **thick)
        elif self._forces is not None and (len(points) or len(self._forces.points)):
            self._forces.points = points

    def show_frames(self, shown: bool) -> None:
        """Shows or hides the axes of every body: x red, y green, z blue."""
        for body in self._bodies[1:]:
            body.show_axes = shown

    def where(self, body: int) -> np.ndarray:
        """The position of a body in the scene."""
        return np.asarray(self._bodies[body].position)


def reach(parts: list[dict[str, Any]], model: Model) -> float:
    """About the size of a robot in m: of the box around its reference configuration."""
    from flexor.viz.framing import boxes
    from flexor.viz.scene import body_motion

    low, high = boxes(parts, *body_motion(model, np.asarray(model.reference)[None]))
    return max(float(np.linalg.norm(high[0] - low[0])), 1e-3)


def add_floor(server: Any, name: str, size: float, **pose: Any) -> None:
    """A grid that fades away some robots' sizes from the camera; its cells are a power of ten of a metre."""
    cell = float(10.0 ** np.floor(np.log10(size)))
    lines = {"cell_color": (214, 219, 226), "section_color": (190, 197, 206), "section_thickness": 1.0}
    server.scene.add_grid(
        name, infinite_grid=True, cell_size=0.5 * cell, section_size=cell, fade_distance=8 * size, **lines, **pose
    )


def solid(part: dict[str, Any]) -> trimesh.Trimesh:
    """The triangles of a shape that is not a plane, in its own frame."""
    a, b, c = (float(x) for x in np.asarray(part["size"]))
    kind = part["shape"]
    if kind == "sphere":
        return trimesh.creation.icosphere(3, a)
    if kind == "capsule":
        made = trimesh.creation.capsule(2 * b, a, count=(20, 20))
        return made.apply_translation(-made.bounds.mean(0))  # releases of trimesh put its origin elsewhere
    if kind == "cylinder":
        return trimesh.creation.cylinder(a, 2 * b, sections=36)
    if kind == "box":
        return trimesh.creation.box((2 * a, 2 * b, 2 * c))
    if kind == "ellipsoid":
        return trimesh.creation.icosphere(3, 1.0).apply_scale([a, b, c])
    faces = np.asarray(part["faces"], int).reshape(-1, 3)
    return trimesh.Trimesh(np.asarray(part["vertices"], float).reshape(-1, 3), faces, process=False)
