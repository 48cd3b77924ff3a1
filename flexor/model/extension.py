"""What description files cannot say, and how flexor writes and reads it.

Every number has its parameter name (`pair.floor~foot.stiffness`); further keys are `gravity`, `reference`, `rest`,
`keyframe.<name>`, and, as they change the topology, `body.<name>.compensated`, `body.<name>.mocap`, `pair.<name>.margined`,
`joint.<name>.dry_friction`, `joint.<name>.actuated_gravcomp`, `joint.<name>.limited` (0 takes a limit away),
`tendon.<name>.dry_friction`, `tendon.<name>.inertial`, `geom.<name>.surface_velocity`, `geom.<name>.vertices` and
`geom.<name>.outline`. Keys may be shell patterns (`pair.*.cfm`). MJCF holds them as `<numeric name="flexor.<key>"
data="…"/>`, URDF as `<set name="<key>" value="…"/>` in a `<flexor>` element, which also lists the geoms, pairs, actuators,
sites, equalities and keyframes. They are applied after all defaults.
"""

import xml.etree.ElementTree as ET
from collections.abc import Container
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from flexor.model.description import (
    SOLIMP,
    ActuatorSpec,
    ComplianceSpec,
    Description,
    EqualitySpec,
    GeomSpec,
    PairSpec,
    SiteSpec,
)
from flexor.model.model import Model
from flexor.model.parameters import parameters
from flexor.model.topology import SHAPES

PREFIX = "flexor."
FLUID_PREFIX = PREFIX + "fluid."
"""Of the names of geoms that stand in a file for the fluid alone."""


def structure_keys(model: Model) -> dict[str, np.ndarray]:
    """The keys that carry a model's dry friction, tendons' inertia and meshes, which a reader could not infer."""
    keys = {}
    for joint, loss in zip(model.topology.joints, np.asarray(model.joints.frictionloss), strict=True):
        if joint.dry_friction and not loss > 0:
            keys[f"joint.{joint.name}.dry_friction"] = np.ones(1)
    for body in model.topology.compensated:
        if not model.bodies.gravcomp[body]:
            keys[f"body.{model.topology.bodies[body]}.compensated"] = np.ones(1)
    for pair, margin in zip(model.topology.pairs, np.asarray(model.pairs.margin), strict=True):
        if pair.margined and not margin:
            keys[f"pair.{pair.name}.margined"] = np.ones(1)
        if pair.sticky:
            keys[f"pair.{pair.name}.sticky"] = np.ones(1)
    for i, tendon in enumerate(model.topology.tendons):
        for flag, values in (("dry_friction", model.tendons.frictionloss), ("inertial", model.tendons.armature)):
            if getattr(tendon, flag) and not np.asarray(values)[i] > 0:
                keys[f"tendon.{tendon.name}.{flag}"] = np.ones(1)
    for compliance, value in zip(model.topology.compliances, np.asarray(model.compliances.stiffness, float), strict=True):
        keys[f"compliance.{compliance.name}.stiffness"] = np.array([value])
    vertices = np.asarray(model.geoms.vertices, float)
    for i, geom in enumerate(model.topology.geoms):
        if geom.carries:
            keys[f"geom.{geom.name}.surface_velocity"] = np.asarray(model.geoms.surface_velocity[i], float)
        if geom.shape == "mesh":
            keys[f"geom.{geom.name}.vertices"] = vertices[geom.start : geom.stop].ravel()
            keys[f"geom.{geom.name}.outline"] = np.array([float(geom.outline)])
        if geom.shape == "hfield":
            keys[f"geom.{geom.name}.vertices"] = vertices[geom.start : geom.stop].ravel()
            keys |= {f"geom.{geom.name}.{f}": np.asarray(getattr(model.geoms, f)[i], float) for f in ("pos", "size")}
    return keys


