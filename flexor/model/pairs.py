"""Which shapes may touch: MuJoCo's rules for pairs of geoms, and the pairs flexor can detect."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from flexor.model.description import Description, GeomSpec, PairSpec, static_bodies
from flexor.model.softness import mixed, soften
from flexor.model.topology import CONVEX, SHAPES

SUPPORTED = frozenset((a, b) for i, a in enumerate(SHAPES) for b in SHAPES[i:] if b in CONVEX)
"""Pairs of shapes with a contact detector: all but those of planes and height fields. A mesh is its convex hull."""
_RANK = {s: i for i, s in enumerate(SHAPES)}


def ordered(a: GeomSpec, b: GeomSpec) -> tuple[GeomSpec, GeomSpec]:
    """The two geoms in the order of `SHAPES`; equal shapes stay as they are."""
    return (b, a) if _RANK.get(b.shape, 99) < _RANK.get(a.shape, 99) else (a, b)


def collision_pairs(description: Description, *, self_collision: bool = True) -> list[PairSpec]:
    """All pairs of geoms that may touch, each in the order of `SHAPES`, sorted by the places of their geoms.

    A pair is made when neither geom's bodies are welded together, nor excluded, nor parent and child (unless the parent is
    static), and the collision bits match: contype of one and conaffinity of the other. Explicit pairs need none of that.
    Pairs of two static bodies never collide. `self_collision=False` drops the pairs of two moving bodies.
    """
    d = description
    if not d.collisions:
        return []
    static = static_bodies(d)
    geom = {g.name: g for g in d.geoms}
    found = [p for p in d.pairs if not {geom[p.a].body, geom[p.b].body} <= static]
    taken = {frozenset((p.a, p.b)) for p in found}
    places = np.argwhere(np.triu(_bits_match(d.geoms) & ~_kept_apart(d, static), 1))
    matched = ((d.geoms[i], d.geoms[j]) for i, j in places)
    response = {b.name: b.response for b in d.bodies}
    found += [_mixed(a, b, response) for a, b in matched if frozenset((a.name, b.name)) not in taken]
    if not self_collision:
        found = [p for p in found if geom[p.a].body in static or geom[p.b].body in static]
    place = {name: i for i, name in enumerate(geom)}
    found = sorted((_in_order(p, geom) for p in found), key=lambda p: (place[p.a], place[p.b]))
    return [p for p in found if _supported(d, geom[p.a], geom[p.b])]


def _bits_match(geoms: list[GeomSpec]) -> np.ndarray:
    """Of every two geoms, whether contype of one and conaffinity of the other have a bit in common."""
    contype, conaffinity = (np.array([getattr(g, f) for g in geoms], np.uint32) for f in ("contype", "conaffinity"))
    one_way = (contype[:, None] & conaffinity) != 0
    return one_way | one_way.T


def _kept_apart(d: Description, static: set[str]) -> np.ndarray:
    """Of every two geoms, whether their bodies are kept apart by welds, exclusions or the parent filter."""
    place = {b.name: i for i, b in enumerate(d.bodies)}
    moving = {j.body for j in d.joints}
    weld = np.zeros(len(d.bodies), int)  # the body that moves, or the world, which a body is welded to
    above = np.zeros(len(d.bodies), int)  # and that which the parent of the former is welded to
    for i, b in enumerate(d.bodies[1:], start=1):
        if b.name not in static:
            starts = b.name in moving
            weld[i] = i if starts else weld[place[b.parent]]
            above[i] = weld[place[b.parent]] if starts else above[place[b.parent]]
    apart = weld[:, None] == weld
    for first, second in d.exclusions:
        apart[place[first], place[second]] = apart[place[second], place[first]] = True
    if d.filter_parent:
        below = (above[:, None] == weld) & (weld[:, None] != 0) & (weld != 0)
        apart |= below | below.T
    owner = np.array([place[g.body] for g in d.geoms], int)
    return apart[np.ix_(owner, owner)]


def _mixed(a: GeomSpec, b: GeomSpec, response: Mapping[str, float]) -> PairSpec:
    """Friction and condim of two geoms by MuJoCo's rule: those of the higher priority, else the larger of the two. Margins and
    gaps add up, and so does adhesion, unless one has the priority. `response` is that of the bodies."""
    both = (a, b) if a.priority == b.priority else (a if a.priority > b.priority else b,)
    larger = {f: max(getattr(g, f) for g in both) for f in ("friction", "condim", "torsion", "rolling")}
    pair = PairSpec(a.name, b.name, margin=a.margin + b.margin, gap=a.gap + b.gap, **larger)
    pair.adhesion = float(sum(g.adhesion for g in both))
    return soften(pair, *mixed(a, b), response[a.body] + response[b.body])


def _in_order(pair: PairSpec, geom: dict[str, GeomSpec]) -> PairSpec:
    a, b = ordered(geom[pair.a], geom[pair.b])
    return replace(pair, a=a.name, b=b.name)


def _supported(d: Description, a: GeomSpec, b: GeomSpec) -> bool:
    """Whether the pair is kept; raises for a shape that no detector handles and that is not ignored."""
    for g in (a, b):
        if g.shape not in SHAPES:
            d.refuse(g.shape, f"geom '{g.name}' is {_article(g.shape)}, which flexor cannot collide")
            return False
    return (a.shape, b.shape) in SUPPORTED and not {f"{a.shape}-{b.shape}", a.shape, b.shape} & d.ignore


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
