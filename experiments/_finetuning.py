"""A walking network, fine-tuned through the simulator: the gradient of tracking error and energy over a period of the gait, through
controller, contact and dynamics, of robots that walk on from where the last period left them (as in SHAC, Xu et al. 2022)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _walks import DT, Starts, random_starts

import flexor as fx
from flexor.control import Twin, Walker
from flexor.spatial import quat_to_matrix

PULL = {"mean": 20.0, "moment": 1.0, "tilt": 2.0, "height": 20.0}  # weights of the loss's terms
ENERGY = 0.02  # weight of the motors' power over weight times 1 m/s
SLOWEST = 0.5  # share of the standing height below which a robot has fallen


class Herd(NamedTuple):
    """Robots that walk: their states, what their controllers remember, their commands."""

    states: Any
    memories: Any
    commands: jax.Array


class Tuner:
    """Updates of a network's weights by Adam, each from one period of all robots."""

    def __init__(self, walker: Walker, *, robots: int, rate: float, updates: int, seed: int):
        import optax

        self.walker, self.robots, self.seed, self.turn = walker, robots, seed, 0
        self.sim = fx.Simulator(walker.robot.model, dt=DT)
        self.steps = round(walker.gait.period / DT)
        schedule = optax.cosine_decay_schedule(rate, updates, 0.1)
        self.optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
        walk = fx.simd.vmap(self._period, (None, 0, 0, 0))

        def loss(twin: Twin, herd: Herd) -> Any:
            value, told, states, memories = walk(twin, *herd)
            return jnp.mean(value), (told, states, memories)

        self._slope = jax.jit(jax.value_and_grad(loss, has_aux=True))

    def _period(self, twin: Twin, state: Any, memory: Any, command: jax.Array) -> tuple[Any, ...]:
        """Loss of one robot over a period of the gait, its tracking error and power, and where it is then."""
        robot = self.walker.robot
        policy = eqx.tree_at(lambda w: (w.command, w.forces), self.walker, (command, twin))
        made = self.sim.rollout(state, policy, steps=self.steps, memory=memory)
        q, qd = made.q[1:], made.qd[1:]
        rot = jax.vmap(quat_to_matrix)(q[:, 3:7])
        c, s = rot[:, 0, 0], rot[:, 1, 0]
        moving = jnp.stack([c * qd[:, 0] + s * qd[:, 1], c * qd[:, 1] - s * qd[:, 0], qd[:, 5]], axis=1) - command[None]
        power = jnp.sum(jnp.abs(made.u * qd[:, 6:]), axis=1) / (robot.mass * robot.gravity)
        terms = {
            "mean": jnp.sum(jnp.mean(moving, axis=0) ** 2),
            "moment": jnp.mean(jnp.sum(moving**2, axis=1)),
            "tilt": jnp.mean(jnp.sum(rot[:, 2, :2] ** 2, axis=1)),
            "height": jnp.mean((q[:, 2] - robot.stand[2].item()) ** 2),
        }
        total = sum(PULL[name] * x for name, x in terms.items()) + ENERGY * jnp.mean(power)
        told = jnp.stack([jnp.sqrt(terms["mean"]), jnp.mean(power)])
        return total, told, made.final, made.policy_memory

    def herd(self) -> Herd:
        """Robots that stand, with commands of their own."""
        robot, gait = self.walker.robot, self.walker.gait
        starts: Starts = random_starts(robot, self.robots, gait.period, self.seed)
        rng = np.random.default_rng(self.seed)
        commands = jnp.asarray(rng.uniform(-1, 1, (self.robots, 3)) * [0.7, 0.3, 1.0], jnp.float32)

        def one(q: Any, qd: Any, time: Any, command: Any) -> tuple[Any, Any]:
            walker = eqx.tree_at(lambda w: (w.command, w.start), self.walker, (command, time))
            return self.sim.reset(q, qd), walker.init(None)

        rows = (jnp.asarray(x, jnp.float32) for x in starts)
        return Herd(*jax.vmap(one)(*rows, commands), commands)

    def tuned(self, twin: Twin, updates: int, lasting: int, tell: Callable[[int, float, float], None]) -> Twin:
        """The network after `updates`; robots begin anew after `lasting` periods, and those that have fallen at once."""
        parts, scale = (twin.weights, twin.biases), (twin.mean, twin.deviation)
        state, herd, fresh = self.optimiser.init(parts), self.herd(), self.herd()
        for k in range(updates):
            (_, (told, states, memories)), slope = self._slope(Twin(*parts, *scale), herd)
            slope = (slope.weights, slope.biases)
            if all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(slope)):
                import optax

                moves, state = self.optimiser.update(slope, state, parts)
                parts = optax.apply_updates(parts, moves)
            down = ~(states.q[:, 2] > SLOWEST * float(self.walker.robot.stand[2]))
            anew = down | (jnp.arange(self.robots) % lasting == k % lasting)

            def pick(new: Any, old: Any, anew: Any = anew) -> Any:
                return jnp.where(anew.reshape(-1, *[1] * (new.ndim - 1)), new, old)

            herd = Herd(*jax.tree.map(pick, (fresh.states, fresh.memories), (states, memories)), herd.commands)
            tell(k, *(float(x) for x in jnp.nanmean(told, axis=0)))
        return Twin(*parts, *scale)