def default_keys(model: Model) -> dict[str, np.ndarray]:
    """The parameters of contacts, limits (of joints and tendons) and equalities, which readers would otherwise derive: a saved
    file does not depend on that rule."""
    keys: dict[str, np.ndarray] = {}
    t = model.topology
    pair_names, joint_names = [p.name for p in t.pairs], [j.name for j in t.joints]
    pair_fields = [f for f in model.pairs.__dataclass_fields__ if f not in ("friction", "margin")]
    limit_fields = [f for f in model.joints.__dataclass_fields__ if f.startswith("limit_")]
    loop_fields = [f for f in model.loops.__dataclass_fields__ if f not in ("anchor_a", "anchor_b", "quat", "torquescale")]
    tendon_fields = [f for f in model.tendons.__dataclass_fields__ if f.startswith("limit_")]
    equality_fields = [f for f in model.equalities.__dataclass_fields__ if f != "coefficients"]
    for kind, table, names, fields in (
        ("pair", model.pairs, pair_names, pair_fields),
        ("joint", model.joints, joint_names, limit_fields),
        ("equality", model.equalities, [e.name for e in t.equalities], equality_fields),
        ("loop", model.loops, [x.name for x in t.loops], loop_fields),
        ("tendon", model.tendons, [x.name for x in t.tendons], tendon_fields),
        ("compliance", model.compliances, [c.name for c in t.compliances], ("damping", "response", "rotation_response")),
    ):
        for field in fields if names else ():
            values = np.asarray(getattr(table, field), float)
            if np.all(values == values[0]):
                keys[f"{kind}.*.{field}"] = values[:1]
            else:
                keys.update({f"{kind}.{name}.{field}": values[i : i + 1] for i, name in enumerate(names)})
    return keys


def lost_keys(model: Model, again: Model) -> dict[str, np.ndarray]:
    """Keys and values of all numbers of `model` that differ in `again`, a model of the same topology."""
    named = []
    for m in (model, again):
        m = jax.tree.map(np.asarray, m)
        keyframes = {f"keyframe.{n}": q for n, q in zip(m.topology.keyframes, m.keyframes, strict=True)}
        named.append({**parameters(m), "reference": m.reference, "rest": m.rest, **keyframes})
    first, second = named
    return {k: np.ravel(v).astype(float) for k, v in first.items() if not np.array_equal(v, second[k])}


def number_text(values: ArrayLike) -> str:
    """Numbers as text that gives back the same double-precision numbers."""
    return " ".join(repr(float(x) + 0.0) for x in np.ravel(np.asarray(values, float)))  # + 0.0: no "-0.0"


def set_structure(d: Description) -> None:
    """Moves the keys that change the topology from the overrides into the elements they belong to."""
    geoms = {g.name: g for g in d.geoms}
    joints, tendons = {j.name: j for j in d.joints}, {t.name: t for t in d.tendons}
    bodies = {b.name: b for b in d.bodies}
    pairs = {f"{p.a}~{p.b}": p for p in d.pairs}
    soften_named(d)
    for key in list(d.overrides):
        kind, _, rest = key.partition(".")
        name, _, field = rest.rpartition(".")
        if kind == "joint" and field == "dry_friction" and name in joints:
            joints[name].dry_friction = bool(d.overrides.pop(key)[0])
        elif kind == "pair" and field in ("margined", "sticky") and name in pairs:
            setattr(pairs[name], field, bool(d.overrides.pop(key)[0]))
        elif kind == "body" and field == "compensated" and name in bodies:
            bodies[name].compensated = bool(d.overrides.pop(key)[0])
        elif kind == "body" and field == "mocap" and name in bodies:
            bodies[name].mocap = bool(d.overrides.pop(key)[0])
        elif kind == "joint" and field == "actuated_gravcomp" and name in joints:
            joints[name].actuated_gravcomp = bool(d.overrides.pop(key)[0])
        elif kind == "tendon" and field in ("dry_friction", "inertial") and name in tendons:
            setattr(tendons[name], field, bool(d.overrides.pop(key)[0]))
        elif kind == "joint" and field == "limited" and name in joints:
            if not d.overrides.pop(key)[0]:
                joints[name].range = None
        elif kind == "geom" and field == "vertices" and name in geoms:
            geoms[name].vertices = d.overrides.pop(key).reshape(-1, 3)
            geoms[name].exact = True
            if not geoms[name].grid:
                geoms[name].size = np.zeros(3)
        elif kind == "geom" and field == "surface_velocity" and name in geoms:
            geoms[name].surface_velocity = d.overrides.pop(key)
        elif kind == "geom" and field == "outline" and name in geoms:
            geoms[name].outline = int(d.overrides.pop(key)[0])


