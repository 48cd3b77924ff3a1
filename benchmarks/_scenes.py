"""Scenes with many contacts, as MJCF texts: the same text goes to flexor and, through it, to MuJoCo."""

from functools import cache

import jax.numpy as jnp
import mujoco
import numpy as np

import flexor as fx
from flexor.contact import detect
from flexor.dynamics import forward_kinematics
from flexor.model.save_mjcf import mjcf_text

READY = (0.0, -np.pi / 4, 0.0, -3 * np.pi / 4, 0.0, np.pi / 2, np.pi / 4)  # Panda's pose with the hand down
BOX = np.array([0.025, 0.02, 0.03])  # half lengths in m of what it grasps
GRASP = 20.0  # N, of each finger
DT = 0.002


def _with_keyframe(spec: mujoco.MjSpec, name: str, q: np.ndarray) -> str:
    spec.add_key(name=name, qpos=q)
    spec.compile()
    return str(spec.to_xml())


def _spec(model: fx.Model) -> mujoco.MjSpec:
    spec = mujoco.MjSpec.from_string(mjcf_text(model, {}))
    spec.compiler.inertiafromgeom = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_AUTO
    return spec


@cache
def g1_on_its_feet() -> str:
    """Unitree's G1 of 29 joints with the hulls of all its meshes on the ground, joints held by springs as by servos; keyframe
    "stand": straight, on its soles."""
    model = fx.load("g1", floating=True, ground=True)
    q = np.array(model.reference)
    q[2] = 2.0
    q[2] -= float(detect(model, forward_kinematics(model, jnp.asarray(q))).distance.min())
    spec = _spec(model)
    for joint in (j for j in spec.joints if j.type == mujoco.mjtJoint.mjJNT_HINGE):
        joint.stiffness[0], joint.damping[0], joint.armature = 100.0, 2.0, 0.01
    return _with_keyframe(spec, "stand", q)


def _panda() -> mujoco.MjSpec:
    """Panda with its hand: gravity compensated, springs that hold `READY` and close the fingers, rotors of 0.1 kg m²."""
    spec = _spec(fx.load("panda"))
    for joint, angle in zip((j for j in spec.joints if j.type == mujoco.mjtJoint.mjJNT_HINGE), READY, strict=True):
        joint.springref, joint.armature = angle, 0.1
        joint.stiffness[0], joint.damping[0] = 400.0, 10.0
    for joint in (j for j in spec.joints if j.type == mujoco.mjtJoint.mjJNT_SLIDE):
        joint.stiffness[0], joint.springref, joint.damping[0] = 200.0, -GRASP / 200.0, 3.0
    for body in spec.bodies[1:]:
        body.gravcomp = 1.0
    for geom in spec.geoms:
        geom.contype, geom.conaffinity = 1, 0
    return spec


def _tool_centre(spec: mujoco.MjSpec, q: np.ndarray) -> np.ndarray:
    m = spec.compile()
    d = mujoco.MjData(m)
    d.qpos[:] = q
    mujoco.mj_kinematics(m, d)
    return np.array(d.body("panda_hand_tcp").xpos)


def _add_box(spec: mujoco.MjSpec, name: str, at: np.ndarray, half: np.ndarray, mass: float) -> None:
    body = spec.worldbody.add_body(name=name, pos=at)
    body.add_freejoint(name=name)
    body.add_geom(name=name, type=mujoco.mjtGeom.mjGEOM_BOX, size=half, mass=mass, contype=3, conaffinity=3)


@cache
def panda_grasping(others: int = 0) -> str:
    """Panda whose fingers hold a box of 0.5 kg on a table, with `others` beside it; all its geometry meets them.

    Keyframe "grasp": the fingers at the box, the box on the table.
    """
    spec = _panda()
    q = np.array([*READY, BOX[1], BOX[1]])
    centre = _tool_centre(spec, q)
    spec.worldbody.add_geom(
        name="table", type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.2, 0.4, 0.02], contype=2, conaffinity=3,
        pos=[centre[0] + 0.05, centre[1], centre[2] - BOX[2] - 0.02],
    )  # fmt: skip
    _add_box(spec, "box", centre, BOX, 0.5)
    for i in range(others):  # in two rows on either side
        away, row, side = i // 4, i // 2 % 2, 1 - 2 * (i % 2)
        at = centre + [0.08 * row, side * (0.12 + 0.06 * away), 0.02 - BOX[2]]
        _add_box(spec, f"box{i}", at, np.full(3, 0.02), 0.1)
    free = [spec.body(name).pos for name in ("box", *(f"box{i}" for i in range(others)))]
    start = np.concatenate([q, *(np.concatenate([at, [1.0, 0, 0, 0]]) for at in free)])
    return _with_keyframe(spec, "grasp", start)


