"""Reads URDF, as it is found in the wild, into a `Description`.

The root link is a body welded to the world, unless it is called "world": then it is the world. Body frames are the link
frames. Every joint that moves gets a motor of its name whose input, a force or torque, is bounded by the joint's effort.
A planar joint is two slides and a hinge with MuJoCo's names, `_TX`, `_TY` and `_RZ` behind its own; a floating joint is a free
joint, and on a link that moves itself three slides and a ball, `_TX`, `_TY`, `_TZ` and `_R`. The spherical joints of PyBullet
are ball joints, without limits. Velocity limits, safety
controllers, sensors, visuals and the elements of other programs are not read, nor are transmissions, which give a warning. A
mimic joint has no motor; an equality of its own name ties it to the joint that it mimics (see `Equalities`). Without
`self_collision`, collision shapes touch only the ground, since URDF has no way to say which links may touch; with
it, links that are not neighbours do.
"""

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from flexor.model.description import (
    UNLIMITED,
    WORLD,
    ActuatorSpec,
    BodySpec,
    Description,
    EqualitySpec,
    GeomSpec,
    JointSpec,
    static_bodies,
    unique,
)
from flexor.model.extension import read_urdf_extension
from flexor.model.frames import IDENTITY, matrix_six, quat_matrix, quat_product, rpy_quat, six_matrix
from flexor.model.inertia_checks import warn_doubtful_inertia
from flexor.model.meshes import find_mesh, read_vertices

FindMesh = Callable[[str], tuple[Path | None, list[str]]]
KINDS = {
    "revolute": "hinge",
    "continuous": "hinge",
    "prismatic": "slide",
    "floating": "free",
    "planar": "planar",
    "spherical": "ball",
    "fixed": None,
}


def read_urdf(
    text: str,
    *,
    source: str,
    folder: Path | None = None,
    ignore: frozenset[str] = frozenset(),
    package_dirs: Sequence[str | os.PathLike] = (),
    mesh_vertices: int = 32,
    self_collision: bool = False,
    skip_missing: bool = False,
) -> Description:
    """The description of a URDF text; `source` names it in errors, `folder` is where its relative meshes are. Shapes whose
    meshes are not found are left out with one warning where `skip_missing`."""
    d = Description("", source, ignore=ignore, mesh_vertices=mesh_vertices, allow_massless=True)
    robot = _parse(text, d)
    d.name = robot.get("name") or Path(source).stem
    links, joints = _tables(robot, d)
    order = _depth_first(links, joints, d)
    d.bodies = [BodySpec(WORLD, "")] + [_body(links[n], joints.get(n), d) for n in order if n != WORLD]
    _add_joints(d, [joints[n] for n in order if n in joints])
    _sort_bodies(d)
    extension = robot.find("flexor")
    if extension is not None:
        read_urdf_extension(extension, d)
    else:
        _warn_transmissions(robot, d)
        meshes = _Meshes(partial(find_mesh, base=folder, package_dirs=package_dirs), skip_missing)
        named = [links[b.name] for b in d.bodies if b.name in links]
        d.geoms = [g for link in named for g in _geoms(link, d, meshes, self_collision)]
        meshes.warn(d)
        _unique_geoms(d)
        _exclude_neighbours_of_base(d)
    warn_doubtful_inertia(d)
    return d


def first_element(text: str) -> str:
    """Name of the first element of an XML text; empty where there is none."""
    rest = text
    while True:
        rest = rest[rest.find("<") :]
        if rest.startswith("<!--"):
            rest = rest[rest.find("-->") + 3 :]
        elif rest.startswith(("<?", "<!")):
            rest = rest[rest.find(">") + 1 :]
        else:
            found = re.match(r"<\s*([\w:.-]+)", rest)
            return found[1] if found else ""


def is_urdf(text: str) -> bool:
    """Whether an XML text is a URDF: its first element is <robot>."""
    return first_element(text) == "robot"


def _parse(text: str, d: Description) -> ET.Element:
    xacro = "this is a xacro file; expand it to a URDF first (`xacro file.xacro > file.urdf`, of the ROS package xacro)"
    try:
        robot = ET.fromstring(text.lstrip().encode())
    except ET.ParseError as error:
        d.fail(xacro if "<xacro:" in text else f"the XML is broken: {error}")
    if robot.tag != "robot":
        d.fail(f"a URDF starts with <robot>, this with <{robot.tag}>")
    if any("ros.org/wiki/xacro}" in e.tag or e.tag.startswith("xacro:") for e in robot.iter()):
        d.fail(xacro)
    return robot


