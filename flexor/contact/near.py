"""The contacts that matter in a step, where many are possible: a list of fixed length, found anew at each instant.

1. *Broad phase.* The distance of two shapes is at least that of a box around one from a ball around the other. A pair is near
   where that bound is below its reach: what its surfaces can close within the step at twice their velocity without impulses,
   or at the 1 m/s that impulses elsewhere may add (`rows.reachable`).
2. *Narrow phase* of the near pairs, kind by kind.
3. Candidates that touch come first, those that may touch in the step next; the list has room for `most`.

All three are loops over tables of pairs, so the size of the program depends on the kinds of shapes and on `most`, not on the
number of shapes, corners and pairs. What is chosen has no derivative; what is computed of it has.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from flexor.contact.contact import Instant
from flexor.contact.contacts import Contacts
from flexor.contact.detect import candidates, placed_geoms
from flexor.contact.shapes import Placed, Touch, kinds, narrow_phase
from flexor.contact.soft import Soft, softness
from flexor.contact.surface import with_surfaces
from flexor.dynamics import body_poses, body_velocities
from flexor.model.model import Model
from flexor.model.topology import INDEX, Topology
from flexor.simd import stored
from flexor.spatial import cross, dot, gathered, rotate, take

FAR = 1e6  # distance in m of a place in the list that is empty
POINTS = 4  # candidates that a pair has at most

# Half sizes of the box around a shape, as a linear map of MuJoCo's size numbers; a mesh has none.
_HALF_SIZES = {
    "sphere": [[1, 0, 0], [1, 0, 0], [1, 0, 0]],
    "capsule": [[1, 0, 0], [1, 0, 0], [1, 1, 0]],
    "cylinder": [[1, 0, 0], [1, 0, 0], [0, 1, 0]],
    "box": np.eye(3),
    "ellipsoid": np.eye(3),
}


class Found(NamedTuple):
    """Contacts; the key by which each is known from one step to the next, -1 for an empty place, or None where each has a place
    of its own; and how many candidates that touch had no place."""

    contacts: Contacts
    key: Int[Array, " most"] | None
    left_out: Int[Array, ""]


class _Bounds(NamedTuple):
    """Frames of all shapes; boxes around them (centre in the world, half sizes along the shape's axes) and balls around these;
    velocities of the centres and what turning adds to them at most."""

    pos: Float[Array, "ngeom 3"]
    rot: Float[Array, "ngeom 3 3"]
    centre: Float[Array, "ngeom 3"]
    half: Float[Array, "ngeom 3"]
    radius: Float[Array, " ngeom"]
    velocity: Float[Array, "ngeom 3"]
    spin: Float[Array, " ngeom"]


class _Group(NamedTuple):
    """Pairs of the same two kinds of shapes: their numbers, and the vertices of meshes on either side (first row and number)."""

    shapes: tuple[str, str]
    pairs: np.ndarray
    vertices: tuple[int, int]


class _Pool(NamedTuple):
    """Candidates of the near pairs, what they may close within the step, and their pairs."""

    touch: Touch
    reach: Float[Array, " n"]
    pair: Int[Array, " n"]


def places(t: Topology, separate: int, most: int | None) -> int | None:
    """How many places the list of a robot's contacts has; None where each candidate has a place of its own. Where `most` is
    None, robots with more than `separate` candidates have a list, of so many places, or of eight for each body that moves freely
    of the others, if these are more."""
    trees = len(set(t.nodes.root[np.unique(t.dofs.node)].tolist()))
    listed = len(candidates(t)) > (separate if most is None else most)
    return (max(separate, 8 * trees) if most is None else most) if listed else None


def near_contacts(now: Instant, velocity: Float[Array, " nv"], dt: Float[Array, ""], most: int) -> Found:
    """The contacts of a step of length dt whose velocity without impulses is given, at most `most`; with dt zero those that
    overlap."""
    model = now.model
    bounds = stored(_bounds(now, velocity))
    pools = [_narrow_phase(now, bounds, group, dt, most) for group in _groups(model.topology)]
    pool: _Pool = jax.tree.map(lambda *x: jnp.concatenate(x), *pools)
    row = (np.arange(len(pool.pair)) % POINTS).astype(INDEX)
    distance = lax.stop_gradient(pool.touch.distance)

    def judge(i: Array) -> tuple[Array, Array]:
        gap = gathered(distance, i)
        return gap < gathered(pool.reach, i), gap < 0

    places, touching = _choose(judge, len(row), most)
    found = _listed(model, pool, stored(jnp.asarray(row)), stored(places), jnp.maximum(touching - most, 0).astype(int))
    return found._replace(contacts=with_surfaces(model, now.kin, found.contacts))


def _listed(model: Model, pool: _Pool, row: Array, places: Int[Array, " most"], left_out: Array) -> Found:
    """The chosen candidates of the pool."""
    t = model.topology
    owner = np.array([g.body for g in t.geoms], INDEX)
    bodies = stored(jnp.asarray(np.array([(owner[p.a], owner[p.b]) for p in t.pairs], INDEX)))
    condim = stored(jnp.asarray(np.array([p.condim for p in t.pairs], INDEX)))
    parameters = stored((model.pairs, _soft_pairs(model)))
    dtype = pool.touch.distance.dtype
    up = jnp.zeros(3, dtype).at[2].set(1.0)
    empty = Touch(jnp.zeros(3, dtype), jnp.zeros(3, dtype), up, jnp.asarray(FAR, dtype))

    def fill(place: Array) -> tuple[Touch, Array, Array]:
        pair = gathered(pool.pair, place)
        return jax.tree.map(lambda x: gathered(x, place), pool.touch), pair, pair * POINTS + gathered(row, place)

    def leave(_: Array) -> tuple[Touch, Array, Array]:
        return empty, jnp.zeros((), INDEX), jnp.full((), -1, INDEX)

    def visit(_: None, place: Array) -> tuple[None, tuple[tuple[Any, ...], Array]]:
        touch, pair, key = lax.cond(place >= 0, fill, leave, jnp.maximum(place, 0))
        pairs, soft = jax.tree.map(lambda x: gathered(x, pair), parameters)
        listed = (pairs, gathered(bodies, pair), pair, gathered(condim, pair), soft)
        return None, ((*touch, *listed), key)

    rows, keys = lax.scan(visit, None, places)[1]
    return Found(Contacts(*rows), keys, left_out)


def _soft_pairs(model: Model) -> Soft | None:
    """The laws of all pairs, None where all are hard."""
    t = model.topology
    laws = softness(model, t.compliant("pair", len(t.pairs)))
    return None if laws is None else laws._replace(soft=jnp.asarray(laws.soft))


@lru_cache(maxsize=256)
def _groups(t: Topology) -> tuple[_Group, ...]:
    groups: dict[tuple[tuple[str, str], int], list[int]] = {}
    for i, pair in enumerate(t.pairs):
        a, b = t.geoms[pair.a], t.geoms[pair.b]
        apart = pair.a if a.grid else b.outline if kinds(a, b)[1] == "prism" else 0
        groups.setdefault((kinds(a, b), apart), []).append(i)
    found = []
    for (shapes, _), rows in groups.items():
        counts = [[t.geoms[g].stop - t.geoms[g].start for g in (t.pairs[i].a, t.pairs[i].b)] for i in rows]
        most = np.max(counts, axis=0).tolist()
        found.append(_Group(shapes, np.array(rows, INDEX), (most[0], most[1])))
    return tuple(found)


def _bounds(now: Instant, velocity: Float[Array, " nv"]) -> _Bounds:
    """Where the shapes are, and how fast they go without impulses."""
    model, kin = lax.stop_gradient((now.model, now.kin))
    t = model.topology
    pos, rot = placed_geoms(model, kin)
    linear = np.array([_HALF_SIZES.get(g.shape, np.zeros((3, 3))) for g in t.geoms], float)
    half = jnp.sum(jnp.asarray(linear, pos.dtype) * model.geoms.size[:, None], axis=-1)
    centre = pos
    meshes = np.array([i for i, g in enumerate(t.geoms) if g.shape == "mesh"], INDEX)
    fields = [np.array([i], INDEX) for i, g in enumerate(t.geoms) if g.grid]
    for rows in [meshes, *fields] if len(meshes) else fields:
        low, high = _corners(now.model, rows)
        if t.geoms[rows[0]].grid:
            low = low.at[:, 2].set(-take(model.geoms.size, rows)[:, 2])
        half = half.at[rows].set((high - low) / 2)
        centre = centre.at[rows].add(rotate(take(rot, rows), (high + low) / 2))
    owner = np.array([g.body for g in t.geoms], INDEX)
    twist = take(body_velocities(model, kin, lax.stop_gradient(velocity)), owner)
    arm = centre - take(body_poses(model, kin)[0], owner)
    radius = jnp.sqrt(dot(half, half))
    spin = radius * jnp.sqrt(dot(twist[:, :3], twist[:, :3]))
    return _Bounds(pos, rot, centre, half, radius, twist[:, 3:] + cross(twist[:, :3], arm), spin)


def _corners(model: Model, meshes: np.ndarray) -> tuple[Float[Array, "n 3"], Float[Array, "n 3"]]:
    """Least and largest coordinates of meshes in their own frames: known while tracing, unless the vertices are an argument."""
    rows = _vertex_rows(model.topology, meshes)
    if isinstance(model.geoms.vertices, jax.core.Tracer):
        corners = take(lax.stop_gradient(model.geoms.vertices), rows)
        return jnp.min(corners, axis=1), jnp.max(corners, axis=1)
    vertices = np.asarray(model.geoms.vertices)[rows]
    return jnp.asarray(vertices.min(axis=1)), jnp.asarray(vertices.max(axis=1))


def _vertex_rows(t: Topology, geoms: np.ndarray, count: int | None = None) -> np.ndarray:
    """Numbers of the vertices of meshes, all over again where one has fewer than `count`."""
    spans = [(t.geoms[g].start, t.geoms[g].stop) for g in geoms]
    count = max(stop - start for start, stop in spans) if count is None else count
    return np.array([start + np.arange(count) % (stop - start) for start, stop in spans], INDEX)


def _separation(s: _Bounds, shapes: tuple[str, str], a: Array, b: Array) -> Float[Array, ""]:
    """A lower bound on the distance of two shapes."""
    here = [gathered(x, i) for x in (s.centre, s.half, s.rot) for i in (a, b)]
    centre_a, centre_b, half_a, half_b, rot_a, rot_b = here
    between = centre_b - centre_a
    if shapes[0] == "plane":
        normal = rot_a[:, 2]
        return dot(between, normal) - dot(jnp.abs(rotate(rot_b.T, normal)), half_b)

    def outside(rot: Array, half: Array, radius: Array) -> Array:
        over = jnp.maximum(jnp.abs(rotate(rot.T, between)) - half, 0.0)
        return jnp.sqrt(dot(over, over)) - radius

    return jnp.maximum(outside(rot_a, half_a, gathered(s.radius, b)), outside(rot_b, half_b, gathered(s.radius, a)))


def _reach(s: _Bounds, a: Array, b: Array, dt: Array) -> Float[Array, ""]:
    """What two shapes may close within the step."""
    v = gathered(s.velocity, b) - gathered(s.velocity, a)
    return dt * (1 + 2 * (jnp.sqrt(dot(v, v)) + gathered(s.spin, a) + gathered(s.spin, b)))


def _choose(judge: Callable[[Array], tuple[Array, Array]], count: int, most: int) -> tuple[Int[Array, " most"], Array]:
    """Numbers of at most `most` of `count` items that are near, -1 in empty places, and how many of all touch; `judge` says of
    an item whether it is near and whether it touches. The first places are for those that touch, in order, the last for those
    that are merely near, which give way."""

    def put(i: Array, carry: tuple[Array, Array, Array], touches: Array) -> tuple[Array, Array, Array]:
        first, last, places = carry
        at = jnp.where(touches, first, last)
        room = jnp.where(touches, first < most, last >= first)
        places = jnp.where((jnp.arange(most, dtype=INDEX) == at) & room, i, places)
        return first + touches.astype(INDEX), jnp.where(touches | ~room, last, last - 1), places

    def visit(carry: tuple[Array, tuple[Array, Array, Array]]) -> tuple[Array, tuple[Array, Array, Array]]:
        i, chosen = carry
        near, touches = judge(i)
        return i + 1, lax.cond(near, put, lambda i, chosen, _: chosen, i, chosen, touches)

    zero = jnp.zeros((), INDEX)
    start = (zero, jnp.full((), most - 1, INDEX), jnp.full(most, -1, INDEX))
    _, (touching, _, places) = lax.while_loop(lambda c: c[0] < count, visit, (zero, start))
    return places, touching


def _narrow_phase(now: Instant, s: _Bounds, group: _Group, dt: Array, most: int) -> _Pool:
    """Candidates of the near pairs of a group."""
    t = now.model.topology
    sides = [np.array([getattr(t.pairs[i], side) for i in group.pairs], INDEX) for side in "ab"]
    table = stored(tuple(map(jnp.asarray, (*sides, group.pairs))))
    margined = any(t.pairs[i].margined for i in group.pairs)
    margin = stored(take(now.model.pairs.margin, group.pairs)) if margined else None
    attracted = lax.stop_gradient(jnp.max(now.model.pairs.gap)) if t.sticky else None

    def reach_of(a: Array, b: Array) -> Array:
        reach = _reach(s, a, b, lax.stop_gradient(dt))
        return reach if attracted is None else reach + attracted

    def near(i: Array) -> tuple[Array, Array]:
        a, b = gathered(table[0], i), gathered(table[1], i)
        gap = _separation(s, group.shapes, a, b)
        gap = gap if margin is None else gap - lax.stop_gradient(gathered(margin, i))
        return gap < reach_of(a, b), gap < 0

    count = len(group.pairs)
    all_fit = count <= most
    items = jnp.arange(count, dtype=INDEX) if all_fit else _choose(near, count, most)[0]
    place = _placer(now, group, sides)
    ends = tuple(t.geoms[side[0]] for side in sides)
    of_pair = narrow_phase(*ends)
    far = Touch(*(jnp.zeros((POINTS, 3), dt.dtype),) * 3, jnp.full(POINTS, FAR, dt.dtype))

    def touch(i: Array) -> tuple[Touch, Array]:
        a, b = gathered(table[0], i), gathered(table[1], i)
        reach = reach_of(a, b)
        far = reach if margin is None else reach + lax.stop_gradient(gathered(margin, i))
        found = of_pair(*place(i, a, b), far) if ends[0].grid else of_pair(*place(i, a, b))
        found = found if margin is None else found._replace(distance=found.distance - gathered(margin, i))
        return _spread(found, reach), reach

    def visit(_: None, item: Array) -> tuple[None, _Pool]:
        i = jnp.maximum(item, 0)
        wanted = near(i)[0] if all_fit else item >= 0
        found, reach = lax.cond(wanted, touch, lambda _: (far, jnp.zeros((), dt.dtype)), i)
        return None, _Pool(found, jnp.broadcast_to(reach, POINTS), jnp.broadcast_to(gathered(table[2], i), POINTS))

    _, pool = lax.scan(visit, None, stored(items))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), pool)


def _placer(now: Instant, group: _Group, sides: list[np.ndarray]) -> Callable[[Array, Array, Array], tuple[Placed, Placed]]:
    """A function from the number of a pair in its group and the numbers of its two shapes to these shapes in the world."""
    model, kin = now.model, now.kin
    shapes = stored((*placed_geoms(model, kin), model.geoms.size))
    vertices = stored(model.geoms.vertices)
    rows = [
        stored(jnp.asarray(_vertex_rows(model.topology, side, count))) if shape in ("mesh", "prism") else None
        for shape, side, count in zip(group.shapes, sides, group.vertices, strict=True)
    ]

    first = model.topology.geoms[sides[0][0]]
    field = stored(model.geoms.vertices[first.start : first.stop]) if first.grid else None

    def one(i: Array, geom: Array, rows: Array | None) -> Placed:
        pos, rot, size = (gathered(x, geom) for x in shapes)
        return Placed(pos, rot, size, None if rows is None else gathered(vertices, gathered(rows, i)))

    def place(i: Array, a: Array, b: Array) -> tuple[Placed, Placed]:
        one_a = one(i, a, rows[0])
        return one_a if field is None else one_a._replace(vertices=field), one(i, b, rows[1])

    return place


def _spread(touch: Touch, reach: Array) -> Touch:
    """At most four of the candidates of a pair: the deepest, the one farthest from it, and those farthest to either side of
    the line between the two; of those within reach. Empty places are far away."""
    count = len(touch.distance)
    if count <= POINTS:
        missing = POINTS - count
        pad = Touch(*(jnp.zeros((missing, 3), reach.dtype),) * 3, jnp.full(missing, FAR, reach.dtype))
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), touch, pad) if missing else touch
    point, normal, distance = (lax.stop_gradient(x) for x in (touch.point_b, touch.normal, touch.distance))
    valid = distance < reach
    lowest = jnp.where(valid, 0.0, -jnp.inf).astype(distance.dtype)
    first = jnp.argmin(distance)
    arm = point - point[first][None]
    second = jnp.argmax(dot(arm, arm) + lowest)
    aside = dot(cross(jnp.broadcast_to(arm[second], arm.shape), arm), normal)
    third, fourth = jnp.argmax(aside + lowest), jnp.argmax(-aside + lowest)
    chosen = jnp.stack([first, second, third, fourth]).astype(INDEX)
    size = jnp.stack([jnp.ones((), distance.dtype), dot(arm[second], arm[second]), aside[third], -aside[fourth]])
    # a place that only repeats another, to rounding, is empty; and so is one beyond reach
    least = jnp.finfo(distance.dtype).eps ** 0.5 * size[1]
    good = (size > jnp.stack([jnp.zeros_like(least), jnp.zeros_like(least), least, least])) & gathered(valid, chosen)
    found: Touch = jax.tree.map(lambda x: gathered(x, chosen), touch)
    return found._replace(distance=jnp.where(good, found.distance, FAR))


def matched(old: Int[Array, " n"], values: Float[Array, "n k"], key: Int[Array, " m"]) -> Float[Array, "m k"]:
    """The values that were kept under these keys, zero for a key that is new."""

    def find(k: Array) -> Array:
        same: Bool[Array, " n"] = old == k
        return jnp.sum(jnp.where(same[:, None], values, 0.0), axis=0)

    none = jnp.zeros(values.shape[1:], values.dtype)
    return lax.scan(lambda _, k: (None, lax.cond(k >= 0, find, lambda _: none, k)), None, key)[1]