@cache
def heap(count: int = 20) -> str:
    """Boxes of several sizes; keyframe "heap": where MuJoCo leaves them 2 s after it lets them fall upon each other."""
    rng = np.random.default_rng(0)
    spec = mujoco.MjSpec()
    spec.modelname = "heap"
    spec.option.timestep = DT
    spec.worldbody.add_geom(name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[5, 5, 1])
    for i in range(count):
        at = np.array([*rng.uniform(-0.12, 0.12, 2), 0.2 + 0.16 * i])
        half = rng.uniform(0.04, 0.08, 3)
        _add_box(spec, f"box{i}", at, half, float(8 * 500 * np.prod(half)))
    m = spec.compile()
    m.opt.timestep = DT / 2
    m.geom_solref[:, 0] = 2 * DT  # stiffer than MuJoCo's default, so that the heap begins with little overlap
    d = mujoco.MjData(m)
    d.qpos.reshape(-1, 7)[:, 3:] = rng.normal(size=(count, 4))
    while d.time < 2.0:
        mujoco.mj_step(m, d)
    d.qpos.reshape(-1, 7)[:, 3:] /= np.linalg.norm(d.qpos.reshape(-1, 7)[:, 3:], axis=1, keepdims=True)
    return _with_keyframe(spec, "heap", d.qpos)


# A leg as Cassie's under a pelvis that slides up and down and to and fro: springs in shin and heel, a rod from the thigh to the
# heel spring and one that moves the foot, each closed by a point in space; the foot stands on the ground.
# Springs stand for servos.
LEG = """<mujoco model="leg"><compiler angle="radian"/><worldbody>
  <geom name="floor" type="plane" size="5 5 1" contype="1" conaffinity="0"/>
  <body name="pelvis" pos="0 0 0.885"><joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/>
  <geom type="box" size="0.1 0.1 0.1" mass="8" contype="0" conaffinity="0"/>
  <body name="thigh"><joint name="hip" axis="0 -1 0" stiffness="300" damping="5" range="-1 1"/>
    <geom type="capsule" size="0.03" fromto="0 0 0 0.1 0 -0.35" mass="3" contype="0" conaffinity="1"/>
    <body name="rod" pos="0 0.03 -0.05"><joint name="rod" type="ball" damping="0.01" armature="0.001"/>
      <geom type="capsule" size="0.008" fromto="0 0 0 -0.22 0 -0.45" mass="0.15" contype="0" conaffinity="0"/></body>
    <body name="shin" pos="0.1 0 -0.35"><joint name="knee" axis="0 -1 0" stiffness="300" damping="5" range="-1 1"/>
      <joint name="shin_spring" axis="0 -1 0" stiffness="800" damping="1" armature="0.01"/>
      <geom type="capsule" size="0.025" fromto="0 0 0 -0.25 0 -0.2" mass="1" contype="0" conaffinity="1"/>
      <body name="tarsus" pos="-0.25 0 -0.2"><joint name="tarsus" axis="0 -1 0" damping="0.2"/>
        <geom type="capsule" size="0.02" fromto="0 0 0 0.25 0 -0.3" mass="0.8" contype="0" conaffinity="1"/>
        <body name="heel"><joint name="heel_spring" axis="0 -1 0" stiffness="600" damping="1" armature="0.01"/>
          <geom type="capsule" size="0.01" fromto="0 0 0 -0.07 0.03 0.05" mass="0.1" contype="0" conaffinity="0"/></body>
        <body name="lever" pos="0.02 0 -0.04"><joint name="ankle" axis="0 -1 0" stiffness="30" damping="0.5"/>
          <geom type="capsule" size="0.01" fromto="0 0 0 -0.05 0 -0.02" mass="0.1" contype="0" conaffinity="0"/>
          <body name="plantar" pos="-0.05 0 -0.02"><joint name="plantar" axis="0 -1 0"/>
            <geom type="capsule" size="0.006" fromto="0 0 0 0.23 0 -0.26" mass="0.1" contype="0" conaffinity="0"/></body></body>
        <body name="foot" pos="0.25 0 -0.3"><joint name="foot" axis="0 -1 0" damping="0.05"/>
          <geom type="capsule" size="0.015" fromto="-0.05 0 -0.02 0.1 0 -0.02" mass="0.2" contype="0" conaffinity="1"/>
        </body></body></body></body></body></worldbody>
  <equality><connect name="achilles" body1="rod" body2="heel" anchor="-0.22 0 -0.45"/>
  <connect name="sole" body1="plantar" body2="foot" anchor="0.23 0 -0.26"/></equality>
  <keyframe><key name="stand" qpos="0 0 0 1 0 0 0 0 0 0 0 0 0 0"/></keyframe></mujoco>"""
