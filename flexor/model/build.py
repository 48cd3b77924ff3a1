"""From a `Description` to a `Model`: indices for names, defaults for what descriptions do not say."""

from fnmatch import fnmatchcase
from typing import Any

import jax.numpy as jnp
import numpy as np

from flexor.model.build_actuators import actuator_tables, actuator_topology
from flexor.model.build_compliances import compliance_table, compliant, drop_compliances, soften_penalties
from flexor.model.build_equalities import (
    check_equality,
    check_loop,
    equality_table,
    equality_topology,
    loop_table,
    loop_topology,
)
from flexor.model.build_fluid import fluid_tables, fluid_topology
from flexor.model.build_sensors import sensor_table, sensor_topology
from flexor.model.build_tendons import check_tendon, tendon_table, tendon_topology
from flexor.model.description import (
    WORLD,
    BodySpec,
    Description,
    GeomSpec,
    JointSpec,
    PairSpec,
    TendonSpec,
    static_bodies,
)
from flexor.model.frames import matrix_quat, quat_matrix, quat_product, six_matrix
from flexor.model.hull import as_prism, hull_corners, reduce_corners
from flexor.model.model import (
    Activations,
    Actuators,
    Bodies,
    Compliances,
    Equalities,
    FluidShapes,
    Geoms,
    Joints,
    Loops,
    Media,
    Model,
    Muscles,
    Pairs,
    SensorFrames,
    Sites,
    Tendons,
    Transmissions,
)
from flexor.model.pairs import collision_pairs
from flexor.model.topology import JOINT_NQ, SHAPES, Geom, Joint, Pair, Site, Topology

REST_DEPTH = 5e-3  # m: how deep a robot's whole weight presses one contact, which sets the default stiffness
LIMIT_TIME = 0.02  # s: time constant of a joint limit or an equality, MuJoCo's default
STICKING = 1e-4  # m: hard contacts rest at distance zero, to rounding; adhesion acts at least up to here
PAIR_DEFAULTS = {"restitution": 0.0, "damping": 1.0, "baumgarte": 0.2}
SOFTNESS = 1e-4  # CFM as a share of the inverse mass of the lighter touching body: far below any effect, far above rounding


def build(description: Description, *, self_collision: bool = True, dtype: Any = None) -> Model:
    """The model that a description describes.

    Defaults of contacts: Hunt-Crossley stiffness k = m g / depth^1.5 with the mass m of the lighter of the two kinematic
    trees and depth 5 mm, CFM 1e-4 / m with the mass m of the lighter of the two bodies. Defaults of joint limits:
    k = I / T^2, d = 2 I / T, critically damped with T = 0.02 s, for the joint-space inertia I at the reference configuration;
    CFM 1e-6 / I. Defaults of equalities: the same with 1 / I = 1 / I1 + c1^2 / I2 of the two joints; of tendons
    and loops, with the responses that their readers give.
    """
    d = description
    _check_tree(d)
    _leave_out(d)
    _check_constraints(d)
    pairs = _checked_pairs(d, collision_pairs(d, self_collision=self_collision))
    geoms = _resolved_geoms(d, pairs)
    shapes = {g.name: g for g in geoms}
    pairs = [p for p in pairs if _convex_or_refused(d, shapes, p)]
    drop_compliances(d, pairs)
    topology = _topology(d, geoms, pairs)
    inertia = dict(zip([j.name for j in d.joints], joint_inertia(d), strict=True))
    tables = {
        "bodies": _columns(d.bodies, "pos", "quat", "mass", "com", "inertia", "gravcomp"),
        "joints": _joint_table(d),
        "geoms": _columns(geoms, "pos", "quat", "size", "surface_velocity"),
        "pairs": _pair_table(d, geoms, pairs),
        "actuators": _columns(d.actuators, "gear", "gain", "bias", "ctrl_range", "force_range", "delay", "gain_slope"),
        **actuator_tables(d),
        **fluid_tables(d),
        "sensor_frames": sensor_table(d),
        "sites": _columns(d.sites, "pos", "quat", "size"),
        "equalities": equality_table(d, inertia, LIMIT_TIME),
        "tendons": tendon_table(d, LIMIT_TIME),
        "loops": loop_table(d, LIMIT_TIME),
        "compliances": compliance_table(d, pairs),
    }
    soften_penalties(d, tables)
    whole = {
        "gravity": np.array(d.gravity, float),
        "reference": np.concatenate([[], *(j.reference for j in d.joints)]),
        "rest": np.concatenate([[], *(j.rest for j in d.joints)]),
        "keyframes": np.array(list(d.keyframes.values()), float).reshape(len(d.keyframes), topology.nq),
    }
    _override(d, topology, tables, whole)
    rows = [np.asarray(g.vertices) for g in geoms if g.vertices is not None]
    tables["geoms"]["vertices"] = np.concatenate(rows) if rows else np.zeros((0, 3))
    kinds = {"bodies": Bodies, "joints": Joints, "geoms": Geoms, "pairs": Pairs, "actuators": Actuators, "sites": Sites,
             "equalities": Equalities, "tendons": Tendons, "loops": Loops, "transmissions": Transmissions,
             "activations": Activations, "muscles": Muscles, "media": Media, "fluid_shapes": FluidShapes,
             "sensor_frames": SensorFrames, "compliances": Compliances}  # fmt: skip
    dtype = jnp.result_type(float) if dtype is None else dtype

    def array(x):
        return jnp.asarray(np.asarray(x, dtype), dtype)  # converted by NumPy: JAX would compile a program for each shape

    return Model(
        **{k: kinds[k](**{f: array(v) for f, v in table.items()}) for k, table in tables.items()},
        **{name: array(value) for name, value in whole.items()},
        topology=topology,
    )


