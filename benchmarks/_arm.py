"""The arm of `identification.py`: a Panda of unknown inertial parameters and friction, driven along exciting motions by MuJoCo.

The hand and the closed fingers are part of the last link. A body has the ten numbers of `mujoco.sysid` (theta): half the
logarithm of its mass, three logarithms and three shears of the upper Cholesky factor of its second moments over its mass, and its
centre of mass. With damping and dry friction of every joint these are 12 numbers for each of the joints.
"""

import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco import rollout

import flexor as fx
from flexor.solvers.mujoco import mujoco_model

DT = 0.002
ENCODER, SPEED, TORQUE = 5e-4, 2e-3, 0.02  # standard deviations of the noise: rad, rad/s, N m
ARMATURE = 0.1  # kg m^2, the reflected inertia of the rotors; known
STEPS = 100  # of a segment
MASS, STRETCH, SHEAR, COM = 0.5 * np.log(2), 0.5 * np.log(2), 0.3, 0.05  # half widths of the bounds
DAMPING, FRICTION = 2.0, 1.5  # largest values; the smallest are zero
FREQUENCY = (0.2, 1.2)  # Hz
MOTIONS = 4
INSIDE = 0.6  # share of the bounds in which the truth lies
MIDDLE = np.array([0, -0.4, 0, -1.8, 0, 1.8, 0])
AMPLITUDE = np.array([1.1, 0.7, 1.1, 0.7, 1.1, 1.0, 1.4])
STIFFNESS = np.array([600, 600, 500, 400, 150, 100, 60.0])
DRAG = 2 * np.sqrt(STIFFNESS * np.array([1, 1, 0.7, 0.5, 0.15, 0.15, 0.11]))


def arm(joints: int) -> fx.Model:
    """The last `joints` joints of the Panda, without limits; what is below them stands still."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        fx.save(fx.load("panda"), Path(folder) / "panda.xml")
        spec = mujoco.MjSpec.from_file(str(Path(folder) / "panda.xml"))
        kept = [f"panda_joint{i}" for i in range(8 - joints, 8)]
        for x in [*spec.equalities, *spec.actuators, *spec.joints]:
            if x.name not in kept:
                spec.delete(x)
        for joint in spec.joints:
            joint.limited, joint.armature, joint.frictionloss = 0, ARMATURE, 0.5
            joint.damping[0] = 0.5
        for x in [*spec.geoms, *spec.numerics, *spec.texts]:
            spec.delete(x)
        spec.compiler.fusestatic = True
        return fx.load(spec.compile())


def theta(model: fx.Model) -> np.ndarray:
    """All free numbers of a model, a row for each joint: theta of the body, damping, friction."""
    rows = []
    for b in range(1, model.nv + 1):
        m, I = float(model.bodies.mass[b]), np.asarray(fx.spatial.inertia_matrix(model.bodies.inertia[b]))
        S = (np.trace(I) / 2 * np.eye(3) - I) / m
        U = np.linalg.cholesky(S[::-1, ::-1])[::-1, ::-1]
        body = [0.5 * np.log(m), *np.log(np.diag(U)), U[0, 1], U[1, 2], U[0, 2], *np.asarray(model.bodies.com[b])]
        rows.append([*body, float(model.joints.damping[b - 1]), float(model.joints.frictionloss[b - 1])])
    return np.array(rows)


def with_theta(model: fx.Model, x: Any) -> fx.Model:
    """The model with these numbers; the inverse of `theta`. Written in JAX."""
    n = model.nv
    m, e = jnp.exp(2 * x[:, 0]), jnp.exp(x[:, 1:4])
    U = jnp.zeros((n, 3, 3)).at[:, [0, 1, 2], [0, 1, 2]].set(e)
    U = U.at[:, [0, 1, 0], [1, 2, 2]].set(x[:, 4:7])
    S = m[:, None, None] * jnp.einsum("bij,bkj->bik", U, U)
    I = jnp.trace(S, axis1=1, axis2=2)[:, None, None] * jnp.eye(3) - S
    bodies, joints = model.bodies, model.joints
    new = (
        bodies.mass.at[1:].set(m), bodies.com.at[1:].set(x[:, 7:10]),
        bodies.inertia.at[1:].set(I[:, [0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]),
        joints.damping.at[:].set(x[:, 10]), joints.frictionloss.at[:].set(x[:, 11]),
    )  # fmt: skip
    return eqx.tree_at(
        lambda m: (m.bodies.mass, m.bodies.com, m.bodies.inertia, m.joints.damping, m.joints.frictionloss), model, new
    )


def bounds(model: fx.Model) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of all free numbers."""
    x = theta(model)
    half = np.zeros_like(x)
    half[:, 0], half[:, 1:4], half[:, 7:10] = MASS, STRETCH, COM
    half[:, 4:7] = SHEAR * np.exp(x[:, 1:4]).mean(1, keepdims=True)
    low, high = x - half, x + half
    low[:, 10:], high[:, 10], high[:, 11] = 0.0, DAMPING, FRICTION
    return low, high


def named_bounds(model: fx.Model) -> dict[str, Any]:
    """The same bounds for `fx.identify`, which bounds masses and centres of mass; its inertias are free."""
    low, high = bounds(model)
    made: dict[str, Any] = {"joint.*.damping": (0.0, DAMPING), "joint.*.frictionloss": (0.0, FRICTION)}
    for name, a, b in zip(model.topology.bodies[1:], low, high, strict=True):
        made[f"body.{name}.mass"] = (np.exp(2 * a[0]), np.exp(2 * b[0]))
        made[f"body.{name}.com"] = (a[7:10], b[7:10])
    return made


