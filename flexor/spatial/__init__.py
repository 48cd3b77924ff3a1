"""Rotations, spatial vectors and inertias: the algebra below the dynamics."""

from flexor.spatial.inertia import inertia_matrix, rotated_inertia, six_of, spatial_inertia
from flexor.spatial.rotation import (
    axis_angle_matrix,
    matrix_to_quat,
    quat_exp,
    quat_log,
    quat_mul,
    quat_to_matrix,
    rotate,
)
from flexor.spatial.rows import gathered, take
from flexor.spatial.vector import cross, dot, force_cross, matmul, matvec, motion_cross, shift_force, shift_motion, skew

__all__ = [
    "axis_angle_matrix",
    "cross",
    "dot",
    "force_cross",
    "gathered",
    "inertia_matrix",
    "matmul",
    "matrix_to_quat",
    "matvec",
    "motion_cross",
    "quat_exp",
    "quat_log",
    "quat_mul",
    "quat_to_matrix",
    "rotate",
    "rotated_inertia",
    "shift_force",
    "shift_motion",
    "six_of",
    "skew",
    "spatial_inertia",
    "take",
]
