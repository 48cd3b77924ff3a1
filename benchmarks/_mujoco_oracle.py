"""MuJoCo's answer to each of the quantities in `_quantities.py`, in flexor's conventions."""

from typing import Any

import mujoco
import numpy as np

from flexor.model.model import Model

_OFF = ("CONSTRAINT", "ACTUATION")
_PASSIVE = ("SPRING", "DAMPER")


class MujocoOracle:
    """Constraints, actuators and passive forces are off; so are fluid and tendons, which the robot was loaded without."""

    def __init__(self, m: mujoco.MjModel, model: Model, points: Any):
        kinds = [mujoco.mjtJoint(int(k)).name.removeprefix("mjJNT_").lower() for k in m.jnt_type]
        if kinds != [j.kind for j in model.topology.joints] or m.nbody != len(model.topology.bodies):
            raise ValueError("the two models have different joints")
        m.opt.density = m.opt.viscosity = 0
        m.tendon_armature[:] = m.tendon_stiffness[:] = 0
        m.body_gravcomp[:] = 0
        m.opt.disableflags |= _bits(_OFF)
        self.m, self.d, self.points = m, mujoco.MjData(m), points
        self.static = m.body_weldid == 0

    def __call__(self, at: Any) -> dict[str, np.ndarray]:
        m, d = self.m, self.d
        m.opt.disableflags |= _bits(_PASSIVE)
        d.qpos[:], d.qvel[:], d.qfrc_applied[:] = at.q, at.qd, at.tau
        mujoco.mj_kinematics(m, d)
        d.xfrc_applied[:, :3] = at.wrench[:, 3:]
        d.xfrc_applied[:, 3:] = at.wrench[:, :3] - np.cross(d.xipos - d.xpos, at.wrench[:, 3:])
        mujoco.mj_forward(m, d)
        found = {"aba": d.qacc.copy(), "bias": d.qfrc_bias.copy()}
        found |= self._geometry() | self._inertia() | self._momentum() | self._energy()
        d.qacc[:] = at.qdd
        mujoco.mj_inverse(m, d)
        found["rnea"] = d.qfrc_inverse - self._pushed(at.wrench)
        d.qvel[:] = 0
        mujoco.mj_forward(m, d)
        return found | {"gravity": d.qfrc_bias.copy()}

    def inverse(self, at: Any, qdd: np.ndarray) -> np.ndarray:
        """The generalised forces that give the accelerations qdd under the instant's wrenches."""
        d = self.d
        d.qpos[:], d.qvel[:] = at.q, at.qd
        mujoco.mj_forward(self.m, d)
        d.qacc[:] = qdd
        mujoco.mj_inverse(self.m, d)
        return d.qfrc_inverse - self._pushed(at.wrench)

    def _geometry(self) -> dict[str, np.ndarray]:
        m, d = self.m, self.d
        velocities, frames = np.zeros((m.nbody, 6)), np.zeros((m.nbody, 6, m.nv))
        for b in range(m.nbody):
            mujoco.mj_objectVelocity(m, d, mujoco.mjtObj.mjOBJ_XBODY, b, velocities[b], 0)
            mujoco.mj_jacBody(m, d, frames[b, 3:], frames[b, :3], b)
        at_points = np.zeros((len(self.points.bodies), 3, m.nv))
        for J, b, offset in zip(at_points, self.points.bodies, self.points.offsets, strict=True):
            mujoco.mj_jac(m, d, J, None, d.xpos[b] + d.xmat[b].reshape(3, 3) @ offset, b)
        poses = np.concatenate([d.xpos, d.xmat], axis=1)
        return {"poses": poses, "velocities": velocities, "J frame": frames, "J point": at_points}

    def _inertia(self) -> dict[str, np.ndarray]:
        M = np.zeros((self.m.nv, self.m.nv))
        mujoco.mj_fullM(self.m, self.d, M)
        return {"M": M}

    def _momentum(self) -> dict[str, np.ndarray]:
        """MuJoCo counts bodies welded to the world into the centre of mass; they are taken out."""
        m, d = self.m, self.d
        mujoco.mj_subtreeVel(m, d)
        mass = np.where(self.static, 0, m.body_mass)
        com = mass @ d.xipos / mass.sum()
        angular, linear = np.zeros((3, m.nv)), np.zeros((3, m.nv))
        mujoco.mj_angmomMat(m, d, angular, 0)
        mujoco.mj_jacSubtreeCom(m, d, linear, 0)
        linear *= m.body_subtreemass[0]
        arm = d.subtree_com[0] - com
        angular += np.cross(arm, linear.T).T
        p = m.body_subtreemass[0] * d.subtree_linvel[0]
        spin = d.subtree_angmom[0] + np.cross(arm, p)
        return {"com": com, "A_G": np.concatenate([angular, linear]), "h_G": np.concatenate([spin, p])}

    def _energy(self) -> dict[str, np.ndarray]:
        m, d = self.m, self.d
        m.opt.disableflags &= ~_bits(_PASSIVE)
        mujoco.mj_energyPos(m, d)
        mujoco.mj_energyVel(m, d)
        m.opt.disableflags |= _bits(_PASSIVE)
        static = -np.where(self.static, m.body_mass, 0) @ (d.xipos @ m.opt.gravity)
        return {"V": np.array(d.energy[0] - static), "T": np.array(d.energy[1])}

    def _pushed(self, wrench: np.ndarray) -> np.ndarray:
        """Generalised force of the wrenches on the bodies."""
        total = np.zeros(self.m.nv)
        for b in range(1, self.m.nbody):
            mujoco.mj_applyFT(self.m, self.d, wrench[b, 3:], wrench[b, :3], self.d.xpos[b], b, total)
        return total


def _bits(names: tuple[str, ...]) -> int:
    return sum(int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{name}")) for name in names)
