"""Tendons of a model as MJCF elements."""

import xml.etree.ElementTree as ET

import numpy as np

from flexor.model.extension import number_text
from flexor.model.model import Model
from flexor.model.save_compliances import softness


def write_tendons(root: ET.Element, m: Model) -> None:
    """Adds the <tendon> group, if the model has tendons."""
    if not m.topology.tendons:
        return
    group = ET.SubElement(root, "tendon")
    for i, tendon in enumerate(m.topology.tendons):
        element = ET.SubElement(group, "fixed" if tendon.fixed else "spatial", {"name": tendon.name, **_attributes(m, i)})
        _path(element, m, i)


def _attributes(m: Model, i: int) -> dict[str, str]:
    table, tendon = m.tendons, m.topology.tendons[i]
    names = ("stiffness", "damping", "armature", "frictionloss")
    made = {k: number_text(getattr(table, k)[i]) for k in names if getattr(table, k)[i]}
    made["springlength"] = number_text(table.spring_range[i])
    made["limited"] = "true" if tendon.limited else "false"
    if tendon.limited:
        made["range"] = number_text(np.clip(table.range[i], -1e9, 1e9))
        made.update(softness(m, "tendon", i, "limit"))
    bounded = bool(np.isfinite(table.force_range[i]).all())
    made["actuatorfrclimited"] = "true" if bounded else "false"
    return {**made, "actuatorfrcrange": number_text(table.force_range[i])} if bounded else made


def _path(element: ET.Element, m: Model, i: int) -> None:
    t, numbers = m.topology, iter(m.tendons.coefficients[i])
    for w in t.tendons[i].path:
        if w.kind == "joint":
            ET.SubElement(element, "joint", joint=t.joints[w.index].name, coef=number_text(next(numbers)))
        elif w.kind == "pulley":
            ET.SubElement(element, "pulley", divisor=number_text(next(numbers)))
        elif w.kind == "site":
            ET.SubElement(element, "site", site=t.sites[w.index].name)
        else:
            side = {} if w.side is None else {"sidesite": t.sites[w.side].name}
            ET.SubElement(element, "geom", {"geom": t.geoms[w.index].name, **side})
