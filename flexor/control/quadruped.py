"""`Quadruped`: what a walking controller must know of a robot on four legs. All of it follows from the model."""

import dataclasses

import numpy as np

from flexor import simd
from flexor.control.legs import Legs
from flexor.dynamics import (
    body_poses,
    centre_of_mass,
    crba,
    forward_kinematics,
    point_jacobian,
    total_mass,
)
from flexor.model.model import Model

CORNERS = ("front right", "front left", "rear right", "rear left")


@dataclasses.dataclass(frozen=True, eq=False)
class Quadruped:
    """A model, which of its parts are legs, and figures of the robot as it stands. Feet are in the order of `CORNERS`.

    `dofs` and `motors` are the velocity coordinates and actuators of each leg, from the hip down. `stand` are coordinates in
    which every foot is below its hip, the legs bent to `bend` of their length. In that pose: `height` of the centre of mass
    above the ground, `feet` from there, inertias of the legs' joints, and the `inertia` that the trunk has while the feet stand:
    legs on the ground hardly turn with it, T^T M T with the motions T that leave the feet where they are.
    """

    model: Model
    legs: Legs
    dofs: np.ndarray
    motors: np.ndarray
    stand: np.ndarray
    mass: float
    gravity: float
    height: float
    feet: np.ndarray
    inertia: np.ndarray
    leg_inertia: np.ndarray
    leg_length: float
    bend: float
    friction: float

    @staticmethod
    def of(model: Model, *, bend: float = 0.8) -> "Quadruped":
        """The description of a robot; raises, with a sentence, where it is none with four legs of three motors each."""
        legs = _in_order(model, _four(model))
        dofs, motors = _motors(model, legs)
        stand, length = _standing(model, legs, dofs, bend)

        def figures(q):  # type: ignore[no-untyped-def]
            kin = forward_kinematics(model, q)
            com = centre_of_mass(model, kin)
            feet = legs.foot_positions(model, kin) - com[None]
            bodies = np.array([model.topology.geoms[k].body for k in legs.feet])
            J = point_jacobian(model, kin, bodies, legs.foot_positions(model, kin))
            return com - q[:3], com[2] - legs.level(model), feet, crba(model, kin), J, total_mass(model)

        com, height, feet, M, J, mass = (np.asarray(x, float) for x in simd.jit(figures)(stand))
        inertia = _inertia(M, J, dofs, com)
        friction = float(np.min(np.asarray(model.pairs.friction)[_pairs(model, legs)]))
        gravity = -float(model.gravity[2])
        if gravity <= 0 or abs(np.asarray(model.gravity)[:2]).max() > 1e-6 * gravity:
            raise ValueError(
                f"'{model.topology.name}' cannot walk where gravity does not point down: {np.asarray(model.gravity)}."
            )
        leg_inertia = np.stack([M[np.ix_(d, d)] for d in dofs])
        return Quadruped(model, legs, dofs, motors, np.asarray(stand), float(mass), gravity, float(height), feet,
                         inertia, leg_inertia, length, bend, friction)  # fmt: skip


def _four(model: Model) -> Legs:
    legs = Legs.of(model)
    if len(legs.feet) != 4:
        raise ValueError(
            f"'{model.topology.name}' has {len(legs.feet)} feet, spheres that may touch a plane; this controller walks on four."
        )
    return legs


def _in_order(model: Model, legs: Legs) -> Legs:
    """The legs in the order of `CORNERS`, by where the hips are."""
    pos = np.asarray(simd.jit(lambda q: body_poses(model, forward_kinematics(model, q))[0])(model.reference))
    root = model.topology.joints[0].body
    hips = np.array([pos[h] - pos[root] for h in legs.hips])
    corner = [2 * int(x < np.mean(hips[:, 0])) + int(y > np.mean(hips[:, 1])) for x, y, _ in hips]
    if sorted(corner) != [0, 1, 2, 3]:
        raise ValueError(f"the hips of '{model.topology.name}' are not at four corners of its trunk.")
    order = np.argsort(corner)
    picked = [tuple(part[k] for k in order) for part in (legs.feet, legs.knees, legs.hips)]
    return Legs(picked[0], picked[1], picked[2], legs.ground)


def _inertia(M: np.ndarray, J: np.ndarray, dofs: np.ndarray, com: np.ndarray) -> np.ndarray:
    """Inertia against rotations of the trunk about the centre of mass, the feet held by the ground."""
    T = np.zeros((len(M), 3))
    T[:3], T[3:6] = np.cross(com, np.eye(3)).T, np.eye(3)  # v = -w x com, and the trunk is level
    for k, d in enumerate(dofs):
        T[d] = -np.linalg.solve(J[k][:, d], J[k][:, :6] @ T[:6])
    inertia = T.T @ M @ T
    return (inertia + inertia.T) / 2


