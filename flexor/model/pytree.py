"""`Pytree`: Equinox's modules with Python's own bound methods."""

from typing import TYPE_CHECKING

import equinox as eqx


class Pytree(eqx.Module):
    """A module whose methods are ordinary bound methods: they are hashable, by the identity of their object, so that
    `jax.jit(sim.step)` works; and attributes are read at Python's own speed. Equinox's methods are pytrees, made at every access.
    """

    if not TYPE_CHECKING:
        __getattribute__ = object.__getattribute__
