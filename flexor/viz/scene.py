"""What a drawing of a robot needs: its shapes, and the pose of every body over time. Read by the page and by the video."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from scipy.spatial import ConvexHull, QhullError
from scipy.spatial.transform import Rotation

from flexor.contact import detect
from flexor.contact.contacts import tangents
from flexor.dynamics import body_poses, forward_kinematics
from flexor.model.model import Model
from flexor.solvers.trajectory import Trajectory


@dataclass(frozen=True)
class Actor:
    """A robot in a drawing: its motion, a label, a colour (any CSS colour), and an offset in m that sets it beside others.

    With "contact.normal_force" and "contact.friction_force" recorded in the trajectory, the contact forces are drawn too.
    """

    model: Model
    trajectory: Trajectory
    label: str = ""
    colour: str | None = None
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)


def frame_indices(time: np.ndarray, frames_per_second: float) -> np.ndarray:
    """Indices of the states nearest to the frames' times; the first state is always one of them."""
    wanted = np.arange(time[0], time[-1] + 1e-9, 1.0 / frames_per_second)
    after = np.clip(np.searchsorted(time, wanted), 1, len(time) - 1)
    nearer = np.where(wanted - time[after - 1] <= time[after] - wanted, after - 1, after)
    return np.unique(np.concatenate([[0], nearer]))


@jax.jit
def _poses(model: Model, q: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.vmap(lambda x: body_poses(model, forward_kinematics(model, x)))(q)


def body_motion(model: Model, q: Any) -> tuple[np.ndarray, np.ndarray]:
    """Positions (frames, nbody, 3) and quaternions w x y z (frames, nbody, 4) of all bodies at coordinates (frames, nq)."""
    pos, rot = (np.asarray(x, float) for x in _poses(model, q))
    quat = Rotation.from_matrix(rot.reshape(-1, 3, 3)).as_quat(scalar_first=True)
    return pos, quat.reshape(*rot.shape[:2], 4)


def checked(trajectory: Trajectory) -> Trajectory:
    """The trajectory, or an error that says why it cannot be drawn."""
    if np.asarray(trajectory.q).ndim != 2:
        shape = np.asarray(trajectory.q).shape
        raise ValueError(f"a drawing shows one trajectory; index the batch first, q has shape {shape}.")
    return trajectory.raise_if_bad()


def shapes(model: Model) -> list[dict[str, Any]]:
    """The collision shapes as plain data: kind, body, pose in the body, size, and for meshes vertices and hull triangles."""
    g = model.geoms
    found = []
    for i, geom in enumerate(model.topology.geoms):
        shape = {
            "shape": geom.shape,
            "name": geom.name,
            "body": geom.body,
            "pos": _rounded(g.pos[i]),
            "quat": _rounded(g.quat[i]),
            "size": _rounded(g.size[i]),
        }
        if geom.shape == "mesh":
            vertices = np.asarray(g.vertices[geom.start : geom.stop], float)
            shape["vertices"], shape["faces"] = _rounded(vertices), hull_faces(vertices)
        found.append(shape)
    return found


def hull_faces(vertices: np.ndarray) -> list[list[int]]:
    """Triangles of the convex hull, counter-clockwise from outside; none where the points span no volume."""
    try:
        hull = ConvexHull(vertices)
    except (QhullError, ValueError):
        return []
    faces = []
    for (a, b, c), plane in zip(hull.simplices, hull.equations, strict=True):
        outward = np.cross(vertices[b] - vertices[a], vertices[c] - vertices[a]) @ plane[:3] > 0
        faces.append([int(a), int(b), int(c)] if outward else [int(a), int(c), int(b)])
    return faces


def bones(model: Model) -> list[list[int]]:
    """Body and parent of every body that has no shape of its own or no shape above it, to be joined by a line."""
    t = model.topology
    drawn = {g.body for g in t.geoms if g.shape != "plane"}
    return [[b, p] for b, p in enumerate(t.parents) if p > 0 and not (b in drawn and p in drawn)]


def contact_forces(model: Model, trajectory: Trajectory, rows: np.ndarray) -> np.ndarray | None:
    """Point and force on body b in N, (frames, ncon, 6), of the steps that led to states `rows`; None if not recorded."""
    names = ("contact.normal_force", "contact.friction_force")
    if any(name not in trajectory.taps for name in names):
        return None
    before = np.clip(rows - 1, 0, len(trajectory) - 1)
    fn, ft = (np.asarray(trajectory.taps[name])[before] for name in names)
    point, *frame = (np.asarray(x) for x in _contacts(model, trajectory.q[before]))
    force = fn[..., None] * frame[0] + ft[..., :1] * frame[1] + ft[..., 1:] * frame[2]
    force[rows == 0] = 0.0
    return np.concatenate([point, force], axis=-1)


@jax.jit
def _contacts(model: Model, q: jax.Array) -> tuple[jax.Array, ...]:
    """Points, normals and the two tangents of all candidates, with a leading time axis."""

    def one(x: jax.Array) -> tuple[jax.Array, ...]:
        found = detect(model, forward_kinematics(model, x))
        return (found.point_a + found.point_b) / 2, found.normal, *tangents(found.normal)

    return jax.vmap(one)(q)


def extent(model: Model, pos: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest corner of the space in which the bodies move, with room for their shapes; planes do not count."""
    reach = np.zeros(len(model.topology.bodies))
    for i, geom in enumerate(model.topology.geoms):
        if geom.shape == "plane":
            continue
        size = np.asarray(model.geoms.size[i], float)
        if geom.shape == "mesh":
            radius = np.linalg.norm(np.asarray(model.geoms.vertices[geom.start : geom.stop]), axis=-1).max()
        else:
            radius = {"sphere": size[0], "box": np.linalg.norm(size)}.get(geom.shape, size[0] + size[1])
        reach[geom.body] = max(reach[geom.body], np.linalg.norm(np.asarray(model.geoms.pos[i])) + radius)
    shown = np.arange(len(reach)) > 0
    shown[0] = reach[0] > 0 or len(reach) == 1
    low, high = pos - reach[:, None], pos + reach[:, None]
    return low[:, shown].min((0, 1)), high[:, shown].max((0, 1))


def _rounded(x: Any) -> Any:
    return np.round(np.asarray(x, float), 5).tolist()
