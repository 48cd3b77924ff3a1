"""Forward kinematics in plain numpy, written apart from the library's own, for comparing descriptions with the oracles."""

import numpy as np

from flexor.model.frames import quat_matrix
from flexor.model.model import Model


def rodrigues(axis: np.ndarray, angle: float) -> np.ndarray:
    x, y, z = axis
    k = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * k + (1 - np.cos(angle)) * k @ k


def body_poses(model: Model, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions and rotation matrices of all bodies in the world."""
    t = model.topology
    pos, rot = [np.zeros(3)], [np.eye(3)]
    for b in range(1, len(t.bodies)):
        p, r = pos[t.parents[b]], rot[t.parents[b]]
        p = p + r @ np.asarray(model.bodies.pos[b])
        r = r @ quat_matrix(model.bodies.quat[b])
        for j, joint in enumerate(t.joints):
            if joint.body == b:
                p, r = _moved(model, j, q, p, r)
        pos.append(p)
        rot.append(r)
    return np.array(pos), np.array(rot)


def _moved(model, j, q, p, r):
    start, kind = model.topology.q_start[j], model.topology.joints[j].kind
    axis, anchor = np.asarray(model.joints.axis[j]), np.asarray(model.joints.pos[j])
    if kind == "free":
        return q[start : start + 3], quat_matrix(q[start + 3 : start + 7])
    if kind == "slide":
        return p + r @ axis * (q[start] - float(model.reference[start])), r
    turn = quat_matrix(q[start : start + 4]) if kind == "ball" else rodrigues(axis, q[start] - float(model.reference[start]))
    return p + r @ (anchor - turn @ anchor), r @ turn


def random_q(model: Model, rng: np.random.Generator) -> np.ndarray:
    q = rng.normal(size=model.nq)
    for j, joint in enumerate(model.topology.joints):
        if joint.kind in ("free", "ball"):
            end = model.topology.q_start[j] + {"free": 7, "ball": 4}[joint.kind]
            q[end - 4 : end] /= np.linalg.norm(q[end - 4 : end])
    return q
