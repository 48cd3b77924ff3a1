"""Gymnasium's MuJoCo environments under flexor's physics, by one wrapper (extra `gym`)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

try:
    import gymnasium
    from gymnasium.envs.mujoco import MujocoEnv
except ImportError as error:
    raise ImportError('this needs Gymnasium: `pip install "flexor[gym]"`.') from error

from flexor.plugins.mujoco import Physics
from flexor.solvers import AbstractSolver


class Exchanged(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """A MuJoCo environment as it is registered, moved by one of flexor's solvers.

    `whole` makes one step of the solver of one step of the environment, for learned solvers that were trained for that time;
    otherwise the solver takes as many steps as MuJoCo would. Observations, rewards and ends stay the environment's own code.
    """

    def __init__(self, env: gymnasium.Env, solver: AbstractSolver | str | Mapping[str, Any] = "ncp", *, whole: bool = False):
        gymnasium.utils.RecordConstructorArgs.__init__(self, solver=solver, whole=whole)
        super().__init__(env)
        inside = env.unwrapped
        if not isinstance(inside, MujocoEnv):
            raise TypeError(
                f"{type(inside).__name__} is not an environment of MuJoCo's, so its physics cannot be exchanged."
            )
        self.physics = Physics(inside.model, inside.data, solver, dt=inside.dt if whole else None, threads=1)
        self._whole = whole
        inside._step_mujoco_simulation = self._advance  # type: ignore[method-assign]

    def _advance(self, ctrl: np.ndarray, n_frames: int) -> None:
        """In place of `MujocoEnv._step_mujoco_simulation`, and what it computes after a step."""
        import mujoco

        physics = self.physics
        physics.d.ctrl[:] = ctrl
        physics.step(1 if self._whole else n_frames)
        mujoco.mj_rnePostConstraint(physics.m, physics.d)
