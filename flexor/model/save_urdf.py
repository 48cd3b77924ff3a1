"""A model as URDF text. Other programs find links, joints and collision shapes in it, meshes and the ground excepted; flexor
finds the rest in the <flexor> element. The root link is "world"; a free joint is a floating joint on it, a ball joint a
spherical one, as PyBullet has it."""

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import NoReturn

import jax
import numpy as np
from numpy.typing import ArrayLike

from flexor.model.description import DescriptionError, unique
from flexor.model.extension import number_text
from flexor.model.frames import quat_matrix, quat_rpy
from flexor.model.model import Model
from flexor.model.urdf import floating_parts, planar_parts


def urdf_text(model: Model, keys: Mapping[str, np.ndarray]) -> str:
    """URDF text of the model, with `keys` in the <flexor> element."""
    m = jax.tree.map(lambda x: np.asarray(x, float), model)
    t = model.topology
    for what, rows in (("tendon", t.tendons), ("loop", t.loops)):
        if rows:
            _fail(m, f"it has the {what} '{rows[0].name}', for which URDF has no place")
    root = ET.Element("robot", name=t.name)
    if t.compliances:
        _fail(m, f"its {t.compliances[0].kind} '{t.compliances[0].owner}' is soft, for which URDF has no place")
    if t.media:
        _fail(m, "there is a fluid around it")
    free = {f"joint.{j.name}.limited": np.zeros(1) for j in t.joints if j.kind == "slide" and not j.limited}
    free.update({f"body.{t.bodies[b]}.mocap": np.ones(1) for b in t.mocap})
    free.update({f"joint.{j.name}.actuated_gravcomp": np.ones(1) for j in t.joints if j.actuated_gravcomp})
    for b, name in enumerate(t.bodies):
        link = ET.SubElement(root, "link", name=name)
        if b:
            _inertial(link, m, b)
            _collisions(link, m, b)
    for b in range(1, len(t.bodies)):
        _joint(root, m, b)
    _extension(root, m, {**free, **keys})
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _fail(m: Model, what: str) -> NoReturn:
    raise DescriptionError(f"'{m.topology.name}' cannot be saved as URDF: {what}; save it as .xml (MJCF) instead.")


def _origin(parent: ET.Element, pos: ArrayLike, quat: ArrayLike) -> None:
    ET.SubElement(parent, "origin", xyz=number_text(pos), rpy=number_text(quat_rpy(quat)))


def _inertial(link: ET.Element, m: Model, b: int) -> None:
    inertial = ET.SubElement(link, "inertial")
    ET.SubElement(inertial, "origin", xyz=number_text(m.bodies.com[b]), rpy="0 0 0")
    ET.SubElement(inertial, "mass", value=number_text(m.bodies.mass[b]))
    names = ("ixx", "iyy", "izz", "ixy", "ixz", "iyz")
    ET.SubElement(inertial, "inertia", {k: number_text(x) for k, x in zip(names, m.bodies.inertia[b], strict=True)})


def _joint(root: ET.Element, m: Model, b: int) -> None:
    t = m.topology
    own = [j for j, joint in enumerate(t.joints) if joint.body == b]
    kind, name = _type_and_name(m, b, own)
    if any(t.joints[j].kind != "free" and np.any(m.joints.pos[j]) for j in own):
        _fail(m, f"the anchor of joint '{name}' is not at the origin of its body")
    element = ET.SubElement(root, "joint", name=name, type=kind)
    ET.SubElement(element, "parent", link=t.bodies[t.parents[b]])
    ET.SubElement(element, "child", link=t.bodies[b])
    _origin(element, m.bodies.pos[b], m.bodies.quat[b])
    if own and kind != "floating":
        _motion(element, m, own[-1], kind)
        _mimic(element, m, own[-1])


def _type_and_name(m: Model, b: int, own: list[int]) -> tuple[str, str]:
    """Type and name of the URDF joint that is a body's joints; raises where there is none."""
    t = m.topology
    if not own:
        return "fixed", unique(f"{t.bodies[b]}_fixed", [j.name for j in t.joints])
    joint = t.joints[own[0]]
    if len(own) > 1:
        whole = joint.name.removesuffix("_TX")
        if _are(m, own, planar_parts(whole, np.asarray(m.joints.axis[own[-1]]))):
            return "planar", whole
        if _are(m, own, floating_parts(whole)):
            return "floating", whole
        _fail(m, f"body '{t.bodies[b]}' has {len(own)} joints, and a URDF link has one")
    if joint.kind == "free" and t.parents[b] != 0:
        _fail(m, f"the free joint '{joint.name}' is not on the world")
    if joint.kind == "ball" and joint.limited:
        _fail(m, f"joint '{joint.name}' is a ball joint with a limit")
    kinds = {"hinge": "continuous", "slide": "prismatic", "free": "floating", "ball": "spherical"}
    return "revolute" if joint.kind == "hinge" and joint.limited else kinds[joint.kind], joint.name


def _are(m: Model, own: list[int], parts: list[tuple[str, str, np.ndarray]]) -> bool:
    """Whether the joints are the parts of a planar or floating joint, without limits."""
    joints = [m.topology.joints[j] for j in own]
    same = [(j.name, j.kind) for j in joints] == [(name, kind) for name, kind, _ in parts]
    turned = [j for j, (_, kind, _) in zip(own, parts, strict=False) if kind != "ball"]
    axes = [axis for _, kind, axis in parts if kind != "ball"]
    return same and np.allclose(m.joints.axis[turned], axes, atol=1e-9) and not any(j.limited for j in joints)


