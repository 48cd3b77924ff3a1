"""States as vectors: small displacements from a state, and the displacement between two; the x of `fx.linearize`."""

import dataclasses
from typing import TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.dynamics import difference, integrate
from flexor.model.model import Model, State

S = TypeVar("S", bound=State)


def tangent_size(model: Model) -> int:
    """nx: two numbers for each degree of freedom and one for each activation."""
    return 2 * model.nv + model.topology.na


def moved(model: Model, state: State, x: Float[Array, " nx"]) -> State:
    """The state after a displacement: of q in the tangent space (`integrate`), of qd, and of the activations."""
    nv = model.nv
    new = dataclasses.replace(state, q=integrate(model, state.q, x[:nv]), qd=state.qd + x[nv : 2 * nv])
    return new if state.act is None else dataclasses.replace(new, act=state.act + x[2 * nv :])


def displacement(model: Model, start: State, end: State) -> Float[Array, " nx"]:
    """The x with moved(start, x) = end."""
    parts = [difference(model, start.q, end.q), end.qd - start.qd]
    if start.act is not None and end.act is not None:
        parts.append(end.act - start.act)
    return jnp.concatenate(parts)
