"""The cube tosses of ContactNets (Pfrommer, Halm & Posa 2020): reading, errors along whole tosses, and the analytic cube."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import h5py
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.spatial.transform import Rotation

import flexor as fx
from flexor.nerd import Frames

FILE = "cube_tosses.h5"
SUBSTEPS = 20
HALF = 0.0524  # m
START = {"friction": 0.18, "restitution": 0.125, "ground": 0.0, "log10 cfm": -3.0}


@dataclass(frozen=True, eq=False)
class Tosses:
    """States of all tosses, those after the end repeat the last: (toss, step, ...); `steps` is how many follow the first."""

    q: np.ndarray
    qd: np.ndarray
    steps: np.ndarray
    dt: float

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, rows: np.ndarray) -> "Tosses":
        longest = int(self.steps[rows].max()) + 1
        return Tosses(self.q[rows, :longest], self.qd[rows, :longest], self.steps[rows], self.dt)

    def until(self, steps: int) -> "Tosses":
        """Their first steps."""
        return Tosses(self.q[:, : steps + 1], self.qd[:, : steps + 1], np.minimum(self.steps, steps), self.dt)

    def trajectories(self, model: fx.Model) -> list[fx.Trajectory]:
        """The tosses as recordings."""
        made = []
        for q, qd, n in zip(self.q, self.qd, self.steps, strict=True):
            time = jnp.asarray(self.dt * np.arange(n + 1), model.dtype)
            q, qd = (jnp.asarray(z[: n + 1], model.dtype) for z in (q, qd))
            made.append(fx.Trajectory(time, q, qd, jnp.zeros((n, 0), model.dtype), {}, None, model.topology))
        return made


def read(path: Path) -> Tosses:
    """Reads a file of tosses: position, quaternion w x y z, velocity, body's angular velocity."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file '{path}'.")
    try:
        with h5py.File(path, "r") as file:
            rows = [np.asarray(file["tosses"][name], np.float32) for name in sorted(file["tosses"])]
            dt = float(file.attrs["dt"])
    except (OSError, KeyError) as error:
        raise ValueError(
            f"'{path}' is not a file of tosses: HDF5 with tables in a group 'tosses' and an attribute 'dt'."
        ) from error
    if any(r.ndim != 2 or r.shape[1] != 13 or len(r) < 2 for r in rows):
        raise ValueError(f"'{path}': a toss is a table of 13 columns and two rows at least.")
    if not all(np.isfinite(r).all() for r in rows):
        raise ValueError(f"'{path}' holds numbers that are not finite.")
    longest = max(map(len, rows))
    whole = np.stack([np.concatenate([r, np.repeat(r[-1:], longest - len(r), axis=0)]) for r in rows])
    return Tosses(whole[..., :7], instant(whole[..., 7:], dt), np.array([len(r) - 1 for r in rows]), dt)


def instant(qd: np.ndarray, dt: float) -> np.ndarray:
    """Velocities at the instants of the positions: the recorded ones are those of half a step before, for they come from
    differences of positions. The first, in flight, by what half a step of gravity adds, the others by the mean of neighbours."""
    new = np.concatenate([(qd[:, :-1] + qd[:, 1:]) / 2, qd[:, -1:]], axis=1)
    new[:, 0] = qd[:, 0] + dt / 2 * np.array([0.0, 0.0, -9.81, 0.0, 0.0, 0.0], np.float32)
    return new


def from_flight(tosses: Tosses, gravity: float) -> Tosses:
    """The tosses with first states by the whole of the flight before the first impact, where that is five instants at least: a
    parabola under gravity, and an even turn."""
    q, qd, first = tosses.q.astype(float), tosses.qd.astype(float), first_impacts(tosses)
    for i, n in enumerate(first - 1):
        if n >= 5:
            tau = tosses.dt * np.arange(n)
            X = np.stack([np.ones(n), tau], axis=1)
            turned = Rotation.from_quat(q[i, :n, 3:], scalar_first=True)
            p, *_ = np.linalg.lstsq(X, q[i, :n, :3] + np.outer(tau**2 / 2, [0.0, 0.0, gravity]), rcond=None)
            r, *_ = np.linalg.lstsq(X, (turned[0].inv() * turned).as_rotvec(), rcond=None)
            begin = (turned[0] * Rotation.from_rotvec(r[0])).as_quat(scalar_first=True)
            q[i, 0], qd[i, 0] = np.concatenate([p[0], begin]), np.concatenate([p[1], r[1]])
    return Tosses(q.astype(np.float32), qd.astype(np.float32), tosses.steps, tosses.dt)


def first_impacts(tosses: Tosses) -> np.ndarray:
    """The step of each toss in which its lowest corner comes within 3 mm of the table."""
    return np.argmax(tosses.q[..., 2] - HALF * lowest_corner(tosses.q) < 0.003, axis=1)


