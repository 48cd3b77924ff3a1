"""A record of estimates that stays small however long the stream: when it is full, every second entry goes."""

import numpy as np

from flexor.adapt.adapter import Estimate

MOST = 2000


class History:
    """Estimates at least `every` seconds of the stream apart: `time`, and of each number values and deviations."""

    def __init__(self, every: float = 0.01):
        self.every = every
        self._rows: list[tuple[float, np.ndarray, np.ndarray, float]] = []
        self.labels: tuple[str, ...] = ()

    def add(self, estimate: Estimate) -> None:
        """Keeps an estimate, where it is time for one."""
        if self._rows and estimate.time < self._rows[-1][0] + self.every:
            return
        values, deviations = estimate.named(estimate.z, estimate.covariance)
        if not self.labels:
            self.labels = tuple(label for name, x in values.items() for label in _labels(name, x))
        flat = [np.concatenate([np.ravel(x) for x in part.values()]) for part in (values, deviations)]
        self._rows.append((estimate.time, flat[0], flat[1], estimate.surprise))
        if len(self._rows) > MOST:
            self._rows = self._rows[::2]
            self.every *= 2

    @property
    def time(self) -> np.ndarray:
        return np.array([row[0] for row in self._rows])

    @property
    def surprise(self) -> np.ndarray:
        """Mean squares of the whitened innovations."""
        return np.array([row[3] for row in self._rows])

    def series(self, label: str) -> tuple[np.ndarray, np.ndarray]:
        """Values and deviations of a number over time."""
        i = self.labels.index(label)
        return np.array([row[1][i] for row in self._rows]), np.array([row[2][i] for row in self._rows])


def _labels(name: str, x: np.ndarray) -> list[str]:
    """`body.hand.com[0]` and the like."""
    return [name] if np.size(x) == 1 else [f"{name}[{i}]" for i in range(np.size(x))]
