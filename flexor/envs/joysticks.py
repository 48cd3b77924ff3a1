"""Robots at the joystick: quadrupeds with the weights of MuJoCo Playground's Go1, a G1 with those of its own task there."""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.envs.joystick import Commands, Joystick
from flexor.envs.legged import standing
from flexor.envs.walk import ANYMAL
from flexor.model.model import Model
from flexor.model.parameters import replace
from flexor.robots import load

UNITREE = {"*_thigh_joint": 0.9, "*_calf_joint": -1.8}
"""Joint angles in rad of a standing Go1 or A1."""
LAIKAGO = {"*_thigh_joint": 0.67, "*_calf_joint": -1.25}
"""Those of a Laikago."""
G1 = {"*_hip_pitch_joint": -0.312, "*_knee_joint": 0.669, "*_ankle_pitch_joint": -0.363, "*_shoulder_pitch_joint": 0.2,
      "left_shoulder_roll_joint": 0.2, "right_shoulder_roll_joint": -0.2, "*_elbow_joint": 0.6}  # fmt: skip
"""Those of a G1 with its knees bent."""

QUADRUPED = {
    "track": 1.0, "turn": 0.5, "pose": 0.5, "air": 0.1, "bounce": -0.5, "roll": -0.05, "tilt": -5.0, "limits": -1.0, "fall": -1.0,
    "still": -1.0, "torque": -2.5e-3, "power": -1.3e-2, "rate": -0.01, "clear": -2.0, "lift": -0.2, "slip": -0.1,
}  # fmt: skip
"""Weights of the terms; Playground's weights of torques and power belong to a Go1 of 12.7 kg, these to a kilogram."""
HUMANOID = {
    "track": 1.0, "turn": 0.75, "clock": 1.0, "air": 2.0, "roll": -0.15, "tilt": -2.0, "limits": -1.0, "fall": -100.0,
    "still": -1.0, "slip": -0.25, "bend": -1.0,
}  # fmt: skip
BENT = {
    "*_knee_joint": 0.1,
    "*_hip_roll_joint": 0.25,
    "*_hip_yaw_joint": 0.25,
    "*_hip_pitch_joint": 0.0,
    "*_ankle_*": 0.02,
    "*": 0.1,
}
"""Costs per rad of a G1's joints away from its stand."""
ROTORS = {"*_hip_roll_joint": 0.025, "*_knee_joint": 0.025, "*_hip_*": 0.01, "waist_yaw_joint": 0.01, "*": 0.004}
"""Inertias in kg m^2 of a G1's rotors at their joints, which its URDF leaves out; those of common MJCF descriptions, rounded."""


def per_joint(model: Model, costs: Mapping[str, float]) -> Float[Array, " nu"]:
    """A number for every joint but the first, by the first pattern that fits its name."""
    names = [j.name for j in model.topology.joints[1:]]
    return jnp.array([next(x for pattern, x in costs.items() if fnmatchcase(name, pattern)) for name in names], model.dtype)


def quadruped(**options: Any) -> Joystick:
    """The bundled quadruped at the velocities of a joystick."""
    model = load("quadruped")
    return _four_legs(model, model.keyframe("stand"), {"stiffness": 85.0, "damping": 2.0, **options})


def installed_quadruped(name: str, angles: Mapping[str, float], **options: Any) -> Joystick:
    """A quadruped of example-robot-data at the velocities of a joystick."""
    model = load(name, floating=True, ground=True)
    return _four_legs(model, standing(model, angles), options)


def g1(**options: Any) -> Joystick:
    """The G1 of example-robot-data at the velocities of a joystick, in step with a clock of 1.25 to 1.5 Hz."""
    model = load("g1", floating=True, ground=True)
    rotors = zip(model.topology.joints[1:], per_joint(model, ROTORS), strict=True)
    model = replace(model, {f"joint.{joint.name}.armature": x for joint, x in rotors})
    numbers = {"forgiving": False, "frequencies": (1.25, 1.5), "swing": 0.15, "hover": 0.2, "noise": 0.05, "lowest": 0.7,
               "knee": 0.0, "apart": 0.1, "damping": 0.025,
               "commands": Commands((1.0, 0.5, 1.0), (0.9, 0.9, 0.9), 10.0)}  # fmt: skip
    zero, loose = jnp.zeros(model.nu, model.dtype), per_joint(model, BENT)
    return Joystick.build(
        model=model, stand=standing(model, G1), weights=HUMANOID, stiff=zero, loose=loose, **{**numbers, **options}
    )


def _four_legs(model: Model, stand: Float[Array, " nq"], options: Mapping[str, Any]) -> Joystick:
    stiff = jnp.tile(jnp.array([1.0, 1.0, 0.1], model.dtype), 4)
    return Joystick.build(model=model, stand=stand, weights=QUADRUPED, stiff=stiff, loose=jnp.zeros_like(stiff), **options)


BUILDERS: Mapping[str, Callable[..., Joystick]] = {
    "quadruped-joystick": quadruped,
    "anymal-joystick": partial(installed_quadruped, "anymal_c", ANYMAL, stiffness=85.0, damping=2.0),
    "a1-joystick": partial(installed_quadruped, "a1", UNITREE, stiffness=35.0, damping=0.5),
    "go1-joystick": partial(installed_quadruped, "go1", UNITREE, stiffness=35.0, damping=0.5),
    "laikago-joystick": partial(installed_quadruped, "laikago", LAIKAGO, stiffness=60.0, damping=1.0),
    "g1-joystick": g1,
}
"""What makes each task."""