def lowest_corner(q: np.ndarray) -> np.ndarray:
    """How far below the centre the lowest corner is, in half widths: 1 flat, sqrt(3) upright."""
    R = Rotation.from_quat(q[..., 3:].reshape(-1, 4), scalar_first=True).as_matrix().reshape(*q.shape[:-1], 3, 3)
    return np.abs(R[..., 2, :]).sum(-1)


def copies(tosses: Tosses) -> Tosses:
    """The tosses as they would be by the eight symmetries of a cube whose centre of mass lies on its z axis: turned about that
    axis by quarters, and mirrored (y to -y, of the body and of the world)."""
    parts = []
    for quarter in range(4):
        turn = Rotation.from_rotvec([0.0, 0.0, quarter * np.pi / 2])
        q, qd = tosses.q.copy(), tosses.qd.copy()
        turned = Rotation.from_quat(q[..., 3:].reshape(-1, 4), scalar_first=True) * turn.inv()
        q[..., 3:] = turned.as_quat(scalar_first=True).reshape(*q.shape[:2], 4)
        qd[..., 3:] = turn.apply(qd[..., 3:].reshape(-1, 3)).reshape(*qd.shape[:2], 3)
        mirrored = q * np.array([1, -1, 1, 1, -1, 1, -1]), qd * np.array([1, -1, 1, -1, 1, -1])
        parts += [(q, qd), mirrored]
    q, qd = (np.concatenate(z).astype(np.float32) for z in zip(*parts, strict=True))
    return Tosses(q, qd, np.tile(tosses.steps, len(parts)), tosses.dt)


def errors(tosses: Tosses, predicted: np.ndarray, frames: Frames) -> tuple[np.ndarray, np.ndarray]:
    """Mean error of position (m) and rotation (rad) along each toss; `predicted` are coordinates like `tosses.q`."""
    difference = jax.jit(jax.vmap(jax.vmap(frames.difference)))
    apart = np.asarray(difference(jnp.asarray(tosses.q), jnp.asarray(predicted)))
    apart = np.where(np.isfinite(apart), apart, 10.0)
    inside = (np.arange(apart.shape[1]) >= 1) & (np.arange(apart.shape[1]) <= tosses.steps[:, None])
    found = [np.linalg.norm(apart[..., part], axis=-1) for part in (slice(0, 3), slice(3, 6))]
    return tuple(np.sum(e * inside, axis=1) / tosses.steps for e in found)  # type: ignore[return-value]


def predict(sim: fx.Simulator, tosses: Tosses) -> np.ndarray:
    """Coordinates along all tosses from their first states."""
    return np.asarray(_roll(sim, tosses.q[:, 0], tosses.qd[:, 0], int(tosses.steps.max())))


@eqx.filter_jit
def _roll(sim: fx.Simulator, q: Any, qd: Any, steps: int) -> Any:
    return jax.vmap(lambda q, qd: sim.rollout(sim.reset(q, qd), steps=steps).q)(jnp.asarray(q), jnp.asarray(qd))


def with_parameters(model: fx.Model, values: dict[str, Any]) -> fx.Model:
    """The cube with given friction, restitution, height of the table (m) and compliance of the contact."""
    changed = fx.replace(
        model,
        {
            "pair.*.friction": jnp.asarray(values["friction"], model.dtype),
            "pair.*.restitution": jnp.asarray(values["restitution"], model.dtype),
            "pair.*.cfm": jnp.asarray(10.0 ** values["log10 cfm"], model.dtype),
        },
    )
    return eqx.tree_at(lambda m: m.geoms.pos, changed, changed.geoms.pos.at[0, 2].set(values["ground"]))


def analytic(model: fx.Model, values: dict[str, Any], dt: float) -> fx.Simulator:
    """The rigid cube with given parameters."""
    return fx.Simulator(with_parameters(model, values), fx.Substeps(fx.RigidSolver(), SUBSTEPS), dt=dt)


def identify(model: fx.Model, tosses: Tosses, evaluations: int) -> dict[str, float]:
    """Friction, restitution, table height and compliance by Nelder and Mead's search over the errors along whole tosses,
    position in half widths and rotation in rad: what the models are judged by, so that the baseline is as strong as it can be."""
    frames = Frames(model.topology, tosses.dt)
    size = np.array([0.05, 0.1, 0.001, 0.5])
    names = list(START)
    least = np.array([0.0, 0.0, -np.inf, -np.inf])

    def cost(x: np.ndarray) -> float:
        values = dict(zip(names, np.maximum(np.array(list(START.values())) + size * x, least), strict=True))
        position, rotation = errors(tosses, predict(analytic(model, values, tosses.dt), tosses), frames)
        return float(np.mean(position / HALF + rotation))

    best = minimize(cost, np.zeros(4), method="Nelder-Mead", options={"maxfev": evaluations, "initial_simplex": _simplex(4)})
    values = np.maximum(np.array(list(START.values())) + size * best.x, least)
    return {name: float(v) for name, v in zip(names, values, strict=True)}


def _simplex(n: int) -> np.ndarray:
    return np.vstack([np.zeros(n), np.eye(n)])
