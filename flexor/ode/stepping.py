"""Methods that carry an ordinary differential equation dy/dt = rate(t, y) over an interval; y is any pytree of arrays.

A method is an object: `RungeKutta4` takes steps of equal length, in kernels or XLA; `Adaptive` leaves length and error to
diffrax, whose adjoints say how it is differentiated.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Rate = Callable[[Any, Any], Any]
Time = float | Float[Array, ""]

METHODS = {"tsit5": "Tsit5", "dopri5": "Dopri5", "dopri8": "Dopri8", "heun": "Heun", "kvaerno5": "Kvaerno5"}
"""Methods of `Adaptive`, by diffrax's names for them; kvaerno5 is implicit, for stiff systems."""
ADJOINTS = {
    "checkpoint": "RecursiveCheckpointAdjoint",
    "direct": "DirectAdjoint",
    "backsolve": "BacksolveAdjoint",
    "forward": "ForwardMode",
}
"""Adjoints of `Adaptive`, by diffrax's names for them."""


class AbstractStepping(eqx.Module):
    """How an interval is crossed. `compilable`: whether it can be part of a SIMD kernel."""

    compilable: ClassVar[bool] = True

    @property
    def loops(self) -> bool:
        """Whether rates are computed inside a loop of JAX's, from which nothing can be recorded."""
        return True

    @abc.abstractmethod
    def advance(self, rate: Rate, t0: Time, t1: Time, y: Any) -> Any:
        """y(t1) from y = y(t0)."""


class RungeKutta4(AbstractStepping):
    """The classical method of order four in `substeps` equal steps: an error of order ((t1 - t0) / substeps)^4."""

    substeps: int = eqx.field(static=True, default=1)

    @property
    def loops(self) -> bool:
        return self.substeps > 1

    def __check_init__(self) -> None:
        if not isinstance(self.substeps, int) or self.substeps < 1:
            raise ValueError(f"`substeps` of RungeKutta4 must be a positive number of steps, got {self.substeps!r}.")

    def advance(self, rate: Rate, t0: Time, t1: Time, y: Any) -> Any:
        h = (t1 - t0) / self.substeps
        if self.substeps == 1:
            return _rk4(rate, t0, h, y)

        def step(carry: tuple[Any, Any], _: None) -> tuple[Any, None]:
            t, y = carry
            return (t + h, _rk4(rate, t, h, y)), None

        start = jnp.asarray(t0, jnp.result_type(h)), y
        return jax.lax.scan(step, start, length=self.substeps)[0][1]


def _rk4(rate: Rate, t: Any, h: Any, y: Any) -> Any:
    """One step of the classical method."""

    def moved(share: float, k: Any) -> Any:
        return jax.tree.map(lambda a, b: a + share * h * b, y, k)

    k1 = rate(t, y)
    k2 = rate(t + h / 2, moved(0.5, k1))
    k3 = rate(t + h / 2, moved(0.5, k2))
    k4 = rate(t + h, moved(1.0, k3))
    return jax.tree.map(lambda a, b1, b2, b3, b4: a + h / 6 * (b1 + 2 * b2 + 2 * b3 + b4), y, k1, k2, k3, k4)


class Adaptive(AbstractStepping):
    """diffrax with steps chosen by their estimated error, at most `most` of them; more raise.

    `adjoint` is how it is differentiated: `checkpoint` (reverse, memory grows with the root of the steps), `direct` (forward and
    reverse), `backsolve` (reverse, the continuous adjoint: constant memory, approximate), `forward` (forward mode only).
    """

    compilable: ClassVar[bool] = False
    rtol: float = eqx.field(static=True, default=1e-6)
    atol: float = eqx.field(static=True, default=1e-9)
    method: str = eqx.field(static=True, default="tsit5")
    adjoint: str = eqx.field(static=True, default="checkpoint")
    most: int = eqx.field(static=True, default=4096)

    def __check_init__(self) -> None:
        for name, value, table in (("method", self.method, METHODS), ("adjoint", self.adjoint, ADJOINTS)):
            if value not in table:
                raise ValueError(f"Adaptive has no {name} {value!r}; there are {', '.join(table)}.")
        if not (self.rtol > 0 and self.atol > 0 and self.most > 0):
            raise ValueError("`rtol`, `atol` and `most` of Adaptive must be positive.")

    def advance(self, rate: Rate, t0: Time, t1: Time, y: Any) -> Any:
        import diffrax

        pure, hidden = jax.closure_convert(
            rate, jnp.asarray(t0), y
        )  # backsolve wants what the rate closes over as arguments
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: pure(t, y, *args)),
            getattr(diffrax, METHODS[self.method])(),
            t0,
            t1,
            None,
            y,
            args=hidden,
            saveat=diffrax.SaveAt(t1=True),
            stepsize_controller=diffrax.PIDController(rtol=self.rtol, atol=self.atol),
            adjoint=getattr(diffrax, ADJOINTS[self.adjoint])(),
            max_steps=self.most,
        )
        assert solution.ys is not None
        return jax.tree.map(lambda x: x[-1], solution.ys)
