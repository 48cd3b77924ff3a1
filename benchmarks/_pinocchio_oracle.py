"""Pinocchio's answer to each of the quantities in `_quantities.py`, in flexor's conventions.

Joints and bodies are matched by name. Pinocchio keeps a continuous joint as (cos, sin), quaternions as x y z w, and the
velocity of a free-flyer in its own frame: with v_pin = B(q) qd, forces map by B^T, inertias by B^T M B, and accelerations by
B qdd + B' qd.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pinocchio as pin

from flexor.model.model import Model
from flexor.model.topology import JOINT_NV


class PinocchioOracle:
    """The same URDF in Pinocchio; `floating` as in `flexor.load`."""

    def __init__(self, path: Path, model: Model, points: Any, *, floating: bool):
        build = pin.buildModelFromUrdf
        self.model, t = model, model.topology
        self.pin = build(str(path), pin.JointModelFreeFlyer()) if floating else build(str(path))
        self.pin.gravity.linear = np.asarray(model.gravity)
        ours = {j.name: i for i, j in enumerate(t.joints)}
        self.root = pin.SE3.Identity()
        if floating:
            ours["root_joint"] = 0
            self.root = _floating_body(self.pin, t.bodies[t.joints[0].body])
        self.joints = [(self.pin.joints[i], ours[name]) for i, name in enumerate(self.pin.names) if i > 0]
        if len(self.joints) != len(t.joints):
            raise ValueError(f"Pinocchio has {len(self.joints)} joints, flexor {len(t.joints)}")
        self.frames = [0 if b == 0 else self.pin.getFrameId(name, pin.FrameType.BODY) for b, name in enumerate(t.bodies)]
        self.points = [
            self.pin.addFrame(self._point(k, self.pin.frames[self.frames[b]], offset), False)
            for k, (b, offset) in enumerate(zip(points.bodies, points.offsets, strict=True))
        ]
        self.data = self.pin.createData()

    @staticmethod
    def _point(k: int, frame: Any, offset: np.ndarray) -> Any:
        placement = frame.placement * pin.SE3(np.eye(3), offset)
        return pin.Frame(f"point {k}", frame.parentJoint, placement, pin.FrameType.OP_FRAME)

    def __call__(self, at: Any) -> dict[str, np.ndarray]:
        m, d = self.pin, self.data
        q, B, drift = self._coordinates(at)
        v = B @ at.qd
        pin.forwardKinematics(m, d, q, v)
        pin.computeJointJacobians(m, d, q)
        pin.updateFramePlacements(m, d)
        found = self._geometry(B)
        push = self._wrenches(at.wrench)
        found["rnea"] = B.T @ pin.rnea(m, d, q, v, B @ at.qdd + drift, push)
        found["bias"] = B.T @ pin.rnea(m, d, q, v, drift)
        found["gravity"] = B.T @ pin.computeGeneralizedGravity(m, d, q)
        found["aba"] = np.linalg.solve(B, pin.aba(m, d, q, v, np.linalg.solve(B.T, at.tau), push) - drift)
        upper = np.triu(pin.crba(m, d, q))
        found["M"] = B.T @ (upper + np.triu(upper, 1).T) @ B
        swap = [3, 4, 5, 0, 1, 2]
        found["A_G"] = pin.computeCentroidalMap(m, d, q)[swap] @ B
        found["h_G"] = pin.computeCentroidalMomentum(m, d, q, v).vector[swap]
        found["com"] = pin.centerOfMass(m, d, q).copy()
        found["T"] = np.array(pin.computeKineticEnergy(m, d, q, v))
        found["V"] = np.array(pin.computePotentialEnergy(m, d, q))
        return found

    def inverse(self, at: Any, qdd: np.ndarray) -> np.ndarray:
        """The generalised forces that give the accelerations qdd under the instant's wrenches."""
        q, B, drift = self._coordinates(at)
        pin.forwardKinematics(self.pin, self.data, q)
        pin.updateFramePlacements(self.pin, self.data)
        push = self._wrenches(at.wrench)
        return B.T @ pin.rnea(self.pin, self.data, q, B @ at.qd, B @ qdd + drift, push)

    def _coordinates(self, at: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pinocchio's q, the matrix B with v_pin = B qd, and B' qd."""
        t = self.model.topology
        q, B, drift = pin.neutral(self.pin), np.zeros((self.pin.nv, t.nv)), np.zeros(self.pin.nv)
        for joint, j in self.joints:
            x = at.q[t.q_start[j] :]
            qs, vs, ours = joint.idx_q, joint.idx_v, int(t.v_start[j])
            if joint.nq == 7:
                X = self.root if joint.id == 1 else pin.SE3.Identity()
                R = pin.Quaternion(x[[4, 5, 6, 3]]).toRotationMatrix()
                q[qs : qs + 7] = pin.SE3ToXYZQUAT(pin.SE3(R, x[:3]) * X.inverse())
                own = np.block([[R.T, np.zeros((3, 3))], [np.zeros((3, 3)), np.eye(3)]])
                B[vs : vs + 6, ours : ours + 6] = X.action @ own
                turning = np.cross(at.qd[ours + 3 : ours + 6], R.T @ at.qd[ours : ours + 3])
                drift[vs : vs + 6] = X.action @ np.concatenate([-turning, np.zeros(3)])
            elif JOINT_NV[t.joints[j].kind] == 1:
                q[qs : qs + joint.nq] = x[:1] if joint.nq == 1 else (np.cos(x[0]), np.sin(x[0]))
                B[vs, ours] = 1
            else:
                raise ValueError(f"joint '{t.joints[j].name}' has no counterpart")
        return q, B, drift

    def _geometry(self, B: np.ndarray) -> dict[str, np.ndarray]:
        m, d, axes = self.pin, self.data, pin.ReferenceFrame.LOCAL_WORLD_ALIGNED
        poses, velocities, jacobians = [], [], []
        for frame in self.frames:
            poses.append(np.concatenate([d.oMf[frame].translation, d.oMf[frame].rotation.ravel()]))
            v = pin.getFrameVelocity(m, d, frame, axes)
            velocities.append(np.concatenate([v.angular, v.linear]))
            J = pin.getFrameJacobian(m, d, frame, axes)
            jacobians.append(np.concatenate([J[3:], J[:3]]) @ B)
        points = [pin.getFrameJacobian(m, d, frame, axes)[:3] @ B for frame in self.points]
        found = {"poses": poses, "velocities": velocities, "J frame": jacobians, "J point": points}
        return {name: np.array(x) for name, x in found.items()}

    def _wrenches(self, wrench: np.ndarray) -> Any:
        """Wrenches at the bodies' origins as Pinocchio's forces, in the frames of the joints that carry the bodies."""
        total = [pin.Force.Zero() for _ in range(self.pin.njoints)]
        for frame, w in zip(self.frames, wrench, strict=True):
            at = pin.SE3(np.eye(3), self.data.oMf[frame].translation)
            joint = self.pin.frames[frame].parentJoint
            total[joint] = total[joint] + self.data.oMi[joint].actInv(at.act(pin.Force(w[3:], w[:3])))
        forces = pin.StdVec_Force()
        forces.extend(total)
        return forces


def _floating_body(model: Any, body: str) -> Any:
    """Pose, in the root link that Pinocchio floats, of the body that flexor floats: that link, or one on "world"."""
    frame = model.frames[model.getFrameId(body, pin.FrameType.BODY)]
    if frame.parentJoint != 1:
        raise ValueError(f"Pinocchio does not float the body '{body}'")
    return pin.SE3(frame.placement)
