"""Textbook problems whose derivatives are known on paper: a bouncing ball, two colliding balls, a sliding and a sticking block.

Each row is (problem, derivative, computed, exact, relative error, tolerance, holds). With constant forces semi-implicit Euler
is exact up to terms of order dt, so the tolerance is a small multiple of dt; where no force acts it is rounding.
"""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from flexor.contact import NCP
from flexor.model.load import load
from flexor.model.model import Control, Model, State
from flexor.solvers import RigidSolver, Simulator

_BALL = """<mujoco model="bouncing ball"><worldbody>
  <geom name="floor" type="plane" size="1 1 1"/>
  <body name="ball"><joint name="z" type="slide" axis="0 0 1"/><geom name="ball" size="0.1" mass="1"/></body>
</worldbody></mujoco>"""

_BALLS = """<mujoco model="two balls"><option gravity="0 0 0"/><worldbody>
  <body name="a"><joint name="a" type="slide" axis="1 0 0"/><geom name="a" size="0.1" mass="2"/></body>
  <body name="b"><joint name="b" type="slide" axis="1 0 0"/><geom name="b" size="0.1" mass="0.5"/></body>
</worldbody></mujoco>"""

_BLOCK = """<mujoco model="block"><worldbody>
  <geom name="floor" type="plane" size="1 1 1" friction="0.4"/>
  <body name="block" pos="0 0 0.1"><freejoint name="root"/>
    <geom name="block" type="box" size="0.2 0.2 0.1" mass="1.5" friction="0.4"/></body>
</worldbody></mujoco>"""

_WHEELS = """<mujoco><option gravity="0 0 0"/><worldbody>
  <body name="a"><joint name="a" axis="0 0 1"/><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/></body>
  <body name="b"><joint name="b" axis="0 0 1"/><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/></body>
</worldbody><equality><joint name="gear" joint1="a" joint2="b"/></equality></mujoco>"""

# These programs run once, so they are not optimised: a quarter of the compile time on CPUs.
jit_once = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False})

Numbers = tuple[str, str, float, float, float, float, bool]


@cache
def closed_forms() -> tuple[Numbers, ...]:
    """All rows; call within `jax.enable_x64(True)`. They do not depend on the robot, so a process computes them once."""
    problems = (_bouncing_ball, _colliding_balls, _sliding_and_sticking_block, _geared_wheels)
    return tuple(row for problem in problems for row in problem())


def _rows(problem: str, names: tuple[str, ...], values: ArrayLike, exact: ArrayLike, tolerance: float) -> Iterator[Numbers]:
    scale = float(np.abs(exact).max())
    for name, value, reference in zip(names, np.asarray(values).tolist(), np.asarray(exact).tolist(), strict=True):
        error = abs(value - reference) / (scale or 1.0)
        yield problem, name, value, reference, error, tolerance, bool(error <= tolerance)


def _final(model: Model, q: Any, qd: Any, steps: int, dt: float, tau: Any = None) -> State:
    sim = Simulator(model, RigidSolver(NCP(iterations=100, tolerance=1e-13)), dt=dt)
    control = None if tau is None else Control(tau=jnp.broadcast_to(jnp.asarray(tau), (steps, model.nv)))
    final = sim.rollout(sim.reset(q, qd), control, steps=steps).final
    assert final is not None
    return final


def _bouncing_ball() -> Iterator[Numbers]:
    """Height after one bounce, by initial height, restitution and gravity."""
    model, dt, steps = load(_BALL, dtype=jnp.float64), 2e-4, 3500

    def f(p: Array) -> Array:
        own = eqx.tree_at(
            lambda m: (m.pairs.restitution, m.gravity), model, (p[1:2], jnp.stack([0 * p[2], 0 * p[2], -p[2]]))
        )
        return _final(own, 0.1 + p[:1], jnp.zeros(1), steps, dt).q[0] - 0.1

    def exact(p: Array) -> Array:
        fall = jnp.sqrt(2 * p[0] / p[2])
        left = steps * dt - fall
        return p[1] * p[2] * fall * left - p[2] * left**2 / 2

    names = ("height by initial height", "height by restitution", "height by gravity")
    at = np.array([0.9, 0.8, 9.81])
    yield from _rows("bouncing ball", names, jit_once(jax.grad(f))(at), jit_once(jax.grad(exact))(at), 10 * dt)


