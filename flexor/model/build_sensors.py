"""Sensors of a description: what they are fixed to, and the frames that belong neither to a body nor to a site."""

import numpy as np

from flexor.model.description import Description, SensorFrameSpec
from flexor.model.topology import Sensor, SensorFrame


def sensor_topology(d: Description) -> tuple[Sensor, ...]:
    """The static part of all sensors."""
    bodies, own = {b.name: i for i, b in enumerate(d.bodies)}, _own_frames(d)
    sites = {s.name: i for i, s in enumerate(d.sites)}
    targets = {
        "joint": {j.name: i for i, j in enumerate(d.joints)},
        "ball": {j.name: i for i, j in enumerate(d.joints)},
        "tendon": {t.name: i for i, t in enumerate(d.tendons)},
        "actuator": {a.name: i for i, a in enumerate(d.actuators)},
    }

    def frame(f: SensorFrameSpec | None) -> SensorFrame | None:
        if f is None:
            return None
        index = {"body": -1, "site": sites.get(f.name, -1)}.get(f.kind)
        return SensorFrame(f.kind, f.name, bodies[f.body], own.index((f.kind, f.name)) if index is None else index)

    made = []
    for s in d.sensors:
        group = next((g for g in targets if s.kind.startswith(g)), None)
        index = -1 if s.target is None or group is None else targets[group][s.target]
        made.append(Sensor(s.name, s.kind, index, frame(s.frame), frame(s.reference), s.cutoff, s.zone))
    return tuple(made)


def _own_frames(d: Description) -> list[tuple[str, str]]:
    """Inertial frames and geoms that sensors are fixed to, each once."""
    frames = [f for s in d.sensors for f in (s.frame, s.reference) if f is not None and f.kind in ("inertial", "geom")]
    return list(dict.fromkeys((f.kind, f.name) for f in frames))


def sensor_table(d: Description) -> dict[str, np.ndarray]:
    """Rows of `SensorFrames`."""
    frames = {(f.kind, f.name): f for s in d.sensors for f in (s.frame, s.reference) if f is not None}
    rows = [frames[key] for key in _own_frames(d)]
    pos, quat = np.array([f.pos for f in rows], float), np.array([f.quat for f in rows], float)
    return {"pos": pos.reshape(-1, 3), "quat": quat.reshape(-1, 4)}