@dataclass(frozen=True, eq=False)
class Runs:
    """Segments as all methods get them: starts and positions by noisy encoders, noisy torques."""

    q: np.ndarray
    qd: np.ndarray
    torque: np.ndarray
    encoder: np.ndarray

    def logs(self, model: fx.Model) -> list[fx.Log]:
        columns = tuple(f"q.{j.name}" for j in model.topology.joints)
        noise, time = dict.fromkeys(columns, ENCODER), DT * np.arange(STEPS + 1)
        zipped = zip(self.encoder, self.torque, self.q, self.qd, strict=True)
        return [fx.Log(time, y, columns, u, noise, (q, qd)) for y, u, q, qd in zipped]

    def error(self, q: np.ndarray) -> float:
        """Root mean square of predicted minus measured positions after the start, in units of the encoders' noise."""
        return float(np.sqrt(np.mean((q - self.encoder[:, 1:]) ** 2))) / ENCODER


def prepared(m: mujoco.MjModel) -> mujoco.MjModel:
    """MuJoCo's model at the common time step, its dry friction as hard as that allows."""
    m.opt.timestep = DT
    m.dof_solref[:] = [2 * DT, 1]
    return m


def simulate(m: mujoco.MjModel, runs: Runs) -> np.ndarray:
    """Positions that MuJoCo predicts for the segments."""
    start = np.zeros((len(runs.q), mujoco.mj_stateSize(m, mujoco.mjtState.mjSTATE_FULLPHYSICS)))
    start[:, 1 : 1 + 2 * m.nq] = np.concatenate([runs.q, runs.qd], axis=1)
    return rollout.rollout(m, mujoco.MjData(m), start, runs.torque)[0][:, :, 1 : 1 + m.nq]


def record(truth: fx.Model, segments: int, motions: int, rng: np.random.Generator) -> Runs:
    """Motions along sums of sines, tracked by a controller, as sensors see them, cut into segments."""
    m = prepared(mujoco_model(truth))
    parts = [_cut(*_motion(m, segments // motions * STEPS, rng), rng) for _ in range(motions)]
    return Runs(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def _motion(m: mujoco.MjModel, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions, velocities and torques of n steps."""
    nv, t = m.nv, DT * np.arange(n + 1)
    f, phase = rng.uniform(*FREQUENCY, (nv, 5, 1)), rng.uniform(0, 2 * np.pi, (nv, 5, 1))
    a = rng.uniform(0.5, 1, (nv, 5, 1)) / f
    a = a / a.sum(1, keepdims=True) * AMPLITUDE[-nv:, None, None]
    w = 2 * np.pi * f
    wanted = MIDDLE[-nv:] + np.sum(a * np.sin(w * t + phase), 1).T
    speed = np.sum(a * w * np.cos(w * t + phase), 1).T
    data = mujoco.MjData(m)
    data.qpos[:], data.qvel[:] = wanted[0], speed[0]
    q, qd, torque = np.zeros((n + 1, nv)), np.zeros((n + 1, nv)), np.zeros((n, nv))
    for k in range(n):
        q[k], qd[k] = data.qpos, data.qvel
        mujoco.mj_forward(m, data)
        push = STIFFNESS[-nv:] * (wanted[k] - data.qpos) + DRAG[-nv:] * (speed[k] - data.qvel)
        torque[k] = data.ctrl[:] = push + 0.8 * data.qfrc_bias
        mujoco.mj_step(m, data)
    q[n], qd[n] = data.qpos, data.qvel
    return q, qd, torque


def _cut(q: np.ndarray, qd: np.ndarray, torque: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Starts, torques and encoders of the segments of a motion, with the sensors' noise."""
    q = q + ENCODER * rng.normal(size=q.shape)
    qd = qd + SPEED * rng.normal(size=qd.shape)
    torque = torque + TORQUE * rng.normal(size=torque.shape)
    at = np.arange(0, len(torque), STEPS)
    return q[at], qd[at], np.stack([torque[i : i + STEPS] for i in at]), np.stack([q[i : i + STEPS + 1] for i in at])


@dataclass(frozen=True, eq=False)
class Case:
    """One seed: where the searches start, the data, and the error of the true parameters on the held-out runs."""

    start: fx.Model
    training: Runs
    held_out: Runs
    true_error: float


def case(nominal: fx.Model, seed: int, segments: int) -> Case:
    """The truth anywhere within `INSIDE` of the bounds; every number starts at one of its bounds."""
    rng = np.random.default_rng(seed)
    low, high = bounds(nominal)
    middle, half = (low + high) / 2, (high - low) / 2
    truth = fx_model(nominal, middle + INSIDE * half * rng.uniform(-1, 1, half.shape))
    start = fx_model(nominal, middle + half * rng.choice([-1, 1], half.shape))
    training, held_out = record(truth, segments, MOTIONS, rng), record(truth, segments // 4, 2, rng)
    return Case(start, training, held_out, held_out.error(simulate(prepared(mujoco_model(truth)), held_out)))


def fx_model(nominal: fx.Model, x: np.ndarray) -> fx.Model:
    return with_theta(nominal, jnp.asarray(x))
