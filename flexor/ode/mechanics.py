"""Learned mechanics: energies as networks, and the motion that follows from them.

    energy        E = v^T M(q) v / 2 + V(q)              V a network, M = L L^T + e 1 by a network, or its inverse
    Lagrangian    M dv/dt = f - D v - (dM/dt) v + dT/dq - dV/dq + gyro
    Hamiltonian   dp/dt = G f - D v - dH/dq + gyro,    v = dH/dp,    H = p^T W(q) p / 2 + V(q)

f is the force of actuators and `Control.tau`, D >= 0 a network's, G(q) an input map that may be learned. Derivatives by q are
along displacements in velocity coordinates, so that quaternions are as good as angles; there a body-frame velocity w and its
momentum m add gyro = m x w, which does no work. Hence dE/dt = v^T G f - v^T D v for *any* weights: without input the energy
never grows, and without D it stays (Greydanus 2019, Cranmer 2020, van der Schaft & Jeltsema 2014). A time step keeps this to its
order.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from flexor.augment.networks import Damper, Perceptron
from flexor.dynamics import integrate
from flexor.dynamics.crba import factor_inertia, solve_inertia
from flexor.dynamics.integrate import coordinate_rows
from flexor.model.model import Control, Model
from flexor.ode.field import AbstractField, applied, feature_count, features, perceptron
from flexor.spatial import cross

LEAST = 0.05  # e: the smallest eigenvalue of M or W, in units of its size


class AbstractMechanics(AbstractField):
    """Energy, dissipation and ports as networks of the features of q.

    Attributes:
        form: L of M / size or of W size, below and on the diagonal; 1 is added to the diagonal.
        potential: V / scale.
        damper: D; None: no dissipation.
        size: inertia, kg m^2 or kg.
        scale: energy, J.
    """

    passive: ClassVar[bool] = True
    form: Perceptron
    potential: Perceptron
    damper: Damper | None = None
    size: float = eqx.field(static=True, default=1.0)
    scale: float = eqx.field(static=True, default=1.0)

    def sizes(self) -> tuple[int, int]:
        entries = self.form.layers[-1].bias.shape[-1]
        return self.form.layers[0].weight.shape[-1], round((np.sqrt(8 * entries + 1) - 1) / 2)

    def check(self, model: Model, dt: float | None) -> None:
        super().check(model, dt)
        t = model.topology
        couplings = ("tendons", t.tendons), ("equalities", t.equalities), ("loops", t.loops)
        for what, found in couplings:
            if found:
                raise ValueError(f"'{t.name}' has {what}, and {type(self).__name__} knows only joints.")

    def definite(self, model: Model, q: Array) -> Float[Array, "nv nv"]:
        """L L^T + e 1."""
        n = model.nv
        L = jnp.zeros((n, n), q.dtype).at[np.tril_indices(n)].set(self.form(features(model, q))) + jnp.eye(n, dtype=q.dtype)
        return L @ L.T + LEAST * jnp.eye(n, dtype=q.dtype)

    def potential_energy(self, model: Model, q: Array) -> Float[Array, ""]:
        """V in J; bounded, for the network's last hidden layer is."""
        return self.scale * self.potential(features(model, q))[0]

    def braking(self, model: Model, q: Array, v: Array) -> Float[Array, " nv"]:
        """-D v."""
        return jnp.zeros_like(v) if self.damper is None else self.damper(jnp.concatenate([features(model, q), v]), v)

    @abc.abstractmethod
    def kinetic_energy(self, model: Model, q: Array, w: Array) -> Float[Array, ""]:
        """T of the field's own variable w."""

    def energy(self, model: Model, q: Array, qd: Array) -> Float[Array, ""]:
        """Kinetic and potential energy in J."""
        return self.kinetic_energy(model, q, self.enter(model, q, qd)) + self.potential_energy(model, q)


class LagrangianField(AbstractMechanics):
    """The Lagrangian form in q and qd."""

    def inertia(self, model: Model, q: Array) -> Float[Array, "nv nv"]:
        """M in kg m^2 or kg."""
        return self.size * self.definite(model, q)

    def kinetic_energy(self, model: Model, q: Array, w: Array) -> Float[Array, ""]:
        return w @ self.inertia(model, q) @ w / 2

    def rates(self, model: Model, t: Any, q: Array, w: Array, control: Control) -> tuple[Array, Array]:
        def momentum(x: Array) -> Array:
            return self.inertia(model, integrate(model, q, x)) @ w

        def lagrangian(x: Array) -> Array:
            at = integrate(model, q, x)
            return self.kinetic_energy(model, at, w) - self.potential_energy(model, at)

        here = jnp.zeros_like(w)
        p, change = jax.jvp(momentum, (here,), (w,))
        force = applied(model, q, w, control) + self.braking(model, q, w) + jax.grad(lagrangian)(here)
        M = self.inertia(model, q)
        return w, solve_inertia(M, factor_inertia(M), force - change + gyroscopic(model, p, w))