def _warn_transmissions(robot: ET.Element, d: Description) -> None:
    """Says that motors act at the joints, whatever reductions the file's transmissions have."""
    names = [t.get("name", "") for t in robot.findall("transmission")]
    if names:
        count = f"transmission '{names[0]}' is" if len(names) == 1 else f"{len(names)} transmissions are"
        d.warn(f"{count} not read; each motor acts on its joint directly, without a reduction")


def _tables(robot: ET.Element, d: Description) -> tuple[dict[str, ET.Element], dict[str, ET.Element]]:
    """Links by name, and the joint above each link by the link's name; raises for what is missing or doubled."""
    links: dict[str, ET.Element] = {}
    joints: dict[str, ET.Element] = {}
    joint_names: set[str] = set()
    for link in robot.findall("link"):
        name = link.get("name") or d.fail("a <link> has no name")
        if name in links:
            d.fail(f"two links are named '{name}'")
        links[name] = link
    for joint in robot.findall("joint"):
        name = joint.get("name") or d.fail("a <joint> has no name")
        if name in joint_names:
            d.fail(f"two joints are named '{name}'")
        joint_names.add(name)
        if joint.get("type") not in KINDS:
            supported = "fixed, revolute, continuous, prismatic, spherical, planar and floating"
            d.fail(f"joint '{name}' is of type '{joint.get('type')}'; flexor supports {supported}")
        for end in ("parent", "child"):
            if _end(joint, end) not in links:
                d.fail(f"the {end} of joint '{name}' is link '{_end(joint, end)}', which does not exist")
        child = _end(joint, "child")
        if child in joints:
            d.fail(f"link '{child}' is the child of two joints, '{joints[child].get('name')}' and '{name}'")
        joints[child] = joint
    return links, joints


def _end(joint: ET.Element, end: str) -> str:
    """Name of the "parent" or "child" link of a joint; empty where the file names none."""
    element = joint.find(end)
    return "" if element is None else element.get("link", "")


def _depth_first(links: dict[str, ET.Element], joints: dict[str, ET.Element], d: Description) -> list[str]:
    """Names of the links, each after its parent, in the order in which the joints stand in the file."""
    roots = [n for n in links if n not in joints]
    if not links:
        d.fail("there is no <link>")
    if len(roots) > 1:
        d.fail(f"there are several root links, {', '.join(map(repr, roots))}; connect them by joints")
    if not roots:
        d.fail(f"the joints form a cycle, so that no link is the root; one link on it is '{next(iter(links))}'")
    children: dict[str, list[str]] = {n: [] for n in links}
    for child, joint in joints.items():
        children[_end(joint, "parent")].append(child)
    order, stack = [], [roots[0]]
    while stack:
        order.append(stack.pop())
        stack.extend(reversed(children[order[-1]]))
    if len(order) < len(links):
        lost = next(n for n in links if n not in order)
        d.fail(f"the joints form a cycle: link '{lost}' is not connected to the root '{roots[0]}'")
    if WORLD in links and roots[0] != WORLD:
        d.fail("a link that is not the root is named 'world'; rename it")
    return order


def _numbers(element: ET.Element | None, key: str, default: Sequence[float], d: Description, where: str) -> np.ndarray:
    """The numbers in an attribute, as many as in `default`; raises naming `where` if they are not."""
    text = None if element is None else element.get(key)
    if text is None:
        return np.array(default, float)
    try:
        numbers = np.array([float(x) for x in text.split()])
    except ValueError:
        numbers = np.array([np.nan])
    if len(numbers) != len(default) or not np.isfinite(numbers).all():
        d.fail(f"{where}: attribute {key}='{text}' should be {len(default)} finite number{'s' * (len(default) > 1)}")
    return numbers


def _origin(element: ET.Element | None, d: Description, where: str) -> tuple[np.ndarray, np.ndarray]:
    origin = None if element is None else element.find("origin")
    zero = (0.0, 0.0, 0.0)
    return _numbers(origin, "xyz", zero, d, where), rpy_quat(_numbers(origin, "rpy", zero, d, where))


