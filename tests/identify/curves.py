"""Least-squares problems without a robot: any curve y(x, d, t) in the place of the simulation, so that searches and posterior
meet closed forms and other people's solvers, at no cost of compilation worth the name."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np

from flexor.identify.problem import Problem
from flexor.identify.segments import Segments
from flexor.model.charts import Coordinates, chart


class Curve(Problem):
    """Measured y(x, d, t) + noise. `start` maps names to (value, bounds); `truth` gives the values behind the data."""

    def __init__(
        self, y, start, truth, *, time, sigma=1e-2, runs=1, starts=None, held_out=None, noise_known=True, prior=None, seed=0
    ):
        charts = tuple(chart(name, x, bounds) for name, (x, bounds) in start.items())
        rng = np.random.default_rng(seed)
        time = np.broadcast_to(time, (runs, len(time)))
        d = np.zeros((runs, 0)) if starts is None else np.asarray(starts, float)
        clean = np.stack([np.asarray(y(truth, d[i], time[i])) for i in range(runs)])
        measured = clean + sigma * rng.normal(size=clean.shape)
        empty = np.zeros((runs, 0))
        segments = Segments(
            empty, empty, np.zeros((runs, 1, 0)), np.zeros(time.shape, int), time, measured[..., None],
            np.full((*measured.shape, 1), 1 / sigma),
        )  # fmt: skip
        no_robot = SimpleNamespace(nq=0, nv=-1, samples=0)  # coordinates that are no integrals of velocities
        sim = SimpleNamespace(model=SimpleNamespace(nv=d.shape[1] // 2, topology=no_robot), solver=None)
        apart = np.zeros(runs, bool) if held_out is None else np.asarray(held_out)
        self.y = y
        super().__init__(
            sim, Coordinates(charts, {}), segments, None, None, held_out=apart, networks=False, free_start=starts is not None,
            prior=prior, noise_known=noise_known,
        )  # fmt: skip

    def residual(self, z, d, segment):
        values = self.coordinates.values(z)
        seen = self.y(values, d, segment.ahead)
        return segment.weight * (seen[:, None] - segment.measured)

    def residuals_of(self, z, d):
        """All weighted errors of the training segments, and the pull of the starts towards the measured ones, as one vector."""
        from flexor.identify.problem import START_RIDGE

        r = self.residuals(z, d, self.segments)[np.flatnonzero(~self.held_out)].ravel()
        return jnp.concatenate([r, jnp.sqrt(START_RIDGE) * d[np.flatnonzero(~self.held_out)].ravel()])


def decay(x, d, t):
    """a exp(-b t) + c."""
    return x["a"] * jnp.exp(-x["b"] * t) + x["c"]


def wave(x, d, t):
    """sin(w t): many minima in w."""
    return jnp.sin(x["w"] * t)


def moved_wave(x, d, t):
    """A swing whose start (position, velocity) may move."""
    return (0.3 + d[0]) * jnp.cos(x["w"] * t) + (x["v"] + d[1]) * jnp.sin(x["w"] * t) / x["w"]
