"""Actions: what the numbers of a policy, between -1 and 1, do to a robot.

A kind of action may ask for actuators of its own (`equip`): position servos are parameters of the same actuators that were
motors, so that any solver has them, at every substep.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.model.delay import with_delay
from flexor.model.model import Control, Model, State
from flexor.solvers import Simulator


class AbstractAction(eqx.Module):
    """From the actions of a policy to controls of a robot."""

    def check(self, model: Model) -> None:
        """Raises, with a sentence, where a robot cannot be driven so."""
        if model.nu == 0:
            raise ValueError(f"'{model.topology.name}' has no actuators, so that no action can move it.")

    def size(self, model: Model) -> int:
        """How many numbers an action has."""
        return model.nu

    def equip(self, sim: Simulator) -> Simulator:
        """The simulator, its robot with the actuators that this kind of action needs."""
        return sim

    @abc.abstractmethod
    def control(self, model: Model, action: Float[Array, " n"]) -> Control:
        """What an action does; `model` is the equipped one."""

    def control_from(self, model: Model, state: State, action: Float[Array, " n"]) -> Control:
        """What an action does in a state, that at the start of the step: by default the same in all."""
        return self.control(model, action)


class Torque(AbstractAction):
    """Inputs of the robot's own actuators, u = scale * clip(action, -1, 1). Without a scale the whole range of each actuator,
    `ctrl_range`, which must then be bounded."""

    scale: Float[Array, "*nu"] | float | None = None

    def check(self, model: Model) -> None:
        super().check(model)
        bounded = np.isfinite(np.asarray(model.actuators.ctrl_range)).all(axis=1)
        if self.scale is None and not bounded.all():
            name = model.topology.actuators[int(np.flatnonzero(~bounded)[0])].name
            raise ValueError(f"actuator '{name}' has no bounds (`ctrl_range`), so `Torque` needs a `scale`.")

    def control(self, model: Model, action: Float[Array, " n"]) -> Control:
        share = jnp.clip(action, -1, 1)
        if self.scale is not None:
            return Control(u=jnp.asarray(self.scale, model.dtype) * share)
        low, high = model.actuators.ctrl_range[:, 0], model.actuators.ctrl_range[:, 1]
        return Control(u=(low + high) / 2 + (high - low) / 2 * share)


class Target(AbstractAction):
    """Positions for the joints, target = rest + scale * clip(action, -1, 1), held by kp (target - q) - kd qd within the
    bounds of the motors. `rest` are the coordinates of the joints that the actuators push on, in their order."""

    kp: Float[Array, "*nu"] | float
    kd: Float[Array, "*nu"] | float
    scale: Float[Array, "*nu"] | float
    rest: Float[Array, " nu"]

    def check(self, model: Model) -> None:
        super().check(model)
        t = model.topology
        for a in t.actuators:
            if a.joint is None or t.joints[a.joint].kind not in ("hinge", "slide") or a.dynamics != "none":
                raise ValueError(f"actuator '{a.name}' is no motor of a hinge or slide, so that it cannot become a servo.")
        if jnp.shape(self.rest) != (model.nu,):
            raise ValueError(f"`rest` must have a number for each of the {model.nu} actuators, got {jnp.shape(self.rest)}.")

    def equip(self, sim: Simulator) -> Simulator:
        model = sim.model
        dtype, n = model.dtype, model.nu
        kp, kd = (jnp.broadcast_to(jnp.asarray(x, dtype), (n,)) for x in (self.kp, self.kd))
        act = model.actuators
        # a motor's bounds are those of its input; a servo's input is an angle, and the same bounds hold for its force
        bounds = jnp.stack([jnp.maximum(act.force_range[:, 0], act.gain * act.ctrl_range[:, 0]),
                            jnp.minimum(act.force_range[:, 1], act.gain * act.ctrl_range[:, 1])], axis=1)  # fmt: skip
        changed = {
            "gain": kp,
            "bias": jnp.stack([jnp.zeros(n, dtype), -kp, -kd], axis=1),
            "force_range": bounds,
            "ctrl_range": jnp.broadcast_to(jnp.array([-np.inf, np.inf], dtype), (n, 2)),
        }
        servos = eqx.tree_at(lambda a: [getattr(a, name) for name in changed], act, list(changed.values()))
        return with_model(sim, eqx.tree_at(lambda m: m.actuators, model, servos))

    def control(self, model: Model, action: Float[Array, " n"]) -> Control:
        rest, scale = jnp.asarray(self.rest, model.dtype), jnp.asarray(self.scale, model.dtype)
        return Control(u=model.actuators.gear * (rest + scale * jnp.clip(action, -1, 1)))


class Shift(AbstractAction):
    """Positions relative to where the joints are when a step begins: target = q + scale * clip(action, -1, 1), held through the
    step by servos as those of `Target`."""

    kp: Float[Array, "*nu"] | float
    kd: Float[Array, "*nu"] | float
    scale: Float[Array, "*nu"] | float

    def check(self, model: Model) -> None:
        self._about(model, jnp.zeros(model.nu, model.dtype)).check(model)

    def equip(self, sim: Simulator) -> Simulator:
        return self._about(sim.model, jnp.zeros(sim.model.nu, sim.model.dtype)).equip(sim)

    def control(self, model: Model, action: Float[Array, " n"]) -> Control:
        """About q = 0."""
        return self._about(model, jnp.zeros(model.nu, model.dtype)).control(model, action)

    def control_from(self, model: Model, state: State, action: Float[Array, " n"]) -> Control:
        t = model.topology
        rest = jnp.stack([state.q[t.q_start[a.joint]] for a in t.actuators])
        return self._about(model, rest).control(model, action)

    def _about(self, model: Model, rest: Float[Array, " nu"]) -> Target:
        return Target(kp=self.kp, kd=self.kd, scale=self.scale, rest=rest)


class Delayed(AbstractAction):
    """Another action whose controls act `seconds` later; room is kept for delays up to `longest`."""

    base: AbstractAction
    seconds: float = eqx.field(static=True)
    longest: float | None = eqx.field(static=True, default=None)

    def check(self, model: Model) -> None:
        self.base.check(model)

    def size(self, model: Model) -> int:
        return self.base.size(model)

    def equip(self, sim: Simulator) -> Simulator:
        sim = self.base.equip(sim)
        step = sim.solver.shortest_step(float(sim.dt))
        longest = self.seconds if self.longest is None else self.longest
        return with_model(sim, with_delay(sim.model, {"actuator.*.delay": self.seconds}, dt=step, longest=longest))

    def control(self, model: Model, action: Float[Array, " n"]) -> Control:
        return self.base.control(model, action)

    def control_from(self, model: Model, state: State, action: Float[Array, " n"]) -> Control:
        return self.base.control_from(model, state, action)


def with_model(sim: Simulator, model: Model) -> Simulator:
    """The simulator of a robot with other parameters."""
    return eqx.tree_at(lambda s: s.model, sim, model)