_WIDTH = {"pos": 3, "quat": 4, "com": 3, "inertia": 6, "axis": 3, "size": 3, "bias": 3, "ctrl_range": 2, "force_range": 2,
          "coefficients": 5, "gain_slope": 2, "surface_velocity": 6}  # fmt: skip


def _columns(rows: list, *fields: str) -> dict[str, np.ndarray]:
    shape = {f: (len(rows), _WIDTH[f]) if f in _WIDTH else (len(rows),) for f in fields}
    return {f: np.array([getattr(r, f) for r in rows], float).reshape(shape[f]) for f in fields}


def _topology(d: Description, geoms: list[GeomSpec], pairs: list[PairSpec]) -> Topology:
    body = {b.name: i for i, b in enumerate(d.bodies)}
    joint = {j.name: i for i, j in enumerate(d.joints)}
    index = {g.name: i for i, g in enumerate(geoms)}
    site = {s.name: i for i, s in enumerate(d.sites)}
    ends = np.cumsum([0] + [0 if g.vertices is None else len(np.asarray(g.vertices)) for g in geoms]).tolist()
    return Topology(
        name=d.name,
        bodies=tuple(b.name for b in d.bodies),
        parents=(-1, *(body[b.parent] for b in d.bodies[1:])),
        joints=tuple(
            Joint(
                name=j.name,
                kind=j.kind,
                body=body[j.body],
                limited=j.range is not None,
                dry_friction=j.dry_friction or j.frictionloss > 0,
                actuated_gravcomp=j.actuated_gravcomp,
            )
            for j in d.joints
        ),
        geoms=tuple(
            Geom(g.name, g.shape, body[g.body], carries=bool(np.any(g.surface_velocity)))
            if g.vertices is None
            else Geom(
                g.name, g.shape, body[g.body], ends[i], ends[i + 1], g.outline, g.grid, bool(np.any(g.surface_velocity))
            )
            for i, g in enumerate(geoms)
        ),
        pairs=tuple(
            Pair(f"{p.a}~{p.b}", index[p.a], index[p.b], p.condim, p.margined or p.margin != 0, p.sticky or p.adhesion != 0)
            for p in pairs
        ),
        actuators=actuator_topology(d),
        keyframes=tuple(d.keyframes),
        sites=tuple(Site(s.name, body[s.body]) for s in d.sites),
        equalities=equality_topology(d, {"joint": joint, "tendon": {x.name: i for i, x in enumerate(d.tendons)}}),
        loops=loop_topology(d),
        mocap=tuple(i for i, b in enumerate(d.bodies) if b.mocap),
        compensated=tuple(i for i, b in enumerate(d.bodies) if b.compensated or b.gravcomp),
        media=tuple(x.name for x in d.media),
        fluid_shapes=fluid_topology(d),
        sensors=sensor_topology(d),
        refused_sensors=tuple(d.refused_sensors),
        tendons=tendon_topology(d, {"joint": joint, "site": site, "geom": index}),
        compliances=tuple(row for row, _ in compliant(d, pairs)),
        origin=d.origin,
    )


