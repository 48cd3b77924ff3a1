"""Reads the actuators of an `MjModel`; unsupported ones are refused by name.

Damping and armature that an actuator gives to its joint or tendon become that one's own, times the gear squared. A DC motor
without states is a motor whose force falls with its speed. What a disabled actuator would do is left out.
"""

import mujoco
import numpy as np

from flexor.model.description import UNLIMITED, ActuatorSpec, Description
from flexor.model.mjcf_refusals import Names, disabled

TRANSMISSION, DYNAMICS, GAIN, BIAS = mujoco.mjtTrn, mujoco.mjtDyn, mujoco.mjtGain, mujoco.mjtBias
_DYNAMICS = {
    int(DYNAMICS.mjDYN_NONE): "none",
    int(DYNAMICS.mjDYN_INTEGRATOR): "integrator",
    int(DYNAMICS.mjDYN_FILTER): "filter",
    int(DYNAMICS.mjDYN_FILTEREXACT): "filterexact",
    int(DYNAMICS.mjDYN_MUSCLE): "muscle",
}


def read_actuators(m: mujoco.MjModel, d: Description, names: Names) -> list[ActuatorSpec]:
    """All actuators that are not refused or ignored."""
    return [_actuator(m, a, names, d) for a in range(m.nactuator) if not _refused(m, a, d, names)]


def reflected(m: mujoco.MjModel, target: int, d: Description, *, tendon: bool = False) -> tuple[float, float]:
    """Damping and armature that actuators give to a joint or a tendon: the sum of gear^2 times theirs, without those that are
    dropped."""
    on_joint = (TRANSMISSION.mjTRN_JOINT, TRANSMISSION.mjTRN_JOINTINPARENT)
    kinds = [int(kind) for kind in ((TRANSMISSION.mjTRN_TENDON,) if tendon else on_joint)]
    on_target = np.flatnonzero(np.isin(m.actuator_trntype, kinds) & (m.actuator_trnid[:, 0] == target)).tolist()
    rows = [a for a in on_target if _foreign(m, a, d) is None]
    gear = m.actuator_gear[m.actuator_outadr[rows], 0]
    return float(np.sum(gear**2 * m.actuator_damping[rows])), float(np.sum(gear**2 * m.actuator_armature[rows]))


def _refused(m: mujoco.MjModel, a: int, d: Description, names: Names) -> bool:
    """Whether actuator `a` is to be dropped; raises if it is not supported and actuators are not ignored."""
    reason = _foreign(m, a, d)
    if reason is None:
        return False
    d.refuse("actuator", f"actuator '{names['actuator'][a]}' {reason}")
    return True


def _name(kind: mujoco.mjtTrn | mujoco.mjtDyn | mujoco.mjtGain | mujoco.mjtBias) -> str:
    return str(kind.name).split("_")[1].lower()


def _foreign(m: mujoco.MjModel, a: int, d: Description) -> str | None:
    """What an actuator has that flexor does not; None if there is nothing."""
    if m.actuator_plugin[a] >= 0:
        return "is a plugin"
    if m.actuator_ctrlnum[a] != 1 or m.actuator_outnum[a] != 1:
        return "has several inputs or outputs, or none"
    reason = _foreign_transmission(m, a, d)
    return _foreign_law(m, a) if reason is None else reason


def _foreign_transmission(m: mujoco.MjModel, a: int, d: Description) -> str | None:
    kind = int(m.actuator_trntype[a])
    if kind == int(TRANSMISSION.mjTRN_BODY):
        return _foreign_adhesion(m, a)
    if kind == int(TRANSMISSION.mjTRN_TENDON) and "tendon" in d.ignore:
        return "acts on a tendon, and these are ignored"
    if np.any(m.actuator_dampingpoly[a]):
        return "has non-linear damping of its own"
    if kind not in (int(TRANSMISSION.mjTRN_JOINT), int(TRANSMISSION.mjTRN_JOINTINPARENT)):
        supported = (TRANSMISSION.mjTRN_TENDON, TRANSMISSION.mjTRN_SITE, TRANSMISSION.mjTRN_SLIDERCRANK)
        return None if TRANSMISSION(kind) in supported else f"acts on a {_name(TRANSMISSION(kind))}"
    added = m.actuator_damping[a] or m.actuator_armature[a]
    if added and int(m.jnt_type[m.actuator_trnid[a, 0]]) < int(mujoco.mjtJoint.mjJNT_SLIDE):
        return "has damping or armature of its own on a ball or free joint; write them at the joint"
    return None


