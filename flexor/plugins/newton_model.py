"""A Newton model as a description that flexor loads: bodies, joints and shapes of its first world, and what belongs to all.

Poses are (position, quaternion x y z w). A joint places its child's frame at X_parent X_joint(q) X_child^-1.
"""

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

try:
    import newton
except ImportError as error:
    raise ImportError('this needs Newton: `pip install "flexor[newton]"`.') from error

Kind = newton.JointType
JOINTS: Mapping[newton.JointType, str] = MappingProxyType(
    {Kind.PRISMATIC: "slide", Kind.REVOLUTE: "hinge", Kind.BALL: "ball", Kind.FREE: "free"}
)
"""flexor's joints by Newton's; a fixed joint is none, and the others are refused."""
SHAPES: Mapping[newton.GeoType, tuple[str, tuple[int, ...]]] = MappingProxyType(
    {
        newton.GeoType.SPHERE: ("sphere", (0,)),
        newton.GeoType.CAPSULE: ("capsule", (0, 1)),
        newton.GeoType.CYLINDER: ("cylinder", (0, 1)),
        newton.GeoType.BOX: ("box", (0, 1, 2)),
        newton.GeoType.ELLIPSOID: ("ellipsoid", (0, 1, 2)),
    }
)
"""MJCF's shapes and which of Newton's scales are their sizes. A plane has none."""
UNLIMITED = 1e5  # Newton's own bound of a joint without limits is 1e10; no robot turns or slides so far


def last_name(label: str) -> str:
    """The name in a label such as `ant/worldbody/torso`."""
    return label.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class World:
    """Numbers of the joints and bodies of one world of a model."""

    model: newton.Model
    joints: tuple[int, ...]
    bodies: tuple[int, ...]

    @classmethod
    def first(cls, model: newton.Model) -> "World":
        """The first of worlds that are all alike, or of a model without worlds; raises where they differ."""
        count = max(model.world_count, 1)
        if model.joint_count % count or model.body_count % count:
            raise ValueError("the worlds of Newton's model differ, and flexor steps worlds of one robot.")
        joints, bodies = model.joint_count // count, model.body_count // count
        kinds = model.joint_type.numpy().reshape(count, joints)
        if (kinds != kinds[:1]).any():
            raise ValueError("the worlds of Newton's model differ, and flexor steps worlds of one robot.")
        return cls(model, tuple(range(joints)), tuple(range(bodies)))

    @property
    def moving(self) -> tuple[int, ...]:
        """Its joints with degrees of freedom."""
        kinds = self.model.joint_type.numpy()
        return tuple(j for j in self.joints if kinds[j] != Kind.FIXED)

    def name(self, joint: int) -> str:
        return last_name(self.model.joint_label[joint])


def description(model: newton.Model) -> str:
    """MJCF of the first world's robot; raises for what flexor does not have, by its label."""
    world = World.first(model)
    root = ET.Element("mujoco", model="newton")
    gravity = model.gravity.numpy().reshape(-1, 3)[0]
    ET.SubElement(root, "option", gravity=_text(gravity))
    ET.SubElement(root, "compiler", angle="radian", autolimits="true", inertiafromgeom="false")
    top = ET.SubElement(root, "worldbody")
    geoms = _shapes(model, world, top, -1)
    elements = {-1: top}
    parents, children = model.joint_parent.numpy(), model.joint_child.numpy()
    for j in world.joints:  # Newton's builder adds a parent before its children
        _check(model, j)
        parent, child = int(parents[j]), int(children[j])
        elements[child] = _body(model, j, child, elements[parent])
        geoms |= _shapes(model, world, elements[child], child)
    loose = [model.body_label[b] for b in world.bodies if b not in elements]
    if loose:
        raise NotImplementedError(f"flexor moves bodies by joints, and {', '.join(loose)} has none: add a free joint.")
    contact = ET.SubElement(root, "contact")
    friction = model.shape_material_mu.numpy() if model.shape_count else np.zeros(0)
    for a, b in _pairs(model):
        if a in geoms and b in geoms:
            mean = 0.5 * (friction[a] + friction[b])
            slide = f"{mean:.9g} {mean:.9g} 0.005 0.0001 0.0001"
            ET.SubElement(contact, "pair", geom1=geoms[a], geom2=geoms[b], friction=slide, condim="3")
    return ET.tostring(root, encoding="unicode")


def _check(model: newton.Model, j: int) -> None:
    kind = Kind(int(model.joint_type.numpy()[j]))
    label = model.joint_label[j]
    if kind != Kind.FIXED and kind not in JOINTS:
        raise NotImplementedError(f"flexor has no joint of the kind {kind.name}, which '{label}' is.")
    mimic = model.joint_mimic_joint
    if mimic is not None and mimic.numpy()[j] >= 0:
        raise NotImplementedError(f"the joint '{label}' follows another one; give the robot's own description as `robot=`.")


