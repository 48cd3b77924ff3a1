"""Sensors as MJCF elements, the inverse of `mjcf_sensors`."""

import xml.etree.ElementTree as ET
from typing import Any

from flexor.model.extension import number_text
from flexor.model.model import Model
from flexor.model.topology import Sensor, SensorFrame

_OBJECTS = {"body": "xbody", "inertial": "body", "site": "site", "geom": "geom"}
_IN_SITE = ("velocimeter", "gyro", "accelerometer", "force", "torque", "touch")


def add_sensors(root: ET.Element, m: Model) -> None:
    """The section `sensor`; nothing where there are none. Sensors that flexor does not have are left out."""
    if not m.topology.sensors:
        return
    group = ET.SubElement(root, "sensor")
    for sensor in m.topology.sensors:
        cutoff = {"cutoff": number_text(sensor.cutoff)} if sensor.cutoff else {}
        ET.SubElement(group, sensor.kind, {"name": sensor.name, **_target(m, sensor), **cutoff})


def _target(m: Model, sensor: Sensor) -> dict[str, str]:
    t = m.topology
    if sensor.frame is None:
        rows: dict[str, Any] = {"joint": t.joints, "ball": t.joints, "tendon": t.tendons, "actuator": t.actuators}
        group = next((g for g in rows if sensor.kind.startswith(g)), None)
        return {} if group is None else {group.replace("ball", "joint"): rows[group][sensor.index].name}
    if sensor.kind in _IN_SITE:
        return {"site": sensor.frame.name}
    if sensor.kind.startswith("subtree"):
        return {"body": sensor.frame.name}
    return {**_frame("obj", sensor.frame), **({} if sensor.reference is None else _frame("ref", sensor.reference))}


def _frame(prefix: str, frame: SensorFrame) -> dict[str, str]:
    return {f"{prefix}type": _OBJECTS[frame.kind], f"{prefix}name": frame.name}
