"""Rotations in plain numpy and double precision, for reading and writing files; the dynamics use `flexor.spatial`."""

import numpy as np
from numpy.typing import ArrayLike

IDENTITY = (1.0, 0.0, 0.0, 0.0)


def quat_matrix(quat: ArrayLike) -> np.ndarray:
    """Rotation matrix of a quaternion (w x y z) of any non-zero length."""
    quat = np.asarray(quat, float)
    w, x, y, z = quat / np.linalg.norm(quat)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def matrix_quat(R: np.ndarray) -> np.ndarray:
    """Unit quaternion, w >= 0, of a rotation matrix: the eigenvector of Bar-Itzhack's symmetric matrix (2000), method 2."""
    d = np.array(
        [
            [R[0, 0] + R[1, 1] + R[2, 2], R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]],
            [0, R[0, 0] - R[1, 1] - R[2, 2], R[1, 0] + R[0, 1], R[0, 2] + R[2, 0]],
            [0, 0, R[1, 1] - R[0, 0] - R[2, 2], R[2, 1] + R[1, 2]],
            [0, 0, 0, R[2, 2] - R[0, 0] - R[1, 1]],
        ]
    )
    quat = np.linalg.eigh(d, UPLO="U")[1][:, -1]
    return -quat if quat[0] < 0 else quat


def quat_product(a: ArrayLike, b: ArrayLike) -> np.ndarray:
    """Hamilton product a b."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    return np.concatenate([[a[0] * b[0] - a[1:] @ b[1:]], a[0] * b[1:] + b[0] * a[1:] + np.cross(a[1:], b[1:])])


def rpy_quat(rpy: ArrayLike) -> np.ndarray:
    """Quaternion of URDF's roll, pitch, yaw: R = Rz(yaw) Ry(pitch) Rx(roll)."""
    half = np.asarray(rpy, float) / 2
    x, y, z = ([np.cos(h), *(np.sin(h) * e)] for h, e in zip(half, np.eye(3), strict=True))
    return quat_product(z, quat_product(y, x))


def quat_rpy(quat: ArrayLike) -> np.ndarray:
    """Roll, pitch, yaw of a quaternion: the inverse of `rpy_quat`."""
    R = quat_matrix(quat)
    cos_pitch = np.hypot(R[0, 0], R[1, 0])
    pitch = np.arctan2(-R[2, 0], cos_pitch)
    if cos_pitch < 1e-9:  # gimbal lock: only roll -+ yaw is determined; take yaw = 0
        return np.array([np.arctan2(-R[1, 2], R[1, 1]), pitch, 0.0])
    return np.array([np.arctan2(R[2, 1], R[2, 2]), pitch, np.arctan2(R[1, 0], R[0, 0])])


def six_matrix(six: ArrayLike) -> np.ndarray:
    """Symmetric matrix of (xx yy zz xy xz yz)."""
    return np.asarray(six, float)[np.array([[0, 3, 4], [3, 1, 5], [4, 5, 2]])]


def matrix_six(matrix: np.ndarray) -> np.ndarray:
    """(xx yy zz xy xz yz) of a symmetric matrix."""
    return np.array([matrix[0, 0], matrix[1, 1], matrix[2, 2], matrix[0, 1], matrix[0, 2], matrix[1, 2]])
