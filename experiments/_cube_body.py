"""Mass and shape of the tossed cube from its tosses: the parameters of `_tosses` and beside them gravity, centre of mass,
inertia and half widths, by Levenberg and Marquardt's method with differences for derivatives.

`identify_body` goes first along the tosses until shortly after the first impact, where errors are still smooth in the
parameters, then along all of them with the errors that the models are judged by. `identify_impacts` looks at single impacts,
from states that the flight before them gives: the friction of sliding on a face, which is another, is not mixed in.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _tosses import HALF, START, Tosses, first_impacts, lowest_corner, predict, with_parameters

import flexor as fx
from flexor.nerd import Frames
from flexor.nerd.steady import steady_states

NAMES = ("friction", "restitution", "ground", "log10 cfm", "gravity", "cx", "cy", "cz", "ix", "iy", "iz", "hx", "hy", "hz")
UNIT = np.array([0.01, 0.04, 3e-4, 0.1, 0.05, *[5e-4] * 3, *[0.04] * 3, *[3e-4] * 3])
BODY = {"gravity": 9.81} | dict.fromkeys(("cx", "cy", "cz"), 0.0) | dict.fromkeys(("ix", "iy", "iz"), 1.0)
OUTLINE = {"hx": 0.047, "hy": 0.047, "hz": 0.047, "ground": 0.005}  # m, edges are round by about 5 mm
AFTER = 12  # steps after the first impact
SCALE = np.repeat([0.0137, 0.31], 3)  # m, rad: position and rotation count alike
Residual = Callable[[np.ndarray], np.ndarray]


def with_body(model: fx.Model, values: dict[str, float]) -> fx.Model:
    """The cube with given contact, gravity (m/s^2), centre of mass (m), inertia (over the reported) and half widths (m)."""
    com, inertia, half = (jnp.asarray([values[k + a] for a in "xyz"], model.dtype) for k in "cih")
    gravity = jnp.asarray([0.0, 0.0, -values["gravity"]], model.dtype)
    changed = with_parameters(model, values)
    return eqx.tree_at(
        lambda m: (m.gravity, m.bodies.com, m.bodies.inertia, m.geoms.size),
        changed,
        (
            gravity,
            changed.bodies.com.at[1].set(com),
            changed.bodies.inertia.at[1, :3].multiply(inertia),
            changed.geoms.size.at[1].set(half),
        ),
    )


def identify_body(
    simulate: Callable[[dict[str, float]], fx.Simulator],
    frames: Frames,
    tosses: Tosses,
    start: dict[str, float],
    iterations: tuple[int, int] = (8, 10),
) -> dict[str, float]:
    """All parameters of the physics that `simulate` makes of them, from those of contact in `start` and from `outline`."""
    whole = np.arange(1, tosses.q.shape[1]) <= tosses.steps[:, None]
    early = np.arange(1, tosses.q.shape[1]) <= first_impacts(tosses)[:, None] + AFTER
    difference = jax.jit(jax.vmap(jax.vmap(frames.difference)))
    begin = BODY | start | outline(tosses)
    y = np.array([begin[name] for name in NAMES])
    for inside, unit, count, small in ((early & whole, SCALE / 3, iterations[0], 1.0), (whole, SCALE, iterations[1], 0.3)):
        steps = int(np.flatnonzero(inside.any(axis=0))[-1]) + 1
        cut = tosses.until(steps)

        def residual(y: np.ndarray, cut: Tosses = cut, inside: Any = inside[:, :steps], unit: Any = unit) -> np.ndarray:
            apart = np.asarray(difference(jnp.asarray(cut.q), jnp.asarray(predict(simulate(_named(y)), cut))))[:, 1:]
            return (np.nan_to_num(apart, nan=10.0) / unit)[inside]

        y = levenberg(residual, y, count, small, small)
    return _named(y)


def identify_impacts(
    simulate: Callable[[dict[str, float]], fx.Simulator], frames: Frames, windows: Tosses, gravity: float, count: int = 20
) -> dict[str, float]:
    """Parameters by windows that begin in flight shortly before an impact. Gravity is given, and the cube is alike along x and y,
    its centre of mass on z, so that copies by its symmetries are exact."""
    difference = jax.jit(jax.vmap(jax.vmap(frames.difference)))
    inside = np.arange(1, windows.q.shape[1]) <= windows.steps[:, None]

    def tied(y: np.ndarray) -> dict[str, float]:
        named = _named(y) | {"gravity": gravity, "cx": 0.0, "cy": 0.0}
        return named | {k + a: (named[k + "x"] + named[k + "y"]) / 2 for k in "ih" for a in "xy"}

    def residual(y: np.ndarray) -> np.ndarray:
        apart = np.asarray(difference(jnp.asarray(windows.q), jnp.asarray(predict(simulate(tied(y)), windows))))[:, 1:]
        return (np.nan_to_num(apart, nan=10.0) / (SCALE / 10))[inside]

    begin = BODY | START | OUTLINE
    return tied(levenberg(residual, np.array([begin[name] for name in NAMES]), count, 1.0, 1.0))


def impacts(tosses: Tosses, frames: Frames, model: fx.Model, before: int = 3, length: int = 15) -> Tosses:
    """Windows from `before` steps before each landing on, where the instant is steady."""
    q, qd, counts = [], [], []
    recordings = [toss[: n + 1] for toss, n in zip(tosses.q, tosses.steps, strict=True)]
    for rows, found in zip(recordings, steady_states(frames, model, recordings, before), strict=True):
        flying = rows[:, 2] - OUTLINE["hz"] * lowest_corner(rows) > OUTLINE["ground"] + 0.0012
        landing = np.flatnonzero(flying[:-1] & ~flying[1:]) + 1 - before
        for i in np.flatnonzero(np.isin(found.at, landing)):
            t, n = found.at[i], min(length, len(rows) - 1 - found.at[i])
            piece = np.concatenate([found.q[i][None], rows[t + 1 : t + n + 1]])
            q.append(np.concatenate([piece, np.repeat(piece[-1:], length - n, axis=0)]))
            qd.append(np.tile(found.qd[i], (length + 1, 1)))
            counts.append(n)
    return Tosses(np.array(q, np.float32), np.array(qd, np.float32), np.array(counts), tosses.dt)


def flight_gravity(tosses: Tosses) -> float:
    """The acceleration at which the tosses fall, in m/s^2: the median over those of ten instants of flight and more."""
    fall = [
        np.polyfit(tosses.dt * np.arange(n), z[:n], 2)[0]
        for z, n in zip(tosses.q[..., 2], first_impacts(tosses) - 1, strict=True)
        if n >= 10
    ]
    return float(-2 * np.median(fall))


def levenberg(residual: Residual, y: np.ndarray, count: int, small: float, apart: float) -> np.ndarray:
    """Fewer errors e of position and rotation, sum sqrt(e^2 + small^2), by reweighted least squares; differences over `apart` of
    `UNIT`."""

    def sizes(r: np.ndarray) -> np.ndarray:
        return np.sqrt(np.sum(r.reshape(-1, 2, 3) ** 2, axis=-1) + small**2)

    r, damping = residual(y), 1.0
    for _ in range(count):
        J = np.stack([(residual(y + apart * UNIT * e) - r).ravel() / apart for e in np.eye(len(y))], axis=1)
        weight = np.repeat(1 / sizes(r), 3)
        H, g = J.T @ (weight[:, None] * J) / len(r), J.T @ (weight * r.ravel()) / len(r)
        for _ in range(4):
            step = np.linalg.solve(H + damping * np.diag(np.diag(H)) + 1e-4 * np.eye(len(y)), -g)
            tried = y + UNIT * np.clip(step, -3, 3)
            new = residual(tried)
            if sizes(new).mean() < sizes(r).mean():
                y, r, damping = tried, new, max(damping / 4, 0.01)
                break
            damping *= 4
        else:
            break
    return y


def outline(tosses: Tosses) -> dict[str, float]:
    """Half widths h and table height g that the heights of contact show, z = h c + g: those of the deepest instants after first
    impacts and of the last instants of the tosses."""
    c, rows, first = lowest_corner(tosses.q), np.arange(len(tosses)), first_impacts(tosses)
    near = first[:, None] + np.arange(6)
    deepest = near[rows, np.argmin((tosses.q[..., 2] - HALF * c)[rows[:, None], near], axis=1)]
    at = (np.tile(rows, 2), np.concatenate([deepest, tosses.steps]))
    h, g = np.polyfit(c[at], tosses.q[..., 2][at], 1)
    return {"hx": float(h), "hy": float(h), "hz": float(h), "ground": float(g)}


def _named(y: np.ndarray) -> dict[str, float]:
    least = {"friction": 0.0, "restitution": 0.0}
    return {name: max(float(v), least.get(name, -np.inf)) for name, v in zip(NAMES, y, strict=True)}
