"""What reverse mode keeps of a step instead of solving for it again: accelerations and impulses; the rest is recomputed."""

from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

_NAME = "flexor.solution"


def kept(x: Array) -> Array:
    """x, marked as a solution."""
    return checkpoint_name(x, _NAME)


def keep_solutions() -> Any:
    """The policy of `jax.checkpoint` that keeps only what is marked."""
    return jax.checkpoint_policies.save_only_these_names(_NAME)
