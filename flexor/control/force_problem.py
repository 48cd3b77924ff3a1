"""`ForceProblem`: the convex MPC of a robot on legs, its data, its cost and constraints, and the same as a dense QP.

The trunk is one rigid body whose rotation is small except for its heading (Di Carlo et al. 2018, "Dynamic locomotion in the MIT
Cheetah 3 through convex model-predictive control"). All vectors are in axes that look where the robot looks now, z up, so
that rates of roll, pitch and yaw are the angular velocity. With y = (roll, pitch, yaw, position) and x = (y, y'):

    y'' = G f + (0, 0, 0, 0, 0, -g),    G f = (I^-1 sum_i r_i x f_i,  sum_i f_i / m),

exact for forces that are constant over a step: y+ = y + dt y' + dt^2/2 y'', y'+ = y' + dt y''. The thirteenth state of the
usual form, gravity, is the constant here.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.simd import stored
from flexor.spatial import cross, matmul


class ForceProblem(eqx.Module):
    """min over f of sum_k 1/2 (x_k - target_k)^T diag(weights) (x_k - target_k) + 1/2 effort |f_k|^2, k = 1..N, such that a foot
    in contact pushes with low <= f_z <= high, |f_x| <= friction f_z, |f_y| <= friction f_z, and a foot in the air does not.

    `start` and `target` are x: angles (rad), position (m), angular velocity (rad/s), velocity (m/s). `arms` are the feet as seen
    from the centre of mass, in m; `contact` is 1 for a foot on the ground and 0 for one in the air, of every step of the horizon.
    """

    start: Float[Array, "12"]
    target: Float[Array, "horizon 12"]
    arms: Float[Array, "horizon foot 3"]
    contact: Float[Array, "horizon foot"]
    mass: Float[Array, ""]
    inertia: Float[Array, "3 3"]
    friction: Float[Array, ""]
    low: Float[Array, ""]
    high: Float[Array, ""]
    weights: Float[Array, "12"]
    effort: Float[Array, ""]
    gravity: Float[Array, ""]
    dt: Float[Array, ""]

    def fault(self) -> str:
        """Why the problem has no solution, as a sentence; empty where it has one. Reads concrete numbers."""
        low, high, mass, friction = (float(x) for x in (self.low, self.high, self.mass, self.friction))
        if not all(bool(np.isfinite(np.asarray(x)).all()) for x in jax.tree.leaves(self)):
            return "the problem of the forces has numbers that are not finite."
        if low >= high:
            return f"the problem of the forces is infeasible: no normal force lies between {low:g} and {high:g} N."
        if low < 0 or friction < 0:
            return f"feet cannot pull, and friction is not negative: the bound is {low:g} N, the coefficient {friction:g}."
        if mass <= 0 or float(np.min(np.linalg.eigvalsh(np.asarray(self.inertia)))) <= 0:
            return f"mass and inertia must be positive, got {mass:g} kg."
        if float(self.effort) <= 0 or float(jnp.min(self.weights)) < 0:
            return "the weight of the effort must be positive, those of the states not negative."
        return ""


class Step(NamedTuple):
    """A step of the horizon, in forces as shares of the robot's weight: the map G from them to accelerations. `turning` is I^-1
    [r]x times the weight, of the feet in contact; a foot in the air has neither that nor `lift`."""

    turning: Float[Array, "foot 3 3"]
    lift: Float[Array, " foot"]
    contact: Float[Array, " foot"]
    target: Float[Array, "12"]


class Scaled(NamedTuple):
    """The problem in forces as shares of the robot's weight, so that numbers are of the order of one in any robot."""

    steps: Step
    start: Float[Array, "12"]
    weights: Float[Array, "12"]
    effort: Float[Array, ""]
    friction: Float[Array, ""]
    low: Float[Array, ""]
    high: Float[Array, ""]
    gravity: Float[Array, ""]
    dt: Float[Array, ""]


