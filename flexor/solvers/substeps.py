"""`Substeps`: several short steps of another solver in one step."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flexor.model.model import Control, Model, State
from flexor.solvers.solver import AbstractWrapper, class_name
from flexor.taps import TAPS, collect_in_loop, record


class Substeps(AbstractWrapper):
    """A step of dt is `count` steps of dt / count by `base`, under the same control.

    A recorded quantity is that of the last substep, a force the mean over the substeps (`Tap.mean`).
    """

    count: int = eqx.field(static=True)

    @property
    def passive(self) -> bool:  # type: ignore[override]
        """As the solver within."""
        return self.base.passive

    def __check_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"the number of substeps must be positive, got {self.count}.")
        if not self.base.differentiable:
            raise ValueError(f"{class_name(self.base)} cannot be substepped: its steps are not JAX throughout.")

    def check(self, model: Model, dt: float | None) -> None:
        self.base.check(model, None if dt is None else dt / self.count)

    def shortest_step(self, dt: float) -> float:
        return self.base.shortest_step(dt / self.count)

    def step(self, model: Model, state: State, control: Control, dt: Float[Array, ""]) -> State:
        names: list[str] = []  # in the order of computation, which a dictionary loses in the scan

        def substep(state: State, _: None) -> tuple[State, list[Array]]:
            new, recorded = collect_in_loop(self.base.step)(model, state, control, dt / self.count)
            names[:] = recorded
            return new, list(recorded.values())

        final, values = jax.lax.scan(substep, state, length=self.count)
        record({n: jnp.mean(x, axis=0) if TAPS[n].mean else x[-1] for n, x in zip(names, values, strict=True)})
        return final
