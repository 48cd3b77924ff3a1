"""Which shapes may touch: MuJoCo's rules for pairs of geoms, and the pairs flexor can detect."""

from collections.abc import Callable
from itertools import combinations

from flexor.model.description import Description, GeomSpec, PairSpec, static_bodies
from flexor.model.topology import SHAPES

SUPPORTED = frozenset(
    [("plane", s) for s in ("sphere", "capsule", "box", "cylinder", "mesh")]
    + [("sphere", s) for s in ("sphere", "capsule", "box", "mesh")]
    + [("capsule", "capsule"), ("capsule", "box")]
)
"""Pairs of shapes with a contact detector; a mesh that meets a sphere must be a prism."""


def ordered(a: GeomSpec, b: GeomSpec) -> tuple[GeomSpec, GeomSpec]:
    """The two geoms in the order of `SHAPES`; equal shapes stay as they are."""
    rank = {s: i for i, s in enumerate(SHAPES)}
    return (b, a) if rank.get(b.shape, 99) < rank.get(a.shape, 99) else (a, b)


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
    filtered = _body_filter(d, static)
    for a, b in combinations(d.geoms, 2):
        bits = (a.contype & b.conaffinity) or (b.contype & a.conaffinity)
        if bits and frozenset((a.name, b.name)) not in taken and not filtered(a.body, b.body):
            found.append(_mixed(a, b))
    if not self_collision:
        found = [p for p in found if geom[p.a].body in static or geom[p.b].body in static]
    place = {name: i for i, name in enumerate(geom)}
    found = sorted((_in_order(p, geom) for p in found), key=lambda p: (place[p.a], place[p.b]))
    return [p for p in found if _supported(d, geom[p.a], geom[p.b])]


def _body_filter(d: Description, static: set[str]) -> Callable[[str, str], bool]:
    """A function that says whether the geoms of two bodies are kept apart by welds, exclusions or the parent filter."""
    parent = {b.name: b.parent for b in d.bodies}
    moving = {j.body for j in d.joints}
    weld: dict[str, str] = {}
    for b in d.bodies:
        weld[b.name] = "world" if b.name in static else b.name if b.name in moving else weld[b.parent]
    excluded = {frozenset(e) for e in d.exclusions}

    def filtered(a: str, b: str) -> bool:
        wa, wb = weld[a], weld[b]
        if wa == wb or frozenset((a, b)) in excluded:
            return True
        if not d.filter_parent or "world" in (wa, wb):
            return False
        return weld[parent[wa]] == wb or weld[parent[wb]] == wa

    return filtered


def _mixed(a: GeomSpec, b: GeomSpec) -> PairSpec:
    """Friction and condim of two geoms by MuJoCo's rule: those of the higher priority, else the larger of the two."""
    margin = max(a.margin, b.margin)
    if a.priority != b.priority:
        chief = a if a.priority > b.priority else b
        return PairSpec(a.name, b.name, chief.friction, chief.condim, margin)
    return PairSpec(a.name, b.name, max(a.friction, b.friction), max(a.condim, b.condim), margin)


def _in_order(pair: PairSpec, geom: dict[str, GeomSpec]) -> PairSpec:
    a, b = ordered(geom[pair.a], geom[pair.b])
    return PairSpec(a.name, b.name, pair.friction, pair.condim, pair.margin)


def _supported(d: Description, a: GeomSpec, b: GeomSpec) -> bool:
    """Whether the pair is kept; raises for one that no detector handles and that is not ignored."""
    for g in (a, b):
        if g.shape not in SHAPES:
            d.refuse(g.shape, f"geom '{g.name}' is {_article(g.shape)}, which flexor cannot collide")
            return False
    if (a.shape, b.shape) == ("plane", "plane"):
        return False
    if (a.shape, b.shape) not in SUPPORTED:
        kind = f"{a.shape}-{b.shape}"
        d.refuse(kind, f"geoms '{a.name}' and '{b.name}' may touch, but flexor has no {kind} contact")
        return False
    return True


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