def _check_tree(d: Description) -> None:
    """Raises for invalid masses and inertias, and for joints that move no mass."""
    for b in d.bodies:
        if not (np.isfinite(b.mass) and b.mass >= 0):
            d.fail(f"body '{b.name}' has mass {b.mass} kg; a mass must be finite and not negative")
        if not (np.isfinite(b.inertia).all() and np.isfinite(b.com).all()):
            d.fail(f"the inertia or centre of mass of body '{b.name}' is not finite")
    for name, q in d.keyframes.items():
        nq = sum(JOINT_NQ[j.kind] for j in d.joints)
        if len(q) != nq:
            d.fail(f"keyframe '{name}' has {len(q)} coordinates, the robot has {nq}")


def _check_constraints(d: Description) -> None:
    """Raises for invalid equalities, loops and tendons."""
    for e in d.equalities:
        check_equality(d, e)
    for x in d.loops:
        check_loop(d, x)
    for t in d.tendons:
        check_tendon(d, t)


def _leave_out(d: Description) -> None:
    """Removes the limits and the dry friction of all joints and tendons if these are ignored."""
    rows: tuple[JointSpec | TendonSpec, ...] = (*d.joints, *d.tendons)
    for j in rows:
        j.range = None if "limit" in d.ignore else j.range
        j.frictionloss, j.dry_friction = (0.0, False) if "frictionloss" in d.ignore else (j.frictionloss, j.dry_friction)


def joint_inertia(d: Description) -> np.ndarray:
    """Diagonal of the joint-space inertia at the reference configuration, armature included: kg m^2, or kg for a slide.

    Of a ball joint the mean over its axes, of a free joint the mass.
    """
    pos, rot = {WORLD: np.zeros(3)}, {WORLD: np.eye(3)}
    for b in d.bodies[1:]:
        pos[b.name] = pos[b.parent] + rot[b.parent] @ np.asarray(b.pos, float)
        rot[b.name] = rot[b.parent] @ quat_matrix(b.quat)
    below = {b.name: [b] for b in d.bodies}
    for b in reversed(d.bodies[1:]):
        if b.parent != WORLD:
            below[b.parent] += below[b.name]
    inertia = np.zeros(len(d.joints))
    for i, j in enumerate(d.joints):
        moved = below[j.body]
        if j.kind in ("slide", "free"):
            inertia[i] = sum(b.mass for b in moved)
            continue
        anchor = pos[j.body] + rot[j.body] @ np.asarray(j.pos, float)
        about = sum((_about(b, pos[b.name], rot[b.name], anchor) for b in moved), np.zeros((3, 3)))
        axis = rot[j.body] @ np.asarray(j.axis, float)
        inertia[i] = axis @ about @ axis if j.kind == "hinge" else np.trace(about) / 3
    return inertia + np.array([j.armature for j in d.joints])


