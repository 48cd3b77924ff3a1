"""Finite differences good enough to judge: central, fourth order, several steps, and an estimate of their own error.

The steps are small, because contact has kinks: a step must not lift a foot off the ground on which it stands 20 micrometres
deep. Truncation is of order step^4, far below rounding, which is about 1e-16 / step, times what a stiff contact makes of it.
"""

import numpy as np

OFFSETS = np.array([-2, -1, 1, 2], dtype=float)
WEIGHTS = np.array([1, -8, 8, -1]) / 12
STEPS = np.array([1e-6, 2e-7])
CLOSE = 1e-6  # difference of two estimates, absolute, that may be rounding


def stencil() -> np.ndarray:
    """All arguments t at which f(x + t d) is wanted: len(STEPS) x len(OFFSETS)."""
    return STEPS[:, None] * OFFSETS


def derivative(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """d f(x + t d)/dt at t = 0 from the values on the `stencil` (last two axes), and its uncertainty.

    A kink within reach of the larger step shows as a difference between the two estimates: then the smaller step's is used.
    If they differ by no more than rounding, the larger step's is used, which suffers less from it. The difference is the
    uncertainty in either case.
    """
    large, small = np.moveaxis(values @ WEIGHTS / STEPS, -1, 0)
    doubt = np.abs(large - small)
    return np.where(doubt <= CLOSE, large, small), doubt