def soften_named(d: Description) -> None:
    """Gives a compliance to every element whose stiffness as a soft constraint the overrides name; its numbers follow later."""
    rows: dict[str, dict[str, Any]] = {
        "pair": {f"{p.a}~{p.b}": p for p in d.pairs}, "joint": {j.name: j for j in d.joints},
        "tendon": {t.name: t for t in d.tendons}, "equality": {e.name: e for e in d.equalities},
        "loop": {x.name: x for x in d.loops},
    }  # fmt: skip
    for key in d.overrides:
        group, _, rest = key.partition(".")
        kind, _, rest = rest.partition(".")
        name, _, field = rest.rpartition(".")
        element = rows.get(kind, {}).get(name)
        if group == "compliance" and field == "stiffness" and element is not None and element.compliance is None:
            element.compliance = ComplianceSpec(0.0, 0.0, SOLIMP, 0.0)


def _floats(element: ET.Element, key: str, d: Description) -> np.ndarray:
    text = element.get(key, "")
    try:
        values = np.array([float(x) for x in text.split()])
    except ValueError:
        values = np.zeros(0)
    if not len(values):
        d.fail(f"<flexor>: attribute {key}='{text}' of <{element.tag}> should be numbers")
    return values


def _count(element: ET.Element, key: str, d: Description) -> int:
    """An attribute that counts something; zero where it is absent."""
    text = element.get(key, "0")
    if not text.isdecimal():
        d.fail(f"<flexor>: attribute {key}='{text}' of <{element.tag}> should be a whole number")
    return int(text)


def _attribute(element: ET.Element, key: str, names: Container[str] | None, d: Description) -> str:
    """An attribute that must be there and, if it refers to something, be among `names`."""
    value = element.get(key)
    if value is None:
        d.fail(f"<flexor>: a <{element.tag}> has no {key}")
    if names is not None and value not in names:
        d.fail(f"<flexor>: {key}='{value}' of <{element.tag} name='{element.get('name', '')}'> does not exist")
    return value


def read_urdf_extension(extension: ET.Element, d: Description) -> None:
    """Geoms, pairs, actuators, sites, equalities and keyframes as the <flexor> element has them; its keys are overrides."""
    bodies, joints = {b.name for b in d.bodies}, {j.name for j in d.joints}
    for e in extension.findall("geom"):
        name, shape, link = (
            _attribute(e, "name", None, d),
            _attribute(e, "shape", SHAPES, d),
            _attribute(e, "link", bodies, d),
        )
        d.geoms.append(GeomSpec(name, shape, link, contype=0, conaffinity=0))
    geoms = {g.name for g in d.geoms}
    for e in extension.findall("pair"):
        if e.get("condim") is None:  # as it was written before there was torsional friction
            e.set("condim", "3" if e.get("frictional") == "true" else "1")
        condim = int(_attribute(e, "condim", {"1", "3", "4", "6"}, d))
        ends = _attribute(e, "a", geoms, d), _attribute(e, "b", geoms, d)
        margined, sticky = (e.get(flag) == "true" for flag in ("margined", "sticky"))
        d.pairs.append(PairSpec(*ends, condim=condim, margined=margined, sticky=sticky))
    d.actuators = [
        ActuatorSpec(_attribute(e, "name", None, d), _attribute(e, "joint", joints, d), samples=_count(e, "samples", d))
        for e in extension.findall("actuator")
    ]
    d.sites = [SiteSpec(_attribute(e, "name", None, d), _attribute(e, "link", bodies, d)) for e in extension.findall("site")]
    d.equalities = [
        EqualitySpec(
            _attribute(e, "name", None, d),
            _attribute(e, "joint1", joints, d),
            _attribute(e, "joint2", joints, d) if "joint2" in e.attrib else None,
            _floats(e, "coefficients", d),
        )
        for e in extension.findall("equality")
    ]
    d.keyframes = {_attribute(e, "name", None, d): _floats(e, "q", d) for e in extension.findall("keyframe")}
    for e in extension.findall("set"):
        d.overrides[_attribute(e, "name", None, d)] = _floats(e, "value", d)
    set_structure(d)
