"""Actuators as MJCF elements `general`, the inverse of `mjcf_actuators`."""

import xml.etree.ElementTree as ET

import numpy as np
from numpy.typing import ArrayLike

from flexor.model.extension import number_text
from flexor.model.model import Model
from flexor.model.topology import Actuator

UNUSED_SCALE = 200.0  # of a muscle whose force is given


def limit(limited: str, name: str, bounds: ArrayLike) -> dict[str, str]:
    """The two attributes of a bound; no bound where an end is infinite."""
    finite = bool(np.isfinite(bounds).all())
    return {limited: "true" if finite else "false", **({name: number_text(bounds)} if finite else {})}


def add_actuators(root: ET.Element, m: Model) -> None:
    """The section `actuator` of a model in NumPy's arrays; nothing where there are none."""
    t, table = m.topology, m.actuators
    if not t.actuators:
        return
    group = ET.SubElement(root, "actuator")
    for a, actuator in enumerate(t.actuators):
        bounds = {
            **limit("ctrllimited", "ctrlrange", table.ctrl_range[a]),
            **limit("forcelimited", "forcerange", table.force_range[a]),
        }
        law = _muscle(m, actuator) if actuator.muscle else _affine(m, a, actuator)
        if actuator.samples:
            law.update(delay=number_text(table.delay[a]), nsample=str(actuator.samples), interp="linear")
        place = {"name": actuator.name, **_transmission(m, a, actuator)}
        ET.SubElement(group, "general", {**place, **law, **_activation(m, actuator), **bounds})


def _affine(m: Model, a: int, actuator: Actuator) -> dict[str, str]:
    gain = number_text([m.actuators.gain[a], *m.actuators.gain_slope[a]] if actuator.varying else m.actuators.gain[a])
    kind = "affine" if actuator.varying else "fixed"
    return {"gaintype": kind, "gainprm": gain, "biastype": "affine", "biasprm": number_text(m.actuators.bias[a])}


def _muscle(m: Model, actuator: Actuator) -> dict[str, str]:
    i, table = [x.name for x in m.topology.muscles].index(actuator.name), m.muscles
    forces = [table.peak_force[i], UNUSED_SCALE, table.shortest[i], table.longest[i], table.max_velocity[i]]
    numbers = number_text([*table.range[i], *forces, table.passive_force[i], table.lengthening_force[i]])
    law = {"gaintype": "muscle", "biastype": "muscle", "gainprm": numbers, "biasprm": numbers}
    return {**law, "lengthrange": number_text(table.length_range[i])}


def _transmission(m: Model, a: int, actuator: Actuator) -> dict[str, str]:
    t, gear = m.topology, m.actuators.gear[a]
    if actuator.tendon is not None:
        return {"tendon": t.tendons[actuator.tendon].name, "gear": number_text(gear)}
    if actuator.body is not None:
        return {"body": t.bodies[actuator.body]}
    if not t.is_wide(actuator):
        assert actuator.joint is not None
        return {"joint": t.joints[actuator.joint].name, "gear": number_text(gear)}
    i = [x.name for x in t.transmissions].index(actuator.name)
    wide = number_text(gear * m.transmissions.direction[i])
    if actuator.joint is not None:
        return {"jointinparent" if actuator.in_parent else "joint": t.joints[actuator.joint].name, "gear": wide}
    assert actuator.site is not None
    name = t.sites[actuator.site].name
    if actuator.slider is not None:
        ends = {"cranksite": name, "slidersite": t.sites[actuator.slider].name}
        return {**ends, "cranklength": number_text(m.transmissions.crank_length[i]), "gear": number_text(gear)}
    other = {} if actuator.reference is None else {"refsite": t.sites[actuator.reference].name}
    return {"site": name, **other, "gear": wide}


def _activation(m: Model, actuator: Actuator) -> dict[str, str]:
    if actuator.dynamics == "none":
        return {}
    i, table = [x.name for x in m.topology.activations].index(actuator.name), m.activations
    numbers = number_text([table.time_constant[i], table.release_time[i], table.smoothing[i]])
    early = {"actearly": "true"} if actuator.early else {}
    return {"dyntype": actuator.dynamics, "dynprm": numbers, **early, **limit("actlimited", "actrange", table.range[i])}
