"""The interface of estimators: options, and what runs.

An estimator is data (`MomentumRLS(memory=30.0)`); `start` gives the part with a state, which the adapter feeds. Parameters are
the charts' numbers z (`flexor.model.charts`), so that every estimate is a robot that can exist, with their covariance.
"""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from flexor.adapt.stream import Sample
from flexor.model.charts import Coordinates
from flexor.model.model import Model
from flexor.simd import Direct
from flexor.solvers import Simulator


class Innovation(NamedTuple):
    """What a sample had to say beyond the prediction: `error` in the units of what was predicted, `deviation` as it was expected,
    and `whitened`, which are standard normal numbers while the model is right."""

    error: np.ndarray
    deviation: np.ndarray
    whitened: np.ndarray


class AbstractRunning(abc.ABC):
    """An estimator at work. `z` and `covariance` are its estimate in the charts; `predicted` names what innovations are of."""

    z: np.ndarray
    covariance: np.ndarray
    predicted: tuple[str, ...]
    delay: float = 0.0
    """By how much an innovation looks back, in s."""
    restarts: int = 0
    """How often its numbers broke down and it began anew."""

    @abc.abstractmethod
    def take(self, sample: Sample) -> Innovation | None:
        """Uses a sample; the innovation, where there is a new one."""

    @abc.abstractmethod
    def forget(self) -> None:
        """The robot changed: what was learnt counts for no more than a guess."""


class AbstractEstimator(eqx.Module):
    """Options of an estimator."""

    @abc.abstractmethod
    def start(
        self, sim: Simulator, place: Coordinates, columns: Sequence[str], noise: np.ndarray, prior: np.ndarray | None
    ) -> AbstractRunning:
        """The estimator at work: `columns` are measured with the deviations `noise`; `prior` are deviations of z, in units of the
        charts. The simulator is in double precision. Everything that is compiled is compiled here."""

    @abc.abstractmethod
    def estimable(self, model: Model, name: str) -> bool:
        """Whether this estimator can find the parameter with this name."""


class Columns(NamedTuple):
    """Which reading is which: places in `measured` of every coordinate and velocity, -1 where it is not measured."""

    q: np.ndarray
    qd: np.ndarray

    @staticmethod
    def of(model: Model, columns: Sequence[str]) -> "Columns":
        """Raises for columns that the robot does not have."""
        t, names = model.topology, list(columns)
        own_q, own_v = [f"q.{t.q_name(i)}" for i in range(t.nq)], [f"qd.{t.dof_name(i)}" for i in range(t.nv)]
        unknown = [c for c in names if c not in own_q and c not in own_v]
        if unknown:
            raise ValueError(f"'{t.name}' has no column '{unknown[0]}'; it has {', '.join((*own_q, *own_v))}.")
        if len(set(names)) < len(names):
            raise ValueError(f"a column is named twice: {next(c for c in names if names.count(c) > 1)}.")
        place = {c: i for i, c in enumerate(names)}
        return Columns(np.array([place.get(c, -1) for c in own_q], int), np.array([place.get(c, -1) for c in own_v], int))


def all_columns(model: Model) -> tuple[str, ...]:
    """Every coordinate and velocity."""
    t = model.topology
    return (*(f"q.{t.q_name(i)}" for i in range(t.nq)), *(f"qd.{t.dof_name(i)}" for i in range(t.nv)))


class Program:
    """A function as a kernel over NumPy arrays of its own: a call copies its arguments in, and gives the outputs, which the next
    call overwrites. `lanes`: the arguments with these places have a row for each lane of `size`, and outputs too."""

    def __init__(self, f: Any, *examples: Any, size: int | None = None, lanes: Sequence[int] = ()):
        reason = Direct.unsupported()
        if reason:
            raise ValueError(f"adaptation needs kernels, and there are none on this machine: {reason}.")
        shapes = [jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype) for x in examples]
        shared = None if size is None else tuple(k not in lanes for k in range(len(shapes)))
        with jax.enable_x64(True):
            self._program = Direct(f, *shapes, shared=shared, size=size, threads=1)
        self.inputs, self.outputs, self._run = self._program.inputs, self._program.outputs, self._program.run

    def __call__(self, *values: Any) -> list[np.ndarray]:
        for mine, x in zip(self.inputs, values, strict=False):
            mine[...] = x
        self._run()
        return self.outputs


class Named:
    """Values of the free parameters by name, with their derivatives by z."""

    def __init__(self, place: Coordinates):
        def both(z: Any) -> Any:
            def flat(z: Any) -> Any:
                found = place.values(z)
                return jax.numpy.concatenate([found[n].ravel() for n in self.names])

            return flat(z), jax.jacfwd(flat)(z)

        self.names = tuple(c.name for c in place.charts)
        self.shapes = {c.name: np.shape(c.first) for c in place.charts}
        self._program = Program(both, place.start)

    def __call__(self, z: np.ndarray, covariance: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Values and standard deviations, to first order."""
        flat, J = self._program(z)
        deviation = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", J, covariance, J), 0.0))
        values, deviations, at = {}, {}, 0
        for name in self.names:
            n = int(np.prod(self.shapes[name], dtype=int))
            values[name] = flat[at : at + n].reshape(self.shapes[name]).copy()
            deviations[name] = deviation[at : at + n].reshape(self.shapes[name])
            at += n
        return values, deviations
