"""Where a training run lies: on one device; a share of each batch on every device of this process; or on those of all processes
that JAX has joined (`flexor.cluster.join`).

Every process has the data set and draws the same batches, of which it computes its share. Weights are the same everywhere, and
gradients are summed over all devices, so that the loss is that of one process with the same batch, to rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Placement:
    """`spread` puts a batch on all devices, a share on each; `everywhere` puts a tree on each of them, also within a program;
    `here` is a tree on this process alone."""

    spread: Callable[[Any], Any]
    everywhere: Callable[[Any], Any]
    here: Callable[[Any], Any]

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes files."""
        return jax.process_index() == 0


def placement(batch: int) -> Placement:
    """How a run with batches of so many windows lies on the devices that there are."""
    devices, processes = jax.devices(), jax.process_count()
    if processes > 1 and batch % len(devices):
        raise ValueError(
            f"a batch of {batch} windows cannot be divided among {len(devices)} devices of {processes} processes."
        )
    if len(devices) == 1 or batch % len(devices):
        return Placement(_same, _same, _same)
    mesh = jax.sharding.Mesh(np.array(devices), ("batch",))
    shared = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    if processes == 1:
        return Placement(lambda arrays: jax.device_put(arrays, shared), _same, _same)
    full = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def everywhere(tree: Any) -> Any:
        return jax.tree.map(lambda x: _global(x, full) if eqx.is_array(x) else x, tree)

    return Placement(lambda arrays: jax.tree.map(lambda x: _global(x, shared), arrays), everywhere, _here)


def _same(tree: Any) -> Any:
    return tree


def _global(x: Any, sharding: Any) -> Any:
    """An array of all processes, from one that each of them has; within a program, a demand on where a result lies."""
    if isinstance(x, jax.core.Tracer):
        return jax.lax.with_sharding_constraint(x, sharding)
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda part: whole[part])


def _here(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x.addressable_data(0))) if isinstance(x, jax.Array) else x, tree)


def check_same_step(step: int) -> None:
    """Raises where the processes have found different checkpoints."""
    if jax.process_count() == 1:
        return
    from jax.experimental.multihost_utils import process_allgather

    steps = np.asarray(process_allgather(np.asarray(step))).tolist()
    if len(set(steps)) > 1:
        raise ValueError(
            f"the processes have checkpoints of different steps, {steps}: give them one folder that all can read."
        )
