"""`batched`: a function of a task and one robot for many robots, as one kernel.

The robot's own numbers are compiled in; large arrays beside them (the weights of a learned solver) are arguments that all robots
share. Physics that does not compile goes through `jax.vmap` and XLA.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from flexor import simd
from flexor.envs.task import AbstractTask

CONSTANT = 1024  # numbers of an array beside the robot's that is compiled in


def batched(f: Callable[..., Any], task: AbstractTask, *, threads: int | None = None) -> Callable[..., Any]:
    """g(shared, each) = f(task, shared, each) for every robot: `each` has a leading axis in all of its arrays, and `shared` (a
    policy's weights, or None) is the same for all. The results have the leading axis, whatever the number of threads to the same
    bits."""
    leaves, tree = jax.tree.flatten(task.simplified())
    robot = {id(x) for x in jax.tree.leaves(task.sim.model)}
    given = [k for k, x in enumerate(leaves) if eqx.is_array(x) and x.size > CONSTANT and id(x) not in robot]
    fixed = [None if k in given else x for k, x in enumerate(leaves)]

    def one(weights: list[Any], shared: Any, each: Any) -> Any:
        whole = list(fixed)
        for k, x in zip(given, weights, strict=True):
            whole[k] = x
        return f(jax.tree.unflatten(tree, whole), shared, each)

    axes = (None, None, 0)
    kernels = task.sim.simd and task.sim.solver.compilable
    many = simd.vmap(one, axes, threads=threads) if kernels else jax.jit(jax.vmap(one, axes))
    weights = [leaves[k] for k in given]
    return lambda shared, each: many(weights, shared, each)
