"""`Layout`: where Newton and flexor keep the same numbers, and how the one's become the other's.

| | Newton, in world axes | flexor |
|---|---|---|
| quaternion | x y z w | w x y z |
| velocity of a free joint | of the centre of mass, angular | of the body's origin in world axes, angular in the body's |
| force of a free joint | at the centre of mass, moment about it | in world axes, moment about the origin in the body's |
| wrench on a body | force at the centre of mass, moment about it | moment about the origin, force; in world axes |

Arrays have a row for every world.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from flexor.model.model import Model
from flexor.model.topology import JOINT_NQ, JOINT_NV
from flexor.plugins.newton_model import JOINTS, World, last_name, newton

XYZW = np.array([1, 2, 3, 0])  # flexor's numbers of a quaternion, in Newton's order
WXYZ = np.array([3, 0, 1, 2])


@dataclass(frozen=True)
class Free:
    """A free joint: its first coordinate and velocity in flexor's vectors, and its body's centre of mass in the body's frame."""

    q: int
    qd: int
    com: np.ndarray


@dataclass(frozen=True)
class Layout:
    """`q` and `qd` are Newton's places, in one world, of flexor's coordinates and velocities; `turning` flexor's first numbers
    of quaternions. `bodies` are flexor's numbers of Newton's bodies; `com` their centres of mass."""

    worlds: int
    q: np.ndarray
    qd: np.ndarray
    turning: tuple[int, ...]
    free: tuple[Free, ...]
    bodies: np.ndarray
    com: np.ndarray
    flexor_bodies: int

    @classmethod
    def of(cls, model: newton.Model, robot: Model) -> "Layout":
        """By names; raises where joints or bodies do not go together."""
        world, t = World.first(model), robot.topology
        names = {world.name(j): j for j in world.moving}
        _check_names(t.name, "joints", set(names), {joint.name for joint in t.joints})
        labels = [last_name(model.body_label[b]) for b in world.bodies]
        _check_names(t.name, "bodies", set(labels), set(t.bodies) - {"world"}, theirs_only=True)
        q_start, qd_start = model.joint_q_start.numpy(), model.joint_qd_start.numpy()
        kinds, child, com = model.joint_type.numpy(), model.joint_child.numpy(), model.body_com.numpy()
        q: list[int] = []
        qd: list[int] = []
        turning: list[int] = []
        free: list[Free] = []
        for joint in t.joints:
            j = names[joint.name]
            kind = JOINTS.get(newton.JointType(int(kinds[j])))
            if kind != joint.kind:
                raise ValueError(
                    f"the joint '{joint.name}' is of kind {kind} in Newton's model and {joint.kind} in '{t.name}'."
                )
            if kind == "free":
                free.append(Free(len(q), len(qd), com[child[j]]))
            if kind in ("ball", "free"):
                turning.append(len(q) + (3 if kind == "free" else 0))
            q += [int(q_start[j]) + k for k in range(JOINT_NQ[kind])]
            qd += [int(qd_start[j]) + k for k in range(JOINT_NV[kind])]
        bodies = np.array([t.bodies.index(label) for label in labels], int)
        places = (np.array(q, int), np.array(qd, int), tuple(turning), tuple(free))
        return cls(model.world_count, *places, bodies, com[list(world.bodies)], len(t.bodies))

    def from_newton(self, joint_q: np.ndarray, joint_qd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """flexor's q and qd."""
        q = self._rows(joint_q)[:, self.q]
        qd = self._rows(joint_qd)[:, self.qd]
        for i in self.turning:
            q[:, i : i + 4] = q[:, i + WXYZ]
        for joint in self.free:
            turn = _rotation(q[:, joint.q + 3 : joint.q + 7])
            spin = qd[:, joint.qd + 3 : joint.qd + 6]
            qd[:, joint.qd : joint.qd + 3] -= np.cross(spin, turn @ joint.com)
            qd[:, joint.qd + 3 : joint.qd + 6] = _into_body(turn, spin)
        return q, qd

    def to_newton(self, q: np.ndarray, qd: np.ndarray, joint_q: np.ndarray, joint_qd: np.ndarray) -> None:
        """Writes q and qd into Newton's arrays."""
        turned, moved = q.copy(), qd.copy()
        for joint in self.free:
            turn = _rotation(q[:, joint.q + 3 : joint.q + 7])
            spin = np.einsum("wij,wj->wi", turn, qd[:, joint.qd + 3 : joint.qd + 6])
            moved[:, joint.qd : joint.qd + 3] += np.cross(spin, turn @ joint.com)
            moved[:, joint.qd + 3 : joint.qd + 6] = spin
        for i in self.turning:
            turned[:, i : i + 4] = q[:, i + XYZW]
        self._rows(joint_q)[:, self.q] = turned
        self._rows(joint_qd)[:, self.qd] = moved

    def forces(self, joint_f: np.ndarray, q: np.ndarray) -> np.ndarray:
        """flexor's generalised forces of Newton's, at flexor's q."""
        tau = self._rows(joint_f)[:, self.qd]
        for joint in self.free:
            turn = _rotation(q[:, joint.q + 3 : joint.q + 7])
            force = tau[:, joint.qd : joint.qd + 3]
            moment = tau[:, joint.qd + 3 : joint.qd + 6] + np.cross(turn @ joint.com, force)
            tau[:, joint.qd + 3 : joint.qd + 6] = _into_body(turn, moment)
        return tau

    def wrenches(self, body_f: np.ndarray, body_q: np.ndarray) -> np.ndarray:
        """flexor's wrenches on its bodies, of Newton's at the poses of its bodies."""
        wrench = np.zeros((self.worlds, self.flexor_bodies, 6), body_f.dtype)
        if body_f.any():
            force, moment = np.split(body_f.reshape(self.worlds, -1, 6), 2, axis=-1)
            turn = _rotation(body_q.reshape(self.worlds, -1, 7)[..., 3 + WXYZ])
            arm = np.einsum("wbij,bj->wbi", turn, self.com)
            wrench[:, self.bodies] = np.concatenate([moment + np.cross(arm, force), force], axis=-1)
        return wrench

    def _rows(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(self.worlds, -1)


def _check_names(robot: str, what: str, theirs: set[str], ours: set[str], *, theirs_only: bool = False) -> None:
    """Raises where a name is missing on one side; flexor may have more bodies, where `theirs_only` must be found."""
    missing, unknown = sorted(set() if theirs_only else ours - theirs), sorted(theirs - ours)
    if missing or unknown:
        sides = [f"Newton's model lacks {', '.join(missing)}"] if missing else []
        sides += [f"'{robot}' lacks {', '.join(unknown)}"] if unknown else []
        raise ValueError(f"the {what} do not go together by their names: {'; '.join(sides)}.")


def _rotation(quat: np.ndarray) -> np.ndarray:
    """Rotation matrices of unit quaternions w x y z."""
    w, x, y, z = np.moveaxis(quat, -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def _into_body(turn: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Vectors in world axes, in the bodies' axes."""
    out: np.ndarray = np.einsum("wji,wj->wi", turn, x)
    return out


def gains(model: newton.Model, control: Any, joint_q: np.ndarray, joint_qd: np.ndarray) -> np.ndarray:
    """Forces of Newton's targets for joints of one degree of freedom: ke (q* - q) + kd (qd* - qd)."""
    force = np.zeros_like(joint_qd)
    kinds, ke, kd = model.joint_type.numpy(), model.joint_target_ke.numpy(), model.joint_target_kd.numpy()
    if not (ke.any() or kd.any()):
        return force
    single = np.isin(kinds, [newton.JointType.PRISMATIC, newton.JointType.REVOLUTE])
    at_q, at_qd = model.joint_q_start.numpy()[:-1][single], model.joint_qd_start.numpy()[:-1][single]
    target = model.joint_target_q_start.numpy()[:-1][single]
    apart = control.joint_target_q.numpy()[target] - joint_q[at_q]
    faster = control.joint_target_qd.numpy()[at_qd] - joint_qd[at_qd]
    force[at_qd] = ke[at_qd] * apart + kd[at_qd] * faster
    return force
