"""`HybridSolver`: any solver with networks among its quantities."""

from jaxtyping import Array, Float

from flexor.augment import Augmentation
from flexor.model.model import Control, Model, State
from flexor.solvers.solver import AbstractSolver
from flexor.taps import listen


class HybridSolver(AbstractSolver):
    """The step of `base` in which an augmentation listens. The weights are leaves, beside those of the model."""

    base: AbstractSolver
    augmentation: Augmentation

    @property
    def kernels(self) -> bool:  # type: ignore[override]
        """As the solver within."""
        return self.base.kernels

    def known(self) -> AbstractSolver:
        base, speaking = self.base.known(), self.augmentation.known()
        return HybridSolver(base, speaking) if speaking.entries else base

    def check(self, model: Model) -> None:
        self.base.check(model)
        self.augmentation.check(model)

    def init(self, model: Model, state: State) -> State:
        self.augmentation.check(model)
        return self.base.init(model, state)

    def step(self, model: Model, state: State, control: Control, dt: Float[Array, ""]) -> State:
        with listen(self.augmentation.handler(model)):
            return self.base.step(model, state, control, dt)
