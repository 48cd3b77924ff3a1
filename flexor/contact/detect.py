"""Detection: from the poses of the bodies to `Contacts`. It knows nothing of forces, so a learned solver can read it too."""

from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from flexor.contact.contacts import Contacts
from flexor.contact.shapes import Placed, Touch, kinds, narrow_phase
from flexor.contact.soft import softness
from flexor.contact.surface import with_surfaces
from flexor.dynamics import Kinematics, body_poses
from flexor.model.model import Model
from flexor.model.topology import INDEX, Geom, Topology
from flexor.spatial import matmul, quat_to_matrix, rotate, take


@lru_cache(maxsize=256)
def _groups(topology: Topology) -> tuple[tuple[tuple[str, str], tuple[int, ...]], ...]:
    """Pairs of the same two shapes, and of equally many vertices, are handled together."""
    groups: dict[tuple[tuple[str, str], int, int], list[int]] = {}
    for i, pair in enumerate(topology.pairs):
        a, b = topology.geoms[pair.a], topology.geoms[pair.b]
        first = pair.a if a.grid else a.stop - a.start  # a height field has a group of its own
        groups.setdefault((kinds(a, b), first, b.stop - b.start), []).append(i)
    return tuple((key[0], tuple(rows)) for key, rows in groups.items())


@lru_cache(maxsize=256)
def candidates(topology: Topology) -> tuple[int, ...]:
    """The pair of every candidate, in the order of `detect`."""
    found: list[int] = []
    number = jax.ShapeDtypeStruct((), jnp.float32)
    for _, rows in _groups(topology):
        pair = topology.pairs[rows[0]]
        ends = topology.geoms[pair.a], topology.geoms[pair.b]

        def touch(x: Array, ends: tuple[Geom, Geom] = ends) -> Touch:
            at = Placed(jnp.full(3, x), jnp.full((3, 3), x), jnp.full(3, x))
            spans = (g.stop - g.start for g in ends)
            return narrow_phase(*ends)(*(at._replace(vertices=jnp.full((n, 3), x) if n else None) for n in spans))

        count = jax.eval_shape(touch, number).distance.shape[0]
        found += [i for i in rows for _ in range(count)]
    return tuple(found)


def placed_geoms(model: Model, kin: Kinematics) -> tuple[Float[Array, "ngeom 3"], Float[Array, "ngeom 3 3"]]:
    """Positions and rotation matrices of all shapes in the world."""
    owner = np.array([g.body for g in model.topology.geoms], dtype=int)
    pos, rot = (take(x, owner) for x in body_poses(model, kin))
    return pos + rotate(rot, model.geoms.pos), matmul(rot, quat_to_matrix(model.geoms.quat))


def detect(model: Model, kin: Kinematics) -> Contacts:
    """All candidates of all pairs, in an order that depends on the topology alone."""
    t = model.topology
    geom_pos, geom_rot = placed_geoms(model, kin)
    owner = np.array([g.body for g in t.geoms], dtype=int)
    found: list[Touch] = []
    index: list[int] = []
    for _, rows in _groups(t):
        a = np.array([t.pairs[i].a for i in rows])
        b = np.array([t.pairs[i].b for i in rows])
        ends = t.geoms[a[0]], t.geoms[b[0]]
        first, second = (Placed(take(geom_pos, g), take(geom_rot, g), take(model.geoms.size, g)) for g in (a, b))
        second = second._replace(vertices=_vertices(model, b))
        if ends[0].grid:
            touch = _on_field(narrow_phase(*ends), model.geoms.vertices[ends[0].start : ends[0].stop], first, second)
        else:
            touch = _of_all(narrow_phase(*ends), first._replace(vertices=_vertices(model, a)), second)
        count = touch.distance.shape[1]
        found.append(Touch(*(x.reshape(-1, *x.shape[2:]) for x in touch)))
        index += [i for i in rows for _ in range(count)]
    zero = jnp.zeros((0, 3), geom_pos.dtype)
    parts = [Touch(zero, zero, zero, zero[:, 0]), *found]
    touch = Touch(*(jnp.concatenate(x) for x in zip(*parts, strict=True)))
    order = np.array(index, dtype=int)
    if any(p.margined for p in t.pairs):
        touch = touch._replace(distance=touch.distance - take(model.pairs.margin, order))
    bodies = np.array([(owner[t.pairs[i].a], owner[t.pairs[i].b]) for i in index], INDEX).reshape(-1, 2)
    found_contacts = Contacts(
        *touch,
        pairs=jax.tree.map(lambda x: take(x, order), model.pairs),
        bodies=bodies,
        pair=np.array(index, INDEX),
        condim=np.array([t.pairs[i].condim for i in index], INDEX),
        soft=softness(model, t.compliant("pair", len(t.pairs))[order]),
    )
    return with_surfaces(model, kin, found_contacts)


def _of_all(touch: Callable[[Placed, Placed], Touch], first: Placed, second: Placed) -> Touch:
    """`jax.vmap`, but one pair after the other where pairs are searched: each ends its loops when it is found."""
    if isinstance(touch, partial):  # those of `convex_pair`
        return lax.map(lambda pair: touch(*pair), (first, second))
    return jax.vmap(touch)(first, second)


def _on_field(touch: Callable[[Placed, Placed], Touch], vertices: Array, first: Placed, second: Placed) -> Touch:
    """One pair after the other; all have the vertices of one height field."""
    return lax.map(lambda pair: touch(pair[0]._replace(vertices=vertices), pair[1]), (first, second))


def _vertices(model: Model, geoms: np.ndarray) -> Array | None:
    """Vertices of meshes that have equally many; None where they are no meshes."""
    spans = [(model.topology.geoms[g].start, model.topology.geoms[g].stop) for g in geoms]
    return model.geoms.vertices[np.stack([np.arange(*span) for span in spans])] if spans[0][0] < spans[0][1] else None
