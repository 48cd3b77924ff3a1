"""Elements of a MuJoCo model that change the motion and that flexor does not support: each is refused by name.

The list was made by going through all fields of MuJoCo 4.0's `mjModel`. Ignored on purpose: rendering, sensors, sites,
skins, user data, statistics, and the settings of MuJoCo's solver, constraints
and integrator.
"""

from typing import Protocol

import mujoco
import numpy as np

from flexor.model.description import Description


class Names(Protocol):
    """Names of MuJoCo's elements by kind and index."""

    def __getitem__(self, kind: str, /) -> list[str]: ...


def disabled(m: mujoco.MjModel, *flags: str) -> bool:
    """Whether any of the named disable flags is set: `disabled(m, "CONTACT", "CONSTRAINT")`."""
    bits = sum(int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{f}")) for f in flags)
    return bool(m.opt.disableflags & bits)


def refuse_unknown_physics(m: mujoco.MjModel, d: Description, names: Names) -> None:
    """Raises for the first element that changes the motion, is not ignored, and is not an actuator (see
    `mjcf_actuators`)."""
    _refuse_options(m, d)
    _refuse_bodies(m, d, names)
    _refuse_joints(m, d, names)
    _refuse_couplings(m, d, names)


def _refuse_options(m: mujoco.MjModel, d: Description) -> None:
    if m.opt.enableflags & int(mujoco.mjtEnableBit.mjENBL_OVERRIDE):
        d.refuse("override", "option flag 'override' replaces the contact parameters of all geoms")
    if m.opt.enableflags & int(mujoco.mjtEnableBit.mjENBL_SLEEP) and "sleep" not in d.ignore:
        d.warn(
            "option flag 'sleep' puts resting trees to sleep, which saves time and changes no motion; flexor steps them all"
        )


def _refuse_bodies(m: mujoco.MjModel, d: Description, names: Names) -> None:
    for i, name in enumerate(names["body"]):
        if m.body_plugin[i] >= 0:
            d.refuse("plugin", f"body '{name}' is driven by plugin '{names['plugin'][m.body_plugin[i]]}'")


def _refuse_joints(m: mujoco.MjModel, d: Description, names: Names) -> None:
    for j, name in enumerate(names["joint"]):
        if np.any(m.jnt_stiffnesspoly[j]) and not disabled(m, "SPRING"):
            d.refuse("polynomial", f"joint '{name}' has a non-linear spring, stiffness polynomial {m.jnt_stiffnesspoly[j]}")
        damper = m.dof_dampingpoly[m.dof_jntid == j]
        if np.any(damper) and not disabled(m, "DAMPER"):
            d.refuse("polynomial", f"joint '{name}' has a non-linear damper, polynomial {damper[np.argmax(damper.any(1))]}")
        if m.jnt_springyield[j] or m.jnt_plasticadr[j] >= 0:
            d.refuse("springyield", f"joint '{name}' has a spring that yields")


def _refuse_couplings(m: mujoco.MjModel, d: Description, names: Names) -> None:
    for i, name in enumerate(names["equality"]):
        active = m.eq_active0[i] and not disabled(m, "EQUALITY", "CONSTRAINT")
        if active and int(m.eq_type[i]) > int(mujoco.mjtEq.mjEQ_TENDON):
            kind = mujoco.mjtEq(int(m.eq_type[i])).name.removeprefix("mjEQ_").lower()
            d.refuse("equality", f"equality constraint '{name}' is of type {kind}; flexor has none of deformable bodies")
    for name in names["flex"]:
        d.refuse("flex", f"flex '{name}' is a deformable body")