def scaled(p: ForceProblem) -> Scaled:
    """See `Scaled`; its `steps` have a row for each step of the horizon."""
    unit = p.mass * p.gravity
    inverse = unit * symmetric_inverse(p.inertia)

    def step(arms: Array, contact: Array, target: Array) -> Step:
        turning = jnp.stack([cross(arms, jnp.eye(3, dtype=unit.dtype)[k]) for k in range(3)], axis=-1)
        return Step(contact[:, None, None] * matmul(inverse, turning), p.gravity * contact, contact, target)

    _, steps = jax.lax.scan(lambda _, x: (None, step(*x)), None, stored((p.arms, p.contact, p.target)))
    effort = p.effort * unit * unit
    return Scaled(steps, p.start, p.weights, effort, p.friction, p.low / unit, p.high / unit, p.gravity, p.dt)


def symmetric_inverse(M: Float[Array, "3 3"]) -> Float[Array, "3 3"]:
    """Inverse of a symmetric matrix by cofactors."""
    a, b, c = M[0], M[1], M[2]
    rows = jnp.stack([cross(b, c), cross(c, a), cross(a, b)])
    return rows / jnp.sum(a * rows[0])


def accelerations(step: Step, f: Float[Array, "foot 3"]) -> Float[Array, "6"]:
    """G f: angular and linear accelerations by the forces, without gravity."""
    turning = jnp.sum(jnp.sum(step.turning * f[:, None], axis=-1), axis=0)
    return jnp.concatenate([turning, jnp.sum(step.lift[:, None] * f, axis=0)])


def transposed(step: Step, h: Float[Array, "6"]) -> Float[Array, "foot 3"]:
    """G^T h."""
    return jnp.sum(step.turning * h[None, :3, None], axis=1) + step.lift[:, None] * h[None, 3:]


def advance(x: Float[Array, "12"], a: Float[Array, "6"], dt: Float[Array, ""]) -> Float[Array, "12"]:
    """The state a step later under a constant acceleration."""
    return jnp.concatenate([x[:6] + dt * x[6:] + dt * dt / 2 * a, x[6:] + dt * a])


def retreat(c: Float[Array, "12"], dt: Float[Array, ""]) -> tuple[Float[Array, "12"], Float[Array, "6"]]:
    """The transposed of `advance`: A^T c and E^T c."""
    return jnp.concatenate([c[:6], c[6:] + dt * c[:6]]), dt * dt / 2 * c[:6] + dt * c[6:]


def pulls(p: Scaled, f: Float[Array, "horizon foot 3"]) -> Float[Array, "horizon 12"]:
    """Derivative of the cost with respect to each state on the way, by a rollout of the trunk."""
    falling = jnp.asarray(np.arange(6) == 5, p.dt.dtype) * p.gravity

    def go(x: Array, item: tuple[Step, Array]) -> tuple[Array, Array]:
        step, f = item
        new = advance(x, accelerations(step, f) - falling, p.dt)
        return new, p.weights * (new - step.target)

    return jax.lax.scan(go, p.start, stored((p.steps, f)))[1]


def gradient(p: Scaled, f: Float[Array, "horizon foot 3"]) -> Float[Array, "horizon foot 3"]:
    """Derivative of the cost with respect to the forces, by the adjoint."""

    def back(c: Array, item: tuple[Step, Array, Array]) -> tuple[Array, Array]:
        step, f, pull = item
        c, h = retreat(c + pull, p.dt)
        return c, transposed(step, h) + p.effort * f

    return jax.lax.scan(back, jnp.zeros_like(p.start), stored((p.steps, f, pulls(p, f))), reverse=True)[1]


def slacks(p: Scaled, contact: Float[Array, " foot"], f: Float[Array, "foot 3"]) -> Float[Array, "foot 6"]:
    """What is left of each inequality; of a foot in the air 1."""
    found = along(p.friction, f) + jnp.stack([jnp.zeros_like(p.low)] * 4 + [-p.low, p.high])[None]
    return jnp.where(contact[:, None] > 0, found, 1.0)


