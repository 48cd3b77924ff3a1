"""What the data say about the parameters: covariance, intervals, and the combinations that they do not determine.

At the minimum the posterior of z is close to a Gaussian of covariance s^2 (J^T J)^-1, the starts of the segments eliminated
(Laplace; Bard 1974, chapter 7). s^2 is the mean square of the weighted errors where the noise was not given. Where it was, s^2
is 1, or larger if the errors are larger than the noise explains: then the model is not right, and the intervals must say so.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from flexor.identify.levenberg import schur
from flexor.identify.problem import Normal
from flexor.model.charts import Coordinates

LOOSE = 1.0  # standard deviation, in units of a chart (about 100 per cent), beyond which a combination is not identifiable
VAGUE = 1e2  # standard deviation of the prior that keeps the covariance finite there
ALONE = 0.95  # share of a parameter that lies in what is not identifiable, from which it is named by itself
SHOWN = 0.2  # share of a combination below which a parameter is not named


@dataclass(frozen=True)
class Combination:
    """A direction in the parameters that the data do not determine: coefficients by name, and its standard deviation."""

    coefficients: dict[str, float]
    deviation: float

    def __str__(self) -> str:
        spread = f"by {100 * self.deviation:.0f} %" if self.deviation < 10 else "without limit"
        if len(self.coefficients) == 1:
            return f"the data do not determine {next(iter(self.coefficients))} (uncertain {spread})"
        parts = " ".join(f"{c:+.2f} {name}" for name, c in self.coefficients.items())
        return f"the data do not determine {parts} (relative changes, uncertain {spread})"


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
        from scipy.special import stdtrit

        if not 0 < level < 1:
            raise ValueError(f"`level` must lie between 0 and 1, got {level}.")
        reach = stdtrit(max(self.freedom, 1), 0.5 + level / 2)
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

    def sentences(self) -> list[str]:
        """What the data do not determine: single parameters in one sentence, combinations in one each."""
        alone = [next(iter(c.coefficients)) for c in self.unidentifiable if len(c.coefficients) == 1]
        together = [str(c) for c in self.unidentifiable if len(c.coefficients) > 1]
        if len(alone) < 2:
            return [str(c) for c in self.unidentifiable]
        return [f"the data say nothing about {', '.join(alone[:-1])} and {alone[-1]}", *together]

    def deviations(self) -> dict[str, float]:
        """Standard deviation of each coordinate: about the relative uncertainty of the parameter."""
        return dict(zip(self.labels, np.sqrt(np.diag(self.covariance)).tolist(), strict=True))


def posterior(
    coordinates: Coordinates, z: np.ndarray, normal: Normal, count: int, trains: np.ndarray, noise_known: bool,
    prior: np.ndarray | None = None,
) -> Posterior:  # fmt: skip
    """The posterior at the minimum, from `count` measurements in the segments that `trains` marks; `prior` is the prior
    precision of every number in z, which the normal equations already contain."""
    n = coordinates.size
    inverse = jnp.linalg.inv(normal.C)
    H = np.asarray(schur(normal, inverse, normal.A)[0])
    starts = int(trains.sum()) * normal.h.shape[1]
    freedom = max(count - H.shape[0] - starts, 1)
    variance = 2 * float(normal.cost) / freedom
    if noise_known:
        variance = max(1.0, variance)
    believed = np.zeros(len(H)) if prior is None else prior
    precision = (H - np.diag(believed)) / max(variance, 1e-300) + np.diag(believed)
    sizes, directions = np.linalg.eigh((precision + precision.T) / 2)
    # rounding may make an eigenvalue that should be zero negative; the vague prior keeps all of them positive
    covariance = (directions / (np.maximum(sizes, 0.0) + VAGUE**-2) @ directions.T)[:n, :n]
    z = np.asarray(z)[:n]
    return Posterior(
        coordinates, z, covariance, float(np.sqrt(variance)), freedom if not noise_known else 10**6,
        _unidentifiable(coordinates, z, covariance),
    )  # fmt: skip


def _slopes(coordinates: Coordinates, z: np.ndarray) -> np.ndarray:
    """Change of each parameter, in its unit, with its own number in z; 1 for those whose numbers move together."""
    made, at = [], 0
    for chart in coordinates.charts:
        here = jnp.asarray(z[at : at + chart.size])
        at += chart.size
        slope = jax.jvp(chart.value, (here,), (jnp.ones_like(here),))[1].ravel() if chart.monotone else here
        made.append(np.asarray(slope) / chart.unit if chart.monotone else np.ones(chart.size))
    return np.concatenate([*made, np.zeros(0)])


def _unidentifiable(coordinates: Coordinates, z: np.ndarray, covariance: np.ndarray) -> tuple[Combination, ...]:
    """Directions of large variance, in relative changes of the parameters: a parameter at a bound or at zero counts as
    determined, although its number in z is not."""
    labels, slopes = coordinates.labels, _slopes(coordinates, z)
    relative = covariance * slopes[:, None] * slopes
    variances, directions = np.linalg.eigh(relative) if len(relative) else (np.zeros(0), np.zeros((0, 0)))
    found = []
    for v in _sparse_basis(directions[:, np.sqrt(np.maximum(variances, 0.0)) > LOOSE]):
        v = v * np.sign(v[np.argmax(np.abs(v))])
        order = [i for i in np.argsort(-np.abs(v), kind="stable") if abs(v[i]) >= SHOWN]
        found.append(Combination({labels[i]: float(v[i]) for i in order}, float(np.sqrt(v @ relative @ v))))
    return tuple(sorted(found, key=lambda c: -c.deviation))


def _sparse_basis(span: np.ndarray) -> list[np.ndarray]:
    """Unit vectors of few parameters that span the same space as the columns: first those parameters that lie in it alone, then
    the rest by elimination with pivots, so that every vector has a number of its own."""
    n = len(span)
    alone = np.linalg.norm(span, axis=1) > ALONE
    rest = np.where(alone[:, None], 0.0, span)
    left, sizes, _ = np.linalg.svd(rest, full_matrices=False)
    rows = left[:, sizes > 0.5].T.copy()
    for k in range(len(rows)):
        i, j = (int(x) for x in np.unravel_index(np.argmax(np.abs(rows[k:])), rows[k:].shape))
        rows[[k, k + i]] = rows[[k + i, k]]
        rows[k] /= rows[k, j]
        others = np.arange(len(rows)) != k
        rows[others] -= rows[others][:, [j]] * rows[k]
    return [*np.eye(n)[alone], *(row / np.linalg.norm(row) for row in rows)]
