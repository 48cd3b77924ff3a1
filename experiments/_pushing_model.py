"""The simulator of the pushes, analytic and augmented: its parameters, its networks, how both are fitted, and its file."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _pushing import GRAVITY, GRID, SINK, Frames, Shape, Support, Table, loads, scene, shaped, solver, starts, support
from jaxtyping import Array, Float

import flexor as fx

STEPS = 40
POSITION, ANGLE = 4e-3, 0.06  # m and rad that count alike


class Parameters(NamedTuple):
    """What is tuned: the tip's friction coefficient; how far out the weight rests (see `loads`); for a single object also where
    its middle lies from the centroid, in units of `GRID`, and the logarithm of what each point bears more than that.

    The ground's own coefficient cannot be seen: the tip's way is given, and slow sliding depends on ratios of forces alone.
    """

    tip: Array
    spread: Array
    middle: Float[Array, "2"]
    bias: Float[Array, " points"]

    @staticmethod
    def untuned(bodies: "dict[str, Object]") -> "Parameters":
        """Textbook numbers."""
        return Parameters.of(0.25, 0.0, (0.0, 0.0), (), next(iter(bodies.values())))

    @staticmethod
    def of(tip: Any, spread: Any, middle: Any, bias: Any, body: "Object") -> "Parameters":
        """From numbers; the bias with as many points as the scene has, those of the object first."""
        points = len(body.support.share)
        padded = np.append(np.asarray(bias)[:points], np.zeros(max(points - len(bias), 0)))
        return Parameters(*(jnp.asarray(x, jnp.float32) for x in (tip, spread, middle, padded)))


class Object(NamedTuple):
    """An object as the simulator needs it."""

    model: fx.Model
    support: Support
    mass: Array


def objects(shapes: dict[str, Shape], step: float = GRID) -> dict[str, Object]:
    """The scene with the numbers of every shape; `step` is that of the grid of points."""
    base = scene(shapes.values(), step)
    rests = {name: support(shape, len(base.topology.pairs) - 1, step) for name, shape in shapes.items()}
    return {n: Object(shaped(base, s, rests[n]), rests[n], jnp.asarray(s.mass, jnp.float32)) for n, s in shapes.items()}


INPUTS = (
    "joint.q[x]", "joint.q[y]", "joint.q[yaw]", "joint.qd[x]", "joint.qd[y]", "joint.qd[yaw]", "contact.relative_velocity",
    "contact.local_point", "contact.normal[tip~slider]", "contact.local_normal[tip~slider]", "contact.depth[tip~slider]",
)  # fmt: skip
# Scales larger than the quantities themselves say how little they are believed to matter: the place on the table, its axes.
SCALES = {
    "joint.q[x]": 0.3, "joint.q[y]": 0.3, "joint.qd[x]": 0.02, "joint.qd[y]": 0.02, "joint.qd[yaw]": 0.1,
    "contact.relative_velocity": 0.02, "contact.local_point": 0.05, "contact.depth[tip~slider]": 0.01,
    "contact.normal[tip~slider]": 3.0,
}  # fmt: skip


def blueprint(width: int = 16, depth: int = 2) -> fx.Blueprint:
    """The friction of every point of the ground is scaled by one network, whose inputs are the object's pose and velocity, the
    point's own place and velocity, and normal and depth of the tip's contact."""
    net = fx.nets.MLP(width=width, depth=depth, activation="tanh")
    return fx.Blueprint().add(
        "contact.friction_force[floor~*]", inputs=INPUTS, net=net, mode=fx.Scale(), over=fx.Shared(), scales=SCALES
    )


def simulator(body: Object, parameters: Parameters, augmentation: fx.Augmentation | None, dt: Array) -> fx.Simulator:
    """The simulator of one object on one surface."""
    at = body.support._replace(centroid=body.support.centroid + GRID * parameters.middle)
    at = at._replace(share=at.share * jnp.exp(parameters.bias))
    weight = body.mass * GRAVITY * loads(at, parameters.spread)
    pairs = body.model.topology.pairs
    ground = np.array([i for i, p in enumerate(pairs) if p.name.startswith("floor~")])
    tip = next(i for i, p in enumerate(pairs) if p.name == "tip~slider")
    stiffness = body.model.pairs.stiffness.at[ground].set((weight / SINK**1.5).astype(body.model.dtype))
    friction = body.model.pairs.friction.at[tip].set(jnp.asarray(parameters.tip, body.model.dtype))
    model = eqx.tree_at(lambda m: (m.pairs.stiffness, m.pairs.friction), body.model, (stiffness, friction))
    physics = solver() if augmentation is None else fx.HybridSolver(solver(), augmentation)
    return fx.Simulator(model, physics, dt=dt)


def path(body: Object, parameters: Parameters, net: Any, q: Array, qd: Array, dt: Array, steps: int = STEPS) -> Array:
    """Coordinates along pushes, (push, steps + 1, 5)."""
    sim = simulator(body, parameters, net, dt)
    return jax.vmap(lambda q, qd: sim.rollout(sim.reset(q, qd), steps=steps).q)(q, qd)


class Batch(NamedTuple):
    """Pushes of one object: coordinates at the start, pose of the outline at the end, time step."""

    q: Array
    qd: Array
    end: Array
    dt: Array


def batch(table: Table, frames: Frames, rows: np.ndarray | None = None) -> Batch:
    """A table, or some of its pushes, for the simulator."""
    table = table if rows is None else table.take(rows)
    q, qd = starts(table, frames)
    duration = np.linalg.norm(table.tip_after - table.tip_before, axis=1).mean() / table.speed
    end = frames.true(table, table.after).astype(np.float32)
    return Batch(jnp.asarray(q), jnp.asarray(qd), jnp.asarray(end), jnp.asarray(duration / STEPS, jnp.float32))


def cost(body: Object, parameters: Parameters, net: Any, batch: Batch) -> Float[Array, ""]:
    """Mean of distance and angle between predicted and true end poses, in units of `POSITION` and `ANGLE`, rounded off near
    zero."""
    end = path(body, parameters, net, batch.q, batch.qd, batch.dt)[:, -1, 2:]
    away = end - batch.end
    turn = jnp.arctan2(jnp.sin(away[:, 2]), jnp.cos(away[:, 2]))
    distance = jnp.sqrt(jnp.sum(away[:, :2] ** 2, axis=1) + (0.1 * POSITION) ** 2)
    return jnp.mean(distance / POSITION + jnp.sqrt(turn**2 + (0.1 * ANGLE) ** 2) / ANGLE)


@eqx.filter_jit
def _gradient(free: tuple[Parameters, fx.Augmentation | None], body: Object, batch: Batch) -> tuple[Parameters, Any]:
    """Derivative of the cost by the parameters, and by the weights where there is a network."""
    return eqx.filter_grad(lambda f: cost(body, f[0], f[1], batch))(free)


@eqx.filter_jit
def ends(body: Object, parameters: Parameters, net: Any, batch: Batch) -> Float[Array, "push 3"]:
    """Poses of the outline at the end of pushes."""
    return path(body, parameters, net, batch.q, batch.qd, batch.dt)[:, -1, 2:]


class Training(NamedTuple):
    """Adam with a rate that falls along half a cosine; `pull` draws the weights towards those they started from. A step takes
    `size` pushes of one table, chosen by its number of pushes or, where `even`, every surface and every shape on it as often."""

    steps: int
    rate: float
    size: int = 64
    pull: float = 0.0
    even: bool = False
    seed: int = 0


def _chances(tables: Sequence[Table], even: bool) -> np.ndarray:
    """How often each table is taken."""
    if not even:
        weights = np.array([float(len(t)) for t in tables])
    else:
        objects = [(t.surface, t.shape) for t in tables]
        on = [s for s, _ in set(objects)]
        weights = np.array([1 / (objects.count(o) * on.count(o[0])) for o in objects])
    return weights / weights.sum()


def descend(start: Any, gradient: Callable[..., Any], tables: Sequence[Table], frames: Frames, how: Training) -> Any:
    """The tree after stochastic gradient descent with `gradient(tree, table, batch)`.

    A batch whose gradient is not finite is left out: in single precision the derivative of a push is, very rarely, not a number,
    though the push itself is fine (one in some 10,000 pushes of plywood's table).
    """
    rng = np.random.default_rng(how.seed)
    adam = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(how.rate, how.steps, 0.02)))
    first = weights = eqx.filter(start, eqx.is_inexact_array)
    state = adam.init(weights)
    chances = _chances(tables, how.even)
    for _ in range(how.steps):
        table = tables[rng.choice(len(tables), p=chances)]
        some = batch(table, frames, rng.choice(len(table), how.size, replace=len(table) < how.size))
        slope = eqx.filter(gradient(eqx.combine(weights, start), table, some), eqx.is_inexact_array)
        if not all(np.isfinite(g).all() for g in jax.tree.leaves(slope)):
            continue
        slope = jax.tree.map(lambda g, w, w0: g + how.pull * (w - w0), slope, weights, first)
        change, state = adam.update(slope, state)
        weights = optax.apply_updates(weights, change)
    return eqx.combine(weights, start)


class Trainer(NamedTuple):
    """Pushes, frames and objects to learn from. `net` is what the simulator has while parameters are tuned."""

    tables: Sequence[Table]
    frames: Frames
    bodies: dict[str, Object]
    net: fx.Augmentation | None = None

    def tune(self, start: Parameters, how: Training, free: Sequence[str]) -> Parameters:
        """Parameters by gradient; those not named in `free` stay."""

        def gradient(p: Parameters, table: Table, some: Batch) -> Parameters:
            slope, _ = _gradient((p, self.net), self.bodies[table.shape], some)
            return Parameters(*(g if name in free else 0 * g for name, g in zip(slope._fields, slope, strict=True)))

        return descend(start, gradient, self.tables, self.frames, how)

    def tune_spread(self, base: dict[str, Parameters], how: Training) -> Array:
        """The spread that objects have in common on all surfaces, with the other parameters of each surface."""

        def gradient(spread: Array, table: Table, some: Batch) -> Array:
            slope, _ = _gradient((base[table.surface]._replace(spread=spread), self.net), self.bodies[table.shape], some)
            return slope.spread

        return descend(jnp.zeros((), jnp.float32), gradient, self.tables, self.frames, how)

    def learn(self, net: fx.Augmentation, parameters: Callable[[Table], Parameters], how: Training) -> fx.Augmentation:
        """The networks after training through the simulator, with the parameters of each table."""

        def gradient(n: fx.Augmentation, table: Table, some: Batch) -> Any:
            return _gradient((parameters(table), n), self.bodies[table.shape], some)[1]

        return descend(net, gradient, self.tables, self.frames, how)


def weakened(net: fx.Augmentation, strength: float) -> fx.Augmentation:
    """The networks with their results times `strength`: a fitted correction is larger than what holds for other pushes."""

    def last(n: fx.Augmentation) -> list[Array]:
        return [x for group in n.networks for mlp in group for x in (mlp.layers[-1].weight, mlp.layers[-1].bias)]

    return eqx.tree_at(last, net, replace_fn=lambda x: strength * x)


def predict(table: Table, frames: Frames, bodies: dict[str, Object], parameters: Parameters, net: Any) -> np.ndarray:
    """End poses of all pushes of a table, as the motion capture would report them."""
    end = ends(bodies[table.shape], parameters, net, batch(table, frames))
    return frames.measured(table, np.asarray(end, float))
