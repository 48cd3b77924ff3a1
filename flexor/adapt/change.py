"""Is the model still right? Normalised innovations, and sums of them that notice what single ones do not show.

With innovations e of covariance S, whitened v = S^-1/2 e are independent standard normal numbers while the model is right, and
v . v follows chi^2 with n degrees of freedom. Two cumulative sums (Page 1954) watch them:

    spread    g <- max(0, g + min(((v . v)/n - 1) sqrt(n/2), clip) - drift)                 larger than they should be
    shift     g_i <- max(0, g_i + clip(v_i) - drift), and the same of -v_i                  on one side of zero for long

An alarm is raised where a sum reaches `limit`; all of them then begin anew. One outlier cannot do it, for each sample counts
for `clip` at most. The time of the change is where the sum last left zero.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Alarm:
    """The model stopped explaining the measurements: noticed at `time`, begun at about `since`, by which of the sums, and how far
    from zero each innovation was then."""

    time: float
    since: float
    kind: str
    innovation: np.ndarray

    def __str__(self) -> str:
        what = {"spread": "larger than their noise", "shift": "on one side of zero"}[self.kind]
        return f"at {self.time:.2f} s: predictions have been off since {self.since:.2f} s, {what}"


class Detector:
    """The sums of one stream. `drift` and `limit` in standard deviations."""

    def __init__(self, count: int, *, drift: float = 1.0, limit: float = 10.0, clip: float = 6.0):
        if not (drift > 0 and limit > 0 and clip > drift):
            raise ValueError(f"a detector needs 0 < drift < clip and limit > 0, got {drift}, {clip}, {limit}.")
        self.drift, self.limit, self.clip, self.count = drift, limit, clip, count
        self.reset(0.0)

    def reset(self, time: float) -> None:
        """Begins anew."""
        self.sums = np.zeros(1 + 2 * self.count)
        self._since = np.full(1 + 2 * self.count, time)

    def update(self, time: float, innovation: np.ndarray) -> Alarm | None:
        """Takes whitened innovations; nan where nothing was measured."""
        v = np.where(np.isfinite(innovation), innovation, 0.0)
        n = max(1, int(np.isfinite(innovation).sum()))
        spread = min((v @ v / n - 1) * np.sqrt(n / 2), self.clip)
        v = np.clip(v, -self.clip, self.clip)
        self._since[self.sums == 0] = time
        self.sums = np.maximum(0.0, self.sums + np.concatenate([[spread], v, -v]) - self.drift)
        worst = int(np.argmax(self.sums))
        if self.sums[worst] < self.limit:
            return None
        alarm = Alarm(time, float(self._since[worst]), "shift" if worst else "spread", np.array(innovation))
        self.reset(time)
        return alarm


class Conformal:
    """An interval for the next number of a stream that covers a share of them whatever their distribution: its half width
    follows the errors (adaptive conformal inference, Gibbs & Candes 2021; quantile tracking, Angelopoulos et al. 2023),

        width <- width + rate scale (miss - (1 - share)),

    with `miss` 1 where the last one was outside, and `scale` the largest error of late."""

    def __init__(self, count: int, *, share: float = 0.9, rate: float = 0.05):
        if not 0 < share < 1:
            raise ValueError(f"`share` must lie between 0 and 1, got {share}.")
        self.share, self.rate = share, rate
        self.width, self._scale = np.zeros(count), np.zeros(count)

    def update(self, error: np.ndarray) -> np.ndarray:
        """Takes errors of prediction, nan where there are none; the half widths for the next ones."""
        size = np.abs(np.where(np.isfinite(error), error, 0.0))
        self._scale = np.maximum(0.99 * self._scale, size)
        step = self.rate * self._scale * ((size > self.width) - (1 - self.share))
        self.width = np.where(np.isfinite(error), np.maximum(0.0, self.width + step), self.width)
        return self.width
