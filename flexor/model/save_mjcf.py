"""A model as MJCF text. Geoms have no collision bits; the pairs are listed one by one."""

import xml.etree.ElementTree as ET
from collections.abc import Mapping

import jax
import numpy as np

from flexor.model.extension import FLUID_PREFIX, PREFIX, number_text
from flexor.model.frames import quat_matrix
from flexor.model.model import Model
from flexor.model.save_actuators import add_actuators, limit
from flexor.model.save_compliances import softness
from flexor.model.save_sensors import add_sensors
from flexor.model.save_tendons import write_tendons
from flexor.model.topology import Geom


def mjcf_text(model: Model, keys: Mapping[str, np.ndarray]) -> str:
    """MJCF text of the model, with `keys` as the flexor extension."""
    m = jax.tree.map(lambda x: np.asarray(x, float), model)
    t = model.topology
    root = ET.Element("mujoco", model=t.name)
    compiler = {"angle": "radian", "inertiafromgeom": "false", "autolimits": "false", "balanceinertia": "false"}
    ET.SubElement(root, "compiler", compiler)
    ET.SubElement(root, "option", {"gravity": number_text(m.gravity), **_medium(m)})
    _meshes(root, m)
    elements = [ET.SubElement(root, "worldbody")]
    _geoms(elements[0], m, 0)
    _sites(elements[0], m, 0)
    for b in range(1, len(t.bodies)):
        pose = {"pos": number_text(m.bodies.pos[b]), "quat": number_text(m.bodies.quat[b])}
        moved = {"mocap": "true"} if b in t.mocap else {}
        weight = {"gravcomp": number_text(m.bodies.gravcomp[b])} if m.bodies.gravcomp[b] else {}
        elements.append(ET.SubElement(elements[t.parents[b]], "body", {"name": t.bodies[b], **pose, **moved, **weight}))
        _inertial(elements[b], m, b)
        _joints(elements[b], m, b)
        _geoms(elements[b], m, b)
        _fluid_shapes(elements[b], m, b)
        _sites(elements[b], m, b)
    _pairs(root, m)
    write_tendons(root, m)
    add_actuators(root, m)
    _equalities(root, m)
    add_sensors(root, m)
    if t.keyframes:
        group = ET.SubElement(root, "keyframe")
        for name, q in zip(t.keyframes, m.keyframes, strict=True):
            ET.SubElement(group, "key", name=name, qpos=number_text(q))
    if keys:
        group = ET.SubElement(root, "custom")
        for key, value in keys.items():
            ET.SubElement(group, "numeric", name=PREFIX + key, data=number_text(value))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _medium(m: Model) -> dict[str, str]:
    """Attributes of the fluid around the robot, if there is one."""
    return {f: number_text(getattr(m.media, f)[0]) for f in ("density", "viscosity", "wind") if m.topology.media}


def _fluid_shapes(body: ET.Element, m: Model, b: int) -> None:
    """Ellipsoids that stand for the fluid alone; the boxes of other bodies follow from their inertias."""
    table = m.fluid_shapes
    for i, shape in enumerate(m.topology.fluid_shapes):
        if shape.body == b and shape.ellipsoid:
            numbers = [table.blunt_drag, table.slender_drag, table.angular_drag, table.kutta_lift, table.magnus_lift]
            pose = {"pos": number_text(table.pos[i]), "quat": number_text(table.quat[i]), "size": number_text(table.size[i])}
            law = {"fluidshape": "ellipsoid", "fluidcoef": number_text([x[i] for x in numbers])}
            bits = {"type": "ellipsoid", "contype": "0", "conaffinity": "0"}
            ET.SubElement(body, "geom", {"name": FLUID_PREFIX + shape.name, **bits, **pose, **law})


def _meshes(root: ET.Element, m: Model) -> None:
    drawn = [g for g in m.topology.geoms if g.shape in ("mesh", "hfield")]
    if not drawn:
        return
    assets = ET.SubElement(root, "asset")
    for g in drawn:
        vertices = np.asarray(m.geoms.vertices[g.start : g.stop])
        if g.shape == "mesh":
            ET.SubElement(assets, "mesh", name=g.name, vertex=number_text(vertices))
        else:
            _height_field(assets, g, vertices, float(m.geoms.size[m.topology.geoms.index(g), 2]))


def _height_field(assets: ET.Element, g: Geom, vertices: np.ndarray, base: float) -> None:
    """MuJoCo reads rows from the top and makes the lowest height zero: the geom is lifted by it in turn (`_geoms`). The extension
    has the true numbers."""
    assert g.grid is not None
    x, y, z = vertices.max(axis=0) - vertices.min(axis=0)
    size = [x / 2, y / 2, z if z > 0 else 1.0, base + vertices[:, 2].min()]
    what = {"nrow": str(g.grid[0]), "ncol": str(g.grid[1]), "size": number_text(size)}
    heights = {"elevation": number_text(vertices[:, 2].reshape(g.grid)[::-1].ravel())} if z > 0 else {}
    ET.SubElement(assets, "hfield", {"name": g.name, **what, **heights})


