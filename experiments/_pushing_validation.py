"""How strong an object's own network should be, from training pushes alone.

A part of an object's training pushes is left aside, parameters and network are fitted to the others as ever, and the network's
result is scaled by several strengths before the pushes left aside are predicted. The pushes on which the experiment reports its
errors take no part.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from _pushing import Frames, Table, errors
from _pushing_model import Object, Parameters, Trainer, Training, predict, weakened

STRENGTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
PARTS = 3


def aside(table: Table) -> tuple[Table, Table]:
    """Two thirds of the pushes of a table, and the third left aside."""
    order = np.random.default_rng([7, *table.name.encode()]).permutation(len(table))
    return table.take(np.sort(np.delete(order, np.s_[::PARTS]))), table.take(np.sort(order[::PARTS]))


def strengths(
    tables: Sequence[Table],
    frames: Frames,
    bodies: dict[str, Object],
    base: dict[str, Parameters],
    empty: Any,
    how: tuple[Training, Training],
    say: Callable[[str], None],
) -> dict[str, np.ndarray]:
    """Position and angle error with every strength, as ratios to that of the surface's parameters: a (strengths, 2) array for
    each table. `how` is the training of parameters and of the network."""
    found = {}
    for surface, shape in sorted({(t.surface, t.shape) for t in tables}):
        here = [aside(t) for t in tables if (t.surface, t.shape) == (surface, shape)]
        trainer = Trainer([t for t, _ in here], frames, bodies)
        own = trainer.tune(base[surface], how[0], Parameters._fields)
        net = trainer.learn(empty, lambda _, own=own: own, how[1])
        for _, table in here:
            tuned = _means(table, predict(table, frames, bodies, base[surface], None))
            ends = [predict(table, frames, bodies, own, weakened(net, s)) for s in STRENGTHS]
            found[table.name] = np.array([_means(table, end) for end in ends]) / tuned
        say(f"{surface}/{shape}: strengths")
    return found


def _means(table: Table, end: np.ndarray) -> np.ndarray:
    distance, angle = errors(end, table.after)
    return np.array([distance.mean(), angle.mean()])