def _foreign_adhesion(m: mujoco.MjModel, a: int) -> str | None:
    """What an actuator that pulls a body against its contacts has beyond a force by its input."""
    by_input = int(m.actuator_gaintype[a]) == int(GAIN.mjGAIN_FIXED) and not np.any(m.actuator_biasprm[a, 1:])
    if not by_input or int(m.actuator_biastype[a]) == int(BIAS.mjBIAS_MUSCLE):
        return "pulls a body against its contacts (adhesion) with a force that depends on more than its input"
    if m.actuator_damping[a] or m.actuator_armature[a]:
        return "pulls a body against its contacts (adhesion) and has damping or armature"
    return None


def _foreign_law(m: mujoco.MjModel, a: int) -> str | None:
    gain, bias, dynamics = (int(x[a]) for x in (m.actuator_gaintype, m.actuator_biastype, m.actuator_dyntype))
    if dynamics == int(DYNAMICS.mjDYN_DCMOTOR):
        return _foreign_motor(m, a)
    if dynamics not in _DYNAMICS:
        return f"has internal dynamics ({_name(DYNAMICS(dynamics))})"
    if m.actuator_actnum[a] != (dynamics != int(DYNAMICS.mjDYN_NONE)):
        return "has several activations"
    if gain not in (int(GAIN.mjGAIN_FIXED), int(GAIN.mjGAIN_AFFINE), int(GAIN.mjGAIN_MUSCLE)):
        return f"has a gain of the kind {_name(GAIN(gain))}"
    if bias not in (int(BIAS.mjBIAS_NONE), int(BIAS.mjBIAS_AFFINE), int(BIAS.mjBIAS_MUSCLE)):
        return f"has a bias of the kind {_name(BIAS(bias))}"
    if (gain == int(GAIN.mjGAIN_MUSCLE)) != (bias == int(BIAS.mjBIAS_MUSCLE)):
        return "has the gain or the bias of a muscle, but not both"
    return None


def _foreign_motor(m: mujoco.MjModel, a: int) -> str | None:
    """What a DC motor has beyond resistance and motor constant, driven by its voltage; None if there is nothing."""
    gain, bias, dynamics = m.actuator_gainprm[a], m.actuator_biasprm[a], m.actuator_dynprm[a]
    parts = {
        "inputs other than a voltage": int(m.actuator_ctrlspec[a]) != int(mujoco.mjtCtrlInput.mjINPUT_VOLTAGE)
        or np.any(gain[4:]),
        "inductance": dynamics[0] or dynamics[1],
        "a thermal model": np.any(dynamics[2:5]) or np.any(gain[2:4]),
        "cogging torque": bias[0],
        "LuGre friction": np.any(dynamics[5:]) or np.any(bias[3:]),
        "internal states": m.actuator_actnum[a],
    }
    found = [what for what, there in parts.items() if there]
    return f"is a DC motor with {found[0]}; flexor's have a resistance and a motor constant" if found else None


def _actuator(m: mujoco.MjModel, a: int, names: Names, d: Description) -> ActuatorSpec:
    off = disabled(m, "ACTUATION") or bool(m.opt.disableactuator & (1 << max(int(m.actuator_group[a]), 0)))
    ctrl, muscle = m.actuator_ctrladr[a], int(m.actuator_gaintype[a]) == int(GAIN.mjGAIN_MUSCLE)
    motor = int(m.actuator_gaintype[a]) == int(GAIN.mjGAIN_DCMOTOR)
    affine = int(m.actuator_biastype[a]) == int(BIAS.mjBIAS_AFFINE) and not off
    varying = int(m.actuator_gaintype[a]) == int(GAIN.mjGAIN_AFFINE) and not off
    clamped = m.actuator_ctrllimited[ctrl] and not disabled(m, "CLAMPCTRL")
    gain, bias = float(m.actuator_gainprm[a, 0]), m.actuator_biasprm[a, :3].copy() if affine else np.zeros(3)
    if motor:  # force = K / R (u - K velocity)
        R, K = m.actuator_gainprm[a, :2]
        gain, bias = float(K / R), np.zeros(3) if off else np.array([0.0, 0.0, -(K**2) / R])
    return ActuatorSpec(
        name=names["actuator"][a],
        gain=0.0 if off or muscle else gain,
        bias=bias,
        gain_slope=m.actuator_gainprm[a, 1:3].copy() if varying else np.zeros(2),
        ctrl_range=tuple(m.actuator_ctrlrange[ctrl]) if clamped else UNLIMITED,
        force_range=tuple(m.actuator_forcerange[a]) if m.actuator_forcelimited[a] and not off else UNLIMITED,
        delay=_delay(m, a, names, d),
        samples=int(m.actuator_history[a, 0]),
        muscle=_muscle(m, a, off) if muscle else None,
        circular=not off and _circular(m, a),
        **_transmission(m, a, names),
        **_activation(m, a),
    )


