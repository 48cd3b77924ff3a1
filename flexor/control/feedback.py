"""`Feedback`: linear feedback about a state or along a trajectory, as a policy; `lqr`, `lqr_along` find its gains."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from flexor.control.riccati import riccati_along, steady
from flexor.control.tangent import displacement, tangent_size
from flexor.model.model import Model, State
from flexor.solvers import AbstractPolicy, Simulator, Trajectory, linearize


class Feedback(AbstractPolicy):
    """u = u_t + K_t x, with x the displacement of the state from the t-th of the trajectory (`fx.linearize` has the order of x),
    held within the actuators' bounds. The policy counts its steps; after the last row it keeps to that. `cost_to_go` are the
    P_t of the cost x.P_t x / 2 that is left at t, where it was found by `lqr`."""

    model: Model
    q: Float[Array, "T nq"]
    qd: Float[Array, "T nv"]
    u: Float[Array, "T nu"]
    gains: Float[Array, "T nu nx"]
    cost_to_go: Float[Array, "T nx nx"] | None = None

    def init(self, key: PRNGKeyArray | None) -> Array:
        return jnp.zeros((), jnp.int32)

    def __call__(self, state: State, memory: Array, key: PRNGKeyArray | None) -> tuple[Float[Array, " nu"], Array]:
        t = jnp.minimum(memory, len(self.u) - 1)
        q, qd, u, K = (jax.lax.dynamic_index_in_dim(x, t, keepdims=False) for x in (self.q, self.qd, self.u, self.gains))
        x = displacement(self.model, State(q, qd, state.time), State(state.q, state.qd, state.time))
        range_ = self.model.actuators.ctrl_range
        return jnp.clip(u + K @ x, range_[:, 0], range_[:, 1]), memory + 1


def lqr(sim: Simulator, state: State, u: ArrayLike, Q: ArrayLike, R: ArrayLike) -> Feedback:
    """The feedback that holds a robot at an equilibrium with the least sum of (x.Q x + du.R du) / 2 over all time.

    The motion about the equilibrium is taken to first order.
    Q has shape (nx, nx) or (nx,) for a diagonal, R likewise. Raises where (state, u) is no equilibrium, and where no feedback
    of these actuators holds it.
    """
    _check(sim)
    u = np.asarray(u, float)
    at = linearize(sim, state, u)
    drift = np.asarray(displacement(sim.model, state, at.next), float) / float(sim.dt)
    if not np.abs(drift).max() < 1e-2:
        k = int(np.argmax(np.abs(drift)))
        raise ValueError(
            f"'{sim.model.topology.name}' does not stay where `lqr` is to hold it: {_name(sim, k)} changes by "
            f"{abs(drift[k]):.3g} per second; give an equilibrium and the inputs that hold it, or use `lqr_along`."
        )
    Q, R = _weights(sim, Q, R)
    K, P, worst = steady(np.asarray(at.A, float), np.asarray(at.B, float), Q, R)
    if worst is not None:
        raise ValueError(
            f"no linear feedback holds '{sim.model.topology.name}' there: nothing that the actuators do or the weights Q ask for "
            f"reaches the motion of {_name(sim, worst)}."
        )
    dtype = sim.model.dtype
    rows = (jnp.asarray(x, dtype)[None] for x in (state.q, state.qd, u, K, P))
    return Feedback(sim.model, *rows)


def lqr_along(
    sim: Simulator, trajectory: Trajectory, Q: ArrayLike, R: ArrayLike, final: ArrayLike | None = None
) -> Feedback:
    """The feedback along a trajectory with the least sum of (x.Q x + du.R du) / 2 over its steps and x.F x / 2 at its end,
    to first order; F is `final`, Q where there is none. Contacts are those of the trajectory."""
    _check(sim)
    Q, R = _weights(sim, Q, R)
    F = Q if final is None else _weights(sim, final, R)[0]
    states = jax.vmap(lambda q, qd: sim.solver.init(sim.model, State(q, qd, jnp.zeros_like(q[0]))))(
        trajectory.q[:-1], trajectory.qd[:-1]
    )
    at = jax.vmap(lambda s, u: linearize(sim, s, u))(states, trajectory.u)
    K, P = riccati_along(np.asarray(at.A, float), np.asarray(at.B, float), Q, R, F)
    dtype = sim.model.dtype
    return Feedback(sim.model, trajectory.q[:-1], trajectory.qd[:-1], trajectory.u, jnp.asarray(K, dtype),
                    jnp.asarray(P[:-1], dtype))  # fmt: skip


def _check(sim: Simulator) -> None:
    t = sim.model.topology
    if sim.model.nu == 0:
        raise ValueError(f"'{t.name}' has no actuators, so that no feedback can hold it.")
    if t.na:
        name = next(a.name for a in t.actuators if a.dynamics != "none")
        raise ValueError(f"feedback needs the activation of actuator '{name}', which trajectories do not keep.")


def _weights(sim: Simulator, Q: Any, R: Any) -> tuple[np.ndarray, np.ndarray]:
    """Q and R as symmetric matrices, checked."""
    found = []
    sizes = {"Q": tangent_size(sim.model), "R": sim.model.nu}
    for (name, n), given in zip(sizes.items(), (Q, R), strict=True):
        x = np.asarray(given, float)
        x = np.diag(x) if x.ndim == 1 else x
        if x.shape != (n, n):
            raise ValueError(f"`{name}` must have shape ({n}, {n}) or ({n},), got {np.shape(given)}.")
        least = float(np.linalg.eigvalsh((x + x.T) / 2)[0])
        if not np.allclose(x, x.T) or least < (-1e-9 * np.abs(x).max() if name == "Q" else 1e-300):
            kind = "positive semidefinite" if name == "Q" else "positive definite"
            raise ValueError(f"`{name}` must be symmetric and {kind}; its least eigenvalue is {least:.3g}.")
        found.append((x + x.T) / 2)
    return found[0], found[1]


def _name(sim: Simulator, k: int) -> str:
    """What the k-th number of x is."""
    nv, t = sim.model.nv, sim.model.topology
    return f"{'the velocity of ' if k >= nv else ''}'{t.dof_name(k % nv)}'"
