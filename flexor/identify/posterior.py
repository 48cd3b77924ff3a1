"""What the data say about the parameters: covariance, intervals, and the combinations that they do not tell.

At the minimum the posterior of z is close to a Gaussian of covariance s^2 (J^T J)^-1, the starts of the segments eliminated
(Laplace; Bard 1974, chapter 7). s^2 is the mean square of the weighted errors where the noise was not given. Where it was, s^2
is 1, or larger if the errors are larger than the noise explains: then the model is not right, and the intervals must say so.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from flexor.identify.levenberg import schur
from flexor.identify.problem import Normal
from flexor.model.charts import Coordinates

LOOSE = 1.0  # standard deviation, in units of a chart (about 100 per cent), beyond which a combination is not identifiable
VAGUE = 1e2  # standard deviation of the prior that keeps the covariance finite there
SHOWN = 0.2  # share of a combination below which a parameter is not named


@dataclass(frozen=True)
class Combination:
    """A direction in the parameters that the data do not tell: coefficients by name, and its standard deviation."""

    coefficients: dict[str, float]
    deviation: float

    def __str__(self) -> str:
        parts = " ".join(f"{c:+.2f} {name}" for name, c in self.coefficients.items())
        spread = f"{100 * self.deviation:.0f} %" if self.deviation < 10 else "without limit"
        return f"the data do not tell {parts} (relative changes, uncertain by {spread})"


@dataclass(frozen=True, eq=False)
class Posterior:
    """Gaussian in the charts' coordinates: `z`, `covariance`. `scale` is s, `freedom` the degrees of freedom behind it."""

    coordinates: Coordinates
    z: np.ndarray
    covariance: np.ndarray
    scale: float
    freedom: int
    unidentifiable: tuple[Combination, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return self.coordinates.labels

    def intervals(self, level: float = 0.9) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """For every parameter the interval that holds it with this probability, by Student's t.

        Bounds go through the chart, so that a mass is never negative; inertias, axes and rotations, whose numbers
        move together, get theirs to first order.
        """
        if not 0 < level < 1:
            raise ValueError(f"`level` must lie between 0 and 1, got {level}.")
        reach = stats.t.ppf(0.5 + level / 2, max(self.freedom, 1))
        found, at = {}, 0
        for chart in self.coordinates.charts:
            rows = slice(at, at + chart.size)
            at += chart.size
            z, cov = self.z[rows], self.covariance[rows, rows]
            if chart.monotone:
                spread = reach * np.sqrt(np.diag(cov))
                low, high = (np.asarray(chart.value(jnp.asarray(z + sign * spread))) for sign in (-1, 1))
            else:
                J = np.asarray(jax.jacfwd(chart.value)(jnp.asarray(z)))
                spread = reach * np.sqrt(np.einsum("ij,jk,ik->i", J, cov, J))
                middle = np.asarray(chart.value(jnp.asarray(z)))
                low, high = middle - spread, middle + spread
            found[chart.name] = low, high
        return found

    def deviations(self) -> dict[str, float]:
        """Standard deviation of each coordinate: about the relative uncertainty of the parameter."""
        return dict(zip(self.labels, np.sqrt(np.diag(self.covariance)).tolist(), strict=True))


def posterior(
    coordinates: Coordinates, z: np.ndarray, normal: Normal, count: int, trains: np.ndarray, noise_known: bool
) -> Posterior:
    """The posterior at the minimum, from `count` measurements in the segments that `trains` marks."""
    n = coordinates.size
    inverse = jnp.linalg.inv(normal.C)
    H = np.asarray(schur(normal, inverse, normal.A)[0])
    starts = int(trains.sum()) * normal.h.shape[1]
    freedom = max(count - H.shape[0] - starts, 1)
    variance = 2 * float(normal.cost) / freedom
    if noise_known:
        variance = max(1.0, variance)
    precision = H / max(variance, 1e-300)
    covariance = np.linalg.inv(precision + np.eye(len(H)) / VAGUE**2)[:n, :n]
    covariance = (covariance + covariance.T) / 2
    return Posterior(
        coordinates, np.asarray(z)[:n], covariance, float(np.sqrt(variance)), freedom if not noise_known else 10**6,
        _unidentifiable(coordinates.labels, covariance),
    )  # fmt: skip


def _unidentifiable(labels: tuple[str, ...], covariance: np.ndarray) -> tuple[Combination, ...]:
    variances, directions = np.linalg.eigh(covariance) if len(covariance) else (np.zeros(0), np.zeros((0, 0)))
    found = []
    for variance, v in sorted(zip(variances, directions.T, strict=True), key=lambda pair: -pair[0]):
        if np.sqrt(variance) > LOOSE:
            v = v * np.sign(v[np.argmax(np.abs(v))])
            order = [i for i in np.argsort(-np.abs(v)) if abs(v[i]) >= SHOWN]
            found.append(Combination({labels[i]: float(v[i]) for i in order}, float(np.sqrt(variance))))
    return tuple(found)
