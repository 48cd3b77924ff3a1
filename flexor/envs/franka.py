"""A Panda that brings its hand to a point: NeRD's reaching (Xu et al. 2025), by position and by torque, at 120 Hz.

The Panda is the one of example-robot-data, with its fingers fixed. There is no gravity, as in NeRD.
"""

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flexor.dynamics import frame_pose
from flexor.envs.action import AbstractAction, Shift, Torque
from flexor.envs.task import AbstractTask, Step, uniform
from flexor.model.model import Model, State
from flexor.robots import find, load
from flexor.solvers import Simulator
from flexor.solvers.table import solver

HOME = (0.0, -np.pi / 4, 0.0, -3 * np.pi / 4, 0.0, np.pi / 2, np.pi / 4)
"""Joint angles in rad about which a Panda works."""


def panda(armature: float = 0.1) -> Model:
    """The arm without gravity, its fingers fixed, and with the inertia of its rotors (kg m^2 at the joint; the description has
    none)."""
    root = ET.fromstring(find("panda").read_text(encoding="utf-8"))
    for joint in root.iter("joint"):
        if joint.get("type") == "prismatic":
            joint.set("type", "fixed")
            for mimic in joint.findall("mimic"):
                joint.remove(mimic)
    for link in root.iter("link"):  # nothing is touched, and nothing drawn from here
        for part in [x for x in link if x.tag in ("visual", "collision")]:
            link.remove(part)
    model = load(ET.tostring(root, encoding="unicode"))
    still = [jnp.zeros_like(model.gravity), jnp.full_like(model.joints.armature, armature)]
    return eqx.tree_at(lambda m: [m.gravity, m.joints.armature], model, still)


class Reach(AbstractTask):
    """The hand to a point, the goal, in a box of half sizes `reach` about `centre`: with d the distance between them,

        -d + sum over k = 50, 300 of 1 / (exp(k d) + 1e-4 + exp(-k d)).

    Observed are joint angles, the hand's position and the goal, and with `rates` the joints' rates too. Nothing ends an episode.
    """

    rates: bool = eqx.field(static=True, default=False)
    noise: float = 0.1
    centre: tuple[float, float, float] = eqx.field(static=True, default=(0.45, 0.0, 0.5))
    reach: tuple[float, float, float] = eqx.field(static=True, default=(0.15, 0.2, 0.15))
    frame: str = eqx.field(static=True, default="panda_hand")

    @classmethod
    def build(cls, *, length: int = 128, substeps: int = 2, dt: float = 1 / 120) -> Self:
        """By position: targets a thirty-second of a radian around where the joints are. The servos give their whole torque there,
        and are damped so that it moves them at 4 rad/s."""
        model = panda()
        bound = model.actuators.ctrl_range[:, 1]
        return cls._build(model, Shift(kp=32 * bound, kd=bound / 4, scale=1 / 32), length, substeps, dt, rates=False)

    @classmethod
    def by_torque(cls, *, length: int = 128, substeps: int = 2, dt: float = 1 / 120) -> Self:
        """By torque. Policies here have no memory, as NeRD's has, so that they see the joints' rates."""
        return cls._build(panda(), Torque(), length, substeps, dt, rates=True)

    @classmethod
    def _build(cls, model: Model, action: AbstractAction, length: int, substeps: int, dt: float, *, rates: bool) -> Self:
        sim = Simulator(model, solver("ncp", substeps=substeps), dt=dt)
        return cls(sim=sim, action=action, length=length, rates=rates)

    def reset(self, key: PRNGKeyArray) -> tuple[State, Float[Array, "3"]]:
        where, place = jax.random.split(key)
        home = jnp.asarray(HOME, self.sim.model.dtype)
        centre = jnp.asarray(self.centre, home.dtype)
        goal = centre + jnp.asarray(self.reach, home.dtype) * uniform(where, -1, 1, centre)
        return self.sim.reset(home + uniform(place, -self.noise, self.noise, home)), goal

    def observe(self, state: State, goal: Float[Array, "3"]) -> Float[Array, " n"]:
        hand = frame_pose(self.sim.model, state.q, self.frame)[0]
        return jnp.concatenate([state.q, hand, goal, *([state.qd] if self.rates else [])])

    def reward(self, step: Step) -> Mapping[str, Float[Array, ""]]:
        hand = frame_pose(self.sim.model, step.after.q, self.frame)[0]
        d = jnp.sqrt(jnp.sum((hand - step.goal) ** 2) + 1e-12)
        return {"distance": -d, "near": _peak(50 * d), "there": _peak(300 * d)}

    def ended(self, state: State, goal: Float[Array, "3"]) -> Bool[Array, ""]:
        return jnp.zeros((), bool)


def _peak(x: Float[Array, ""]) -> Float[Array, ""]:
    """1 / (e^x + 1e-4 + e^-x), for x >= 0 without overflow."""
    e = jnp.exp(-x)
    return e / (1 + 1e-4 * e + e * e)