def _pairs(model: Model, legs: Legs) -> list[int]:
    return [k for k, p in enumerate(model.topology.pairs) if p.b in legs.feet and p.a == legs.ground]


def _motors(model: Model, legs: Legs) -> tuple[np.ndarray, np.ndarray]:
    """Velocity coordinates and actuators of each leg, from the hip down."""
    t = model.topology
    of_joint = {a.joint: k for k, a in enumerate(t.actuators) if a.joint is not None and a.dynamics == "none"}
    dofs, motors = [], []
    for foot, corner in zip(legs.feet, CORNERS, strict=True):
        body, chain = t.geoms[foot].body, []
        while body > 0:
            chain += [k for k, j in enumerate(t.joints) if j.body == body and j.kind != "free"]
            body = t.parents[body]
        chain = chain[::-1]
        if len(chain) != 3 or any(t.joints[k].kind != "hinge" or k not in of_joint for k in chain):
            raise ValueError(
                f"the {corner} leg of '{t.name}' has {len(chain)} joints; this controller needs three hinges with motors."
            )
        dofs.append([int(t.v_start[k]) for k in chain])
        motors.append([of_joint[k] for k in chain])
    motors_array = np.array(motors)
    if np.any(np.asarray(model.actuators.bias)[motors_array]):
        raise ValueError(f"the actuators of '{t.name}' are servos; this controller needs motors, which take torques.")
    return np.array(dofs), motors_array


def _standing(model: Model, legs: Legs, dofs: np.ndarray, bend: float) -> tuple[np.ndarray, float]:
    """Coordinates with each foot below its hip, by Newton's method from bent legs, and the mean length of a leg.

    Knees bend to where their range has its middle; where it has none, towards the middle of the trunk.
    """
    t = model.topology

    def places(q):  # type: ignore[no-untyped-def]
        kin = forward_kinematics(model, q)
        feet = legs.foot_positions(model, kin)
        bodies = np.array([t.geoms[k].body for k in legs.feet])
        return feet, body_poses(model, kin)[0], point_jacobian(model, kin, bodies, feet)

    look = simd.jit(places)
    q = np.zeros(model.nq)
    q[3] = 1
    feet, pos, _ = (np.asarray(x, float) for x in look(q.astype(model.dtype)))
    columns = dofs + 1  # a free joint has one coordinate more than velocities
    thighs = np.array([t.joints[_joint_of(model, d[1])].body for d in dofs])
    knees = np.array(legs.knees)
    lengths = np.linalg.norm(pos[knees] - pos[thighs], axis=1) + np.linalg.norm(feet - pos[knees], axis=1)
    goal = pos[thighs] * [1, 0, 1] + feet * [0, 1, 0] - bend * lengths[:, None] * [0, 0, 1]
    q[columns] = [_bent(model, d, 0.3 if pos[h, 0] > 0 else -0.3) for d, h in zip(dofs, thighs, strict=True)]
    for _ in range(50):
        feet, _, J = (np.asarray(x, float) for x in look(q.astype(model.dtype)))
        for k, d in enumerate(dofs):
            own = J[k][:, d]
            q[columns[k]] += own.T @ np.linalg.solve(own @ own.T + 1e-4 * lengths[k] ** 2 * np.eye(3), goal[k] - feet[k])
    off = float(np.abs(feet - goal).max())
    ranges = np.array([[np.asarray(model.joints.range)[_joint_of(model, i)] for i in d] for d in dofs])
    limited = np.array([[t.joints[_joint_of(model, i)].limited for i in d] for d in dofs])
    outside = limited & ((q[columns] < ranges[..., 0]) | (q[columns] > ranges[..., 1]))
    if off > 1e-3 * lengths.max() or outside.any():
        raise ValueError(
            f"'{t.name}' cannot stand with its feet below its hips and its legs bent to {bend:g} of their length."
        )
    radius = float(np.max(np.asarray(model.geoms.size)[list(legs.feet), 0]))
    q[2] = float(legs.level(model)) + radius - float(feet[:, 2].min())
    return q.astype(model.dtype), float(lengths.mean())


def _joint_of(model: Model, dof: int) -> int:
    return int(model.topology.dof_joint[dof])


def _bent(model: Model, dofs: np.ndarray, inwards: float) -> list[float]:
    """Angles of a bent leg to start from: the knee in the middle of its range, the thigh half as far the other way."""
    joint = _joint_of(model, dofs[2])
    low, high = (float(x) for x in np.asarray(model.joints.range)[joint])
    limited = model.topology.joints[joint].limited and high - low < 2 * np.pi
    knee = (low + high) / 2 if limited else -2 * inwards
    return [0.0, -knee / 2, knee]