def _colliding_balls() -> Iterator[Numbers]:
    """Position of the second ball after a central impact, by both masses, restitution, speed and gap: no forces, so exact."""
    model, dt, steps = load(_BALLS, dtype=jnp.float64), 1e-2, 50
    model = eqx.tree_at(lambda m: m.pairs.cfm, model, jnp.zeros(1))

    def f(p: Array) -> Array:
        own = eqx.tree_at(lambda m: m.bodies.mass, model, model.bodies.mass.at[1:].set(p[:2]))
        own = eqx.tree_at(lambda m: m.pairs.restitution, own, p[2:3])
        return _final(own, jnp.stack([0 * p[4], 0.2 + p[4]]), jnp.stack([p[3], 0 * p[3]]), steps, dt).q[1]

    def exact(p: Array) -> Array:
        after = (1 + p[2]) * p[0] * p[3] / (p[0] + p[1])
        return 0.2 + p[4] + after * (steps * dt - p[4] / p[3])

    names = ("position by first mass", "by second mass", "by restitution", "by speed", "by gap")
    at = np.array([2.0, 0.5, 0.7, 1.5, 0.123])
    yield from _rows("colliding balls", names, jit_once(jax.grad(f))(at), jit_once(jax.grad(exact))(at), 1e-9)


def _sliding_and_sticking_block() -> Iterator[Numbers]:
    """Distance of a block that keeps sliding, v t - mu g t^2 / 2, and of one pushed with less than the friction limit.

    The latter does not move, whatever the push and the friction: the exact derivatives are zero, and the contact's compliance
    lets it creep by cfm times the impulse in each step. One program serves both.
    """
    model, dt, steps = load(_BLOCK, dtype=jnp.float64), 2e-4, 1000

    def way(p: Array) -> Array:
        speed, friction, gravity, push = p
        down = jnp.stack([0 * gravity, 0 * gravity, -gravity])
        own = eqx.tree_at(lambda m: (m.pairs.friction, m.gravity), model, (friction[None], down))
        return _final(own, None, jnp.zeros(6).at[0].set(speed), steps, dt, jnp.zeros(6).at[0].set(push)).q[0]

    gradient, t = jit_once(jax.grad(way)), steps * dt
    speed, friction, gravity, push = 2.0, 0.4, 9.81, 2.0
    values = np.asarray(gradient(np.array([speed, friction, gravity, 0.0])))[:3]
    exact = np.array([t, -gravity * t**2 / 2, -friction * t**2 / 2])
    names = ("way by speed", "way by friction", "way by gravity")
    yield from _rows("sliding block", names, values, exact, 10 * dt)
    values = np.asarray(gradient(np.array([0.0, friction, gravity, push])))[[3, 1]]
    yield from _rows("sticking block", ("way by push", "way by friction"), values, np.zeros(2), 1e-6)


def _geared_wheels() -> Iterator[Numbers]:
    """Angle of a wheel b under a torque, a second wheel a = k b geared to it: tau t (t + h) / 2 / (I_b + k^2 I_a), as the steps
    sum it up. No compliance, so exact."""
    model, dt, steps = load(_WHEELS, dtype=jnp.float64), 1e-2, 50
    model = eqx.tree_at(lambda m: m.equalities.cfm, model, jnp.zeros(1))

    def f(p: Array) -> Array:
        inertia = model.bodies.inertia.at[1:, 2].set(p[2:])
        gear = model.equalities.coefficients.at[0, 1].set(p[0])
        own = eqx.tree_at(lambda m: (m.bodies.inertia, m.equalities.coefficients), model, (inertia, gear))
        return _final(own, None, None, steps, dt, jnp.stack([0 * p[1], p[1]])).q[1]

    def exact(p: Array) -> Array:
        return p[1] * steps * (steps + 1) * dt**2 / 2 / (p[3] + p[0] ** 2 * p[2])

    names = ("angle by gear", "by torque", "by inertia of the other", "by its own inertia")
    at = np.array([-2.5, 0.7, 0.3, 0.8])
    yield from _rows("geared wheels", names, jit_once(jax.grad(f))(at), jit_once(jax.grad(exact))(at), 1e-9)