class HamiltonianField(AbstractMechanics):
    """The Hamiltonian form in q and the momentum p; with a damper and `port`, G = 1 + port(q), the port-Hamiltonian one.

    With a learned G the power that enters is y^T f with the output y = G^T v.
    """

    port: Perceptron | None = None

    def mobility(self, model: Model, q: Array) -> Float[Array, "nv nv"]:
        """W, the inverse of the inertia."""
        return self.definite(model, q) / self.size

    def enter(self, model: Model, q: Array, qd: Array) -> Array:
        W = self.mobility(model, q)
        return solve_inertia(W, factor_inertia(W), qd)

    def leave(self, model: Model, q: Array, w: Array) -> Array:
        return self.mobility(model, q) @ w

    def kinetic_energy(self, model: Model, q: Array, w: Array) -> Float[Array, ""]:
        return w @ self.mobility(model, q) @ w / 2

    def rates(self, model: Model, t: Any, q: Array, w: Array, control: Control) -> tuple[Array, Array]:
        def hamiltonian(x: Array) -> Array:
            at = integrate(model, q, x)
            return self.kinetic_energy(model, at, w) + self.potential_energy(model, at)

        v = self.leave(model, q, w)
        force = applied(model, q, v, control)
        if self.port is not None:
            force = force + self.port(features(model, q)).reshape(model.nv, model.nv) @ force
        slope = jax.grad(hamiltonian)(jnp.zeros_like(w))
        return v, force + self.braking(model, q, v) - slope + gyroscopic(model, w, v)


def gyroscopic(model: Model, p: Array, v: Array) -> Float[Array, " nv"]:
    """m x w in the rows of rotations, m the momentum and w the body-frame velocity there; zero elsewhere."""
    rows = coordinate_rows(model)[3]
    return jnp.zeros_like(v).at[rows].set(cross(p[rows], v[rows])) if len(rows) else jnp.zeros_like(v)


def lagrangian(model: Model, *, width: int = 32, depth: int = 2, damped: bool = True, key: PRNGKeyArray | None = None,
               size: float = 1.0, scale: float = 1.0) -> LagrangianField:  # fmt: skip
    """A `LagrangianField` of the robot's sizes with random weights; `damped` gives it a dissipation that starts at zero."""
    return LagrangianField(**_parts(model, width, depth, damped, key), size=size, scale=scale)


def hamiltonian(model: Model, *, width: int = 32, depth: int = 2, key: PRNGKeyArray | None = None, size: float = 1.0,
                scale: float = 1.0) -> HamiltonianField:  # fmt: skip
    """A `HamiltonianField` that conserves its energy where nothing acts."""
    return HamiltonianField(**_parts(model, width, depth, False, key), size=size, scale=scale)


def port_hamiltonian(model: Model, *, width: int = 32, depth: int = 2, key: PRNGKeyArray | None = None, size: float = 1.0,
                     scale: float = 1.0) -> HamiltonianField:  # fmt: skip
    """A `HamiltonianField` with learned dissipation and a learned input map, which starts small."""
    base, last = jax.random.split(jax.random.key(0) if key is None else key)
    port = perceptron(model, feature_count(model), model.nv**2, width, depth, last)
    port = eqx.tree_at(lambda p: p.layers[-1], port, jax.tree.map(lambda x: 0.1 * x, port.layers[-1]))
    return HamiltonianField(**_parts(model, width, depth, True, base), size=size, scale=scale, port=port)


def _parts(model: Model, width: int, depth: int, damped: bool, key: PRNGKeyArray | None) -> dict[str, Any]:
    n, inputs = model.nv, feature_count(model)
    keys = jax.random.split(jax.random.key(0) if key is None else key, 3)
    form = perceptron(model, inputs, n * (n + 1) // 2, width, depth, keys[0])
    potential = perceptron(model, inputs, 1, width, depth, keys[1])
    inner = perceptron(model, inputs + n, n * n, width, depth, keys[2])
    damper = Damper(inner, jnp.zeros(n, model.dtype)) if damped else None
    return {"form": form, "potential": potential, "damper": damper}
