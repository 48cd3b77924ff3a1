"""Base parameters: the combinations of inertial parameters that motion can show at all.

Torques are Y pi, and some columns of Y depend on others in every motion: the first link of a fixed arm only shows its inertia
about the joint. From random instants, columns are taken one after the other as long as they are independent of those before; a
column that is not, Y_d = Y_b K, adds its parameter to theirs (Gautier 1991):

    Y pi = Y_b (pi_b + K pi_d)

so that every base parameter has a name that can be read: `link2.m + 3.1 link3.mz`.
"""

from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from flexor.dynamics import inertial_names, inertial_parameters, random_state
from flexor.identify.torque_rows import torque_rows
from flexor.model.model import Model


class BaseParameters(NamedTuple):
    """`K` takes all parameters to the base ones, beta = K pi; `independent` are the columns of Y whose coefficients they are.
    Armatures stand behind the inertial parameters."""

    names: tuple[str, ...]
    independent: np.ndarray
    K: Float[np.ndarray, "nb n"]
    parameters: tuple[str, ...]

    def of(self, model: Model) -> Float[np.ndarray, " nb"]:
        """The base parameters of a robot of the same topology and frames."""
        armature = np.asarray(model.joints.armature, float)[model.topology.dof_joint]
        return np.asarray(self.K @ np.concatenate([np.asarray(inertial_parameters(model), float), armature]))


def base_parameters(
    model: Model, *, instants: int = 256, seed: int = 0, tolerance: float = 1e-8, small: float = 1e-6
) -> BaseParameters:
    """Base parameters of a robot, from random instants within its joints' limits.

    A column counts as dependent if `tolerance` of its length is left beside those before it; coefficients below `small` are left
    out of the names.
    """
    with jax.enable_x64(True):
        model = model.astype(np.float64)
        states = jax.jit(jax.vmap(partial(random_state, model)))(jax.random.split(jax.random.key(seed), instants))
        q, qd = np.asarray(states.q), np.asarray(states.qd)
        qdd = np.random.default_rng(seed).normal(size=qd.shape)
        Y, _ = torque_rows(model, q, qd, qdd)
    turn = qdd[:, :, None] * np.eye(model.nv)
    W = np.concatenate([Y, turn], axis=2).reshape(-1, Y.shape[2] + model.nv)
    dofs = [model.topology.dof_name(i) for i in range(model.nv)]
    return reduced(W, (*inertial_names(model), *(f"{dof}.armature" for dof in dofs)), tolerance, small)


def reduced(W: np.ndarray, parameters: tuple[str, ...], tolerance: float, small: float) -> BaseParameters:
    """Independent columns of a regressor, from left to right, and what the others add to them."""
    scale = np.linalg.norm(W, axis=0)
    basis = np.zeros((len(W), 0))
    independent: list[int] = []
    for j in np.flatnonzero(scale > tolerance * scale.max(initial=0.0)):
        column = W[:, j] / scale[j]
        for _ in range(2):  # twice is enough for orthogonality to machine precision
            column = column - basis @ (basis.T @ column)
        if np.linalg.norm(column) > tolerance:
            basis = np.concatenate([basis, (column / np.linalg.norm(column))[:, None]], axis=1)
            independent.append(int(j))
    K = np.linalg.lstsq(W[:, independent], W, rcond=None)[0] if independent else np.zeros((0, W.shape[1]))
    K[np.abs(K) < small] = 0.0
    return BaseParameters(tuple(_name(row, parameters, j) for row, j in zip(K, independent, strict=True)),
                          np.array(independent, int), K, parameters)  # fmt: skip


def _name(row: np.ndarray, parameters: tuple[str, ...], own: int) -> str:
    """`link.mx + 0.4 hand.m - tool.my`, the column's own parameter first."""
    words = [parameters[own]]
    for k in (k for k in np.flatnonzero(row) if k != own):
        size = "" if abs(abs(row[k]) - 1) < 1e-9 else f"{abs(row[k]):.4g} "
        words.append(f"{'-' if row[k] < 0 else '+'} {size}{parameters[k]}")
    return " ".join(words)