def _transmission(m: mujoco.MjModel, a: int, names: Names) -> dict:
    """What an actuator pushes on, with the fields of `ActuatorSpec`."""
    kind, (first, second) = int(m.actuator_trntype[a]), m.actuator_trnid[a]
    gear = m.actuator_gear[m.actuator_outadr[a]].copy()
    if kind == int(TRANSMISSION.mjTRN_SITE):
        reference = None if second < 0 else names["site"][second]
        return {"site": names["site"][first], "reference": reference, "direction": gear}
    if kind == int(TRANSMISSION.mjTRN_SLIDERCRANK):
        sites = {"site": names["site"][first], "slider": names["site"][second]}
        return {**sites, "gear": float(gear[0]), "crank_length": float(m.actuator_cranklength[a])}
    if kind == int(TRANSMISSION.mjTRN_BODY):
        return {"body": names["body"][first]}
    if kind == int(TRANSMISSION.mjTRN_TENDON):
        return {"tendon": names["tendon"][first], "gear": float(gear[0])}
    wide = int(m.jnt_type[first]) < int(mujoco.mjtJoint.mjJNT_SLIDE)
    on = {"joint": names["joint"][first], "in_parent": wide and kind == int(TRANSMISSION.mjTRN_JOINTINPARENT)}
    return {**on, "direction": gear} if wide else {**on, "gear": float(gear[0])}


def _circular(m: mujoco.MjModel, a: int) -> bool:
    """Whether an actuator is a position servo of a rotation in space, whose setpoint MuJoCo takes on the circle."""
    gear = m.actuator_gear[m.actuator_outadr[a]]
    on_joint = int(m.actuator_trntype[a]) in (int(TRANSMISSION.mjTRN_JOINT), int(TRANSMISSION.mjTRN_JOINTINPARENT))
    ball = on_joint and int(m.jnt_type[m.actuator_trnid[a, 0]]) == int(mujoco.mjtJoint.mjJNT_BALL)
    site = int(m.actuator_trntype[a]) == int(TRANSMISSION.mjTRN_SITE) and m.actuator_trnid[a, 1] >= 0
    turning = ball or (site and not np.any(gear[:3]))
    kinds = int(m.actuator_gaintype[a]), int(m.actuator_biastype[a])
    kp = m.actuator_gainprm[a, 0]
    servo = kinds == (int(GAIN.mjGAIN_FIXED), int(BIAS.mjBIAS_AFFINE)) and kp == -m.actuator_biasprm[a, 1]
    return bool(turning and servo and kp != 0)


def _activation(m: mujoco.MjModel, a: int) -> dict:
    """Law and numbers of an activation, with the fields of `ActuatorSpec`."""
    law = _DYNAMICS.get(int(m.actuator_dyntype[a]), "none")
    if law == "none":
        return {}
    rise, release, smoothing = m.actuator_dynprm[a, :3]
    numbers = {"time_constant": float(rise)} if law != "integrator" else {}
    if law == "muscle":
        numbers.update(release_time=float(release), smoothing=float(smoothing))
    bounds = tuple(m.actuator_actrange[a]) if m.actuator_actlimited[a] else UNLIMITED
    return {"dynamics": law, "early": bool(m.actuator_actearly[a]), "act_range": bounds, **numbers}


def _muscle(m: mujoco.MjModel, a: int, off: bool) -> dict:
    """Numbers of a muscle, with the fields of `Muscles`. A negative force stands for scale / acc0 in MuJoCo."""
    low, high, force, scale, shortest, longest, velocity, passive, lengthening = m.actuator_gainprm[a, :9]
    peak = force if force >= 0 else scale / max(float(m.actuator_acc0[a]), 1e-15)
    return {
        "range": (low, high),
        "length_range": m.actuator_lengthrange[a].copy(),
        "peak_force": 0.0 if off else float(peak),
        "shortest": shortest,
        "longest": longest,
        "max_velocity": velocity,
        "passive_force": passive,
        "lengthening_force": lengthening,
    }


def _delay(m: mujoco.MjModel, a: int, names: Names, d: Description) -> float:
    """The delay of an actuator; warns where MuJoCo's history makes another delay of it than linear interpolation."""
    delay, interp = float(m.actuator_delay[a]), int(m.actuator_history[a, 1])
    steps = delay / m.opt.timestep
    if (interp != 1 or steps < 1) and abs(steps - round(steps)) > 1e-6:
        kind = ("zoh", "linear", "cubic")[interp]
        d.warn(
            f"actuator '{names['actuator'][a]}' has a delay of {delay:g} s with interp=\"{kind}\", {steps:.4g} time steps of the "
            "file: MuJoCo rounds it, or smooths the input, while flexor interpolates the past inputs linearly; write "
            'interp="linear" and a delay of at least one time step, or a whole number of them, for the same motion'
        )
    return delay