def _body(link: ET.Element, joint: ET.Element | None, d: Description) -> BodySpec:
    name = link.get("name", "")
    where = f"link '{name}'"
    parent = WORLD if joint is None else _end(joint, "parent")
    pos, quat = _origin(joint, d, where if joint is None else f"joint '{joint.get('name')}'")
    body = BodySpec(name, parent, pos, quat)
    inertial = link.find("inertial")
    if inertial is None:
        return body
    if inertial.find("mass") is None:
        d.warn(f"{where} has an <inertial> without a <mass>; it is opened without mass and inertia")
        return body
    body.mass = float(_numbers(inertial.find("mass"), "value", (0.0,), d, where)[0])
    body.com, rotation = _origin(inertial, d, where)
    entries = [
        _numbers(inertial.find("inertia"), k, (0.0,), d, where)[0] for k in ("ixx", "iyy", "izz", "ixy", "ixz", "iyz")
    ]
    R = quat_matrix(rotation)
    turned = inertial.find("origin") is not None and np.any(rotation[1:])
    body.inertia = matrix_six(R @ six_matrix(entries) @ R.T) if turned else np.array(entries)
    return body


def _add_joints(d: Description, elements: list[ET.Element]) -> None:
    """The moving joints, a motor for each but floating, spherical and mimic joints, and the couplings of the latter."""
    kinds = {e.get("name", ""): KINDS[e.get("type", "")] for e in elements}
    for joint in elements:
        kind, name = KINDS[joint.get("type", "")], joint.get("name", "")
        if kind is None:
            continue
        body, where = _end(joint, "child"), f"joint '{name}'"
        if kind == "free":
            _add_floating_joint(d, name, body)
            continue
        dynamics = joint.find("dynamics")
        losses = {"damping": _positive(dynamics, "damping", d, where), "friction": _positive(dynamics, "friction", d, where)}
        if kind == "ball":
            d.joints.append(_ball(name, body, losses["damping"], losses["friction"]))
            continue
        axis = _numbers(joint.find("axis"), "xyz", (1.0, 0.0, 0.0), d, where)
        if not np.linalg.norm(axis) > 0:
            d.fail(f"the axis of {where} is zero")
        axis = axis / np.linalg.norm(axis)
        parts = planar_parts(name, axis) if kind == "planar" else [(name, kind, axis)]
        for part, its_kind, along in parts:
            spec = _one_coordinate(part, its_kind, body, along, losses["damping"], losses["friction"])
            spec.range = None if kind == "planar" else _range(joint, d)
            d.joints.append(spec)
        coupling = _mimic(joint, kinds, d)
        if coupling is not None:
            d.equalities.append(coupling)
            continue
        effort = _positive(joint.find("limit"), "effort", d, where)
        reach = (-effort, effort) if effort > 0 else UNLIMITED
        d.actuators += [ActuatorSpec(part, part, ctrl_range=reach) for part, _, _ in parts]


def _one_coordinate(name: str, kind: str, body: str, axis: np.ndarray, damping: float = 0, friction: float = 0) -> JointSpec:
    zero = np.zeros(1)
    return JointSpec(name, kind, body, reference=zero, rest=zero, axis=axis, damping=damping, frictionloss=friction)


def _ball(name: str, body: str, damping: float = 0, friction: float = 0) -> JointSpec:
    unturned = np.array(IDENTITY)
    return JointSpec(name, "ball", body, reference=unturned, rest=unturned, damping=damping, frictionloss=friction)


def planar_parts(name: str, normal: np.ndarray) -> list[tuple[str, str, np.ndarray]]:
    """Names, kinds and axes of the two slides in the plane and of the hinge about its normal.

    The slides are the x and y axes after the smallest turn that takes z to the normal, as in MuJoCo.
    """
    half = np.array([1 + normal[2], -normal[1], normal[0], 0.0])  # 2 cos(a/2) (cos(a/2), sin(a/2) axis)
    R = quat_matrix(half) if np.any(half) else np.diag([1.0, -1.0, -1.0])
    return [(f"{name}_TX", "slide", R[:, 0]), (f"{name}_TY", "slide", R[:, 1]), (f"{name}_RZ", "hinge", normal)]


