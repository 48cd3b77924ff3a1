"""Exercises: motions to plan, each with a robot, an objective, a start, and what it means to have solved it.

They begin with controls of zero. Angles, positions and speeds are weighed in rad, m and their rates.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.control import Objective
from flexor.dynamics import body_poses, difference, forward_kinematics, frame_pose
from flexor.envs.franka import HOME, panda
from flexor.model.model import Model, State
from flexor.robots import bundled, load
from flexor.solvers import Simulator, Trajectory
from flexor.solvers.table import solver
from flexor.spatial import rotate


class Figure(NamedTuple):
    """A figure of a motion, and what it is at most if the exercise is solved."""

    what: str
    value: float
    limit: float


class Exercise(NamedTuple):
    """A motion to plan. `judge` gives the figures of a trajectory."""

    sim: Simulator
    objective: Objective
    start: State
    judge: Callable[[Trajectory], list[Figure]]


class Weighed(eqx.Module):
    """Residuals of being at `goal` at rest: weights on (q - goal, qd), and on the controls where there are any."""

    goal: Float[Array, " nq"]
    state: Float[Array, " n"]
    control: Float[Array, " nu"] | None = None

    def __call__(self, state: State, u: Float[Array, " nu"] | None = None) -> Float[Array, " m"]:
        x = self.state * jnp.concatenate([state.q - self.goal, state.qd])
        return x if u is None or self.control is None else jnp.concatenate([x, self.control * u])


def _swing_up(robot: str, steps: int, running: list[float], final: list[float], effort: float) -> Exercise:
    """From hanging to upright."""
    model = load(robot)
    sim = Simulator(model, solver("ncp", substeps=4), dt=0.02)
    goal, dtype = model.keyframe("upright"), model.dtype

    def weighed(weights: list[float], control: float | None) -> Weighed:
        effort = None if control is None else jnp.full(model.nu, control, dtype)
        return Weighed(goal, jnp.asarray(weights, dtype), effort)

    objective = Objective(weighed(running, effort), weighed(final, None), steps=steps)

    def judge(made: Trajectory) -> list[Figure]:
        off = np.abs(np.asarray(made.q[-1] - goal))
        return [Figure("rad from upright at the end", float(off.max()), 0.1),
                Figure("rad/s at the end", float(np.abs(made.qd[-1]).max()), 0.3)]  # fmt: skip

    return Exercise(sim, objective, sim.reset("hanging"), judge)


def pose(sim: Simulator, goal: np.ndarray, start: np.ndarray | None, steps: int, effort: float) -> Exercise:
    """Any robot to coordinates, and to rest there; `effort` weighs controls as shares of their range."""
    model, dtype = sim.model, sim.model.dtype
    low, high = np.asarray(model.actuators.ctrl_range).T
    half = np.where(np.isfinite(high - low), (high - low) / 2, 1.0)
    weights = jnp.asarray(effort / half, dtype)

    def off(state: State, place: float, speed: float) -> Array:
        return jnp.concatenate([place * difference(model, jnp.asarray(goal, dtype), state.q), speed * state.qd])

    def running(state: State, u: Array) -> Array:
        return jnp.concatenate([off(state, 0.3, 0.02), weights * u])

    def judge(made: Trajectory) -> list[Figure]:
        left = np.abs(np.asarray(difference(model, jnp.asarray(goal, dtype), made.q[-1])))
        worst = model.topology.dof_name(int(np.argmax(left)))
        return [Figure(f"farthest from its goal at the end: {worst} (m, rad)", float(left.max()), 0.1),
                Figure("fastest at the end (m/s, rad/s)", float(np.abs(made.qd[-1]).max()), 0.5)]  # fmt: skip

    return Exercise(sim, Objective(running, lambda state: off(state, 15.0, 4.0), steps=steps), sim.reset(start), judge)


def cartpole() -> Exercise:
    """A cart swings its pole up, in 2 s."""
    return _swing_up("cartpole", 100, [0.1, 0.3, 0.02, 0.02], [10, 10, 3, 3], 0.1)


def acrobot() -> Exercise:
    """Two bars swing up by the motor between them, in 3 s."""
    return _swing_up("acrobot", 150, [0.3, 0.1, 0.02, 0.02], [20, 20, 5, 5], 0.1)


PILLAR, WIDTH = (0.45, 0.0), 0.08
"""Where the pillar between the Panda's start and its goal stands, and its radius, in m."""
LINKS = ("panda_hand", "panda_link7", "panda_link5", "panda_link4")


