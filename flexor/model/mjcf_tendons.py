"""Reads the tendons of an `MjModel`."""

import mujoco
import numpy as np

from flexor.model.description import UNLIMITED, Description, TendonSpec, WrapSpec
from flexor.model.mjcf_actuators import reflected
from flexor.model.mjcf_refusals import Names, disabled
from flexor.model.softness import compliance

WRAP_KINDS = {1: "joint", 2: "pulley", 3: "site", 4: "sphere", 5: "cylinder"}


def read_tendons(m: mujoco.MjModel, d: Description, names: Names) -> list[TendonSpec]:
    """All tendons, or none where they are ignored."""
    return [] if "tendon" in d.ignore else [_tendon(m, i, d, names) for i in range(m.ntendon)]


def _tendon(m: mujoco.MjModel, i: int, d: Description, names: Names) -> TendonSpec:
    name = names["tendon"][i]
    spring, damper = disabled(m, "SPRING"), disabled(m, "DAMPER")
    if (np.any(m.tendon_stiffnesspoly[i]) and not spring) or (np.any(m.tendon_dampingpoly[i]) and not damper):
        d.refuse("polynomial", f"tendon '{name}' has a non-linear spring or damper")
    if m.tendon_springyield[i]:
        d.refuse("springyield", f"tendon '{name}' has a spring that yields")
    added, rotor = reflected(m, i, d, tendon=True)
    return TendonSpec(
        name=name,
        path=[_wrap(m, k, names) for k in range(m.tendon_adr[i], m.tendon_adr[i] + m.tendon_num[i])],
        stiffness=0.0 if spring else float(m.tendon_stiffness[i]),
        damping=0.0 if damper else float(m.tendon_damping[i]) + added,
        armature=float(m.tendon_armature[i]) + rotor,
        frictionloss=0.0 if disabled(m, "FRICTIONLOSS", "CONSTRAINT") else float(m.tendon_frictionloss[i]),
        spring_range=tuple(m.tendon_lengthspring[i]),
        range=_range(m, i, d, name),
        force_range=tuple(m.tendon_actfrcrange[i]) if m.tendon_actfrclimited[i] else UNLIMITED,
        reference=float(m.tendon_length0[i]),
        response=float(m.tendon_invweight0[i]),
        compliance=compliance(m.tendon_solref_lim[i], m.tendon_solimp_lim[i], float(m.tendon_invweight0[i])),
    )


def _wrap(m: mujoco.MjModel, k: int, names: Names) -> WrapSpec:
    kind, target, value = WRAP_KINDS[int(m.wrap_type[k])], int(m.wrap_objid[k]), float(m.wrap_prm[k])
    if kind == "pulley":
        return WrapSpec(kind, value=value)
    if kind == "joint":
        return WrapSpec(kind, names["joint"][target], value)
    if kind == "site":
        return WrapSpec(kind, names["site"][target])
    return WrapSpec(kind, names["geom"][target], side=names["site"][int(value)] if value >= 0 else None)


def _range(m: mujoco.MjModel, i: int, d: Description, name: str) -> tuple[float, float] | None:
    """The range less its margin at both ends: MuJoCo's limits act where the distance to an end falls below the margin."""
    if not m.tendon_limited[i] or disabled(m, "LIMIT", "CONSTRAINT"):
        return None
    (low, high), margin = m.tendon_range[i], float(m.tendon_margin[i])
    if low + margin > high - margin:
        d.fail(f"the margin {margin} m of tendon '{name}' leaves nothing of its range from {low} to {high} m")
    return float(low + margin), float(high - margin)