def floating_parts(name: str) -> list[tuple[str, str, np.ndarray]]:
    """Names, kinds and axes of the three slides and the ball of a floating joint on a link that moves; a ball has no axis."""
    return [*((f"{name}_T{'XYZ'[i]}", "slide", np.eye(3)[i]) for i in range(3)), (f"{name}_R", "ball", np.eye(3)[2])]


def _mimic(joint: ET.Element, kinds: dict[str, str | None], d: Description) -> EqualitySpec | None:
    """q = offset + multiplier q_other of a mimic joint, q_other = 0 where that is fixed; None where it has no such element, where
    that is ignored, and, with a warning, where it names a joint that does not exist, as files in the wild do."""
    mimic, name = joint.find("mimic"), joint.get("name", "")
    if mimic is None or "equality" in d.ignore:
        return None
    other, where = mimic.get("joint", ""), f"joint '{name}'"
    if other not in kinds:
        d.warn(f"{where} mimics joint '{other}', which does not exist; it is opened as a joint of its own")
        return None
    tied = kinds[name], kinds[other]
    if not set(tied) <= {"hinge", "slide", None}:
        d.fail(f"{where} mimics joint '{other}', but only revolute and prismatic joints can be tied to each other")
    multiplier = _numbers(mimic, "multiplier", (1.0,), d, where)[0]
    offset = _numbers(mimic, "offset", (0.0,), d, where)[0]
    if kinds[other] is None:
        return EqualitySpec(name, name, None, (offset, 0.0, 0.0, 0.0, 0.0))
    return EqualitySpec(name, name, other, (offset, multiplier, 0.0, 0.0, 0.0))


def _positive(element: ET.Element | None, key: str, d: Description, where: str) -> float:
    value = float(_numbers(element, key, (0.0,), d, where)[0])
    if value < 0:
        d.fail(f"{where} has a negative {key}, {value}")
    return value


def _range(joint: ET.Element, d: Description) -> tuple[float, float] | None:
    """Limits of a revolute or prismatic joint in rad or m; None where the file gives none, both zero, or nonsense."""
    limit, name = joint.find("limit"), joint.get("name")
    if joint.get("type") == "continuous":
        return None
    if limit is None:
        d.warn(f"joint '{name}' has no <limit>; it is opened without limits")
        return None
    lower, upper = (float(_numbers(limit, k, (0.0,), d, f"joint '{name}'")[0]) for k in ("lower", "upper"))
    if lower < upper:
        return lower, upper
    if lower > upper:
        d.warn(f"joint '{name}' has a lower limit {lower} above its upper limit {upper}; it is opened without limits")
    elif lower != 0:
        d.warn(f"joint '{name}' has lower limit = upper limit = {lower}; it is opened without limits")
    return None


def _add_floating_joint(d: Description, name: str, body: str) -> None:
    """A free joint where the parent stands still: the link then floats on the world; else three slides and a ball."""
    spec = next(b for b in d.bodies if b.name == body)
    if spec.parent not in static_bodies(d):
        *slides, (turn, _, _) = floating_parts(name)
        d.joints += [_one_coordinate(part, kind, body, axis) for part, kind, axis in slides]
        d.joints.append(_ball(turn, body))
        return
    by_name = {b.name: b for b in d.bodies}
    while spec.parent != WORLD:
        parent = by_name[spec.parent]
        spec.pos = np.asarray(parent.pos, float) + quat_matrix(parent.quat) @ np.asarray(spec.pos, float)
        spec.quat = quat_product(parent.quat, spec.quat)
        spec.parent = parent.parent
    pose = np.concatenate([spec.pos, spec.quat])
    d.joints.append(JointSpec(name, "free", body, pose, pose))


def _sort_bodies(d: Description) -> None:
    """Depth first again, with the joints in the order of their bodies: links that float have left their parents."""
    children: dict[str, list[BodySpec]] = {b.name: [] for b in d.bodies}
    for b in d.bodies[1:]:
        children[b.parent].append(b)
    order, stack = [], [d.bodies[0]]
    while stack:
        order.append(stack.pop())
        stack.extend(reversed(children[order[-1].name]))
    d.bodies = order
    place = {b.name: i for i, b in enumerate(order)}
    d.joints.sort(key=lambda j: place[j.body])


