"""The MCube pushes (Yu, Bauza, Fazeli & Rodriguez 2016): tables, shapes, the frames of the measurements, and the scene.

All objects are the same robot with other numbers: a tip of great mass that keeps its velocity; a slider with the joints x, y and
yaw, an outline for the tip, and points on a grid of 2 cm on which it rests. Objects with fewer corners have divided edges, and
points that an object does not have carry no load. So one compiled program serves all of them.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import brentq

import flexor as fx

FILE, TRAJECTORY = "mcube_push.h5", "mcube_push_trajectory.h5"
RADIUS = 0.00475  # of the tip, m
GRID = 0.02  # m
CORNERS = 100  # at most, of an outline
CENTRE = np.array([0.35, -0.03])  # middle of the table in the frame of the recordings, m; the origin of the scene
SINK = 1e-3  # by how much the points overlap the table, m
GRAVITY = 9.81
HELD_OUT = 0.3


class Shape(NamedTuple):
    """An object: outline (counter-clockwise, m), mass, inertia about its centroid, centroid, thickness."""

    name: str
    outline: np.ndarray
    mass: float
    inertia: float
    centroid: np.ndarray
    thickness: float


class Table(NamedTuple):
    """Pushes of one object on one surface at one speed (m/s). Poses are x, y, angle."""

    surface: str
    shape: str
    speed: float
    before: np.ndarray
    after: np.ndarray
    tip_before: np.ndarray
    tip_after: np.ndarray
    published: np.ndarray

    @property
    def name(self) -> str:
        return f"{self.surface}/{self.shape}/v{1e3 * self.speed:g}"

    def __len__(self) -> int:
        return len(self.before)

    def take(self, rows: np.ndarray) -> "Table":
        """Some of the pushes."""
        return Table(*self[:3], *(x[rows] for x in self[3:]))


def read(path: Path) -> tuple[dict[str, Shape], list[Table]]:
    """All shapes and tables of a file."""
    import h5py

    with h5py.File(path) as file:
        shapes = {}
        for name, data in file["shapes"].items():
            numbers = (float(data.attrs["mass"]), float(data.attrs["inertia"]), np.array(data.attrs["centroid"], float))
            shapes[name] = Shape(name, np.asarray(data, float), *numbers, float(data.attrs["thickness"]))
        tables = []
        for surface in sorted(set(file) - {"shapes"}):
            for shape, runs in file[surface].items():
                for speed, data in runs.items():
                    x = np.asarray(data, float)
                    shift = np.append(CENTRE, 0.0)
                    poses = (
                        x[:, :3] - shift,
                        x[:, 3:6] - shift,
                        x[:, 6:8] - CENTRE,
                        x[:, 8:10] - CENTRE,
                        x[:, 10:13] - shift,
                    )
                    tables.append(Table(surface, shape, 1e-3 * float(speed.removeprefix("v")), *poses))
    return shapes, tables


def divide(table: Table, seed: int = 0) -> tuple[Table, Table]:
    """The pushes to learn from, and the 30 % left out."""
    order = np.random.default_rng([seed, *table.name.encode()]).permutation(len(table))
    first = round((1 - HELD_OUT) * len(table))
    return table.take(np.sort(order[:first])), table.take(np.sort(order[first:]))


def wrapped(angle: np.ndarray) -> np.ndarray:
    return (angle + np.pi) % (2 * np.pi) - np.pi


def errors(predicted: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distance in m and angle in rad between poses."""
    return np.linalg.norm(predicted[:, :2] - true[:, :2], axis=1), np.abs(wrapped(predicted[:, 2] - true[:, 2]))


# geometry