def _about(b: BodySpec, pos: np.ndarray, rot: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Inertia of a body about a point in the world, by the parallel-axis theorem."""
    r = pos + rot @ np.asarray(b.com, float) - point
    return rot @ six_matrix(b.inertia) @ rot.T + b.mass * (r @ r * np.eye(3) - np.outer(r, r))


def _joint_table(d: Description) -> dict[str, np.ndarray]:
    fields = ("pos", "axis", "stiffness", "damping", "armature", "frictionloss", "force_range")
    table = _columns(d.joints, *fields)
    table["range"] = np.array([(-np.inf, np.inf) if j.range is None else j.range for j in d.joints], float).reshape(-1, 2)
    inertia = joint_inertia(d)
    for j, i in zip(d.joints, inertia, strict=True):
        if not i > 0:
            _report_massless(d, j)
    table["limit_stiffness"] = inertia / LIMIT_TIME**2
    table["limit_damping"] = 2 * inertia / LIMIT_TIME
    table["limit_cfm"] = 1e-6 / np.where(inertia > 0, inertia, np.inf)
    table["limit_baumgarte"] = np.full(len(d.joints), 0.2)
    return table


def _report_massless(d: Description, j: JointSpec) -> None:
    what = "mass" if j.kind in ("slide", "free") else "inertia"
    sentence = f"body '{j.body}' and all it carries have no positive {what} for joint '{j.name}' to move"
    if not d.allow_massless:
        d.fail(f"{sentence}; give the body a positive mass and inertia, or the joint an armature")
    d.warn(f"{sentence}; forward dynamics needs a positive body mass and inertia, or a joint armature, there")


def _pair_table(d: Description, geoms: list[GeomSpec], pairs: list[PairSpec]) -> dict[str, np.ndarray]:
    """Contact parameters of each pair; see `build` for the stiffness and the CFM."""
    static = static_bodies(d)
    root: dict[str, str] = {}
    mass: dict[str, float] = {}
    for b in d.bodies:
        root[b.name] = b.name if b.name in static or b.parent in static else root[b.parent]
        mass[root[b.name]] = mass.get(root[b.name], 0.0) + b.mass
    weight = {b.name: np.inf if b.name in static else mass[root[b.name]] for b in d.bodies}
    body = {g.name: g.body for g in geoms}
    lighter = np.array([min(weight[body[p.a]], weight[body[p.b]]) for p in pairs])
    table = {f: np.full(len(pairs), value) for f, value in PAIR_DEFAULTS.items()}
    table["friction"] = np.array([p.friction for p in pairs])
    table["restitution"] = np.array([p.restitution for p in pairs])
    table["margin"] = np.array([p.margin for p in pairs])
    table["adhesion"] = np.array([p.adhesion for p in pairs])
    table["gap"] = np.array([max(p.gap, STICKING) for p in pairs])
    table["torsion"] = np.array([p.torsion if p.condim > 3 else 0.0 for p in pairs])
    table["rolling"] = np.array([p.rolling if p.condim > 4 else 0.0 for p in pairs])
    table["stiffness"] = lighter * 9.81 / REST_DEPTH**1.5
    own = {b.name: np.inf if b.name in static else max(b.mass, 0.01 * weight[b.name]) for b in d.bodies}
    smaller = np.array([min(own[body[p.a]], own[body[p.b]]) for p in pairs])
    table["cfm"] = SOFTNESS / np.where(smaller > 0, smaller, np.inf)
    return table


def _checked_pairs(d: Description, pairs: list[PairSpec]) -> list[PairSpec]:
    """The pairs, without margins, adhesion, and torsional and rolling friction where these are ignored."""
    for p in pairs:
        p.condim = min(p.condim, 3) if "condim" in d.ignore else p.condim
        p.margin = 0.0 if "margin" in d.ignore else p.margin
        p.adhesion = 0.0 if "adhesion" in d.ignore else p.adhesion
    return pairs


def _resolved_geoms(d: Description, pairs: list[PairSpec]) -> list[GeomSpec]:
    """The geoms of the model, meshes with the corners of their hulls; without meshes and height fields that are in no pair, and
    without geoms that are not shapes."""
    used = {p.a for p in pairs} | {p.b for p in pairs}
    kept = [g for g in d.geoms if g.shape in SHAPES and (g.shape not in ("mesh", "hfield") or g.name in used)]
    for g in kept:
        if g.grid and not np.isfinite(heights := np.asarray(g.vertices)[:, 2].reshape(g.grid)).all():
            row, column = np.argwhere(~np.isfinite(heights))[0]
            got = heights[row, column]
            raise ValueError(f"heights of geom '{g.name}' must be finite, got {got} in row {row}, column {column}.")
    reduced = [g.name for g in kept if g.shape == "mesh" and not g.exact and _resolve_mesh(d, g)]
    if reduced:
        names = ", ".join(f"'{n}'" for n in reduced[:5]) + (f" and {len(reduced) - 5} more" if len(reduced) > 5 else "")
        d.warn(
            f"the hulls of {names} were reduced to {d.mesh_vertices} corners each; `mesh_vertices` sets how many are kept"
        )
    return kept


def _resolve_mesh(d: Description, g: GeomSpec) -> bool:
    """Replaces the vertices of a mesh by the corners of its hull, as a prism if it is one; True if corners were left out."""
    points = np.asarray(g.vertices() if callable(g.vertices) else g.vertices, float)
    corners = hull_corners(points)
    prism = as_prism(corners, quat_matrix(g.quat).T[:, 2]) if len(corners) <= 2 * d.mesh_vertices else None
    g.size = np.zeros(3)
    if prism is not None:
        centre, R, g.vertices = prism
        g.pos = np.asarray(g.pos, float) + quat_matrix(g.quat) @ centre
        g.quat = quat_product(g.quat, matrix_quat(R))
        g.outline = len(g.vertices) // 2
        return False
    g.vertices = reduce_corners(corners, d.mesh_vertices)
    return len(g.vertices) < len(corners)


def _convex_or_refused(d: Description, geom: dict[str, GeomSpec], p: PairSpec) -> bool:
    """Whether a pair's meshes are convex; a prism that is not may touch planes and spheres."""
    a, b = geom[p.a], geom[p.b]
    dented = [g for g in (a, b) if g.outline and not _convex_outline(np.asarray(g.vertices)[: g.outline, :2])]
    if dented and a.shape not in ("plane", "sphere"):
        kind = f"{a.shape}-{b.shape}"
        d.refuse(kind, f"geoms '{a.name}' and '{b.name}' may touch, but prism '{dented[0].name}' is not convex")
        return False
    return True


def _convex_outline(outline: np.ndarray) -> bool:
    """Whether a polygon, counter-clockwise, is convex to rounding."""
    edges = np.roll(outline, -1, axis=0) - outline
    following = np.roll(edges, -1, axis=0)
    area = edges[:, 0] * following[:, 1] - edges[:, 1] * following[:, 0]
    return bool(area.min() > -1e-9 * np.ptp(outline) ** 2)


def _override(
    d: Description, topology: Topology, tables: dict[str, dict[str, np.ndarray]], whole: dict[str, np.ndarray]
) -> None:
    """Sets, in place, the numbers that the description's extension names; see `flexor.model.extension` for the keys."""
    if not d.overrides:
        return
    singular = {"bodies": "body", "joints": "joint", "geoms": "geom", "pairs": "pair", "actuators": "actuator",
                "sites": "site", "equalities": "equality", "tendons": "tendon", "loops": "loop", "transmissions": "transmission",
                "activations": "activation", "muscles": "muscle", "media": "medium", "fluid_shapes": "fluid",
                "sensor_frames": "sensor", "compliances": "compliance"}  # fmt: skip
    places: dict[str, tuple[np.ndarray, Any]] = {key: (whole[key], slice(None)) for key in ("gravity", "reference", "rest")}
    places.update({f"keyframe.{name}": (whole["keyframes"], i) for i, name in enumerate(topology.keyframes)})
    for group, kind in singular.items():
        for i, row in enumerate(getattr(topology, group)):
            name = row if isinstance(row, str) else row.name
            places.update({f"{kind}.{name}.{f}": (table, i) for f, table in tables[group].items()})
    for pattern, value in d.overrides.items():
        hits = [pattern] if pattern in places else [name for name in places if fnmatchcase(name, pattern)]
        if not hits:
            d.fail(f"the flexor extension sets '{pattern}', but the robot has no such parameter")
        for table, row in (places[name] for name in hits):
            if np.size(value) not in (1, np.size(table[row])):
                d.fail(f"the flexor extension gives '{pattern}' {np.size(value)} numbers instead of {np.size(table[row])}")
            table[row] = value if np.ndim(table[row]) else np.ravel(value)[0]