def _inertial(body: ET.Element, m: Model, b: int) -> None:
    if m.bodies.mass[b] or np.any(m.bodies.inertia[b]):
        inertia = m.bodies.inertia[b]  # MuJoCo takes none at all of bodies that stand still, but not as six numbers
        how = {"fullinertia": number_text(inertia)} if np.any(inertia) else {"diaginertia": number_text(inertia[:3])}
        mass = {"mass": number_text(m.bodies.mass[b]), **how}
        ET.SubElement(body, "inertial", {"pos": number_text(m.bodies.com[b]), **mass})


def _joints(body: ET.Element, m: Model, b: int) -> None:
    t, table = m.topology, m.joints
    for j, joint in enumerate(t.joints):
        if joint.body != b:
            continue
        names = ("stiffness", "damping", "armature", "frictionloss")
        attributes = {k: number_text(getattr(table, k)[j]) for k in names if getattr(table, k)[j]}
        if joint.kind in ("hinge", "slide"):
            q = t.q_start[j]
            attributes.update(ref=number_text(m.reference[q]), springref=number_text(m.rest[q]))
            attributes.update(limit("actuatorfrclimited", "actuatorfrcrange", table.force_range[j]))
            attributes.update({"actuatorgravcomp": "true"} if joint.actuated_gravcomp else {})
        if joint.kind != "free":
            attributes["limited"] = "true" if joint.limited else "false"
            if joint.limited:
                attributes["range"] = number_text(np.clip(table.range[j], -1e9, 1e9))
                attributes.update(softness(m, "joint", j, "limit"))
            attributes["pos"] = number_text(table.pos[j])
            attributes["axis"] = number_text(table.axis[j])
        ET.SubElement(body, "joint", {"name": joint.name, "type": joint.kind, **attributes})


def _geoms(body: ET.Element, m: Model, b: int) -> None:
    for g, geom in enumerate(m.topology.geoms):
        if geom.body != b:
            continue
        size = np.asarray(m.geoms.size[g])
        if geom.shape == "plane":
            size = np.where([False, False, True], np.maximum(size, 0.1), size)  # MuJoCo wants a positive grid spacing
        what = {geom.shape: geom.name} if geom.shape in ("mesh", "hfield") else {"size": number_text(size)}
        pos = m.geoms.pos[g]
        if geom.shape == "hfield":
            pos = pos + quat_matrix(m.geoms.quat[g])[:, 2] * m.geoms.vertices[geom.start : geom.stop, 2].min()
        pose = {"pos": number_text(pos), "quat": number_text(m.geoms.quat[g])}
        bits = {"contype": "0", "conaffinity": "0"}
        belt = {"surfacevel": number_text(m.geoms.surface_velocity[g])} if geom.carries else {}
        ET.SubElement(body, "geom", {"name": geom.name, "type": geom.shape, **what, **pose, **bits, **belt})


def _sites(body: ET.Element, m: Model, b: int) -> None:
    for s, site in enumerate(m.topology.sites):
        if site.body == b:
            numbers = {key: number_text(getattr(m.sites, key)[s]) for key in ("pos", "quat", "size")}
            zone = [x.zone for x in m.topology.sensors if x.zone and x.frame is not None and x.frame.index == s]
            ET.SubElement(body, "site", {"name": site.name, "type": zone[0] if zone else "sphere", **numbers})


def _pairs(root: ET.Element, m: Model) -> None:
    if not m.topology.pairs:
        return
    group = ET.SubElement(root, "contact")
    for p, pair in enumerate(m.topology.pairs):
        a, b = (m.topology.geoms[i].name for i in (pair.a, pair.b))
        mu = float(m.pairs.friction[p])
        torsion, rolling = (float(x[p]) for x in (m.pairs.torsion, m.pairs.rolling))
        friction = number_text([mu, mu, torsion, rolling, rolling])
        margin = {"margin": number_text(m.pairs.margin[p])} if m.pairs.margin[p] else {}
        if m.topology.sticky:
            margin |= {"adhesion": number_text(m.pairs.adhesion[p]), "gap": number_text(m.pairs.gap[p])}
        what = {"condim": str(pair.condim), "friction": friction, **margin, **softness(m, "pair", p)}
        ET.SubElement(group, "pair", {"geom1": a, "geom2": b, **what})


def _equalities(root: ET.Element, m: Model) -> None:
    t = m.topology
    if not t.equalities and not t.loops:
        return
    group = ET.SubElement(root, "equality")
    for i, (e, polynomial) in enumerate(zip(t.equalities, m.equalities.coefficients, strict=True)):
        rows = t.joints if e.kind == "joint" else t.tendons
        other = {} if e.second is None else {f"{e.kind}2": rows[e.second].name}
        first = {"name": e.name, f"{e.kind}1": rows[e.first].name}
        law = {"polycoef": number_text(polynomial), **softness(m, "equality", i)}
        ET.SubElement(group, e.kind, {**first, **other, **law})
    for i, loop in enumerate(t.loops):
        ends = {"name": loop.name, "body1": t.bodies[loop.first], "body2": t.bodies[loop.second]} | softness(m, "loop", i)
        if not loop.weld:
            ET.SubElement(group, "connect", {**ends, "anchor": number_text(m.loops.anchor_a[i])})
            continue
        pose = np.concatenate([m.loops.anchor_a[i], m.loops.quat[i]])
        numbers = {"anchor": number_text(m.loops.anchor_b[i]), "torquescale": number_text(m.loops.torquescale[i])}
        ET.SubElement(group, "weld", {**ends, "relpose": number_text(pose), **numbers})
