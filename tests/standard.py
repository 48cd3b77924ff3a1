"""optax adds integers to floats in its own code: what it computes keeps JAX's standard rules where the suite is strict."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import optax

OPTIMISERS = ("adam", "adamw", "chain", "lbfgs")
SCHEDULES = ("cosine_decay_schedule", "linear_schedule")


def install() -> None:
    """From now on optimisers and schedules of optax compute by standard rules."""
    for name in (*OPTIMISERS, *SCHEDULES):
        setattr(optax, name, _made_standard(getattr(optax, name)))


def _made_standard(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        value = make(*args, **kwargs)
        if isinstance(value, tuple):
            return value._replace(init=_standard(value.init), update=_standard(value.update))
        return _standard(value)

    return made


def _standard(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    return call
