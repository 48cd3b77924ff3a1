"""Filters of recorded signals: low-pass without delay, as objects that say how long their ends are wrong."""

import abc

import equinox as eqx
import numpy as np


class AbstractFilter(eqx.Module):
    """Takes signals on an even grid of times; `rate` is in samples per second."""

    @abc.abstractmethod
    def __call__(self, x: np.ndarray, rate: float) -> np.ndarray:
        """The filtered columns of x."""

    @property
    @abc.abstractmethod
    def settling(self) -> float:
        """Seconds at both ends that are not to be used."""


class Unfiltered(AbstractFilter):
    """Leaves signals as they are."""

    def __call__(self, x: np.ndarray, rate: float) -> np.ndarray:
        return x

    @property
    def settling(self) -> float:
        return 0.0


class Butterworth(AbstractFilter):
    """Butterworth's low-pass of this order and cut-off in Hz, once forwards and once backwards: no delay, twice the order."""

    cutoff: float = 10.0
    order: int = 4

    def __call__(self, x: np.ndarray, rate: float) -> np.ndarray:
        from scipy.signal import butter, sosfiltfilt

        if not 0 < self.cutoff < rate / 2:
            raise ValueError(f"a cut-off of {self.cutoff:g} Hz needs more than {2 * self.cutoff:g} samples/s, got {rate:g}.")
        if len(x) <= 6 * self.order:
            raise ValueError(f"{len(x)} samples are too few for a filter of order {self.order}.")
        return np.asarray(sosfiltfilt(butter(self.order, self.cutoff, fs=rate, output="sos"), x, axis=0))

    @property
    def settling(self) -> float:
        return 1 / self.cutoff


class SavitzkyGolay(AbstractFilter):
    """A polynomial of this degree fitted to a moving window of that many seconds."""

    window: float = 0.1
    degree: int = 3

    def __call__(self, x: np.ndarray, rate: float) -> np.ndarray:
        from scipy.signal import savgol_filter

        length = 2 * int(self.window * rate / 2) + 1
        if length <= self.degree or length > len(x):
            raise ValueError(
                f"a window of {length} samples does not suit a polynomial of degree {self.degree}, {len(x)} samples."
            )
        return np.asarray(savgol_filter(x, length, self.degree, axis=0))

    @property
    def settling(self) -> float:
        return self.window / 2
