"""Reads the sensors of an `MjModel`. A sensor changes no motion, so an unsupported one does not prevent loading: it is
stored with the reason, and refused by name when it is recorded."""

import mujoco
import numpy as np

from flexor.model.description import Description, SensorFrameSpec, SensorSpec
from flexor.model.mjcf_refusals import Names

OBJECT = mujoco.mjtObj
_ON_JOINT = {"JOINTPOS": "jointpos", "JOINTVEL": "jointvel", "JOINTACTFRC": "jointactuatorfrc",
             "BALLQUAT": "ballquat", "BALLANGVEL": "ballangvel"}  # fmt: skip
_ON_TENDON = {"TENDONPOS": "tendonpos", "TENDONVEL": "tendonvel", "TENDONACTFRC": "tendonactuatorfrc"}
_ON_ACTUATOR = {"ACTUATORPOS": "actuatorpos", "ACTUATORVEL": "actuatorvel", "ACTUATORFRC": "actuatorfrc"}
_ON_FRAME = (
    *("framepos", "framequat", "framexaxis", "frameyaxis", "framezaxis", "framelinvel", "frameangvel", "framelinacc"),
    *("frameangacc", "velocimeter", "gyro", "accelerometer", "subtreecom", "subtreelinvel", "subtreeangmom"),
    *("force", "torque", "touch"),
)
ZONES = {2: "sphere", 3: "capsule", 4: "ellipsoid", 5: "cylinder", 6: "box"}


def read_sensors(m: mujoco.MjModel, d: Description, names: Names) -> None:
    """All sensors: those that flexor has, and the reasons why it does not have the others."""
    for i, name in enumerate(names["sensor"]):
        kind = mujoco.mjtSensor(int(m.sensor_type[i])).name.removeprefix("mjSENS_")
        found = _sensor(m, i, name, kind, names, d)
        if isinstance(found, str):
            d.refused_sensors.append((name, found))
        else:
            d.sensors.append(found)


def _sensor(m: mujoco.MjModel, i: int, name: str, kind: str, names: Names, d: Description) -> SensorSpec | str:
    """A sensor, or the reason why flexor does not have it."""
    if m.sensor_delay[i] or np.any(m.sensor_interval[i]):
        return "has a delay or a rate of its own, and flexor's sensors have none"
    target, cutoff = int(m.sensor_objid[i]), float(m.sensor_cutoff[i])
    if int(m.sensor_datatype[i]) in (int(mujoco.mjtDataType.mjDATATYPE_AXIS), int(mujoco.mjtDataType.mjDATATYPE_QUATERNION)):
        cutoff = 0.0
    if kind in _ON_JOINT:
        return SensorSpec(name, _ON_JOINT[kind], target=names["joint"][target], cutoff=cutoff)
    if kind in _ON_TENDON:
        is_read = names["tendon"][target] in [t.name for t in d.tendons]
        return (
            SensorSpec(name, _ON_TENDON[kind], target=names["tendon"][target], cutoff=cutoff)
            if is_read
            else "is on a tendon that was left out"
        )
    if kind in _ON_ACTUATOR:
        is_read = names["actuator"][target] in [a.name for a in d.actuators]
        spec = SensorSpec(name, _ON_ACTUATOR[kind], target=names["actuator"][target], cutoff=cutoff)
        return spec if is_read else "is on an actuator that was left out"
    if kind == "CLOCK":
        return SensorSpec(name, "clock", cutoff=cutoff)
    if kind.lower() not in _ON_FRAME:
        return f"measures {kind.lower()}, which flexor does not support"
    frame = _frame(m, int(m.sensor_objtype[i]), target, names)
    reference = _frame(m, int(m.sensor_reftype[i]), int(m.sensor_refid[i]), names) if m.sensor_refid[i] >= 0 else None
    for part in (frame, reference):
        if isinstance(part, str):
            return part
    assert not isinstance(frame, str)
    assert not isinstance(reference, str)
    if kind in ("FORCE", "TORQUE") and (loop := _open_loop(d, frame.body)) is not None:
        return f"measures between bodies that loop '{loop}' joins a second time, whose force flexor does not report"
    zone = ZONES.get(int(m.site_type[target]), "") if kind == "TOUCH" else ""
    if kind == "TOUCH" and not zone:
        return "has a zone of a shape that flexor's touch sensors do not have"
    return SensorSpec(name, kind.lower(), frame=frame, reference=reference, cutoff=cutoff, zone=zone)


def _open_loop(d: Description, body: str) -> str | None:
    """A loop that joins the subtree of a body to the rest of the robot; None if there is none."""
    inside = {body}
    for b in d.bodies:
        if b.parent in inside:
            inside.add(b.name)
    return next((x.name for x in d.loops if (x.first in inside) != (x.second in inside)), None)


def _frame(m: mujoco.MjModel, kind: int, target: int, names: Names) -> SensorFrameSpec | str:
    """What a sensor is fixed to: a body's frame, its inertial frame, a site or a shape."""
    if kind == int(OBJECT.mjOBJ_XBODY):
        return SensorFrameSpec("body", names["body"][target], names["body"][target])
    if kind == int(OBJECT.mjOBJ_BODY):
        body = names["body"][target]
        return SensorFrameSpec("inertial", body, body, m.body_ipos[target].copy(), m.body_iquat[target].copy())
    if kind == int(OBJECT.mjOBJ_SITE):
        return SensorFrameSpec("site", names["site"][target], names["body"][m.site_bodyid[target]])
    if kind == int(OBJECT.mjOBJ_GEOM):
        body = names["body"][m.geom_bodyid[target]]
        return SensorFrameSpec("geom", names["geom"][target], body, m.geom_pos[target].copy(), m.geom_quat[target].copy())
    return (
        f"is fixed to a {mujoco.mjtObj(kind).name.removeprefix('mjOBJ_').lower()}; flexor's are on bodies, sites and geoms"
    )
