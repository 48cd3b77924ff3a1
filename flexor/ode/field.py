"""Vector fields of robots: accelerations that are known, learned, or both, behind one small interface.

A field may carry the motion in another variable than the velocity: w is qd for most, the momentum for Hamiltonian ones. Rates are
those of q in velocity coordinates, and of w. What the actuators and `Control.tau` do is known and enters as a generalised force.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from flexor.augment.layout import Layout, encode
from flexor.augment.networks import MLP, Draw, Perceptron
from flexor.contact import AbstractContact
from flexor.dynamics import actuator_force
from flexor.model.model import Control, Model, as_control
from flexor.solvers import RK4, RigidSolver
from flexor.taps import tap


class AbstractField(eqx.Module):
    """f in (dq/dt, dw/dt) = f(t, q, w, control). `passive`: energy enters through controls alone, for any weights."""

    passive: ClassVar[bool] = False
    wrenches: ClassVar[bool] = False
    """Whether wrenches on bodies act."""

    def check(self, model: Model, dt: float | None) -> None:
        """Raises, with a sentence, for robots that the field cannot describe."""
        t = model.topology
        if t.na or t.samples:
            raise ValueError(f"'{t.name}' has actuators with activations or delays, and {type(self).__name__} knows none.")
        sizes = self.sizes()
        if sizes is not None and sizes != (feature_count(model), t.nv):
            raise ValueError(
                f"this field was made for a robot with {sizes[0]} features and {sizes[1]} velocities, and '{t.name}' has "
                f"{feature_count(model)} and {t.nv}."
            )

    def sizes(self) -> tuple[int, int] | None:
        """Features of q and velocities of the robot that it was made for; None: any robot."""
        return None

    def enter(self, model: Model, q: Array, qd: Array) -> Array:
        """w of a velocity."""
        return qd

    def leave(self, model: Model, q: Array, w: Array) -> Array:
        """The velocity of w."""
        return w

    @abc.abstractmethod
    def rates(self, model: Model, t: Any, q: Array, w: Array, control: Control) -> tuple[Array, Array]:
        """The velocity, and the rate of w."""

    def energy(self, model: Model, q: Array, qd: Array) -> Float[Array, ""]:
        """The energy that the field has of its own; raises where it has none."""
        raise NotImplementedError(f"{type(self).__name__} has no energy of its own.")


class RigidField(AbstractField):
    """The known rigid body: `RigidSolver(contact).acceleration`, without impulses, with all its taps. Networks at any of them, as
    `sim.augment` puts them there, make it a neural ODE over a known model; at `joint.acceleration` they are its residual."""

    passive: ClassVar[bool] = True
    wrenches: ClassVar[bool] = True
    contact: AbstractContact | None = None

    def check(self, model: Model, dt: float | None) -> None:
        t = model.topology
        if t.na or t.samples:
            raise ValueError(f"'{t.name}' has actuators with activations or delays; use `RigidSolver(integrator=RK4())`.")
        RigidSolver(self.contact, RK4()).check(model, dt)

    def rates(self, model: Model, t: Any, q: Array, w: Array, control: Control) -> tuple[Array, Array]:
        q, w = tap("joint.q", q), tap("joint.qd", w)
        return w, RigidSolver(self.contact, RK4()).acceleration(model, q, w, control)


class BlackBoxField(AbstractField):
    """qdd = a net(features of q, qd / speed, force / size, sin and cos of 2 pi f t), a in rad/s^2 or m/s^2.

    Attributes:
        net: the network.
        acceleration, speed, size: what the network's output and inputs are scaled by.
        frequencies: of the clock, Hz; none: the field does not depend on time.
    """

    net: Perceptron
    acceleration: float = eqx.field(static=True, default=10.0)
    speed: float = eqx.field(static=True, default=1.0)
    size: float = eqx.field(static=True, default=1.0)
    frequencies: tuple[float, ...] = eqx.field(static=True, default=())

    def sizes(self) -> tuple[int, int]:
        n = self.net.layers[-1].bias.shape[-1]
        return self.net.layers[0].weight.shape[-1] - 2 * n - 2 * len(self.frequencies), n

    def rates(self, model: Model, t: Any, q: Array, w: Array, control: Control) -> tuple[Array, Array]:
        parts = [features(model, q), w / self.speed, applied(model, q, w, control) / self.size]
        if self.frequencies:
            turn = 2 * np.pi * jnp.asarray(self.frequencies, q.dtype) * t
            parts += [jnp.sin(turn), jnp.cos(turn)]
        return w, self.acceleration * self.net(jnp.concatenate(parts))


def black_box(
    model: Model, *, width: int = 32, depth: int = 2, key: PRNGKeyArray | None = None, frequencies: tuple[float, ...] = (),
    **scales: float,
) -> BlackBoxField:  # fmt: skip
    """A `BlackBoxField` of the robot's sizes with random weights."""
    inputs = feature_count(model) + 2 * model.nv + 2 * len(frequencies)
    return BlackBoxField(perceptron(model, inputs, model.nv, width, depth, key), frequencies=frequencies, **scales)


def perceptron(model: Model, n_in: int, n_out: int, width: int, depth: int, key: PRNGKeyArray | None) -> Perceptron:
    """A network of the augmentation's kind with random weights, in the robot's precision."""
    return random_perceptron(n_in, n_out, width, depth, key, model.dtype)


def random_perceptron(n_in: int, n_out: int, width: int, depth: int, key: PRNGKeyArray | None, dtype: Any) -> Perceptron:
    """Layers with weights uniform within 1 / sqrt(inputs)."""
    count = Draw()
    net = MLP(width=width, depth=depth)
    net.layers(1, n_in, n_out, count, False)
    numbers = jax.random.uniform(jax.random.key(0) if key is None else key, (count.count,), dtype, -1.0, 1.0)
    return jax.tree.map(lambda x: x[0], net.layers(1, n_in, n_out, Draw(numbers), False))


def features(model: Model, q: Float[Array, " nq"]) -> Float[Array, " n"]:
    """q for networks: sines and cosines of hinges without limits, rotation matrices, everything else as it is."""
    return encode(Layout.of(model, ()), "joint.q", q)


def feature_count(model: Model) -> int:
    """How many numbers `features` returns."""
    return jax.eval_shape(lambda q: features(model, q), jax.ShapeDtypeStruct((model.nq,), model.dtype)).shape[0]


def applied(model: Model, q: Array, qd: Array, control: Control) -> Float[Array, " nv"]:
    """Generalised force of the actuators and of `Control.tau`."""
    control = as_control(model, control)
    assert control.u is not None
    assert control.tau is not None
    return actuator_force(model, q, qd, control.u) + control.tau
