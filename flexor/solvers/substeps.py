"""`Substeps`: several steps of another solver as one."""

from typing import ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, Float

from flexor.model.model import Control, Model, State
from flexor.solvers.solver import AbstractSolver


class Substeps(AbstractSolver):
    """A step of dt is `count` steps of dt / count by `base`, under the same control."""

    base: AbstractSolver
    count: int = eqx.field(static=True)
    kernels: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"the number of substeps must be positive, got {self.count}.")
        if not self.base.kernels:
            raise ValueError(f"{type(self.base).__name__} cannot be substepped: its steps are not JAX throughout.")

    def check(self, model: Model) -> None:
        self.base.check(model)

    def init(self, model: Model, state: State) -> State:
        return self.base.init(model, state)

    def step(self, model: Model, state: State, control: Control, dt: Float[Array, ""]) -> State:
        def once(state: State, _: None) -> tuple[State, None]:
            return self.base.step(model, state, control, dt / self.count), None

        return jax.lax.scan(once, state, length=self.count)[0]