def reach() -> Exercise:
    """A Panda brings its hand from one side of a pillar to the other, in 1.5 s; torques are those beyond what carries it."""
    model = panda()
    sim = Simulator(model, solver("ncp"), dt=0.02)
    dtype, margin = model.dtype, 0.1
    q = np.array(HOME)
    q[0] = -0.6
    goal = np.array([0.4, 0.3, 0.45])

    def distances(q: Array) -> Float[Array, " n"]:
        """Of the links' origins from the pillar's surface."""
        poses = body_poses(model, forward_kinematics(model, q))[0]
        places = jnp.stack([poses[model.topology.bodies.index(name)] for name in LINKS])
        return jnp.sqrt(jnp.sum((places[:, :2] - jnp.asarray(PILLAR, dtype)[None]) ** 2, axis=1)) - WIDTH

    def off(q: Array) -> Float[Array, "3"]:
        return frame_pose(model, q, LINKS[0])[0] - jnp.asarray(goal, dtype)

    def running(state: State, u: Array) -> Array:
        near = jnp.maximum(margin - distances(state.q), 0)
        return jnp.concatenate([0.3 * off(state.q), 30 * near, 0.03 * state.qd, 0.003 * u])

    def final(state: State) -> Array:
        return jnp.concatenate([30 * off(state.q), 30 * jnp.maximum(margin - distances(state.q), 0), state.qd])

    def judge(made: Trajectory) -> list[Figure]:
        gap = min(float(np.min(distances(x))) for x in made.q)
        return [Figure("m from the goal at the end", float(np.linalg.norm(off(made.q[-1]))), 0.01),
                Figure("m that a link is nearer to the pillar than 5 cm", max(0.0, 0.05 - gap), 0.0),
                Figure("rad/s at the end", float(np.abs(made.qd[-1]).max()), 0.2)]  # fmt: skip

    return Exercise(sim, Objective(running, final, steps=75), sim.reset(q), judge)


HEIGHT, AHEAD, EDGE = 0.2, 0.6, 0.32
"""The platform's height, how far the quadruped is to jump, and where the platform begins, in m."""


def jump() -> Exercise:
    """The quadruped jumps onto a platform of 0.2 m. Controls move its joints' targets away from the stance, in rad."""
    model = _with_platform()
    sim = Simulator(model, solver("ncp", substeps=5), dt=0.02)
    stand, dtype = np.asarray(model.keyframe("stand")), model.dtype
    push, flight, land = 14, 16, 22  # steps
    arc = jnp.asarray(_arc(stand, push, flight, land), dtype)
    tuck = jnp.asarray(_tucked(stand, push, flight, land), dtype)
    weight = jnp.asarray(np.concatenate([[8, 8, 12], [4, 4, 2]]), dtype)
    dt = float(sim.dt)
    lifted = np.concatenate([np.zeros(push + 2), np.linspace(0, 1, 5)[1:], np.ones(flight - 6)])
    least = jnp.asarray(np.concatenate([(HEIGHT + 0.05) * lifted, np.full(land + 1, HEIGHT - 0.01)]), dtype)
    legs = tuple(k for k, g in enumerate(model.topology.geoms) if g.name.endswith("foot"))

    def low(q: Array, k: Array) -> Float[Array, "4"]:
        """How far feet are below where they are to be at least: on the floor, above the platform's edge, on the platform."""
        return jnp.maximum(least[k] - _feet(model, q, legs)[:, 2], 0)

    def off(state: State, k: Array) -> Array:
        tilt = 2 * state.q[4:7]
        return jnp.concatenate([weight * jnp.concatenate([state.q[:3] - arc[k], tilt]), 0.5 * (state.q[7:] - tuck[k])])

    def running(state: State, u: Array) -> Array:
        k = jnp.clip(jnp.round(state.time / dt), 0, push + flight + land).astype(jnp.int32)
        return jnp.concatenate([off(state, k), 15 * low(state.q, k), 0.04 * state.qd, 0.05 * u])

    def final(state: State) -> Array:
        return jnp.concatenate([3 * off(state, jnp.asarray(push + flight + land)), 0.3 * state.qd])

    def judge(made: Trajectory) -> list[Figure]:
        q = np.asarray(made.q[-1])
        feet = np.asarray(_feet(model, made.q[-1], legs))
        height = float(np.abs(feet[:, 2] - HEIGHT).max())
        return [Figure("m that a foot is above or below the platform at the end", height, 0.03),
                Figure("m that a foot is from the platform's edge outwards", float(max(0.0, EDGE - feet[:, 0].min())), 0.0),
                Figure("rad of tilt at the end", float(2 * np.linalg.norm(q[4:6])), 0.3)]  # fmt: skip

    start = sim.reset(stand)
    return Exercise(sim, Objective(running, final, steps=push + flight + land), start, judge)


