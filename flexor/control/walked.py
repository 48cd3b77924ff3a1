"""`Walked`: how well a quadruped walked, from its trajectory."""

from typing import NamedTuple

import numpy as np

from flexor.control.quadruped import Quadruped


class Walked(NamedTuple):
    """Mean velocity forwards and to the left, in m/s, and mean rate of turning in rad/s; and whether, and when (s), it fell: its
    trunk was lower than half its height, or tilted by more than a right angle."""

    velocity: np.ndarray
    fell: bool
    when: float

    @staticmethod
    def of(robot: Quadruped, time: np.ndarray, q: np.ndarray, qd: np.ndarray, *, after: float = 1.0) -> "Walked":
        """From rows of times, coordinates and velocities; means are of what came `after` the first seconds."""
        time, q, qd = (np.asarray(x, float) for x in (time, q, qd))
        level = float(robot.legs.level(robot.model))
        up = 1 - 2 * (q[:, 4] ** 2 + q[:, 5] ** 2)
        low = q[:, 2] - level < (robot.stand[2] - level) / 2
        down = low | (up < 0) | ~np.isfinite(q).all(axis=1)
        yaw = np.unwrap(np.arctan2(2 * (q[:, 3] * q[:, 6] + q[:, 4] * q[:, 5]), 1 - 2 * (q[:, 5] ** 2 + q[:, 6] ** 2)))
        late = time - time[0] >= min(after, (time[-1] - time[0]) / 2)
        c, s, v = np.cos(yaw[late]), np.sin(yaw[late]), qd[late]
        rate = (yaw[late][-1] - yaw[late][0]) / (time[late][-1] - time[late][0])
        velocity = np.array([np.mean(c * v[:, 0] + s * v[:, 1]), np.mean(c * v[:, 1] - s * v[:, 0]), rate])
        return Walked(velocity, bool(down.any()), float(time[np.argmax(down)]) if down.any() else float("nan"))