def _motion(element: ET.Element, m: Model, j: int, kind: str) -> None:
    """Axis, passive forces and limits of a joint that is not floating."""
    if kind != "spherical":
        ET.SubElement(element, "axis", xyz=number_text(m.joints.axis[j]))
    dynamics = {"damping": number_text(m.joints.damping[j]), "friction": number_text(m.joints.frictionloss[j])}
    ET.SubElement(element, "dynamics", dynamics)
    motors = [a for a, actuator in enumerate(m.topology.actuators) if actuator.joint == j]
    table = m.actuators
    reach = np.minimum(np.max(np.abs(table.ctrl_range), axis=1, initial=0), 1e9)
    effort = sum(abs(table.gear[a] * table.gain[a]) * reach[a] for a in motors)
    limit = {"effort": number_text(effort), "velocity": "100.0"}
    if kind in ("revolute", "prismatic"):
        # an unlimited slide has no type of its own in URDF: wide limits, which the <flexor> element takes away
        lower, upper = np.clip(m.joints.range[j], -1e9, 1e9)
        limit.update(lower=number_text(lower), upper=number_text(upper))
    ET.SubElement(element, "limit", limit)


def _mimic(element: ET.Element, m: Model, j: int) -> None:
    """For other programs: the first equality of the joint that is a straight line. The <flexor> element holds all of them."""
    t = m.topology
    for e, c in zip(t.equalities, m.equalities.coefficients, strict=True):
        if e.first == j and e.second is not None and not np.any(c[2:]):
            offset = c[0] + m.reference[t.q_start[j]] - c[1] * m.reference[t.q_start[e.second]]
            law = {"multiplier": number_text(c[1]), "offset": number_text(offset)}
            ET.SubElement(element, "mimic", {"joint": t.joints[e.second].name, **law})
            return


def _collisions(link: ET.Element, m: Model, b: int) -> None:
    """Shapes that URDF supports; a capsule is written as a cylinder and two spheres, which older parsers read as well."""
    for g, geom in enumerate(m.topology.geoms):
        if geom.body != b or geom.shape in ("mesh", "plane"):
            continue
        pos, quat, size = m.geoms.pos[g], m.geoms.quat[g], m.geoms.size[g]
        if geom.shape == "box":
            _collision(link, geom.name, pos, quat, "box", size=number_text(2 * size))
        elif geom.shape == "sphere":
            _collision(link, geom.name, pos, quat, "sphere", radius=number_text(size[0]))
        else:
            _collision(link, geom.name, pos, quat, "cylinder", radius=number_text(size[0]), length=number_text(2 * size[1]))
        if geom.shape == "capsule":
            for end, sign in (("top", 1), ("bottom", -1)):
                centre = pos + sign * size[1] * quat_matrix(quat)[:, 2]
                _collision(link, f"{geom.name}_{end}", centre, quat, "sphere", radius=number_text(size[0]))


def _collision(link: ET.Element, name: str, pos: ArrayLike, quat: ArrayLike, shape: str, **size: str) -> None:
    collision = ET.SubElement(link, "collision", name=name)
    _origin(collision, pos, quat)
    ET.SubElement(ET.SubElement(collision, "geometry"), shape, size)


def _extension(root: ET.Element, m: Model, keys: Mapping[str, np.ndarray]) -> None:
    t = m.topology
    extension = ET.SubElement(root, "flexor")
    for geom in t.geoms:
        ET.SubElement(extension, "geom", name=geom.name, shape=geom.shape, link=t.bodies[geom.body])
    for pair in t.pairs:
        ends = {"a": t.geoms[pair.a].name, "b": t.geoms[pair.b].name}
        flags = {flag: "true" for flag in ("margined", "sticky") if getattr(pair, flag)}
        ET.SubElement(extension, "pair", {**ends, "condim": str(pair.condim), **flags})
    for actuator in t.actuators:
        elsewhere = actuator.tendon is not None or actuator.body is not None
        if t.is_wide(actuator) or elsewhere or actuator.dynamics != "none" or actuator.muscle:
            _fail(m, f"actuator '{actuator.name}' acts on more than a hinge or slide joint, or has an activation")
        assert actuator.joint is not None
        ends = {"name": actuator.name, "joint": t.joints[actuator.joint].name}
        ET.SubElement(extension, "actuator", {**ends, **({"samples": str(actuator.samples)} if actuator.samples else {})})
    for site in t.sites:
        ET.SubElement(extension, "site", name=site.name, link=t.bodies[site.body])
    for e, c in zip(t.equalities, m.equalities.coefficients, strict=True):
        other = {} if e.second is None else {"joint2": t.joints[e.second].name}
        first = {"name": e.name, "joint1": t.joints[e.first].name}
        ET.SubElement(extension, "equality", {**first, **other, "coefficients": number_text(c)})
    for name, q in zip(t.keyframes, m.keyframes, strict=True):
        ET.SubElement(extension, "keyframe", name=name, q=number_text(q))
    for key, value in keys.items():
        ET.SubElement(extension, "set", name=key, value=number_text(value))
