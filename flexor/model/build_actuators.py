"""Actuators of a description: which elements they push on, and the tables of their numbers."""

import numpy as np

from flexor.model.description import ActuatorSpec, Description
from flexor.model.topology import DYNAMICS, Actuator

MUSCLE_FIELDS = (
    "range",
    "length_range",
    "peak_force",
    "shortest",
    "longest",
    "max_velocity",
    "passive_force",
    "lengthening_force",
)


def actuator_topology(d: Description) -> tuple[Actuator, ...]:
    """The static part of all actuators; raises for targets that do not exist."""
    index = {
        "joint": {j.name: i for i, j in enumerate(d.joints)},
        "site": {s.name: i for i, s in enumerate(d.sites)},
        "tendon": {t.name: i for i, t in enumerate(d.tendons)},
        "body": {b.name: i for i, b in enumerate(d.bodies)},
    }

    def at(a: ActuatorSpec, kind: str, name: str | None) -> int | None:
        if name is not None and name not in index[kind]:
            d.fail(f"actuator '{a.name}' names the {kind} '{name}', which the robot does not have")
        return None if name is None else index[kind][name]

    return tuple(
        Actuator(
            name=a.name,
            joint=at(a, "joint", a.joint),
            samples=a.samples,
            in_parent=a.in_parent,
            tendon=at(a, "tendon", a.tendon),
            site=at(a, "site", a.site),
            reference=at(a, "site", a.reference),
            slider=at(a, "site", a.slider),
            dynamics=_dynamics(d, a),
            early=a.early,
            varying=a.varying or bool(np.any(a.gain_slope)),
            muscle=a.muscle is not None,
            circular=a.circular,
            body=at(a, "body", a.body),
        )
        for a in d.actuators
    )


def _dynamics(d: Description, a: ActuatorSpec) -> str:
    if a.dynamics not in DYNAMICS:
        d.fail(f"actuator '{a.name}' has the dynamics '{a.dynamics}'; flexor has {', '.join(DYNAMICS)}")
    return a.dynamics


def actuator_tables(d: Description) -> dict[str, dict[str, np.ndarray]]:
    """Rows of `Transmissions`, `Activations` and `Muscles`."""
    kind = {j.name: j.kind for j in d.joints}
    wide = [a for a in d.actuators if a.site or (a.joint and kind[a.joint] in ("ball", "free"))]
    active = [a for a in d.actuators if a.dynamics != "none"]
    muscles = [a.muscle for a in d.actuators if a.muscle is not None]

    def column(rows: list, field: str, *width: int) -> np.ndarray:
        return np.array([getattr(r, field) for r in rows], float).reshape(len(rows), *width)

    widths = {"range": (2,), "length_range": (2,)}
    return {
        "transmissions": {"direction": column(wide, "direction", 6), "crank_length": column(wide, "crank_length")},
        "activations": {
            **{f: column(active, f) for f in ("time_constant", "release_time", "smoothing")},
            "range": column(active, "act_range", 2),
        },
        "muscles": {
            f: np.array([m[f] for m in muscles], float).reshape(len(muscles), *widths.get(f, ())) for f in MUSCLE_FIELDS
        },
    }