def _body(model: newton.Model, j: int, b: int, parent: ET.Element) -> ET.Element:
    """The body with its joint and inertia."""
    before, after = model.joint_X_p.numpy()[j], model.joint_X_c.numpy()[j]
    back = _inverse(after)
    kind = Kind(int(model.joint_type.numpy()[j]))
    first = int(model.joint_q_start.numpy()[j])
    free = model.joint_q.numpy()[first : first + 7]
    pos, quat = (free[:3], free[3:]) if kind == Kind.FREE else _compose(before, back)
    body = ET.SubElement(parent, "body", name=last_name(model.body_label[b]), pos=_text(pos), quat=_text(quat[[3, 0, 1, 2]]))
    if kind != Kind.FIXED:
        _joint(model, j, kind, after, body)
    inertia, mass = model.body_inertia.numpy()[b], model.body_mass.numpy()[b]
    six = inertia[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]
    ET.SubElement(body, "inertial", pos=_text(model.body_com.numpy()[b]), mass=f"{mass:.9g}", fullinertia=_text(six))
    return body


def _joint(model: newton.Model, j: int, kind: newton.JointType, after: np.ndarray, body: ET.Element) -> None:
    name, dof = last_name(model.joint_label[j]), int(model.joint_qd_start.numpy()[j])
    if kind == Kind.FREE:
        ET.SubElement(body, "freejoint", name=name)
        return
    numbers = {"armature": model.joint_armature, "damping": model.joint_damping, "frictionloss": model.joint_friction}
    given: dict[str, Any] = {key: f"{x.numpy()[dof]:.9g}" for key, x in numbers.items() if x is not None and x.numpy()[dof]}
    if kind != Kind.BALL:
        given["axis"] = _text(_turn(after[3:], model.joint_axis.numpy()[dof]))
        low, high = model.joint_limit_lower.numpy()[dof], model.joint_limit_upper.numpy()[dof]
        if low < high and max(-low, high) < UNLIMITED:
            given["range"] = _text([low, high])
    ET.SubElement(body, "joint", name=name, type=JOINTS[kind], pos=_text(after[:3]), **given)


def _shapes(model: newton.Model, world: World, body: ET.Element, b: int) -> dict[int, str]:
    """Adds the shapes of a body that touch others; their names by number."""
    if not model.shape_count:
        return {}
    bodies, flags, worlds = model.shape_body.numpy(), model.shape_flags.numpy(), model.shape_world.numpy()
    mine = [s for s in np.flatnonzero(bodies == b) if flags[s] & newton.ShapeFlags.COLLIDE_SHAPES and worlds[s] <= 0]
    names = {}
    for s in mine:
        kind = newton.GeoType(int(model.shape_type.numpy()[s]))
        pose, scale = model.shape_transform.numpy()[s], model.shape_scale.numpy()[s]
        names[int(s)] = f"shape{s}"
        given: dict[str, Any] = {"name": names[int(s)], "pos": _text(pose[:3]), "quat": _text(pose[[6, 3, 4, 5]])}
        given.update(contype="0", conaffinity="0", mass="0")
        if kind == newton.GeoType.PLANE:
            ET.SubElement(body, "geom", type="plane", size="1 1 1", **given)
        elif kind in SHAPES:
            shape, sizes = SHAPES[kind]
            ET.SubElement(body, "geom", type=shape, size=_text(scale[list(sizes)]), **given)
        else:
            raise NotImplementedError(
                f"the shape '{model.shape_label[s]}' is of the kind {kind.name}, which is not taken from Newton's model: "
                "give the robot's own description as `robot=`."
            )
    return names


def _pairs(model: newton.Model) -> np.ndarray:
    """Pairs of shapes that Newton looks at."""
    pairs = model.shape_contact_pairs
    return np.zeros((0, 2), int) if pairs is None else pairs.numpy().reshape(-1, 2)


def _compose(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return a[:3] + _turn(a[3:], b[:3]), _product(a[3:], b[3:])


def _inverse(a: np.ndarray) -> np.ndarray:
    back = a[3:] * np.array([-1, -1, -1, 1])
    return np.concatenate([-_turn(back, a[:3]), back])


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quaternions x y z w."""
    return np.concatenate([a[3] * b[:3] + b[3] * a[:3] + np.cross(a[:3], b[:3]), [a[3] * b[3] - a[:3] @ b[:3]]])


def _turn(quat: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A vector turned by a quaternion x y z w."""
    around: np.ndarray = 2 * np.cross(quat[:3], x)
    return x + quat[3] * around + np.cross(quat[:3], around)


def _text(numbers: Sequence[float] | np.ndarray) -> str:
    return " ".join(f"{float(x):.9g}" for x in numbers)