def inside(outline: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Which points lie in a simple polygon."""
    a, b = outline, np.roll(outline, -1, axis=0)
    side = (b - a)[:, 0] * (points[:, None, 1] - a[:, 1]) - (b - a)[:, 1] * (points[:, None, 0] - a[:, 0])
    low_a, low_b = a[:, 1] <= points[:, None, 1], b[:, 1] <= points[:, None, 1]
    return np.sum((low_a != low_b) & (low_a == (side > 0)), axis=1) % 2 == 1


def gap(outline: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Signed distance of points from a polygon, and the outward normal there."""
    a = outline
    edge = np.roll(a, -1, axis=0) - a
    t = np.clip(np.sum((points[:, None] - a) * edge, axis=-1) / np.sum(edge**2, axis=-1), 0, 1)
    away = points[:, None] - a - t[..., None] * edge
    distance = np.linalg.norm(away, axis=-1)
    rows, nearest = np.arange(len(points)), distance.argmin(axis=1)
    sign = np.where(inside(outline, points), -1.0, 1.0)
    length = np.maximum(distance[rows, nearest], 1e-12)
    return sign * length, (sign / length)[:, None] * away[rows, nearest]


def turned(angle: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Vectors turned by angles."""
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([c * vectors[..., 0] - s * vectors[..., 1], s * vectors[..., 0] + c * vectors[..., 1]], axis=-1)


def kind(outline: np.ndarray) -> str:
    """ "cornered" for an outline that turns by more than 0.3 rad at a corner, else "smooth"."""
    edge = np.roll(outline, -1, axis=0) - outline
    turn = wrapped(np.diff(np.arctan2(edge[:, 1], edge[:, 0]), append=np.arctan2(edge[0, 1], edge[0, 0])))
    return "cornered" if np.abs(turn).max() > 0.3 else "smooth"


def corners(outline: np.ndarray, count: int = CORNERS) -> np.ndarray:
    """The outline with `count` corners: edges divided where it has fewer, corners left out where it has more."""
    if len(outline) > count:
        return outline[np.round(np.linspace(0, len(outline), count, endpoint=False)).astype(int)]
    length = np.linalg.norm(np.roll(outline, -1, axis=0) - outline, axis=1)
    pieces = np.ones(len(outline), dtype=int)
    for _ in range(count - len(outline)):
        pieces[np.argmax(length / pieces)] += 1
    ends = np.roll(outline, -1, axis=0)
    return np.concatenate([a + (b - a) * np.arange(n)[:, None] / n for a, b, n in zip(outline, ends, pieces, strict=True)])


def grid(outline: np.ndarray, step: float = GRID) -> np.ndarray:
    """Points of a square grid, those that lie inside. Along each axis a point or the middle between two lies in the middle of the
    outline's box, whichever brings points nearer to its ends."""
    low, high = outline.min(axis=0), outline.max(axis=0)
    axes = []
    for centre, half in zip((low + high) / 2, (high - low) / 2, strict=True):
        whole, shifted = np.floor(half / step), np.floor(half / step - 0.5) + 0.5
        reach = max(whole, shifted)
        axes.append(centre + step * np.arange(-reach, reach + 0.5))
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    return points[inside(outline, points)]


def shares(shape: Shape, points: np.ndarray, fine: int = 200) -> np.ndarray:
    """Shares of an evenly spread weight: of the area that is nearest to each point, then weighted so that the mean square
    distance from the centroid is the area's own. Points inside alone would turn too easily."""
    low, high = shape.outline.min(axis=0), shape.outline.max(axis=0)
    axes = [np.linspace(a, b, fine) for a, b in zip(low, high, strict=True)]
    cells = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    cells = cells[inside(corners(shape.outline), cells)]
    nearest = np.sum((cells[:, None] - points) ** 2, axis=-1).argmin(axis=1)
    share = np.bincount(nearest, minlength=len(points)) / len(cells)
    square = np.sum((points - shape.centroid) ** 2, axis=1)
    wanted = np.mean(np.sum((cells - shape.centroid) ** 2, axis=1))

    def spread(k: float) -> np.ndarray:
        weighted = share * np.exp(k * (square / wanted - 1))
        return weighted / weighted.sum()

    if not np.sum(spread(-5.0) * square) < wanted < np.sum(spread(5.0) * square):
        return share
    return spread(brentq(lambda k: float(np.sum(spread(k) * square)) - wanted, -5.0, 5.0))


# the frames of the measurements


class Frames(NamedTuple):
    """Where the outlines lie when the motion capture reports a pose: moved by `session` (m, table axes, one for each table) and
    `body` (m and rad, object axes, one for each shape).

    They are found without any outcome of a push. Before each one the tip is moved to where the outline is believed to be. If the
    truth is nearer by n . o, n the outward normal at the tip and o the shift of the outline, the object is pushed away by as much
    on the approach: the measured gap is max(0, n . o). Gaps of all starts of a session give o.
    """

    session: dict[str, np.ndarray]
    body: dict[str, np.ndarray]

    def true(self, table: Table, pose: np.ndarray) -> np.ndarray:
        """Pose of the outline where `pose` was measured."""
        body = self.body.get(table.shape, np.zeros(3))
        move = self.session[table.name] + turned(pose[:, 2], np.broadcast_to(body[:2], (len(pose), 2)))
        return np.column_stack([pose[:, :2] + move, pose[:, 2] + body[2]])

    def measured(self, table: Table, pose: np.ndarray) -> np.ndarray:
        """The inverse of `true`."""
        body = self.body.get(table.shape, np.zeros(3))
        angle = pose[:, 2] - body[2]
        move = self.session[table.name] + turned(angle, np.broadcast_to(body[:2], (len(pose), 2)))
        return np.column_stack([pose[:, :2] - move, angle])


def calibrate(shapes: dict[str, Shape], tables: Sequence[Table], known: Frames | None = None, rounds: int = 30) -> Frames:
    """Frames from the gaps between tip and outline at the start of the pushes; robust least squares.

    `known` frames of shapes are kept, and the mean shift of a surface's known sessions is where unknown ones are looked for.
    """
    unknown = sorted({t.shape for t in tables} - set(known.body if known else ()))
    n, size = 2 * len(tables), 2 * len(tables) + 3 * len(unknown)
    blocks, gaps, wanted = [], [], []
    for k, table in enumerate(tables):
        local = turned(-table.before[:, 2], table.tip_before - table.before[:, :2])
        distance, normal = gap(corners(shapes[table.shape].outline), local)
        touch = local - RADIUS * normal
        row = np.zeros((len(table), size))
        row[:, 2 * k : 2 * k + 2] = turned(table.before[:, 2], normal)
        arm = np.column_stack([normal, touch[:, 0] * normal[:, 1] - touch[:, 1] * normal[:, 0]])
        if table.shape in unknown:
            at = n + 3 * unknown.index(table.shape)
            row[:, at : at + 3] = arm
            shift = np.zeros(len(table))
        else:
            shift = arm @ known.body[table.shape]  # type: ignore[union-attr]
        near = distance - RADIUS < 3.5e-3
        blocks.append(row[near]), gaps.append((distance - RADIUS)[near]), wanted.append(shift[near])
    A, y, b = np.concatenate(blocks), np.concatenate(gaps), np.concatenate(wanted)
    ridge = np.concatenate([np.full(n, 0.25), np.tile([1.0, 1.0, 0.04], len(unknown))])
    usual = np.zeros(size)
    usual[:n] = np.concatenate([_usual(t.surface, known) for t in tables])
    z = usual
    for k in range(rounds):
        p = A @ z + b
        r = np.maximum(p, 0) - y
        weight = (p > 0) / np.sqrt(1 + (r / 2e-4) ** 2)
        step = np.linalg.solve(A.T @ (weight[:, None] * A) + np.diag(ridge), A.T @ (weight * r) + ridge * (z - usual))
        z = z - (0.7 if k < rounds // 2 else 1.0) * step
    session = {t.name: z[2 * k : 2 * k + 2] for k, t in enumerate(tables)}
    body = {s: z[n + 3 * k : n + 3 * k + 3] for k, s in enumerate(unknown)}
    return Frames({**(known.session if known else {}), **session}, {**(known.body if known else {}), **body})


def _usual(surface: str, known: Frames | None) -> np.ndarray:
    """Mean shift of a surface's sessions, or of all; a millimetre along -x where none is known."""
    sessions = known.session if known else {}
    own = [o for name, o in sessions.items() if name.startswith(surface + "/")] or list(sessions.values())
    return np.mean(own, axis=0) if own else np.array([-1e-3, 0.0])


# the scene


def scene(shapes: Iterable[Shape], step: float = GRID) -> fx.Model:
    """The robot that stands for all of the objects: a round prism on as many points as any of them has."""
    shapes = list(shapes)
    edges = max(min(len(s.outline), CORNERS) for s in shapes)
    count = max(len(grid(s.outline, step)) for s in shapes)
    around = 2 * np.pi * np.arange(edges) / edges
    vertices = [(0.05 * np.cos(a), 0.05 * np.sin(a), z) for z in (-0.0065, 0.0065) for a in around]
    text = " ".join(f"{x:.9g} {y:.9g} {z:.9g}" for x, y, z in vertices)
    low = 2e-3 - SINK - 0.0065
    names = [f"p{i}" for i in range(count)]
    points = "".join(f'<geom name="{p}" type="sphere" size="0.002" pos="0 0 {low}"/>' for p in names)
    friction = 'condim="3" friction="0.3 0.3 0.005 0.0001 0.0001"'
    pairs = "".join(f'<pair geom1="floor" geom2="{p}" {friction}/>' for p in names)
    model = fx.load(
        f"""<mujoco model="pushing"><compiler angle="radian"/><default><geom contype="0" conaffinity="0"/></default>
        <asset><mesh name="outline" vertex="{text}"/></asset><worldbody><geom name="floor" type="plane" size="1 1 1"/>
        <body name="tip" pos="0 0 0.0065"><inertial pos="0 0 0" mass="1e6" diaginertia="1 1 1"/>
          <joint name="tip_x" type="slide" axis="1 0 0"/><joint name="tip_y" type="slide" axis="0 1 0"/>
          <geom name="tip" type="sphere" size="{RADIUS}"/></body>
        <body name="slider" pos="0 0 0.0065"><inertial pos="0 0 0" mass="1" diaginertia="1e-3 1e-3 1e-3"/>
          <joint name="x" type="slide" axis="1 0 0"/><joint name="y" type="slide" axis="0 1 0"/><joint name="yaw" axis="0 0 1"/>
          <geom name="slider" type="mesh" mesh="outline"/>{points}</body></worldbody>
        <contact><pair geom1="tip" geom2="slider" {friction}/>{pairs}</contact></mujoco>""",
        mesh_vertices=2 * edges,
    )
    return fx.replace(model, {"pair.floor~*.damping": 0.0, "pair.tip~slider.friction": 0.25}).astype(jnp.float32)


class Support(NamedTuple):
    """Points on which an object rests, and some without a share: places, shares of the area, and the centroid."""

    points: Float[Array, "points 2"]
    share: Float[Array, " points"]
    centroid: Float[Array, "2"]


def support(shape: Shape, count: int, step: float = GRID) -> Support:
    """Where an object rests, with `count` points."""
    points = grid(shape.outline, step)
    more = count - len(points)
    padded = np.concatenate([points, np.tile(shape.centroid, (more, 1))])
    share = np.concatenate([shares(shape, points), np.zeros(more)])
    return Support(*(jnp.asarray(x, jnp.float32) for x in (padded, share, shape.centroid)))


def loads(at: Support, spread: Array) -> Float[Array, " points"]:
    """Shares of the weight: the area's, more of it outside where `spread` > 0, made to balance about the centroid."""
    arm = at.points - at.centroid[None]
    square = jnp.sum(arm**2, axis=1)
    share = at.share * jnp.exp(spread * (square / jnp.sum(at.share * square) - 1))
    rows = jnp.concatenate([jnp.ones_like(arm[:, :1]), 20 * arm], axis=1)
    balance = jnp.linalg.solve(rows.T @ (share[:, None] * rows), jnp.array([1.0, 0.0, 0.0], rows.dtype))
    return jnp.maximum(share * (rows @ balance), 0.0)


def shaped(model: fx.Model, shape: Shape, at: Support) -> fx.Model:
    """The scene with the numbers of an object that rests on the given points."""
    geom = model.geom("slider")
    outline = corners(shape.outline, len(model.geoms.vertices) // 2)
    half = shape.thickness / 2
    vertices = np.concatenate([np.column_stack([outline, np.full(len(outline), z)]) for z in (-half, half)])
    count = len(model.topology.pairs) - 1
    low = np.full((count, 1), 2e-3 - SINK - half)
    pos = np.array(model.geoms.pos)
    first = model.geom("p0")
    pos[first : first + count] = np.column_stack([np.asarray(at.points), low])
    pos[geom] = 0.0
    quat = np.array(model.geoms.quat)
    quat[geom] = (1.0, 0.0, 0.0, 0.0)
    values = {
        "body.tip.pos": np.array([0, 0, half]), "body.slider.pos": np.array([0, 0, half]),
        "body.slider.com": np.append(shape.centroid, 0.0), "body.slider.mass": shape.mass,
        "body.slider.inertia": shape.inertia * np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0]),
    }  # fmt: skip
    model = fx.replace(model, values)
    new = (jnp.asarray(vertices), jnp.asarray(pos), jnp.asarray(quat))
    return eqx.tree_at(lambda m: (m.geoms.vertices, m.geoms.pos, m.geoms.quat), model, new).astype(jnp.float32)


def solver() -> fx.RigidSolver:
    """Tip by NCP, ground by penalty contact."""
    ground = fx.Penalty(friction=fx.BrownMcPhee(velocity=5e-4))
    return fx.RigidSolver(contact=fx.Mixed(ncp=fx.NCP(iterations=10, tolerance=1e-7), penalty=ground, soft="floor~*"))


def starts(table: Table, frames: Frames) -> tuple[np.ndarray, np.ndarray]:
    """q and qd at the start of the pushes: tip, outline."""
    duration = np.linalg.norm(table.tip_after - table.tip_before, axis=1).mean() / table.speed
    velocity = (table.tip_after - table.tip_before) / duration
    q = np.column_stack([table.tip_before, frames.true(table, table.before)])
    return q.astype(np.float32), np.column_stack([velocity, np.zeros((len(table), 3))]).astype(np.float32)
