"""Systems in state space, dx/dt = rate(t, x, u), y = output(x, u), that need not be robots: known, learned or both."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from flexor.augment.networks import Perceptron
from flexor.model.model import Control, Model, State
from flexor.ode.field import random_perceptron
from flexor.ode.stepping import AbstractStepping
from flexor.solvers import AbstractSolver

Floats = tuple[float, ...]


class AbstractSystem(eqx.Module):
    """A system of your own is a subclass; its arrays are what training changes."""

    @abc.abstractmethod
    def rate(self, t: Any, x: Float[Array, " nx"], u: Float[Array, " nu"]) -> Float[Array, " nx"]:
        """dx/dt."""

    @abc.abstractmethod
    def output(self, x: Float[Array, " nx"], u: Float[Array, " nu"]) -> Float[Array, " ny"]:
        """What is measured, in the units of the values."""

    def settle(self, x: Float[Array, " nx"]) -> Float[Array, " nx"]:
        """The state put back where it can be, after every interval: levels within a tank. By default itself."""
        return x

    def advance(self, stepping: AbstractStepping, x: Array, t0: Any, t1: Any, u0: Array, u1: Array) -> Array:
        """x at t1; the input goes linearly from u0 to u1, or is constant where they are equal."""

        def rate(t: Any, x: Array) -> Array:
            return self.rate(t, x, u0 + (u1 - u0) * ((t - t0) / (t1 - t0)))

        return self.settle(stepping.advance(rate, t0, t1, x))

    def trainable(self) -> Any:
        """A tree of True and False: which leaves training changes. By default all arrays of floating-point numbers."""
        return jax.tree.map(eqx.is_inexact_array, self)


class StateSpace(AbstractSystem):
    """A black box in units of the data: dx/dt = (A z + net(z)) / time, y = mean_y + std_y (C z + out(z)), with
    z = (x, (u - mean_u) / std_u).

    Attributes:
        A, C: linear parts.
        net, out: networks on top.
        time: s, about the time in which the system reacts.
        y, u: means and deviations of outputs and inputs.
    """

    A: Float[Array, "nx nz"]
    C: Float[Array, "ny nz"]
    net: Perceptron
    out: Perceptron
    time: float = eqx.field(static=True)
    y: tuple[Floats, Floats] = eqx.field(static=True)
    u: tuple[Floats, Floats] = eqx.field(static=True)

    @staticmethod
    def build(states: int, y: Any, u: Any, time: float, width: int, depth: int, key: PRNGKeyArray) -> "StateSpace":
        """Random weights; the first states start as outputs, and everything decays within `time`. `y`, `u`: all values, NaN
        where not measured."""
        scale = [_moments(x) for x in (y, u)]
        ny, nu, nz = y.shape[1], u.shape[1], states + u.shape[1]
        keys = jax.random.split(key, 4)
        dtype = jnp.zeros(0).dtype
        A = jnp.concatenate([-jnp.eye(states), 0.1 * jax.random.normal(keys[0], (states, nu))], axis=1).astype(dtype)
        C = jnp.zeros((ny, nz), dtype).at[np.arange(min(ny, states)), np.arange(min(ny, states))].set(1.0)
        net = random_perceptron(nz, states, width, depth, keys[1], dtype)
        out = random_perceptron(nz, ny, width, depth, keys[2], dtype)
        small = eqx.tree_at(lambda n: n.layers[-1], out, jax.tree.map(lambda x: 0.1 * x, out.layers[-1]))
        return StateSpace(A, C, net, small, time, scale[0], scale[1])

    def _inner(self, x: Array, u: Array) -> Array:
        mean, std = (jnp.asarray(v, x.dtype) for v in self.u)
        return jnp.concatenate([x, (u - mean) / std])

    def rate(self, t: Any, x: Array, u: Array) -> Array:
        z = self._inner(x, u)
        return (self.A @ z + self.net(z)) / self.time

    def output(self, x: Array, u: Array) -> Array:
        z = self._inner(x, u)
        mean, std = (jnp.asarray(v, x.dtype) for v in self.y)
        return mean + std * (self.C @ z + self.out(z))


class Corrected(AbstractSystem):
    """A known system with a network on its rates: dx/dt = known.rate(t, x, u) + rates * net(x / states, u / inputs).

    Attributes:
        known: the system below, its arrays trained too.
        net: the network; with a last layer of zeros it changes nothing.
        states, inputs, rates: sizes of x, u and of the correction.
    """

    known: AbstractSystem
    net: Perceptron
    states: Floats = eqx.field(static=True)
    inputs: Floats = eqx.field(static=True)
    rates: Floats = eqx.field(static=True)

    @staticmethod
    def build(known: AbstractSystem, states: Floats, inputs: Floats, rates: Floats, *, width: int = 16, depth: int = 1,
              key: PRNGKeyArray | None = None) -> "Corrected":  # fmt: skip
        """The known system with a fresh network, which changes nothing yet."""
        net = random_perceptron(len(states) + len(inputs), len(states), width, depth, key, jnp.zeros(0).dtype)
        net = eqx.tree_at(lambda n: n.layers[-1], net, jax.tree.map(jnp.zeros_like, net.layers[-1]))
        return Corrected(known, net, states, inputs, rates)

    def rate(self, t: Any, x: Array, u: Array) -> Array:
        read = jnp.concatenate([x / jnp.asarray(self.states, x.dtype), u / jnp.asarray(self.inputs, x.dtype)])
        return self.known.rate(t, x, u) + jnp.asarray(self.rates, x.dtype) * self.net(read)

    def output(self, x: Array, u: Array) -> Array:
        return self.known.output(x, u)

    def settle(self, x: Array) -> Array:
        return self.known.settle(x)


class Robot(AbstractSystem):
    """A robot under an `OdeSolver`, x = (q, qd); u are the inputs of its actuators, y all of x. Training changes the weights
    of the solver; `fx.identify` finds the robot's own parameters.

    Attributes:
        model: the robot.
        solver: its motion, `OdeSolver` or a `HybridSolver` around one.
    """

    model: Model
    solver: AbstractSolver

    def rate(self, t: Any, x: Array, u: Array) -> Array:
        raise NotImplementedError("a robot moves on its manifold: `advance` takes its steps.")

    def output(self, x: Array, u: Array) -> Array:
        return x

    def advance(self, stepping: AbstractStepping, x: Array, t0: Any, t1: Any, u0: Array, u1: Array) -> Array:
        """A step of the solver, by its own method, under the mean input."""
        state = State(x[: self.model.nq], x[self.model.nq :], jnp.asarray(t0))
        new = self.solver.step(self.model, state, Control(u=(u0 + u1) / 2), jnp.asarray(t1 - t0))
        return jnp.concatenate([new.q, new.qd])

    def trainable(self) -> Any:
        marks = jax.tree.map(lambda _: False, self)
        return eqx.tree_at(lambda r: r.solver, marks, jax.tree.map(eqx.is_inexact_array, self.solver))


def _moments(x: np.ndarray) -> tuple[Floats, Floats]:
    """Means and deviations of columns."""
    mean, std = np.nanmean(x, axis=0), np.nanstd(x, axis=0)
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
