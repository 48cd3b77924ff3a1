"""`Spline`: controls over a horizon from a few knots, as linear maps of the knots."""

import equinox as eqx
import numpy as np


class Spline(eqx.Module):
    """`knots` values at equal times from the first step of a horizon to its last, and between them those of degree 0 (held), 1
    (straight lines) or 3 (cubic Hermite, slopes by central differences), as in MuJoCo MPC (Howell et al. 2022)."""

    knots: int = eqx.field(static=True, default=8)
    degree: int = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        if self.knots < 2 or self.degree not in (0, 1, 3):
            raise ValueError(f"a spline has at least 2 knots and degree 0, 1 or 3, got {self.knots} and {self.degree}.")

    def check(self, steps: int) -> None:
        """Raises where there are more knots than steps."""
        if self.knots > steps:
            raise ValueError(f"a spline of {self.knots} knots needs a horizon of as many steps, got {steps}.")

    def values(self, steps: int) -> np.ndarray:
        """W with controls = W knots, (steps, knots)."""
        return self._at(np.linspace(0, self.knots - 1, steps))

    def fitted(self, steps: int) -> np.ndarray:
        """The knots whose controls are nearest to given ones, (knots, steps)."""
        return np.linalg.pinv(self.values(steps))

    def later(self, steps: int, by: int) -> np.ndarray:
        """Knots of the controls from `by` steps later on, which end as they ended, (knots, knots)."""
        at = np.arange(self.knots) + by * (self.knots - 1) / max(steps - 1, 1)
        return self._at(np.minimum(at, self.knots - 1))

    def _at(self, s: np.ndarray) -> np.ndarray:
        """Weights of the knots at places s, in knots from the first."""
        n, eye = self.knots, np.eye(self.knots)
        if self.degree == 0:
            return eye[np.floor(s + 1e-9).astype(int)]
        k = np.minimum(np.floor(s).astype(int), n - 2)
        x = (s - k)[:, None]
        if self.degree == 1:
            return (1 - x) * eye[k] + x * eye[k + 1]
        slopes = np.gradient(eye, axis=0)
        return ((1 + 2 * x) * (1 - x) ** 2 * eye[k] + x * (1 - x) ** 2 * slopes[k]
                + x**2 * (3 - 2 * x) * eye[k + 1] + x**2 * (x - 1) * slopes[k + 1])  # fmt: skip
