"""Contact modes of a given robot: states from which a short rollout is airborne, touches down, slides, sticks or lifts off."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flexor.certify.closed_forms import jit_once
from flexor.contact import contact_jacobian, detect
from flexor.contact.contact import Instant
from flexor.contact.equality import ties
from flexor.dynamics import crba, forward_kinematics, integrate
from flexor.model.model import Model

Line = Callable[[float], Array]
SLACK = 1e-4  # rad or m by which equalities are violated at the start, so that their stabilisation acts
MODES = ("airborne", "touching", "sliding", "sticking", "lifting off")


@dataclass(frozen=True)
class Scene:
    """An initial state, the mode that its rollout is meant to pass through, and what is added to the friction coefficients."""

    mode: str
    q: Array
    qd: Array
    grip: float = 0.0


class _Robot:
    """A model with the three functions of it that a search calls at hundreds of configurations, each compiled once.

    `moved(q, displacement)` is q after a displacement, brought back to where equalities and loops hold; `gap(q)` the smallest
    distance of any two shapes; `with_contact_velocity(q, qd, wanted)` see there.
    """

    def __init__(self, model: Model):
        self.model, self.topology = model, model.topology
        self.moved = jit_once(partial(_moved, model))
        self.gap = jit_once(lambda q: jnp.min(detect(model, forward_kinematics(model, q)).distance))
        self.with_contact_velocity = jit_once(partial(_with_contact_velocity, model))


def scenes(model: Model, seed: int, dt: float) -> list[Scene]:
    """One scene for each mode that the robot can be brought into; a robot that touches nothing is airborne only."""
    rng, robot = np.random.default_rng(seed), _Robot(model)
    q = _configuration(robot, rng)
    wander = 0.2 * rng.normal(size=model.nv)
    found = _touching(robot, rng, q) if model.topology.pairs else None
    if found is None:
        return [Scene("airborne", q, jnp.asarray(wander))]
    apart, touch, lifted = found
    # normal and tangential velocity of the deepest contact; gaps are reached within a few steps
    plan = {
        "touching": (lifted(3 * dt), [-1.0, 0.3, 0.2]),
        "sliding": (touch, [0.0, 0.8, 0.5]),
        "sticking": (touch, [0.0, 0.0, 0.0]),
        "lifting off": (touch, [-1.0, 0.3, 0.2]),  # off again by its restitution
    }
    made = [Scene("airborne", apart, jnp.asarray(wander))]
    for mode, (q, velocity) in plan.items():
        sticks = mode == "sticking"
        qd = robot.with_contact_velocity(q, 0 * wander if sticks else 0.2 * wander, np.array(velocity))
        made.append(Scene(mode, q, qd, grip=2.0 if sticks else 0.0))
    return made


def _configuration(robot: _Robot, rng: np.random.Generator) -> Array:
    """The first keyframe, or the reference moved into the joint limits, a little disturbed so that nothing is symmetric."""
    model, t = robot.model, robot.topology
    q = np.array(model.keyframes[0] if len(t.keyframes) else model.reference, dtype=float)
    for j in t.limited:
        low, high = np.asarray(model.joints.range[j])
        margin = 0.2 * (high - low)
        q[t.q_start[j]] = np.clip(q[t.q_start[j]], low + margin, high - margin)
    return robot.moved(q, 0.03 * rng.normal(size=t.nv))


def _moved(model: Model, q: Array, displacement: Array) -> Array:
    """q after a displacement, brought back to where equalities and loops hold, but for `SLACK`, by Gauss-Newton steps."""
    q = integrate(model, q, displacement)
    if not model.topology.equalities and not model.topology.loops:
        return q

    def correct(_: Array, q: Array) -> Array:
        tied = ties(Instant(model, forward_kinematics(model, q), q, jnp.zeros(model.nv)))
        return integrate(model, q, jnp.linalg.pinv(tied.J, rtol=1e-9) @ (SLACK - tied.gap))

    return jax.lax.fori_loop(0, 20, correct, q)


def _touching(robot: _Robot, rng: np.random.Generator, q: Array) -> tuple[Array, Array, Callable[[float], Array]] | None:
    """A configuration apart, one that overlaps by 20 micrometres, and q(gap): one at a given gap; None if none is found."""
    grid = np.linspace(0.0, 1.0, 65)
    for line in _lines(robot, rng, q):
        gaps = np.array([float(robot.gap(line(s))) for s in grid])
        landings = np.flatnonzero((gaps[:-1] > 0) & (gaps[1:] <= 0))
        if not len(landings) or gaps.max() < 2e-2:
            continue
        high = landings[0]

        def lifted(gap: float, line: Line = line, low: float = grid[high], deep: float = grid[high + 1]) -> Array:
            for _ in range(60):
                middle = (low + deep) / 2
                low, deep = (middle, deep) if float(robot.gap(line(middle))) > gap else (low, middle)
            return line(deep)

        return line(grid[int(np.argmax(gaps))]), lifted(-2e-5), lifted
    return None


def _lines(robot: _Robot, rng: np.random.Generator, q: Array) -> Iterator[Line]:
    """Paths through configuration space along which something may come to touch: down along gravity, then at random."""
    t = robot.topology
    free = t.joints_of("free")
    if len(free):
        down = np.zeros(t.nv)
        gravity = np.asarray(robot.model.gravity)
        unit = gravity / np.linalg.norm(gravity) if np.any(gravity) else np.array([0.0, 0.0, -1.0])
        down[t.v_start[free[0]] : t.v_start[free[0]] + 3] = unit
        yield lambda s: robot.moved(q, 3.0 * down * (s - 0.5))
    for _ in range(40):
        direction = rng.normal(size=t.nv)
        start = robot.moved(q, 0.3 * rng.normal(size=t.nv))
        yield partial(_ahead, robot, start, direction)


def _ahead(robot: _Robot, start: Array, direction: np.ndarray, s: float) -> Array:
    return robot.moved(start, 2.0 * direction * s)


def _with_contact_velocity(model: Model, q: Array, qd: Array, wanted: Array) -> Array:
    """The velocity nearest to qd, in kinetic energy, that gives the deepest contact the wanted velocity."""
    kin = forward_kinematics(model, q)
    contacts = detect(model, kin)
    J = contact_jacobian(model, kin, contacts)[jnp.argmin(contacts.distance)]
    Y = jnp.linalg.solve(crba(model, kin), J.T)
    return qd + Y @ (jnp.linalg.pinv(J @ Y, rtol=1e-9) @ (wanted - J @ qd))
