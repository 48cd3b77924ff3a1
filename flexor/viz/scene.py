"""What a drawing of a robot needs: its shapes, and the pose of every body over time. Read by the page and by the video."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import ConvexHull, QhullError
from scipy.spatial.transform import Rotation

from flexor.contact import detect
from flexor.contact.contacts import tangents
from flexor.contact.detect import candidates
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
    """What physics sees, as plain data: the collision shapes, then `links` where a body has none.

    Each has its kind, body, pose in the body and size; meshes have vertices and hull triangles.
    """
    return collision_shapes(model) + links(model)


def collision_shapes(model: Model) -> list[dict[str, Any]]:
    """The collision shapes, as plain data."""
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
        if geom.grid:
            vertices = np.asarray(g.vertices[geom.start : geom.stop], float)
            shape.update(
                shape="mesh", vertices=_rounded(vertices), faces=grid_faces(geom.grid) if np.ptp(vertices[:, 2]) else []
            )
        found.append(shape)
    return found


def links(model: Model, seen: Collection[int] = ()) -> list[dict[str, Any]]:
    """Capsules that stand for links without shapes: from a body's origin to its children's, or through its centre of mass.

    A link is drawn where its body or the next one has no shape of its own and is not among those `seen`. Frames that
    carry neither a joint nor a shape, such as those of sensors, are left out.
    """
    t = model.topology
    solid = {g.body for g in t.geoms if g.shape != "plane"} | set(seen)
    drawn = solid | {j.body for j in t.joints}
    for body in reversed(range(1, len(t.bodies))):
        if body in drawn:
            drawn.add(t.parents[body])
    pos, com = np.asarray(model.bodies.pos, float), np.asarray(model.bodies.com, float)
    inner = [(t.parents[b], pos[b]) for b in sorted(drawn) if t.parents[b] > 0 and not {b, t.parents[b]} <= solid]
    tips = [b for b in sorted(drawn - {0}) if b not in solid and b not in {t.parents[c] for c in drawn - {0}}]
    ends = [*inner, *((b, 2 * com[b]) for b in tips)]  # a uniform link reaches twice as far as its centre
    longest = max((float(np.linalg.norm(end)) for _, end in ends), default=0.0)
    return [_link(t.bodies[b], b, end, 0.1 * longest) for b, end in ends if np.linalg.norm(end) > 1e-3 * longest]


def _link(name: str, body: int, end: np.ndarray, radius: float) -> dict[str, Any]:
    """A capsule from the body's origin to `end`, not thicker than a quarter of its length."""
    length = float(np.linalg.norm(end))
    turn, _ = Rotation.align_vectors(end[None], [[0.0, 0.0, 1.0]])
    pose = {"pos": _rounded(end / 2), "quat": _rounded(turn.as_quat(scalar_first=True))}
    return {
        "shape": "capsule",
        "name": name,
        "body": body,
        **pose,
        "size": _rounded([min(radius, length / 4), length / 2, 0]),
    }


def grid_faces(grid: tuple[int, int]) -> list[list[int]]:
    """Triangles of a height field, counter-clockwise from above; as `flexor.contact.field` has them."""
    rows, columns = grid
    first = (np.arange(rows - 1)[:, None] * columns + np.arange(columns - 1)).ravel()
    lower = np.stack([first, first + 1, first + columns + 1], axis=1)
    upper = np.stack([first, first + columns + 1, first + columns], axis=1)
    faces: list[list[int]] = np.concatenate([lower, upper]).tolist()
    return faces


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


def contact_forces(model: Model, trajectory: Trajectory, rows: np.ndarray) -> np.ndarray | None:
    """Point and force on body b in N, (frames, ncon, 6), of the steps that led to states `rows`; None if not recorded.

    Where the contacts are a list of the near ones, their points and normals must have been recorded too.
    """
    forces, places = ("contact.normal_force", "contact.friction_force"), ("contact.point", "contact.normal")
    if any(name not in trajectory.taps for name in forces):
        return None
    before = np.clip(rows - 1, 0, len(trajectory) - 1)
    fn, ft = (np.asarray(trajectory.taps[name])[before] for name in forces)
    if all(name in trajectory.taps for name in places):
        point, normal = (np.asarray(trajectory.taps[name])[before] for name in places)
        frame = [normal, *(np.asarray(x) for x in tangents(jnp.asarray(normal)))]
    elif fn.shape[-1] == len(candidates(model.topology)):
        point, *frame = (np.asarray(x) for x in _contacts(model, trajectory.q[before]))
    else:
        return None
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


def _rounded(x: Any) -> Any:
    return np.round(np.asarray(x, float), 5).tolist()