def along(friction: Float[Array, ""], f: Float[Array, "foot 3"]) -> Float[Array, "foot 6"]:
    """C f: the inequalities' dependence on the forces."""
    x, y, z = f[:, 0], f[:, 1], f[:, 2]
    mz = friction * z
    return jnp.stack([mz - x, mz + x, mz - y, mz + y, z, -z], axis=-1)


def pushed(friction: Float[Array, ""], w: Float[Array, "foot 6"]) -> Float[Array, "foot 3"]:
    """C^T w for numbers w of the inequalities."""
    z = friction * (w[:, 0] + w[:, 1] + w[:, 2] + w[:, 3]) + w[:, 4] - w[:, 5]
    return jnp.stack([w[:, 1] - w[:, 0], w[:, 3] - w[:, 2], z], axis=-1)


class DenseQP(NamedTuple):
    """min 1/2 u^T H u + g^T u such that low <= C u <= high, over forces in N, of feet in contact only (`columns` in the order
    step, foot, x y z). For solvers of general QPs."""

    H: Float[np.ndarray, "n n"]
    g: Float[np.ndarray, " n"]
    C: Float[np.ndarray, "m n"]
    low: Float[np.ndarray, " m"]
    high: Float[np.ndarray, " m"]
    columns: np.ndarray


def dense(p: ForceProblem) -> DenseQP:
    """The problem with the states eliminated ("condensed"), in NumPy and double precision: five rows for each foot in contact."""
    at = {name: np.asarray(getattr(p, name), float) for name in ForceProblem.__dataclass_fields__}
    dt, m, g = float(at["dt"]), float(at["mass"]), float(at["gravity"])
    N = len(at["contact"])
    standing = at["contact"].ravel() > 0
    columns = np.flatnonzero(np.repeat(standing, 3))
    G = _wrench_map(at["arms"], np.linalg.inv(at["inertia"]), m)[:, :, columns]
    lag = np.arange(N)[:, None] - np.arange(N)[None]  # state k+1 feels the acceleration of step j for k - j whole steps more
    reach = np.where(lag >= 0, dt * dt * (lag + 0.5), 0.0)
    speed = np.where(lag >= 0, dt, 0.0)
    B = np.concatenate([np.einsum("kj,jan->kan", reach, G), np.einsum("kj,jan->kan", speed, G)], axis=1)
    times = dt * np.arange(1, N + 1)[:, None]
    free = np.concatenate([at["start"][:6] + times * at["start"][6:], np.broadcast_to(at["start"][6:], (N, 6))], axis=1)
    free[:, 5] -= g * times[:, 0] ** 2 / 2
    free[:, 11] -= g * times[:, 0]
    B = B.reshape(12 * N, -1)
    weighted = B * np.tile(at["weights"], N)[:, None]
    H = weighted.T @ B + at["effort"] * np.eye(len(columns))
    return DenseQP(H, weighted.T @ (free - at["target"]).ravel(), *_pyramids(at, int(standing.sum())), columns)


def _wrench_map(arms: np.ndarray, inverse: np.ndarray, mass: float) -> np.ndarray:
    """Accelerations (6) of each step by all forces of the horizon."""
    N, feet = arms.shape[:2]
    G = np.zeros((N, 6, N, feet, 3))
    lever = np.stack([np.cross(arms, axis) for axis in np.eye(3)], axis=-1)
    turning = np.einsum("ab,nfbc->nafc", inverse, lever)
    for k in range(N):
        G[k, :3, k] = turning[k]
        G[k, 3:, k] = np.eye(3)[:, None] / mass
    return G.reshape(N, 6, -1)


def _pyramids(at: dict[str, np.ndarray], feet: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mu, low, high = float(at["friction"]), float(at["low"]), float(at["high"])
    cone = np.array([[-1, 0, mu], [1, 0, mu], [0, -1, mu], [0, 1, mu], [0, 0, 1.0]])
    lower = np.tile([0, 0, 0, 0, low], feet)
    upper = np.tile([np.inf] * 4 + [high], feet)
    return np.kron(np.eye(feet), cone), lower, upper