def _feet(model: Model, q: Float[Array, " nq"], feet: tuple[int, ...]) -> Float[Array, "4 3"]:
    """Lowest points of the feet."""
    pos, rot = body_poses(model, forward_kinematics(model, q))
    bodies = [model.topology.geoms[k].body for k in feet]
    low = jnp.stack([model.geoms.size[k, 0] for k in feet])
    places = jnp.stack([pos[b] + rotate(rot[b], model.geoms.pos[k]) for b, k in zip(bodies, feet, strict=True)])
    return places - low[:, None] * jnp.asarray([0, 0, 1], q.dtype)[None]


def _with_platform() -> Model:
    """The bundled quadruped before a platform, with servos about its stance in the place of motors; feet alone touch things."""
    text = bundled()["quadruped"].read_text(encoding="utf-8")
    middle = HEIGHT / 2
    platform = f'<geom name="platform" type="box" pos="{EDGE + 1} 0 {middle}" size="1 1 {middle}" contype="1"/>'
    text = text.replace('<body name="trunk"', f'{platform}\n    <body name="trunk"', 1)
    text = text.replace('size="0.22 0.09 0.055" conaffinity="1"', 'size="0.22 0.09 0.055"')
    model = load(text)
    stand, dtype, nu, kp, kd = model.keyframe("stand")[7:], model.dtype, model.nu, 60.0, 4.0
    bias = jnp.stack([kp * stand, jnp.full(nu, -kp, dtype), jnp.full(nu, -kd, dtype)], axis=1)
    range_ = jnp.broadcast_to(jnp.array([-1.5, 1.5], dtype), (nu, 2))
    parts = lambda m: (m.actuators.gain, m.actuators.bias, m.actuators.ctrl_range)  # noqa: E731
    return eqx.tree_at(parts, model, (jnp.full(nu, kp, dtype), bias, range_))


def _arc(stand: np.ndarray, push: int, flight: int, land: int) -> np.ndarray:
    """Where the trunk is to be at each step: down and up again, a straight way onto the platform, and standing there."""
    s = np.arange(push) / push
    down = np.stack([0.08 * s, 0 * s, stand[2] - 0.08 * np.sin(np.pi * s)], axis=1)
    first = np.array([0.08, 0, stand[2] + 0.04])
    last = np.array([AHEAD, 0, stand[2] + HEIGHT])
    s = np.arange(flight)[:, None] / flight
    rise = 0.5 * 9.81 * (0.02 * flight) ** 2 * (s - s**2)
    fly = first + s * (last - first) + rise * np.array([0, 0, 1.0])
    return np.concatenate([down, fly, np.repeat(last[None], land + 1, axis=0)])


def _tucked(stand: np.ndarray, push: int, flight: int, land: int) -> np.ndarray:
    """Joint angles to keep near to: the stance, its legs drawn up in flight."""
    high = np.concatenate([np.zeros(push), np.sin(np.pi * np.arange(flight) / flight), np.zeros(land + 1)])
    return stand[7:] + high[:, None] * np.tile([0, 0.6, -0.9], 4)


EXERCISES: Mapping[str, Callable[[], Exercise]] = {
    "cartpole": cartpole, "acrobot": acrobot, "panda-reach": reach, "quadruped-jump": jump,
}  # fmt: skip
"""Exercises that come with flexor."""


def exercise(name: str) -> Exercise:
    """An exercise by name."""
    if name not in EXERCISES:
        close = get_close_matches(name, EXERCISES, n=1)
        guess = f" Did you mean '{close[0]}'?" if close else ""
        raise KeyError(f"there is no exercise '{name}'.{guess} There are {', '.join(EXERCISES)}.")
    return EXERCISES[name]()
