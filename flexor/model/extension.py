"""What description files cannot say, and how flexor writes and reads it.

Every number has its parameter name (`pair.floor~foot.stiffness`); further keys are `gravity`, `reference`, `rest`,
`keyframe.<name>`, and, as they change the topology, `joint.<name>.dry_friction`, `joint.<name>.limited` (to take away a limit),
`geom.<name>.vertices` and `geom.<name>.outline`. MJCF holds them
as `<numeric name="flexor.<key>" data="…"/>`, URDF as `<set name="<key>" value="…"/>` in a `<flexor>` element, which also lists
the geoms, pairs, actuators and keyframes. The keys are applied after all defaults.
"""

import xml.etree.ElementTree as ET

import jax
import numpy as np

from flexor.model.description import ActuatorSpec, Description, GeomSpec, PairSpec
from flexor.model.model import Model
from flexor.model.parameters import parameters

PREFIX = "flexor."


def structure_keys(model: Model) -> dict[str, np.ndarray]:
    """The keys that carry a model's dry friction and meshes, which no reader could guess."""
    keys = {}
    for joint, loss in zip(model.topology.joints, np.asarray(model.joints.frictionloss), strict=True):
        if joint.dry_friction and not loss > 0:
            keys[f"joint.{joint.name}.dry_friction"] = np.ones(1)
    vertices = np.asarray(model.geoms.vertices, float)
    for geom in model.topology.geoms:
        if geom.shape == "mesh":
            keys[f"geom.{geom.name}.vertices"] = vertices[geom.start : geom.stop].ravel()
            keys[f"geom.{geom.name}.outline"] = np.array([float(geom.outline)])
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


def number_text(values: np.ndarray) -> str:
    """Numbers as text that gives back the same double-precision numbers."""
    return " ".join(repr(float(x)) for x in np.ravel(np.asarray(values, float)))


def set_structure(d: Description) -> None:
    """Moves the keys that change the topology from the overrides into the elements they belong to."""
    geoms = {g.name: g for g in d.geoms}
    joints = {j.name: j for j in d.joints}
    for key in list(d.overrides):
        kind, _, rest = key.partition(".")
        name, _, field = rest.rpartition(".")
        if kind == "joint" and field == "dry_friction" and name in joints:
            joints[name].dry_friction = bool(d.overrides.pop(key)[0])
        elif kind == "joint" and field == "limited" and name in joints:
            if not d.overrides.pop(key)[0]:
                joints[name].range = None
        elif kind == "geom" and field == "vertices" and name in geoms:
            geoms[name].vertices = d.overrides.pop(key).reshape(-1, 3)
            geoms[name].exact = True
            geoms[name].size = np.zeros(3)
        elif kind == "geom" and field == "outline" and name in geoms:
            geoms[name].outline = int(d.overrides.pop(key)[0])


def _floats(element: ET.Element, key: str, count: int | None, d: Description) -> np.ndarray:
    text = element.get(key, "")
    try:
        values = np.array([float(x) for x in text.split()])
    except ValueError:
        values = np.zeros(0)
    if not len(values) or (count is not None and len(values) != count):
        d.fail(f"<flexor>: attribute {key}='{text}' of <{element.tag}> should be numbers")
    return values


def read_urdf_extension(extension: ET.Element, d: Description) -> None:
    """Replaces geoms, pairs, actuators and keyframes by those of the <flexor> element, and takes its keys as overrides."""
    bodies, joints = {b.name for b in d.bodies}, {j.name for j in d.joints}
    for e in extension:
        if e.tag == "geom":
            if e.get("link") not in bodies:
                d.fail(f"<flexor>: geom '{e.get('name')}' is on link '{e.get('link')}', which does not exist")
            d.geoms.append(GeomSpec(e.get("name"), e.get("shape"), e.get("link"), contype=0, conaffinity=0))
        elif e.tag == "pair":
            names = {g.name for g in d.geoms}
            if not {e.get("a"), e.get("b")} <= names:
                d.fail(f"<flexor>: pair '{e.get('a')}' and '{e.get('b')}' names a geom that does not exist")
            d.pairs.append(PairSpec(e.get("a"), e.get("b"), condim=3 if e.get("frictional") == "true" else 1))
    d.actuators = []
    for e in extension.findall("actuator"):
        if e.get("joint") not in joints:
            d.fail(f"<flexor>: actuator '{e.get('name')}' acts on joint '{e.get('joint')}', which does not exist")
        d.actuators.append(ActuatorSpec(e.get("name"), e.get("joint")))
    d.keyframes = {e.get("name"): _floats(e, "q", None, d) for e in extension.findall("keyframe")}
    for e in extension.findall("set"):
        d.overrides[e.get("name")] = _floats(e, "value", None, d)
    set_structure(d)