class _Meshes:
    """Finds the meshes of a file; remembers which it did not find where those are skipped."""

    def __init__(self, find: FindMesh, skip: bool):
        self.find, self.skip, self.missing = find, skip, list[str]()

    def __call__(self, uri: str, link: str, d: Description) -> Path | None:
        path, places = self.find(uri)
        if path is None and not self.skip:
            shown = ", ".join(places[:6]) + (", …" if len(places) > 6 else "")
            d.fail(
                f"the mesh '{uri}' of link '{link}' was not found; looked at {shown}. Pass package_dirs=[…] or set "
                'ROS_PACKAGE_PATH to the folder that contains the package, or missing="skip" to do without such shapes'
            )
        if path is None:
            self.missing.append(f"'{uri}' of link '{link}'")
        return path

    def warn(self, d: Description) -> None:
        """One warning that lists the meshes that were skipped."""
        if self.missing:
            one = len(self.missing) == 1
            lost = (
                "1 shape is left out, since its mesh was"
                if one
                else f"{len(self.missing)} shapes are left out, since their meshes were"
            )
            d.warn(f"{lost} not found: {', '.join(self.missing)}")


def _geoms(link: ET.Element, d: Description, meshes: _Meshes, self_collision: bool) -> list[GeomSpec]:
    """Collision shapes of a link, at the poses that the file gives."""
    body = link.get("name", "")
    found = []
    for i, collision in enumerate(link.findall("collision")):
        name = collision.get("name") or f"{body}_geom{i}"
        geometry = collision.find("geometry")
        shape = next((e for e in geometry if e.tag in _SHAPES), None) if geometry is not None else None
        if shape is None:
            d.fail(f"collision shape '{name}' of link '{body}' is none of {', '.join(_SHAPES)}")
        pos, quat = _origin(collision, d, f"link '{body}'")
        spec = GeomSpec(name, shape.tag, body, pos, quat, conaffinity=int(self_collision))
        if shape.tag != "mesh":
            spec.size = _size(shape, d, f"collision shape '{name}' of link '{body}'")
            found.append(spec)
            continue
        uri = shape.get("filename") or d.fail(f"a <mesh> of link '{body}' has no filename")
        scale = _numbers(shape, "scale", (1.0, 1.0, 1.0), d, f"link '{body}'")
        path = meshes(uri, body, d)
        if path is not None:
            spec.vertices = partial(_read_mesh, path, scale, d, body)
            found.append(spec)
    return found


_SHAPES = ("sphere", "box", "cylinder", "capsule", "mesh")


def _size(shape: ET.Element, d: Description, where: str) -> np.ndarray:
    """MuJoCo's size numbers: half edges of a box, radius and half length of a cylinder or capsule, radius of a sphere."""
    if shape.tag == "box":
        size = _numbers(shape, "size", (0.0, 0.0, 0.0), d, where) / 2
        used = size
    else:
        length = _numbers(shape, "length", (0.0,), d, where)[0] / 2
        size = np.array([_numbers(shape, "radius", (0.0,), d, where)[0], length if shape.tag != "sphere" else 0.0, 0.0])
        used = size[:1] if shape.tag == "sphere" else size[:2]
    if not (used > 0).all():
        d.fail(f"{where} has a size that is not positive")
    return size


def _read_mesh(path: Path, scale: np.ndarray, d: Description, link: str) -> np.ndarray:
    try:
        return read_vertices(path, scale)
    except Exception as error:  # mesh readers raise anything
        return d.fail(f"the mesh '{path}' of link '{link}' cannot be read: {error}")


def _unique_geoms(d: Description) -> None:
    taken: set[str] = set()
    for g in d.geoms:
        g.name = unique(g.name, taken)
        taken.add(g.name)


def _exclude_neighbours_of_base(d: Description) -> None:
    """Excludes pairs of a static link and the moving links attached to it: MuJoCo's parent filter spares static bodies."""
    static, moving = static_bodies(d), {j.body for j in d.joints}
    weld: dict[str, str] = {}
    for b in d.bodies:
        weld[b.name] = b.name if b.name in moving or b.name in static else weld[b.parent]
    first = {b.name for b in d.bodies[1:] if b.name in moving and b.parent in static}
    near = [b.name for b in d.bodies if weld[b.name] in first]
    d.exclusions = [(s, n) for s in static - {WORLD} for n in near]
