"""Mocap bodies: frames on the world that are moved from outside, by `Control.mocap_pos` and `Control.mocap_quat`.

A mocap body has no joint, so its pose in the world is its row of `Bodies.pos` and `Bodies.quat`, and a step with other poses is
a step of a model with other rows. Everything that the body carries goes with it: shapes, sites, other bodies. As in MuJoCo it
has no velocity: what touches it feels a body at rest that is somewhere else in the next step.
"""

import equinox as eqx
import numpy as np
from jaxtyping import Array

from flexor.model.model import Control, Model


def with_mocap(model: Model, control: Control) -> Model:
    """The model with its mocap bodies where the control has them; the model itself if the control has no mocap poses."""
    rows = np.array(model.topology.mocap, dtype=int)
    if not len(rows):
        return model
    bodies = model.bodies

    def placed(table: Array, poses: Array | None) -> Array:
        return table if poses is None else table.at[rows].set(poses.astype(table.dtype))

    moved = placed(bodies.pos, control.mocap_pos), placed(bodies.quat, control.mocap_quat)
    if moved[0] is bodies.pos and moved[1] is bodies.quat:
        return model
    return eqx.tree_at(lambda m: (m.bodies.pos, m.bodies.quat), model, moved)
